/* Which targets have an instruction: the "Target ISA Notes" of the PTX ISA 9.0, for families newer than sm_80. As
 * ptxas does, the decoder rejects an instruction that the module's .target lacks.
 *
 * sm_XXa has the features of its architecture and of its family. sm_XXf has those of the family from that member on.
 * A target without suffix has only what every later architecture has. */
#include <stdlib.h>
#include <string.h>

#include "ptx/syntax.h"

#define TENSOR_FAMILIES "100f 110f"
#define NEW_FAMILIES    "100f 110f 120f"

/* An instruction with all of these modifiers (`kind::*`: one that begins so) needs sm_`least`, or one of `specific`:
 * 100f is sm_100f or a later one of its family, 100a is sm_100a and no other. */
static const struct rule {
    const char *opcode; /* NULL: any */
    const char *modifiers;
    int least; /* 0: `specific` only */
    const char *specific;
} rules[] = {
    {"mbarrier", "", 80, ""},
    {"mbarrier", "try_wait", 90, ""},
    {"mbarrier", "expect_tx", 90, ""},
    {"mbarrier", "complete_tx", 90, ""},
    {"mbarrier", "relaxed", 90, ""},
    {"mbarrier", "cluster", 90, ""},
    {"mbarrier", "shared::cluster", 90, ""},
    {"cp", "async bulk", 90, ""},
    {"cp", "async bulk cp_mask", 100, ""},
    {"cp", "async bulk tile::gather4", 100, ""},
    {"cp", "async bulk tile::gather4 shared::cluster", 0, TENSOR_FAMILIES},
    {"cp", "async bulk prefetch tile::gather4", 0, TENSOR_FAMILIES},
    {"cp", "async bulk tile::scatter4", 0, TENSOR_FAMILIES},
    {"cp", "async bulk cta_group::*", 0, TENSOR_FAMILIES},
    {"st", "async", 90, ""},
    {"st", "async global", 100, ""},
    {"st", "async release", 100, ""},
    {"st", "bulk", 100, ""},
    {"red", "async", 90, ""},
    {"red", "async global", 100, ""},
    {"red", "async release", 100, ""},
    {"prefetch", "tensormap", 90, ""},
    {"tensormap", "replace", 0, "90a " NEW_FAMILIES},
    {"tensormap", "replace swizzle_atomicity", 0, NEW_FAMILIES},
    {"tensormap", "cp_fenceproxy", 90, ""},
    {"mapa", "", 90, ""},
    {"getctarank", "", 90, ""},
    {"barrier", "cluster", 90, ""},
    {"clusterlaunchcontrol", "", 100, ""},
    {"clusterlaunchcontrol", "multicast::cluster::all", 0, NEW_FAMILIES},
    {"fence", "proxy async", 90, ""},
    {"fence", "proxy async::generic", 90, ""},
    {"fence", "proxy tensormap::generic", 90, ""},
    {"fence", "mbarrier_init", 90, ""},
    {"fence", "cluster", 90, ""},
    {"fence", "acquire", 90, ""},
    {"fence", "release", 90, ""},
    {"elect", "", 90, ""},
    {"griddepcontrol", "", 90, ""},
    {"setmaxnreg", "", 0, "90a " NEW_FAMILIES},
    {"redux", "f32", 0, "100f"},
    {"stmatrix", "", 90, ""},
    {"stmatrix", "b8", 0, NEW_FAMILIES},
    {"ldmatrix", "b8", 0, NEW_FAMILIES},
    {"ldmatrix", "b8x16", 0, NEW_FAMILIES},
    {"mma", "e4m3", 89, ""},
    {"mma", "e5m2", 89, ""},
    {"mma", "kind::*", 0, "120f"},
    {"mma", "block_scale", 0, "120f"},
    {"mma", "e2m1", 0, "120f"},
    {"mma", "e2m3", 0, "120f"},
    {"mma", "e3m2", 0, "120f"},
    {"wgmma", "", 0, "90a"},
    {"tcgen05", "", 0, TENSOR_FAMILIES},
    {"tcgen05", "shift", 0, "100a 103a 110a"},
    {"tcgen05", "kind::i8", 0, "100a 110a"},
    {"tcgen05", "ld red", 0, "103f 110f"},
    {"cvt", "e4m3x2", 89, ""},
    {"cvt", "e5m2x2", 89, ""},
    {"cvt", "e4m3x2 bf16x2", 0, NEW_FAMILIES},
    {"cvt", "e5m2x2 bf16x2", 0, NEW_FAMILIES},
    {"cvt", "e2m1x2", 0, NEW_FAMILIES},
    {"cvt", "e2m3x2", 0, NEW_FAMILIES},
    {"cvt", "e3m2x2", 0, NEW_FAMILIES},
    {"cvt", "ue8m0x2", 0, NEW_FAMILIES},
    {"cvt", "rs", 0, "100a 103a"},
    {NULL, "f32x2", 100, ""},
};

static int family_of(int sm) {
    switch (sm) {
    case 103:
        return 100;
    case 101: /* as PTX before 9.0 calls sm_110 */
        return 110;
    case 121:
        return 120;
    default:
        return sm;
    }
}

static int has_specific(const module *m, const char *specific) {
    while (*specific) {
        char *end;
        int sm = (int)strtol(specific, &end, 10), own = m->sm == 101 ? 110 : m->sm;
        if (*end == 'a' && m->suffix == 'a' && own == sm) return 1;
        if (*end == 'f' && m->suffix && family_of(own) == family_of(sm) && own >= sm) return 1;
        specific = end + 1;
        while (*specific == ' ') specific++;
    }
    return 0;
}

void need_target(decoder *d, int least, const char *specific, const char *what) {
    const module *m = d->module;
    if ((least && m->sm >= least) || has_specific(m, specific)) return;
    if (least) reject(d, "%s needs .target sm_%d or later; the file's is %s", what, least, m->target);
    char list[64] = "";
    for (const char *at = specific; *at; at += strcspn(at, " "), at += *at == ' ') {
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%ssm_%.*s", used ? ", " : "", (int)strcspn(at, " "), at);
    }
    reject(d, "%s needs one of the targets %s%s; the file's is %s", what, list,
           strchr(specific, 'f') ? " (f: or a later one of its family)" : "", m->target);
}

static int has(const statement *s, const char *word, size_t length) {
    int begins = word[length - 1] == '*';
    for (int i = 0; i < s->modifier_count; i++)
        if (begins ? !strncmp(s->modifiers[i], word, length - 1)
                   : strlen(s->modifiers[i]) == length && !strncmp(s->modifiers[i], word, length))
            return 1;
    return 0;
}

void check_target(decoder *d) {
    const statement *s = d->statement;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        const struct rule *r = &rules[i];
        if (r->opcode && strcmp(r->opcode, s->opcode)) continue;
        const char *at = r->modifiers;
        char what[64];
        snprintf(what, sizeof what, "%s%s%s", r->opcode ? r->opcode : "", *at ? "." : "", at);
        int all = 1;
        while (all && *at) {
            size_t length = strcspn(at, " ");
            all = has(s, at, length);
            at += length + (at[length] == ' ');
        }
        for (char *c = what; *c; c++)
            if (*c == ' ') *c = '.';
        if (all) need_target(d, r->least, r->specific, what);
    }
}
