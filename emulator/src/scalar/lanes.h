/* Shared by the scalar families: loops over the lanes of a warp, and macros over the integer types.
 *
 * Decoding chooses one handler for each operation and type, so that no handler asks for a type at run time. A
 * handler's body is written for lane i. A full warp runs it as a loop of constant length with independent
 * iterations, which the compiler vectorises (a destination may be a source, lane by lane); a partial mask runs it
 * over its set bits. */
#ifndef EMULATOR_LANES_H
#define EMULATOR_LANES_H

#include "machine/machine.h"

#define LANES(i, lanes, ...)                                                                                           \
    do {                                                                                                               \
        if ((lanes) == ALL_LANES) {                                                                                    \
            _Pragma("GCC ivdep") for (uint32_t i = 0; i < WARP_LANES; i++) __VA_ARGS__                                 \
        } else                                                                                                         \
            FOR_LANES(i, lanes) __VA_ARGS__                                                                            \
    } while (0)

/* Of each integer type: CELL_ what a lane of its slot is, REG_ how to reach it, C_ its values, BITS_ what is stored (a
 * register of 16 bits keeps its upper bits zero), WORK_ an unsigned type in which arithmetic wraps. */
#define CELL_u8  uint32_t
#define CELL_s8  uint32_t
#define CELL_u16 uint32_t
#define CELL_s16 uint32_t
#define CELL_u32 uint32_t
#define CELL_s32 uint32_t
#define CELL_u64 uint64_t
#define CELL_s64 uint64_t
#define REG_u8   r32
#define REG_s8   r32
#define REG_u16  r32
#define REG_s16  r32
#define REG_u32  r32
#define REG_s32  r32
#define REG_u64  r64
#define REG_s64  r64
#define C_u8     uint8_t
#define C_s8     int8_t
#define C_u16    uint16_t
#define C_s16    int16_t
#define C_u32    uint32_t
#define C_s32    int32_t
#define C_u64    uint64_t
#define C_s64    int64_t
#define BITS_u8  uint8_t
#define BITS_s8  uint8_t
#define BITS_u16 uint16_t
#define BITS_s16 uint16_t
#define BITS_u32 uint32_t
#define BITS_s32 uint32_t
#define BITS_u64 uint64_t
#define BITS_s64 uint64_t
#define WORK_u16 uint32_t
#define WORK_s16 uint32_t
#define WORK_u32 uint32_t
#define WORK_s32 uint32_t
#define WORK_u64 uint64_t
#define WORK_s64 uint64_t

/* Handlers `name` of one to three operands of type t: `expression` computes from a, b, c; W is WORK_t. */
#define HANDLER(name) static run_result name(warp *w, const instr *in, uint32_t lanes)
#define UNARY(name, t, ...)                                                                                            \
    HANDLER(name) {                                                                                                    \
        typedef WORK_##t W __attribute__((unused));                                                                    \
        CELL_##t *d = REG_##t(w, in->d);                                                                               \
        const CELL_##t *pa = REG_##t(w, in->s[0]);                                                                     \
        LANES(i, lanes, {                                                                                              \
            const C_##t a = (C_##t)pa[i];                                                                              \
            d[i] = (BITS_##t)(__VA_ARGS__);                                                                            \
        });                                                                                                            \
        return RUN_NEXT;                                                                                               \
    }
#define BINARY(name, t, ...)                                                                                           \
    HANDLER(name) {                                                                                                    \
        typedef WORK_##t W __attribute__((unused));                                                                    \
        CELL_##t *d = REG_##t(w, in->d);                                                                               \
        const CELL_##t *pa = REG_##t(w, in->s[0]), *pb = REG_##t(w, in->s[1]);                                         \
        LANES(i, lanes, {                                                                                              \
            const C_##t a = (C_##t)pa[i], b = (C_##t)pb[i];                                                            \
            d[i] = (BITS_##t)(__VA_ARGS__);                                                                            \
        });                                                                                                            \
        return RUN_NEXT;                                                                                               \
    }
#define TERNARY(name, t, ...)                                                                                          \
    HANDLER(name) {                                                                                                    \
        typedef WORK_##t W __attribute__((unused));                                                                    \
        CELL_##t *d = REG_##t(w, in->d);                                                                               \
        const CELL_##t *pa = REG_##t(w, in->s[0]), *pb = REG_##t(w, in->s[1]), *pc = REG_##t(w, in->s[2]);             \
        LANES(i, lanes, {                                                                                              \
            const C_##t a = (C_##t)pa[i], b = (C_##t)pb[i], c = (C_##t)pc[i];                                          \
            d[i] = (BITS_##t)(__VA_ARGS__);                                                                            \
        });                                                                                                            \
        return RUN_NEXT;                                                                                               \
    }

/* Floating-point values and their bits. */
static inline float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static inline uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
static inline double double_of(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static inline uint64_t bits_of_double(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
/* .ftz: a subnormal becomes the zero of its sign. */
static inline uint32_t flush_f32(uint32_t x) {
    return x & 0x7f800000 ? x : x & 0x80000000;
}
static inline uint32_t flush_f16(uint32_t x) {
    return x & 0x7c00 ? x : x & 0x8000;
}

/* A table of handlers by type, for an operation whose handlers are called op_u16, op_s16 ... */
#define BY_TYPE_32(op) [TYPE_U32] = op##_u32, [TYPE_S32] = op##_s32
#define BY_TYPE(op)                                                                                                    \
    [TYPE_U16] = op##_u16, [TYPE_S16] = op##_s16, BY_TYPE_32(op), [TYPE_U64] = op##_u64, [TYPE_S64] = op##_s64
typedef run_function *const handler_table[TYPE_COUNT];

/* ---- decoding (scalar.c) ---- */

/* The first type among the modifiers, which stays there. */
ptx_type peek_type(const decoder *d);
static inline int is_half(ptx_type t) {
    return t == TYPE_F16 || t == TYPE_F16X2 || t == TYPE_BF16 || t == TYPE_BF16X2;
}
static inline int is_single_or_double(ptx_type t) {
    return t == TYPE_F32 || t == TYPE_F32X2 || t == TYPE_F64;
}
/* Rejects the sink, which only some instructions take. */
uint32_t result(decoder *d, int index, ptx_type type);
/* Sets d->in->run and type; rejects a type that the table does not have. */
void choose(decoder *d, const handler_table table, ptx_type type);
/* operand 0 = d and `count` sources from operand 1 on, all of one type. */
void operands(decoder *d, int count, ptx_type type);

#endif
