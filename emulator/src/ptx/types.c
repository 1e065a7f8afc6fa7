/* Fundamental and alternate types (PTX ISA, chapter 5): names and sizes. */
#include <string.h>

#include "ptx/ptx.h"

static const struct {
    const char *name;
    int bits;
} types[TYPE_COUNT] = {
    [TYPE_NONE] = {"none", 0},      [TYPE_PRED] = {"pred", 1},      [TYPE_B8] = {"b8", 8},
    [TYPE_B16] = {"b16", 16},       [TYPE_B32] = {"b32", 32},       [TYPE_B64] = {"b64", 64},
    [TYPE_B128] = {"b128", 128},    [TYPE_U8] = {"u8", 8},          [TYPE_U16] = {"u16", 16},
    [TYPE_U32] = {"u32", 32},       [TYPE_U64] = {"u64", 64},       [TYPE_S8] = {"s8", 8},
    [TYPE_S16] = {"s16", 16},       [TYPE_S32] = {"s32", 32},       [TYPE_S64] = {"s64", 64},
    [TYPE_F16] = {"f16", 16},       [TYPE_F16X2] = {"f16x2", 32},   [TYPE_BF16] = {"bf16", 16},
    [TYPE_BF16X2] = {"bf16x2", 32}, [TYPE_F32] = {"f32", 32},       [TYPE_F32X2] = {"f32x2", 64},
    [TYPE_F64] = {"f64", 64},       [TYPE_TF32] = {"tf32", 32},     [TYPE_E4M3] = {"e4m3", 8},
    [TYPE_E5M2] = {"e5m2", 8},      [TYPE_E2M1] = {"e2m1", 4},      [TYPE_E2M3] = {"e2m3", 6},
    [TYPE_E3M2] = {"e3m2", 6},      [TYPE_UE8M0] = {"ue8m0", 8},    [TYPE_UE4M3] = {"ue4m3", 8},
    [TYPE_E4M3X2] = {"e4m3x2", 16}, [TYPE_E5M2X2] = {"e5m2x2", 16}, [TYPE_E2M1X2] = {"e2m1x2", 8},
    [TYPE_E2M3X2] = {"e2m3x2", 16}, [TYPE_E3M2X2] = {"e3m2x2", 16}, [TYPE_UE8M0X2] = {"ue8m0x2", 16},
    [TYPE_E4M3X4] = {"e4m3x4", 32}, [TYPE_E5M2X4] = {"e5m2x4", 32}, [TYPE_E2M1X4] = {"e2m1x4", 16},
    [TYPE_E2M3X4] = {"e2m3x4", 32}, [TYPE_E3M2X4] = {"e3m2x4", 32}, [TYPE_U4] = {"u4", 4},
    [TYPE_S4] = {"s4", 4},          [TYPE_B1] = {"b1", 1},
};

int type_bits(ptx_type type) {
    return types[type].bits;
}

const char *type_name(ptx_type type) {
    return types[type].name;
}

ptx_type type_of_name(const char *name) {
    if (!strchr("pbusfet", name[0])) return TYPE_NONE;
    for (int type = TYPE_NONE + 1; type < TYPE_COUNT; type++)
        if (!strcmp(name, types[type].name)) return (ptx_type)type;
    return TYPE_NONE;
}
