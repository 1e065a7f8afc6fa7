/* Special registers (PTX ISA, chapter 10). Registers that change while a warp runs are read by mov; the others fill
 * a slot when the warp starts. */
#include <stdio.h>
#include <stdlib.h>

#include "machine/simt.h"

static const char axes[] = "xyz";

/* "%tid.x" of "%tid": the axis, -1 if the name is another one. */
static int axis_of(const char *name, const char *base) {
    size_t length = strlen(base);
    if (strncmp(name, base, length) != 0 || name[length] != '.') return -1;
    const char *axis = strchr(axes, name[length + 1]);
    return axis && *axis && !name[length + 2] ? (int)(axis - axes) : -1;
}

static uint32_t thread_axis(const warp *w, int lane, int axis) {
    const uint32_t *block = w->cta->grid->launch.block;
    uint32_t thread = (uint32_t)w->index * WARP_LANES + (uint32_t)lane;
    return axis == 0 ? thread % block[0] : axis == 1 ? thread / block[0] % block[1] : thread / block[0] / block[1];
}

static uint32_t in_cluster(const cta *c, int axis) {
    return c->id[axis] - c->cluster->id[axis] * c->grid->launch.cluster[axis];
}

/* The same in all lanes. 0: no such register. */
static int uniform(const warp *w, const char *name, uint64_t *value) {
    const cta *c = w->cta;
    const grid *g = c->grid;
    const launch *l = &g->launch;
    const machine *m = g->on;
    int axis;
    if ((axis = axis_of(name, "%ctaid")) >= 0) return *value = c->id[axis], 1;
    if ((axis = axis_of(name, "%ntid")) >= 0) return *value = l->block[axis], 1;
    if ((axis = axis_of(name, "%nctaid")) >= 0) return *value = l->grid[axis], 1;
    if ((axis = axis_of(name, "%clusterid")) >= 0) return *value = c->cluster->id[axis], 1;
    if ((axis = axis_of(name, "%nclusterid")) >= 0) return *value = l->grid[axis] / l->cluster[axis], 1;
    if ((axis = axis_of(name, "%cluster_ctaid")) >= 0) return *value = in_cluster(c, axis), 1;
    if ((axis = axis_of(name, "%cluster_nctaid")) >= 0) return *value = l->cluster[axis], 1;
    uint64_t shared = c->shared_bytes - SHARED_BASE;
    const struct {
        const char *name;
        uint64_t value;
    } table[] = {
        {"%warpid", (uint64_t)w->index},
        {"%nwarpid", (uint64_t)m->device->threads_per_sm / WARP_LANES},
        {"%smid", (uint64_t)c->sm->index},
        {"%nsmid", (uint64_t)m->sm_count},
        {"%gridid", g->serial},
        {"%cluster_ctarank", c->rank},
        {"%cluster_nctarank", (uint64_t)c->cluster->size},
        {"%is_explicit_cluster", (uint64_t)l->explicit_cluster},
        {"%dynamic_smem_size", l->dynamic_shared},
        {"%total_smem_size", shared},
        {"%aggr_smem_size", shared},
        {"%reserved_smem_offset_begin", 0},
        {"%reserved_smem_offset_end", SHARED_BASE},
        {"%reserved_smem_offset_cap", SHARED_BASE},
        {"%reserved_smem_offset_0", 0},
        {"%reserved_smem_offset_1", (uint64_t)own_shared_address(c, SCRATCH_BASE)},
        {"%current_graph_exec", 0},
        {"%gridid_hi", 0},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(name, table[i].name)) return *value = table[i].value, 1;
    if (!strcmp(name, "%envreg1")) return *value = (uint64_t)(uintptr_t)g->workspace >> 32, 1;
    if (!strcmp(name, "%envreg2")) return *value = (uint32_t)(uintptr_t)g->workspace, 1;
    if (!strncmp(name, "%envreg", 7)) return *value = 0, 1;
    if (!strncmp(name, "param:", 6))
        return *value = (uint64_t)(uintptr_t)l->parameters + strtoull(name + 6, NULL, 10), 1;
    if (!strncmp(name, "shared:", 7))
        return *value = (uint64_t)own_shared_address(c, (uint32_t)strtoul(name + 7, NULL, 10)), 1;
    return 0;
}

static int of_lane(const char *name, int lane, uint64_t *value) {
    uint32_t bit = 1u << lane;
    if (!strcmp(name, "%laneid")) return *value = (uint64_t)lane, 1;
    if (!strcmp(name, "%lanemask_eq")) return *value = bit, 1;
    if (!strcmp(name, "%lanemask_lt")) return *value = bit - 1, 1;
    if (!strcmp(name, "%lanemask_le")) return *value = bit | (bit - 1), 1;
    if (!strcmp(name, "%lanemask_gt")) return *value = ~(bit | (bit - 1)), 1;
    if (!strcmp(name, "%lanemask_ge")) return *value = ~(bit - 1), 1;
    return 0;
}

int special_fill(const warp *w, const char *name, uint64_t out[WARP_LANES]) {
    uint64_t value;
    int axis = axis_of(name, "%tid"); /* first: every warp asks for it, and for little else */
    if (axis >= 0) {
        for (int lane = 0; lane < WARP_LANES; lane++) out[lane] = thread_axis(w, lane, axis);
        return 1;
    }
    if (uniform(w, name, &value)) {
        for (int lane = 0; lane < WARP_LANES; lane++) out[lane] = value;
        return 1;
    }
    for (int lane = 0; lane < WARP_LANES; lane++)
        if (!of_lane(name, lane, &out[lane])) return 0;
    return 1;
}

/* What is not named here may differ from CTA to CTA. */
int special_scope(const char *name) {
    static const char *const of_warp[] = {"%tid.", "%warpid"};
    static const char *const of_grid[] = {"%laneid",
                                          "%lanemask_",
                                          "%ntid.",
                                          "%nctaid.",
                                          "%nwarpid",
                                          "%nsmid",
                                          "%gridid",
                                          "%nclusterid.",
                                          "%cluster_nctaid.",
                                          "%cluster_nctarank",
                                          "%is_explicit_cluster",
                                          "%dynamic_smem_size",
                                          "%total_smem_size",
                                          "%aggr_smem_size",
                                          "%current_graph_exec",
                                          "%envreg",
                                          "param:"};
    for (size_t i = 0; i < sizeof of_warp / sizeof *of_warp; i++)
        if (!strncmp(name, of_warp[i], strlen(of_warp[i]))) return SAME_IN_WARP;
    for (size_t i = 0; i < sizeof of_grid / sizeof *of_grid; i++)
        if (!strncmp(name, of_grid[i], strlen(of_grid[i]))) return SAME_IN_GRID;
    return SAME_IN_CTA;
}

int special_is_dynamic(const char *name) {
    return !strncmp(name, "%clock", 6) || !strncmp(name, "%globaltimer", 12) || !strncmp(name, "%pm", 3);
}

int special_exists(const char *name) {
    static const char *const names[] = {"%laneid",
                                        "%warpid",
                                        "%nwarpid",
                                        "%smid",
                                        "%nsmid",
                                        "%gridid",
                                        "%lanemask_eq",
                                        "%lanemask_lt",
                                        "%lanemask_le",
                                        "%lanemask_gt",
                                        "%lanemask_ge",
                                        "%cluster_ctarank",
                                        "%cluster_nctarank",
                                        "%is_explicit_cluster",
                                        "%dynamic_smem_size",
                                        "%total_smem_size",
                                        "%aggr_smem_size",
                                        "%reserved_smem_offset_begin",
                                        "%reserved_smem_offset_end",
                                        "%reserved_smem_offset_cap",
                                        "%reserved_smem_offset_0",
                                        "%reserved_smem_offset_1",
                                        "%current_graph_exec",
                                        "%gridid_hi"};
    static const char *const vectors[] = {"%tid",       "%ntid",       "%ctaid",         "%nctaid",
                                          "%clusterid", "%nclusterid", "%cluster_ctaid", "%cluster_nctaid"};
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++)
        if (axis_of(name, vectors[i]) >= 0) return 1;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i])) return 1;
    return special_is_dynamic(name) || !strncmp(name, "%envreg", 7) || !strncmp(name, "param:", 6);
}

/* A turn counts as 32 clocks and 20 ns: only that they advance matters. */
uint64_t special_read(warp *w, const char *name, int lane) {
    machine *m = machine_of(w);
    uint64_t nanoseconds = m->now * 20 + m->slept, clock = m->now * 32 + w->instructions + m->slept * 8 / 5;
    uint64_t value = 0;
    (void)lane;
    if (!strncmp(name, "%clock", 6)) value = clock;
    if (!strncmp(name, "%globaltimer", 12)) value = nanoseconds;
    return strstr(name, "_hi") ? value >> 32 : value;
}
