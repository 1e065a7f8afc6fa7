/* cvt, split over convert.c (one number) and convert_packed.c (pairs and fours). */
#ifndef EMULATOR_CONVERT_H
#define EMULATOR_CONVERT_H

#include "scalar/formats.h"
#include "scalar/lanes.h"

/* What a cvt asks for. */
typedef enum {
    CVT_NO_ROUNDING,
    CVT_RN,
    CVT_RZ,
    CVT_RM,
    CVT_RP,
    CVT_RNA,
    CVT_RS,
    CVT_RNI,
    CVT_RZI,
    CVT_RMI,
    CVT_RPI
} cvt_rounding;
typedef struct conversion conversion;
struct conversion {
    cvt_rounding rounding;
    int ftz, sat;
    int flags; /* FORMAT_SATFINITE, FORMAT_RELU */
    ptx_type to, from;
    rounding_mode mode; /* the floating-point rounding */
    /* integer destinations: register's bits, bounds, what NaN gives */
    uint32_t mask;
    int64_t low;
    uint64_t high, nan;
    double limit;                            /* the first value that is too large */
    int is_signed, wide_source, wide_result; /* registers of 64 bits for types of 32 or less */
    int bits;                                /* of the destination type */
    instr inner;                             /* the conversion between registers of the types' own sizes */
};

/* Whether the pair of types belongs to convert_packed.c; then it decodes. */
int decode_packed_conversion(decoder *d, conversion *x);
int decode_cvt_pack(decoder *d);

#endif
