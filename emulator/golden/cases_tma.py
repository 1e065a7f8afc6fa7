"""Tensor copies: maps, boxes, places and coordinates of the cases, and what cuTensorMapEncodeTiled rejects."""

import math

import generate
import numpy as np
from cases import Buffer, Case, Coordinates, Int32, Map, output
from compare import Exact, Recorded

NONE, SWIZZLE_32, SWIZZLE_64, SWIZZLE_128 = range(4)
U8, U16, U32, S32, U64, S64, F16, F32, F64, BF16, F32_FTZ, TF32, TF32_FTZ = range(13)
BYTES = {
    U8: 1,
    U16: 2,
    U32: 4,
    S32: 4,
    U64: 8,
    S64: 8,
    F16: 2,
    F32: 4,
    F64: 8,
    BF16: 2,
    F32_FTZ: 4,
    TF32: 4,
    TF32_FTZ: 4,
}
NAMES = ["u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f64", "bf16", "f32_ftz", "tf32", "tf32_ftz"]
ZEROS, NAN = 0, 1


def tensor(
    dtype: int,
    dims: tuple[int, ...],
    box: tuple[int, ...],
    swizzle: int = NONE,
    fill: int = ZEROS,
    strides: tuple[int, ...] | None = None,
    steps: tuple[int, ...] | None = None,
    **other: int,
) -> dict:
    """A map's fields; strides in bytes, dense and rounded up to 16 unless given."""
    if strides is None:
        strides, size = (), BYTES.get(dtype, 1)
        for d in dims[:-1]:
            size = -(-size * d // 16) * 16
            strides += (size,)
    fields = {"dtype": dtype, "dims": dims, "strides": strides, "box": box, "steps": steps or (1,) * len(dims)}
    return fields | {"interleave": 0, "swizzle": swizzle, "promotion": 0, "fill": fill} | other


def extent(spec: dict) -> int:
    """Bytes of global memory from the first to the last element."""
    last = (spec["dims"][0] - 1) * BYTES[spec["dtype"]]
    last += sum((d - 1) * s for d, s in zip(spec["dims"][1:], spec["strides"]))
    return -(-(last + BYTES[spec["dtype"]]) // 16) * 16


def box_bytes(spec: dict) -> int:
    """Bytes that a load writes and completes: every step-th element of the box; the step of dimension 0 is ignored."""
    counts = [spec["box"][0]] + [-(-b // s) for b, s in zip(spec["box"][1:], spec["steps"][1:])]
    return math.prod(counts) * BYTES[spec["dtype"]]


def image_bytes(spec: dict) -> int:
    """Shared memory of a box: under a swizzle its rows lie a whole span apart, however narrow they are."""
    row = spec["box"][0] * BYTES[spec["dtype"]]
    pitch = 16 << spec["swizzle"] if spec["swizzle"] else row
    return box_bytes(spec) // row * pitch


def contents(spec: dict) -> np.ndarray:
    """Counters in the elements' size, so that a picture shows where each element went; floats stay finite."""
    size = BYTES[spec["dtype"]]
    count = extent(spec) // size
    if spec["dtype"] in (F32_FTZ, TF32, TF32_FTZ):
        data = generate.rows_f32(200, count)[:count]  # subnormals, NaNs, mantissas of full length
    elif size == 1:
        data = (np.arange(count) * 7 + np.arange(count) // 251 + 1).astype(np.uint8)
    else:
        data = generate.counter(count, size)
    return data.view(np.uint8)


def load(
    name: str, spec: dict, at: tuple[int, ...], offset: int = 0, bytes_: int | None = None, **options: object
) -> Case:
    total = box_bytes(spec)
    size = -(-(offset + image_bytes(spec) + 64) // 128) * 128
    return Case(
        name,
        "tma",
        "tma_load",
        {"tensor": Buffer(contents(spec)), "out": output(size + 8)},
        [
            Map("tensor", spec),
            Coordinates(at),
            "out",
            Int32(len(spec["dims"])),
            Int32(offset),
            Int32(total if bytes_ is None else bytes_),
            Int32(size),
        ],
        options.pop("rule", Exact()),
        block=(64, 1, 1),
        shared=size + 128,
        **options,
    )


def store(name: str, spec: dict, at: tuple[int, ...], offset: int = 0) -> Case:
    size = -(-(offset + image_bytes(spec)) // 128) * 128
    image = generate.counter(size // 2, 2)
    return Case(
        name,
        "tma",
        "tma_store",
        {"tensor": Buffer(np.full(extent(spec) + 16, 0xEE, np.uint8), keep=True), "in": Buffer(image)},
        [Map("tensor", spec), Coordinates(at), "in", Int32(len(spec["dims"])), Int32(offset), Int32(size)],
        Exact(),
        block=(64, 1, 1),
        shared=size,
    )


def load_cases() -> list[Case]:
    made = []
    # each swizzle with each width of the inner box, at destinations aligned to 128 only
    for swizzle, span in ((NONE, 256), (SWIZZLE_32, 32), (SWIZZLE_64, 64), (SWIZZLE_128, 128)):
        for width in (16, 32, 48, 64, 96, 128, 256):
            if width > span:
                continue
            offsets = (0, 128, 256, 384, 512, 640, 896) if width == span else (0, 128, 384)
            for offset in offsets if swizzle else (0, 128):
                spec = tensor(U16, (160, 24), (width // 2, 16), swizzle)
                made.append(
                    load(
                        f"load_swizzle{32 * (1 << swizzle >> 1) if swizzle else 0}_width{width}_at{offset}",
                        spec,
                        (8, 3),
                        offset,
                    )
                )
    # out of bounds: every side, corners, wholly outside, far outside; zero and NaN fill
    edges = {
        "left": (-8, 2),
        "right": (28, 2),
        "top": (4, -3),
        "bottom": (4, 20),
        "corner": (-4, -6),
        "opposite": (32, 21),
        "outside": (40, 2),
        "before": (-16, 0),
        "below": (0, 24),
        "far": (2147483644, 5),
        "far_before": (-2147483648, -2147483648),
        "both_far": (1000000, 1000000),
    }
    for where, at in edges.items():
        for swizzle in (NONE, SWIZZLE_64):
            for fill in (ZEROS, NAN):
                spec = tensor(F32, (40, 24), (16, 8), swizzle, fill)
                what = "nan" if fill else "zero"
                made.append(
                    load(f"load_{where}_{what}{'_swizzled' if swizzle else ''}", spec, at, 128 if swizzle else 0)
                )
    # every type, partly outside
    for dtype in range(13):
        for fill in (ZEROS, NAN) if dtype >= F16 else (ZEROS,):
            inner = 32 // BYTES[dtype]
            spec = tensor(dtype, (3 * inner, 6), (inner, 5), NONE, fill)
            made.append(load(f"load_{NAMES[dtype]}_{'nan' if fill else 'zero'}", spec, (2 * inner + inner // 2, -1)))
    # one to five dimensions, inside and across every border
    shapes = {
        1: ((300,), (64,), [(16,), (-8,), (280,)]),
        3: ((40, 7, 5), (16, 3, 4), [(8, 2, 1), (32, -1, 3), (-8, 5, -2)]),
        4: ((24, 5, 4, 3), (16, 3, 2, 2), [(8, 1, 1, 1), (16, 4, -1, 2)]),
        5: ((16, 4, 3, 3, 2), (16, 2, 2, 2, 2), [(8, 1, 1, 1, 0), (-8, 3, 2, -1, 1)]),
    }
    for rank, (dims, box, places) in shapes.items():
        for i, at in enumerate(places):
            for swizzle in (NONE, SWIZZLE_32):
                if swizzle and rank == 1:
                    continue
                spec = tensor(U16, dims, box, swizzle)
                made.append(
                    load(f"load_rank{rank}_{i}{'_swizzled' if swizzle else ''}", spec, at, 128 if swizzle else 0)
                )
    # strides that are not monotone, that overlap, that are zero; boxes larger than the tensor
    made += [
        load("load_stride_order", tensor(U16, (16, 4, 6), (16, 2, 3), strides=(192, 32)), (0, 1, 2)),
        load("load_stride_overlap", tensor(U16, (32, 12), (32, 5), strides=(16,)), (0, 3)),
        load("load_stride_zero", tensor(U16, (32, 4, 1), (32, 3, 1), strides=(64, 0)), (0, 1, 0)),
        load("load_stride_wide", tensor(U16, (20, 5), (24, 4), strides=(1040,)), (0, 0)),
        load("load_box_larger", tensor(U8, (20, 3), (64, 8), SWIZZLE_64), (0, 0)),
        load("load_inner_not_multiple", tensor(U8, (37, 9), (32, 4)), (16, 2)),
        load("load_box_256", tensor(U8, (512, 300), (16, 256)), (32, 40)),
    ]
    # element strides
    for i, (dims, box, steps, at) in enumerate(
        [
            ((64, 30), (32, 9), (1, 2), (16, 3)),
            ((64, 30), (32, 9), (1, 3), (16, -4)),
            ((64, 30), (32, 8), (1, 4), (40, 25)),
            ((64, 30), (32, 8), (2, 1), (16, 3)),
            ((32, 9, 8), (16, 5, 4), (1, 2, 3), (8, 1, 2)),
            ((32, 9, 8), (16, 5, 4), (1, 8, 1), (8, -3, 2)),
        ]
    ):
        for swizzle in (NONE, SWIZZLE_32 if dims == (32, 9, 8) else SWIZZLE_64):
            spec = tensor(U16, dims, box, swizzle, steps=steps)
            made.append(load(f"load_steps{i}{'_swizzled' if swizzle else ''}", spec, at))
    # what the types that convert do to subnormals, NaNs, ties of tf32
    values = np.array(
        generate.F32_SPECIAL + [0x3F801000, 0x3F803000, 0xBF801000, 0x3F801001, 0x3F800FFF, 0x7F7FF000], np.uint32
    )
    values = np.concatenate([values, np.array([0x007FF000, 0x7F801000, 0x7FFFFFFF, 0x80001000, 0x00001001], np.uint32)])
    values = np.concatenate([values, generate.words32(201, 128 - len(values))])
    for dtype in (F32, F32_FTZ, TF32, TF32_FTZ):
        case = load(f"load_values_{NAMES[dtype]}", tensor(dtype, (32, 4), (32, 4)), (0, 0))
        case.buffers["tensor"] = Buffer(values)
        made.append(case)
    # one row more than the span: a narrow box needs the room of a wide one, and less is an illegal access
    for shrink in (0, 1024):
        case = load(f"load_narrow_in_room_less_{shrink}", tensor(U16, (64, 64), (16, 64), SWIZZLE_128), (0, 0))
        case.shared, case.args[-1] = 8192 - shrink, Int32(4096)
        made.append(case)
    # coordinate 0 counts in elements but must fall on 16 bytes: inside the tensor, and across its border
    for dtype, at in ((U8, (8, 1)), (U8, (1, 1)), (U16, (4, 3)), (U16, (9, 3)), (F32, (2, 0)), (U64, (1, 0))):
        made.append(load(f"load_unaligned_{NAMES[dtype]}_{at[0]}", tensor(dtype, (64, 16), (16, 4)), at))
    made.append(load("load_unaligned_corner", tensor(F32, (40, 24), (16, 8)), (-5, -6)))
    made.append(load("load_unaligned_swizzled", tensor(U16, (64, 24), (16, 8), SWIZZLE_32), (4, 0)))
    made.append(load("load_unaligned_rank1", tensor(U16, (300,), (64,)), (-7,)))
    # the transaction count is the whole box's: with less expected the phase may end early, and the rest is left over
    outside = tensor(F32, (40, 24), (16, 8))
    made.append(
        load(
            "load_tx_clipped",
            outside,
            (36, 20),
            bytes_=4 * 4 * 4,
            rule=Recorded("expects only what lies inside"),
            may_reject=True,
        )
    )
    narrow = tensor(U16, (64, 24), (16, 8), SWIZZLE_128)
    made.append(
        load(
            "load_tx_pitch",
            narrow,
            (0, 0),
            bytes_=8 * 128,
            rule=Recorded("expects the gaps of a narrow box too"),
            may_reject=True,
        )
    )
    return made


def store_cases() -> list[Case]:
    made = []
    for swizzle, span in ((NONE, 128), (SWIZZLE_32, 32), (SWIZZLE_64, 64), (SWIZZLE_128, 128)):
        for offset in (0, 128, 640):
            spec = tensor(U16, (96, 20), (span // 2, 12), swizzle)
            made.append(
                store(f"store_swizzle{32 * (1 << swizzle >> 1) if swizzle else 0}_at{offset}", spec, (16, 3), offset)
            )
    for swizzle in (SWIZZLE_64, SWIZZLE_128):
        made.append(store(f"store_narrow{swizzle}", tensor(U16, (40, 20), (16, 12), swizzle), (8, 3), 128))
    inside_or_behind = {
        "right": (32, 2),
        "bottom": (8, 17),
        "opposite": (32, 17),
        "outside": (40, 2),
        "below": (0, 20),
        "far": (0, 1 << 30),
    }
    before_or_unaligned = {"left": (-8, 2), "top": (8, -1), "unaligned": (4, 2), "unaligned_right": (36, 2)}
    for where, at in (inside_or_behind | before_or_unaligned).items():
        made.append(store(f"store_{where}", tensor(U16, (40, 20), (16, 8), NONE), at))
        if where in inside_or_behind:
            made.append(store(f"store_{where}_swizzled", tensor(U16, (40, 20), (16, 8), SWIZZLE_32), at, 128))
    made += [
        store("store_rank1", tensor(U16, (300,), (64,)), (264,)),
        # dimension 0 ends inside 16 bytes: what lies behind it in memory
        store("store_end_u8", tensor(U8, (37, 9), (32, 4)), (16, 2)),
        store("store_end_u8_swizzled", tensor(U8, (37, 9), (32, 4), SWIZZLE_32), (16, 2)),
        store("store_end_u16", tensor(U16, (45, 9), (16, 4)), (32, 7)),
        store("store_end_f32", tensor(F32, (21, 5), (8, 3)), (16, 1)),
        store("store_end_u64", tensor(U64, (5, 5), (4, 3)), (4, 1)),
        store("store_end_rank1_u8", tensor(U8, (83,), (64,)), (64,)),
        store("store_rank3", tensor(U16, (40, 7, 5), (16, 3, 4), SWIZZLE_32), (32, 5, 3)),
        store("store_rank4", tensor(U16, (24, 5, 4, 3), (8, 3, 2, 2)), (16, 3, 3, 2)),
        store("store_rank5", tensor(U16, (16, 4, 3, 3, 2), (8, 2, 2, 2, 2)), (8, 3, 2, 2, 1)),
        store("store_steps", tensor(U16, (64, 30), (32, 9), NONE, steps=(1, 3)), (16, 4)),
        store("store_steps_swizzled", tensor(U16, (64, 30), (32, 9), SWIZZLE_64, steps=(1, 2)), (40, 25)),
    ]
    return made


def reduce_cases() -> list[Case]:
    made = []
    table = {
        "add": (U32, S32, U64, F16, BF16, F32, F32_FTZ),
        "min": (U32, S32, U64, S64, F16, BF16),
        "max": (U32, S32, U64, S64, F16, BF16),
        "inc": (U32,),
        "dec": (U32,),
        "and": (U32, U64),
        "or": (U32, U64),
        "xor": (U32, U64),
    }
    for operation, types in table.items():
        for dtype in types:
            inner = 32 // BYTES[dtype]
            spec = tensor(dtype, (2 * inner, 6), (inner, 5))
            count = extent(spec) // 4
            if dtype in (F16, BF16):
                bits = 5 if dtype == F16 else 8
                before, image = (generate.rows_half(s, 128, bits)[:count] for s in (210, 211))
            elif dtype in (F32, F32_FTZ):
                before, image = (generate.rows_f32(s, 128)[i : i + count] for s, i in ((212, 0), (213, 128)))
            else:
                before, image = (generate.words32(s, count) for s in (214 + dtype, 230 + dtype))
            made.append(
                Case(
                    f"reduce_{operation}_{NAMES[dtype]}",
                    "tma",
                    f"tma_reduce_{operation}",
                    {"tensor": Buffer(before, keep=True), "in": Buffer(image[:40])},
                    [Map("tensor", spec), Coordinates((inner // 2, 2)), "in", Int32(160)],
                    Exact(BYTES[dtype]),
                    shared=256,
                )
            )
    return made


def end_cases() -> list[Case]:
    """Reductions where dimension 0 ends inside 16 bytes."""
    made = []
    for dtype, inside in ((U32, 21), (U64, 5), (F16, 45)):
        inner = 32 // BYTES[dtype]
        spec = tensor(dtype, (inside, 5), (inner, 3))
        before = np.full(extent(spec) // 4, 0x3C003C00 if dtype == F16 else 1000, np.uint32)
        image = np.full(24, 0x40003C00 if dtype == F16 else 7, np.uint32)
        made.append(
            Case(
                f"reduce_end_{NAMES[dtype]}",
                "tma",
                "tma_reduce_add",
                {"tensor": Buffer(before, keep=True), "in": Buffer(image)},
                [
                    Map("tensor", spec),
                    Coordinates((inside * BYTES[dtype] // 16 * 16 // BYTES[dtype], 1)),
                    "in",
                    Int32(96),
                ],
                Exact(BYTES[dtype]),
                shared=256,
            )
        )
    return made


def cluster_cases() -> list[Case]:
    made = []
    for ranks, masks in (
        (2, (3, 3)),
        (2, (2, 1)),
        (4, (15, 15, 15, 15)),
        (4, (5, 10, 5, 10)),
        (4, (8, 0b0110, 1, 0b1001)),
    ):
        spec = tensor(U16, (64, 40), (64, 8), SWIZZLE_128)
        size = ranks * 1024
        made.append(
            Case(
                "multicast_" + "_".join(str(m) for m in masks),
                "tma",
                "tma_multicast",
                {
                    "tensor": Buffer(contents(spec)),
                    "masks": Buffer(np.array(masks, np.uint32)),
                    "out": output((size + 16) * ranks),
                },
                [Map("tensor", spec), "masks", "out", Int32(1024), Int32(8), Int32(size)],
                Exact(),
                grid=(ranks, 1, 1),
                block=(64, 1, 1),
                cluster=(ranks, 1, 1),
                shared=size,
            )
        )
    spec = tensor(U16, (64, 16), (64, 16), SWIZZLE_128)
    made.append(
        Case(
            "load_remote",
            "tma",
            "tma_load_remote",
            {"tensor": Buffer(contents(spec)), "out": output(2 * (2048 + 16))},
            [Map("tensor", spec), "out", Int32(2048), Int32(2048)],
            Exact(),
            grid=(2, 1, 1),
            cluster=(2, 1, 1),
            shared=2048,
            may_reject=True,  # PTX wants destination and barrier in one CTA, not in the caller's own
        )
    )
    made.append(
        Case(
            "prefetch",
            "tma",
            "tma_prefetch",
            {"tensor": Buffer(contents(spec)), "out": output(128)},
            [Map("tensor", spec), "out"],
            Exact(),
        )
    )
    return made


def tma_cases() -> list[Case]:
    return load_cases() + store_cases() + reduce_cases() + end_cases() + cluster_cases()


def encodings() -> list[tuple[str, dict, int]]:
    """Maps one step inside and outside of the documented rules: a name, the fields, what to add to a good address."""
    good = ((64, 32), (32, 8))
    t = tensor
    made = [
        ("plain", t(U16, *good), 0),
        ("address 8", t(U16, *good), 8),
        ("address 16", t(U16, *good), 16),
        ("rank 0", t(U16, *good, rank=0), 0),
        ("rank 6", t(U16, (8,) * 6, (8,) * 6), 0),
        ("dimension 0", t(U16, (64, 0), (32, 8)), 0),
        ("dimension 2^32", t(U8, (1 << 32, 2), (32, 1)), 0),
        ("dimension 2^32 + 1", t(U8, ((1 << 32) + 1, 2), (32, 1), strides=(1 << 33,)), 0),
        ("stride 8", t(U16, *good, strides=(136,)), 0),
        ("stride 0", t(U16, *good, strides=(0,)), 0),
        ("stride below the row", t(U16, *good, strides=(64,)), 0),
        ("stride 2^40 - 16", t(U16, *good, strides=((1 << 40) - 16,)), 0),
        ("stride 2^40", t(U16, *good, strides=(1 << 40,)), 0),
        ("stride not a multiple of the one before", t(U16, (16, 4, 6), (16, 2, 3), strides=(192, 32)), 0),
        ("box 0", t(U16, (64, 32), (32, 0)), 0),
        ("box 256", t(U8, (512, 512), (256, 1)), 0),
        ("box 257", t(U8, (512, 512), (16, 257)), 0),
        ("box of 8 bytes", t(U16, (64, 32), (4, 8)), 0),
        ("box of 24 bytes", t(U16, (64, 32), (12, 8)), 0),
        ("box larger than the tensor", t(U16, (16, 4), (32, 8)), 0),
        ("box of 256 KiB", t(U32, (512, 512), (256, 256)), 0),
        ("box of 228 KiB", t(U32, (512, 512), (256, 228)), 0),
        ("element stride 0", t(U16, *good, steps=(1, 0)), 0),
        ("element stride 8", t(U16, *good, steps=(1, 8)), 0),
        ("element stride 9", t(U16, *good, steps=(1, 9)), 0),
        ("element stride of dimension 0", t(U16, *good, steps=(2, 1)), 0),
        ("element stride 9 of dimension 0", t(U16, *good, steps=(9, 1)), 0),
        ("swizzle 32, 32 bytes", t(U16, (64, 32), (16, 8), SWIZZLE_32), 0),
        ("swizzle 32, 64 bytes", t(U16, (64, 32), (32, 8), SWIZZLE_32), 0),
        ("swizzle 64, 128 bytes", t(U16, (64, 32), (64, 8), SWIZZLE_64), 0),
        ("swizzle 128, 256 bytes", t(U16, (128, 32), (128, 8), SWIZZLE_128), 0),
        ("swizzle 128, 16 bytes", t(U16, (64, 32), (8, 8), SWIZZLE_128), 0),
        ("swizzle 128 with 32-byte atom", t(U16, (64, 32), (64, 8), 4), 0),
        ("swizzle 128 with 32-byte atom, 8-byte flip", t(U16, (64, 32), (64, 8), 5), 0),
        ("swizzle 128 with 64-byte atom", t(U16, (64, 32), (64, 8), 6), 0),
        ("swizzle 7", t(U16, (64, 32), (64, 8), 7), 0),
        ("swizzle 8", t(U16, (64, 32), (64, 8), 8), 0),
        ("NaN fill, u16", t(U16, *good, fill=NAN), 0),
        ("NaN fill, f16", t(F16, *good, fill=NAN), 0),
        ("NaN fill, f64", t(F64, *good, fill=NAN), 0),
        ("fill 2", t(F16, *good, fill=2), 0),
        ("promotion 3", t(U16, *good, promotion=3), 0),
        ("promotion 4", t(U16, *good, promotion=4), 0),
        ("interleave 16, rank 2", t(U16, *good, interleave=1), 0),
        ("interleave 16, rank 3", t(U16, (64, 16, 4), (8, 8, 2), interleave=1), 0),
        ("interleave 32, rank 3", t(U16, (64, 16, 4), (16, 8, 2), interleave=2), 0),
        ("interleave 32, swizzle 32", t(U16, (64, 16, 4), (16, 8, 2), SWIZZLE_32, interleave=2), 0),
        ("interleave 32, address 16", t(U16, (64, 16, 4), (16, 8, 2), SWIZZLE_32, interleave=2), 16),
        ("interleave 3", t(U16, (64, 16, 4), (16, 8, 2), interleave=3), 0),
        ("type 13, packed fp4", t(13, (128, 32), (128, 8), strides=(64,)), 0),
        ("type 14, padded fp4", t(14, (128, 32), (128, 8), strides=(64,)), 0),
        ("type 15, padded fp6", t(15, (128, 32), (128, 8), strides=(96,)), 0),
        ("type 16", t(16, (128, 32), (128, 8), strides=(128,)), 0),
    ]
    made += [(f"type {NAMES[d]}", t(d, (64, 32), (16, 8)), 0) for d in range(13)]
    return made
