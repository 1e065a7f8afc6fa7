/* The interface inside the CPU backend: the functions of a kernel, and the drivers that call them.
 *
 * A product is symmetric up to the epilogue, so the kernels know two roles rather than a and b. The long operand (more
 * rows; the weights, most often) is streamed; the short one is packed, and reused from cache:
 *
 *   short rows > max_vectors   blocked.c: panels of `lanes` short rows, K interleaved, against strips of decoded long
 *                              rows, chunk_blocks blocks of K at a time
 *   else                       vectors.c: every long row is decoded in registers, once, against all short rows
 *
 * The product A . B, without the transposition, is nn.c's. Products of groups are grouped.c's.
 */
#ifndef NVFP4_CPU_GEMM_H
#define NVFP4_CPU_GEMM_H

#include "common/math.h"
#include "cpu/cpu.h"
#include "cpu/epilogue.h"
#include "cpu/operand.h"

enum {
    CHUNK_BLOCKS = 128,           /* K chunk of the kernels of NVFP4 by NVFP4, in blocks of 16 */
    SHORT_ROWS = 128,             /* short rows packed at a time */
    SUMS_PITCH = SHORT_ROWS + 16, /* not a power of two, or columns of sums would share few cache sets */
    MAX_VECTORS = 8,
    NN_COLUMNS = 256, /* of b that a task of nn.c decodes, at most */
    NN_CHUNK = 256,   /* rows of b at a time */
    NN_PITCH = NN_COLUMNS + 16,
};

/* The functions for few short rows. */
typedef struct vector_kernel {
    size_t (*vector_bytes)(int64_t blocks); /* of one packed short row, a multiple of 64 */
    void (*pack_vector)(void *vector, const operand *x, int64_t row, int64_t blocks);
    /* sums[r * count + i] = long row `row + r` . packed short row i */
    void (*dots)(float *sums, const operand *x, int64_t row, int64_t rows, const void *vectors, int count,
                 int64_t blocks);
} vector_kernel;

typedef struct cpu_kernel {
    int lanes, strip_rows;
    int chunk_blocks;                /* so many blocks of a strip stay in L1, of all panels in L2; a multiple of 16 */
    size_t panel_bytes, strip_bytes; /* of chunk_blocks blocks, a multiple of 64 */
    /* Rows row .. row+lanes-1 (strip_rows), blocks block .. block+blocks-1; rows past the end are zeros. */
    void (*pack_panel)(void *panel, const operand *x, int64_t row, int64_t block, int64_t blocks);
    void (*decode_strip)(void *strip, const operand *x, int64_t row, int64_t block, int64_t blocks);
    /* sums[r][lane] (+)= strip row r . short row lane, over the blocks packed; the first chunk starts from zero. */
    void (*tile)(float *sums, const void *strip, const void *panels, int panel_count, int64_t blocks, int first);

    const vector_kernel *vectors;
    int max_vectors; /* short rows that `vectors` multiplies, at most MAX_VECTORS */

    /* A . B, which only w4a16 kernels have. to[r][NN_PITCH]: rows row .. row+rows-1 of b, decoded. */
    void (*nn_decode)(float *to, const operand *b, int64_t row, int64_t rows, int64_t block, int64_t blocks);
    /* sums[r][NN_PITCH] (+)= row `row + r` of a, its values k .. k+k_count-1, by the decoded rows; sums has whole
     * strips of rows. columns is a multiple of 16. */
    void (*nn_multiply)(float *sums, const operand *a, int64_t row, int64_t rows, int64_t k, int64_t k_count,
                        const float *decoded, int64_t columns, int first);

    void (*epilogue)(const gemm_problem *problem, int64_t batch, sums_tile tile);
} cpu_kernel;

/* w4a16: a in 16 bits, by NVFP4. */
extern const cpu_kernel portable_kernel, w4a16_portable_kernel;
#if defined(__x86_64__)
extern const cpu_kernel avx2_kernel, avx512vnni_kernel, amx_kernel;
extern const cpu_kernel w4a16_avx2_kernel, w4a16_avx512_kernel, w4a16_amx_kernel; /* AMX: a in bf16 */
extern const vector_kernel avx512vnni_vectors, w4a16_avx512_vectors;              /* those of AMX too */
#endif

/* The two roles at one batch index. swap_ab: the long operand is a. */
typedef struct roles {
    operand long_side, short_side;
    int swap_ab;
} roles;

static inline roles choose_roles(const gemm_problem *p, int64_t batch) {
    operand a = operand_a(p, batch), b = operand_b(p, batch);
    return p->n >= p->m ? (roles){b, a, 0} : (roles){a, b, 1};
}

/* row_scale: of the rows of the output, or NULL. */
nvfp4_status reference_gemm(const gemm_problem *problem, const float *row_scale, int threads);
nvfp4_status blocked_gemm(const gemm_problem *problem, const float *row_scale, const cpu_kernel *kernel, int threads);
nvfp4_status nn_gemm(const gemm_problem *problem, const float *row_scale, const cpu_kernel *kernel, int threads);
nvfp4_status vectors_gemm(const gemm_problem *problem, const cpu_kernel *kernel, int threads);

/* Bytes of scratch space that such a product asks for: grouped.c has them before it writes anything. */
size_t blocked_scratch(const gemm_problem *problem, const cpu_kernel *kernel, int threads);
size_t nn_scratch(const gemm_problem *problem, const cpu_kernel *kernel, int threads);

/* The kernel of a product on this CPU; NULL: reference_gemm. */
const cpu_kernel *cpu_kernel_for(int32_t a_type, int32_t is_nn, cpu_isa isa);

/* At least `bytes` bytes, aligned to 64, that are the calling thread's until it asks again; NULL: out of memory. */
void *scratch(size_t bytes);

/* Gives back, after a call, what is more than a thread should keep. */
void trim_scratch(void);

static inline int64_t round_up(int64_t value, int64_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

#endif
