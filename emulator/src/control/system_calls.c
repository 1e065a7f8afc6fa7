/* Functions that CUDA defines for device code: vprintf, __assertfail, malloc, free (CUDA Programming Guide,
 * "Formatted output", "Assertion", "Dynamic global memory allocation"). */
#define _GNU_SOURCE /* open_memstream */
#include <stdio.h>
#include <stdlib.h>

#include "control/control.h"
#include "ptx/syntax.h"

#define MAX_STRING (1 << 16)

static uint64_t argument(const warp *w, const instr *in, uint32_t lane, int index) {
    const call_plan *plan = in->extra;
    uint64_t value = 0;
    if (plan->arguments[index].bytes <= 8) call_read(w, &plan->arguments[index], lane, &value);
    return value;
}

static void set_result(warp *w, const instr *in, uint32_t lane, uint64_t value) {
    const call_plan *plan = in->extra;
    if (plan->result_count == 1 && plan->results[0].bytes <= 8) call_write(w, &plan->results[0], lane, &value);
}

/* A string of the program; malloc'd. */
static char *string_at(warp *w, const instr *in, uint32_t lane, uint64_t address) {
    char *text = NULL;
    for (size_t length = 0;; length++) {
        if (length % 256 == 0 && !(text = realloc(text, length + 257))) abort();
        if (length == MAX_STRING) {
            text[length] = 0;
            return text;
        }
        text[length] = (char)*thread_read(w, in, (int)lane, SPACE_NONE, address + length, 1, 1);
        if (!text[length]) return text;
    }
}

/* ---- vprintf ---- */

/* The arguments are packed in memory, each at a multiple of its size. */
typedef struct packed {
    warp *w;
    const instr *in;
    uint32_t lane;
    uint64_t address, offset;
    int count;
} packed;

static uint64_t next_argument(packed *a, uint32_t bytes) {
    uint64_t value = 0;
    a->offset = (a->offset + bytes - 1) / bytes * bytes;
    memcpy(&value, thread_read(a->w, a->in, (int)a->lane, SPACE_NONE, a->address + a->offset, bytes, 1), bytes);
    a->offset += bytes;
    a->count++;
    return value;
}

static void print_string(FILE *out, const char *flags, int width, int precision, packed *a) {
    uint64_t address = next_argument(a, 8);
    char *text = address ? string_at(a->w, a->in, a->lane, address) : strdup("(null)");
    char form[40];
    snprintf(form, sizeof form, "%%%s*.*s", flags);
    fprintf(out, form, width, precision < 0 ? MAX_STRING : precision, text ? text : "");
    free(text);
}

/* One conversion: *format stands behind its `%`. */
static void print_conversion(FILE *out, const char **format, packed *a) {
    const char *c = *format;
    char flags[8] = {0}, form[40];
    int width = 0, precision = -1, is_long = 0;
    while (*c && strchr("-+ #0", *c)) {
        if (!strchr(flags, *c) && strlen(flags) < 6) flags[strlen(flags)] = *c;
        c++;
    }
    if (*c == '*') {
        width = (int)next_argument(a, 4), c++;
    } else {
        while (*c >= '0' && *c <= '9') width = width > 9999 ? width : width * 10 + *c - '0', c++;
    }
    if (*c == '.') {
        precision = 0;
        if (*++c == '*') {
            precision = (int)next_argument(a, 4), c++;
        } else {
            while (*c >= '0' && *c <= '9') precision = precision > 9999 ? precision : precision * 10 + *c - '0', c++;
        }
    }
    for (; *c && strchr("hljztL", *c); c++) is_long |= strchr("ljzt", *c) != NULL;
    char kind = *c;
    *format = kind ? c + 1 : c;
    if (kind && strchr("diouxX", kind)) {
        uint64_t value = next_argument(a, is_long ? 8 : 4);
        long long shown = (kind == 'd' || kind == 'i') && !is_long ? (int32_t)value : (long long)value;
        snprintf(form, sizeof form, "%%%s*.*ll%c", flags, kind);
        fprintf(out, form, width, precision, shown);
    } else if (kind && strchr("eEfFgGaA", kind)) {
        uint64_t bits = next_argument(a, 8);
        double value;
        memcpy(&value, &bits, sizeof value);
        snprintf(form, sizeof form, "%%%s*.*%c", flags, kind);
        fprintf(out, form, width, precision, value);
    } else if (kind == 'c') {
        snprintf(form, sizeof form, "%%%s*c", flags);
        fprintf(out, form, width, (int)next_argument(a, 4));
    } else if (kind == 's') {
        print_string(out, flags, width, precision, a);
    } else if (kind == 'p') {
        snprintf(form, sizeof form, "%%%s*p", flags);
        fprintf(out, form, width, (void *)(uintptr_t)next_argument(a, 8));
    } else if (kind) {
        fputc('%', out); /* `%%`, and what is no conversion as it stands */
        if (kind != '%') fputc(kind, out);
    }
}

static run_result run_vprintf(warp *w, const instr *in, uint32_t lanes) {
    FOR_LANES(lane, lanes) {
        packed a = {.w = w, .in = in, .lane = lane, .address = argument(w, in, lane, 1)};
        char *format = string_at(w, in, lane, argument(w, in, lane, 0)), *text = NULL;
        size_t length = 0;
        FILE *out = open_memstream(&text, &length);
        if (!out) abort();
        for (const char *c = format; *c;) {
            if (*c == '%')
                c++, print_conversion(out, &c, &a);
            else
                fputc(*c++, out);
        }
        fclose(out);
        fwrite(text, 1, length, stdout);
        free(text);
        free(format);
        set_result(w, in, lane, (uint64_t)a.count);
    }
    return RUN_NEXT;
}

/* ---- the others ---- */

static run_result run_assertfail(warp *w, const instr *in, uint32_t lanes) {
    uint32_t lane = (uint32_t)__builtin_ctz(lanes);
    machine_of(w)->assertion_failed = 1;
    fault(w, in, (int)lane, "%s:%u: %s: assertion `%s` failed", string_at(w, in, lane, argument(w, in, lane, 1)),
          (unsigned)argument(w, in, lane, 2), string_at(w, in, lane, argument(w, in, lane, 3)),
          string_at(w, in, lane, argument(w, in, lane, 0)));
}

static run_result run_malloc(warp *w, const instr *in, uint32_t lanes) {
    FOR_LANES(lane, lanes) {
        uint64_t bytes = argument(w, in, lane, 0);
        set_result(w, in, lane, bytes ? (uint64_t)(uintptr_t)device_allocate(bytes) : 0);
    }
    return RUN_NEXT;
}

static run_result run_free(warp *w, const instr *in, uint32_t lanes) {
    FOR_LANES(lane, lanes) {
        uint64_t address = argument(w, in, lane, 0);
        if (address && !device_free((void *)(uintptr_t)address))
            fault(w, in, (int)lane, "free of 0x%llx, which is no allocation", (unsigned long long)address);
    }
    return RUN_NEXT;
}

static const struct {
    const char *name;
    run_function *run;
    int parameters;
} calls[] = {
    {"vprintf", run_vprintf, 2},
    {"__assertfail", run_assertfail, 5},
    {"malloc", run_malloc, 1},
    {"free", run_free, 1},
};

run_function *system_call(const char *name, int parameters) {
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (!strcmp(name, calls[i].name) && parameters == calls[i].parameters) return calls[i].run;
    return NULL;
}

int is_system_function(const char *name) {
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (!strcmp(name, calls[i].name)) return 1;
    return 0;
}
