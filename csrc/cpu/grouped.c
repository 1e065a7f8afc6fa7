/* Products of groups of rows, each group by its own matrices (common/grouped_problem.h).
 *
 * A group with few rows is bound by reading its matrices: all such groups are done at once, and a task is some rows of
 * one matrix, as in vectors.c. A larger one is a product of its own, over its gathered rows (blocked.c; A . B: nn.c).
 * Which of the two depends on the group's size alone, and a batch-invariant product takes the second for each. */
#include <stdlib.h>

#include "common/error.h"
#include "cpu/gemm.h"
#include "cpu/threads.h"

enum {
    TASK_ROWS = 64,             /* of a matrix: more would leave threads idle where few groups have rows */
    PACKED_BY_ONE = 128 * 1024, /* values that one thread packs */
    READ_BY_ONE = 256 * 1024,   /* values of matrices that one thread reads */
};

typedef struct group {
    int64_t first, rows; /* in the order of groups */
    int32_t index;
    int32_t scale_row; /* of its first row, where scale_rows says it; read once */
} group;

typedef struct grouped {
    const grouped_problem *problem;
    const cpu_kernel *kernel;
    const group *groups;    /* with few rows */
    const float *row_scale; /* NaN for a row whose index is outside of a; NULL: none */
    int64_t tasks;          /* of one matrix */
    char *packed;           /* a vector for each row of a group with few, in the order of these groups */
    int64_t packed_rows;
    const int64_t *packed_first; /* of each of these groups */
    size_t vector_bytes;
} grouped;

/* Groups that have rows; returns how many. */
static int find_groups(const grouped_problem *p, group *found) {
    int64_t end = 0;
    int count = 0;
    for (int32_t e = 0; e < p->groups; e++) {
        const int64_t first = end;
        if (p->ends[e] > end) end = min_int(p->ends[e], p->g.m);
        if (end > first) found[count++] = (group){first, end - first, e, 0};
    }
    return count;
}

/* Row i of the order of groups as a row of a; -1: outside. */
static int64_t row_of_a(const grouped_problem *p, int64_t i) {
    const int64_t row = p->rows ? p->rows[i] : i;
    return row >= 0 && row < p->a_rows ? row : -1;
}

/* How many of a group's rows have scales, from its first on; all where a has none, or its scales lie as its rows do. */
static int64_t rows_with_scales(const grouped_problem *p, group *one) {
    if (!p->scale_rows) return one->rows;
    const int64_t first = one->scale_row = p->scale_rows[one->index];
    if (first < 0 || first % 128 || first >= p->scale_a_rows) return 0;
    return min_int(one->rows, p->scale_a_rows - first);
}

/* The offset in bytes from g.scale_a at which the scales of a group's first row begin. */
static int64_t scale_offset_of_group(const grouped_problem *p, const group *one) {
    if (p->scale_rows) return one->scale_row / 128 * p->g.scale_a_pitch;
    return p->g.scale_a ? one->first * p->g.scale_a_pitch : 0;
}

/* NaN to all results of some rows. */
static void store_nan(const grouped_problem *p, int64_t first, int64_t rows) {
    enum { CHUNK = 64 };
    const gemm_problem *g = &p->g;
    const int64_t columns = g->n * p->parts;
    float nan[CHUNK];
    for (int i = 0; i < CHUNK; i++) nan[i] = NAN;
    for (int64_t i = first; i < first + rows; i++)
        for (int64_t n = 0; n < columns; n += CHUNK)
            store_floats((char *)g->out + i * g->out_pitch + n * type_size(g->out_type), nan, g->out_type,
                         min_int(CHUNK, columns - n));
}

/* NaN to the results of rows without scales. `found` has room for all groups. */
static void store_missing(const grouped_problem *p, group *found) {
    const int count = find_groups(p, found);
    for (int i = 0; i < count; i++) {
        const int64_t scaled = rows_with_scales(p, &found[i]);
        store_nan(p, found[i].first + scaled, found[i].rows - scaled);
    }
}

static float *find_row_scale(const grouped_problem *p, float *scale) {
    for (int64_t i = 0; i < p->g.m; i++) {
        scale[i] = p->row_scale ? p->row_scale[i] : 1.0f;
        if (row_of_a(p, i) < 0) scale[i] = NAN;
    }
    return scale;
}

/* The product of one group: its rows, and its matrices as batches. */
static grouped_problem problem_of_group(const grouped *x, const group *one) {
    grouped_problem p = *x->problem;
    gemm_problem *g = &p.g;
    const int64_t matrix = (int64_t)one->index * p.parts;
    g->m = one->rows;
    g->l = p.parts;
    g->product_kind = g->product_kind == PRODUCT_GROUPED_NN ? PRODUCT_GEMM_NN : PRODUCT_GEMM;
    if (!p.rows) { /* else the rows are gathered */
        g->a += one->first * g->a_pitch;
        if (g->scale_a) g->scale_a += scale_offset_of_group(x->problem, one);
    }
    if (p.b_list) {
        g->b = p.b_list[one->index];
        g->scale_b = p.scale_b_list[one->index];
    } else {
        g->b += matrix * g->b_batch;
        g->scale_b += matrix * g->scale_b_batch;
    }
    g->out = (char *)g->out + one->first * g->out_pitch;
    if (g->by_batch & ALPHA_BY_BATCH) g->alpha += matrix * (g->alpha_stride ? g->n : 1);
    if (g->by_batch & BIAS_BY_BATCH) g->bias = (const char *)g->bias + matrix * g->n * type_size(g->bias_type);
    p.row_scale = x->row_scale ? x->row_scale + one->first : NULL;
    return p;
}

/* ---- groups with few rows ---- */

static void pack(void *context, int64_t task, int thread) {
    (void)thread;
    const grouped *x = context;
    const group *one = &x->groups[task];
    operand a = operand_a(&x->problem->g, 0);
    if (x->problem->scale_rows) { /* rows of the group, as its scales have them */
        a.data += one->first * a.pitch;
        a.scale += scale_offset_of_group(x->problem, one);
    }
    for (int64_t i = 0; i < one->rows; i++) {
        const int64_t row = x->problem->scale_rows ? i : row_of_a(x->problem, one->first + i);
        char *vector = x->packed + (size_t)(x->packed_first[task] + i) * x->vector_bytes;
        if (row < 0)
            memset(vector, 0, x->vector_bytes);
        else
            x->kernel->vectors->pack_vector(vector, &a, row, x->problem->g.k / 16);
    }
}

static void run_task(void *context, int64_t task, int thread) {
    (void)thread;
    const grouped *x = context;
    const int64_t matrix = task / x->tasks, row0 = task % x->tasks * TASK_ROWS, parts = x->problem->parts;
    const group *one = &x->groups[matrix / parts];
    const grouped_problem p = problem_of_group(x, one);
    const operand b = operand_b(&p.g, matrix % parts);
    const int64_t rows = min_int(TASK_ROWS, p.g.n - row0);
    float sums[TASK_ROWS * MAX_VECTORS];
    x->kernel->vectors->dots(sums, &b, row0, rows,
                             x->packed + (size_t)x->packed_first[matrix / parts] * x->vector_bytes, (int)one->rows,
                             p.g.k / 16);
    x->kernel->epilogue(&p.g, matrix % parts, (sums_tile){sums, 0, row0, one->rows, rows, 1, one->rows, p.row_scale});
}

/* Gives each group a place among the packed vectors; returns the bytes of all. packed_first has room for each. */
static size_t place_few(grouped *x, int count, int64_t *packed_first) {
    x->packed_rows = 0;
    for (int i = 0; i < count; i++) {
        packed_first[i] = x->packed_rows;
        x->packed_rows += x->groups[i].rows;
    }
    x->packed_first = packed_first;
    x->vector_bytes = x->kernel->vectors->vector_bytes(x->problem->g.k / 16);
    return x->vector_bytes * (size_t)x->packed_rows;
}

static void run_few(grouped *x, int count, int threads, int available) {
    const grouped_problem *p = x->problem;
    x->tasks = (p->g.n + TASK_ROWS - 1) / TASK_ROWS;
    /* Few rows are packed in less time than another thread takes to wake. */
    const int64_t packers = 1 + x->packed_rows * p->g.k / PACKED_BY_ONE;
    parallel_for((int)min_int(threads, packers), count, pack, x);
    /* Reading bounds this: a thread is worth waking for some 40 us of it, which cpu_grouped_gemm's rule, made for
     * arithmetic, would give to fewer threads. */
    const int64_t matrices = (int64_t)count * p->parts;
    const double readers = 1 + (double)matrices * (double)p->g.n * (double)p->g.k / READ_BY_ONE;
    parallel_for(readers < available ? (int)readers : available, matrices * x->tasks, run_task, x);
}

/* ---- groups with many rows ---- */

/* Rows of a group one after the other, `bytes` each, those outside of a as zeros; from, pitch: of all of them. */
static void gather(const grouped_problem *p, const group *one, const uint8_t *from, int64_t pitch, char *to,
                   size_t bytes) {
    for (int64_t i = 0; i < one->rows; i++, to += bytes) {
        const int64_t row = row_of_a(p, one->first + i);
        if (row < 0 || !bytes)
            memset(to, 0, bytes);
        else
            memcpy(to, from + row * pitch, bytes);
    }
}

/* Bytes of a row of a, and of its scales. */
static size_t value_bytes(const gemm_problem *g) {
    return (size_t)(g->a_type == VALUES_E2M1 ? g->k / 2 : g->k * 2);
}

static size_t scale_bytes(const gemm_problem *g) {
    return (size_t)(g->a_type == VALUES_E2M1 ? g->k / 16 : 0);
}

/* Bytes of scratch space that run_many asks for. */
static size_t scratch_of_many(const grouped *x, const group *one, int threads) {
    const grouped_problem p = problem_of_group(x, one);
    if (!x->kernel || p.g.k == 0) return 0;
    return p.g.product_kind == PRODUCT_GEMM_NN ? nn_scratch(&p.g, x->kernel, threads)
                                               : blocked_scratch(&p.g, x->kernel, threads);
}

static nvfp4_status run_many(const grouped *x, const group *one, char *gathered, int threads) {
    grouped_problem p = problem_of_group(x, one);
    if (gathered) {
        const gemm_problem *all = &x->problem->g;
        const size_t values = value_bytes(all), scales = scale_bytes(all);
        char *gathered_scales = gathered + (size_t)one->rows * values;
        gather(x->problem, one, all->a, all->a_pitch, gathered, values);
        p.g.a = (const uint8_t *)gathered, p.g.a_pitch = (int64_t)values;
        if (all->a_type == VALUES_E2M1) { /* scale_a may be NULL where a has no rows */
            gather(x->problem, one, all->scale_a, all->scale_a_pitch, gathered_scales, scales);
            p.g.scale_a = (const uint8_t *)gathered_scales, p.g.scale_a_pitch = (int64_t)scales;
        }
    }
    if (!x->kernel || p.g.k == 0) return reference_gemm(&p.g, p.row_scale, threads);
    return p.g.product_kind == PRODUCT_GEMM_NN ? nn_gemm(&p.g, p.row_scale, x->kernel, threads)
                                               : blocked_gemm(&p.g, p.row_scale, x->kernel, threads);
}

/* ---- the call ---- */

/* Memory of a call beside scratch space, which the products of groups use. */
typedef struct memory {
    group *few, *many;
    int64_t *packed_first;
    float *row_scale;
    char *gathered;
} memory;

static void release(memory *m) {
    free(m->few), free(m->many), free(m->packed_first), free(m->row_scale), free(m->gathered);
}

/* Asks once for the scratch space of the call's largest step. No product lacks memory after that. */
static nvfp4_status find_scratch(grouped *x, int few, const memory *m, int many, int threads) {
    size_t bytes = few ? place_few(x, few, m->packed_first) : 0;
    for (int i = 0; i < many; i++) {
        const size_t wanted = scratch_of_many(x, &m->many[i], threads);
        if (wanted > bytes) bytes = wanted;
    }
    if (!bytes) return NVFP4_OK;
    x->packed = scratch(bytes);
    return x->packed ? NVFP4_OK : fail(NVFP4_OUT_OF_MEMORY, "grouped_gemm: no %zu bytes of scratch", bytes);
}

nvfp4_status cpu_grouped_gemm(const grouped_problem *p, cpu_isa isa, int threads, int batch_invariant) {
    grouped x = {.problem = p};
    memory m = {.few = malloc((size_t)p->groups * sizeof(group)),
                .many = malloc((size_t)p->groups * sizeof(group)),
                .packed_first = malloc((size_t)p->groups * sizeof(int64_t))};
    nvfp4_status status = NVFP4_OK;
    int64_t rows = 0, most = 0;
    int few = 0, many = 0;
    if (p->row_scale || p->rows) m.row_scale = malloc((size_t)p->g.m * sizeof(float));
    if (!m.few || !m.many || !m.packed_first || ((p->row_scale || p->rows) && !m.row_scale))
        status = fail(NVFP4_OUT_OF_MEMORY, "grouped_gemm: no memory for %d groups", p->groups);
    if (!status) {
        const int is_nn = p->g.product_kind == PRODUCT_GROUPED_NN, count = find_groups(p, m.few);
        x.kernel = cpu_kernel_for(p->g.a_type, is_nn, isa);
        x.row_scale = m.row_scale ? find_row_scale(p, m.row_scale) : NULL;
        const int64_t few_rows = x.kernel && !is_nn && !batch_invariant && p->g.k ? x.kernel->max_vectors : 0;
        for (int i = 0; i < count; i++) {
            group one = m.few[i];
            const int is_few = one.rows <= few_rows;
            one.rows = rows_with_scales(p, &one);
            rows += one.rows;
            if (one.rows == 0) continue;
            if (is_few) {
                m.few[few++] = one;
                continue;
            }
            m.many[many++] = one;
            if (one.rows > most) most = one.rows;
        }
    }
    if (!status && p->rows && many) {
        m.gathered = malloc((size_t)most * (value_bytes(&p->g) + scale_bytes(&p->g)) + 1); /* 1: k may be 0 */
        if (!m.gathered) status = fail(NVFP4_OUT_OF_MEMORY, "grouped_gemm: no memory for %lld rows", (long long)most);
    }
    if (threads <= 0) threads = threads_available();
    const int available = threads;
    /* A second thread is worth waking for some 20 us of work, as for other products. */
    const double products = (double)rows * (double)p->g.n * (double)p->g.k * p->parts;
    if (threads > 1 + products * 0x1p-21) threads = (int)(1 + products * 0x1p-21);
    x.groups = m.few;
    if (!status) status = find_scratch(&x, few, &m, many, threads);
    if (!status && few) run_few(&x, few, threads, available);
    for (int i = 0; i < many && !status; i++) status = run_many(&x, &m.many[i], m.gathered, threads);
    if (!status && p->scale_rows) store_missing(p, m.few);
    release(&m);
    trim_scratch();
    return status;
}
