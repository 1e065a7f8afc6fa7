"""wgmma: one random image in shared memory, and descriptors that read it in every way."""

import generate
import numpy as np
from cases import Buffer, Case, Int32, Int64, Map, output
from cases_tma import F16, SWIZZLE_128, tensor
from compare import Exact

MODE = {0: 0, 128: 1, 64: 2, 32: 3}
ELEMENT = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1}


def descriptor(start: int, leading: int, stride: int, swizzle: int, base_offset: int = 0) -> int:
    """A shared-memory matrix descriptor: byte offsets, the swizzle's span in bytes."""
    fields = (start >> 4 & 0x3FFF) | (leading >> 4 & 0x3FFF) << 16 | (stride >> 4 & 0x3FFF) << 32
    return fields | base_offset << 49 | MODE[swizzle] << 62


def image(seed: int, size: int, kind: str, what: str) -> np.ndarray:
    count = size // ELEMENT[kind]
    if kind == "s8":
        return generate.words32(seed, size // 4).view(np.uint8)
    if what == "integers":
        return generate.small_integers(seed, count, kind).view(np.uint8)
    spread = 4 if what == "noise" else 6 if kind == "e4m3" else 12
    return generate.noise(seed, count, kind, spread).view(np.uint8)


def chain(
    name: str,
    kernel: str,
    registers: int,
    kind: str,
    a: int | None,
    b: int,
    step_a: int = 0,
    step_b: int = 0,
    steps: int = 1,
    scale_d: int = 1,
    size: int = 24576,
    what: str = "integers",
    **options: object,
) -> Case:
    """`a` None: A from registers. Steps of the descriptors in bytes."""
    seed = 300 + sum(name.encode()) % 997
    data = image(seed, size, kind, what)
    if a is None:
        data = np.concatenate([data, image(seed + 1, 2048 * steps, kind, what)])
    start = [Int64(b)] if a is None else [Int64(a), Int64(b)]
    advance = [Int32(step_b >> 4)] if a is None else [Int32(step_a >> 4), Int32(step_b >> 4)]
    return Case(
        name,
        "wgmma",
        kernel,
        {"in": Buffer(data), "out": output(128 * 4 * registers)},
        ["in", "out", Int32(size // 16), *start, *advance, Int32(steps), Int32(scale_d)],
        Exact(),
        block=(128, 1, 1),
        shared=size,
        **options,
    )


def k_major(start: int, swizzle: int, rows: int = 64) -> tuple[int, int]:
    """The usual layout of `rows` rows: descriptor, and the step in bytes from one 32-byte piece of K to the next."""
    if swizzle == 32:  # the piece is the whole span; the next one is another block of rows
        return descriptor(start, 16, 256, 32), rows * 32
    if swizzle:
        return descriptor(start, 16, 8 * swizzle, swizzle), 32
    return descriptor(start, rows * 16, 128, 0), rows * 32


def half_cases() -> list[Case]:
    made = []
    # every swizzle, several n, the whole span in K
    for swizzle in (0, 32, 64, 128):
        steps = max(swizzle, 64) // 32
        for n, registers in ((8, 4), (16, 8), (24, 12), (64, 32)):
            a, step_a = k_major(0, swizzle)
            b, step_b = k_major(8192, swizzle, n)
            name = f"f16_n{n}_kk_swizzle{swizzle}"
            made.append(chain(name, f"wgmma_f16_n{n}_f32_ss_kk", registers, "f16", a, b, step_a, step_b, steps))
        b, step_b = k_major(8192, swizzle)
        for kernel, registers in (
            ("f16_n64_f32_rs_k", 32),
            ("f16_n64_f16_rs_k", 16),
            ("bf16_n64_f32_rs_k", 32),
        ):
            kind = kernel.split("_")[0]
            made.append(
                chain(
                    f"{kernel}_swizzle{swizzle}",
                    f"wgmma_{kernel}",
                    registers,
                    kind,
                    None,
                    b,
                    0,
                    step_b,
                    steps,
                )
            )
        a, step_a = k_major(0, swizzle)
        for kernel, registers in (("f16_n64_f16_ss_kk", 16), ("bf16_n64_f32_ss_kk", 32)):
            kind = kernel.split("_")[0]
            made.append(
                chain(
                    f"{kernel}_swizzle{swizzle}",
                    f"wgmma_{kernel}",
                    registers,
                    kind,
                    a,
                    b,
                    step_a,
                    step_b,
                    steps,
                )
            )
        # MN-major: A, B, both. 64 of M or N are one, two or four atoms; without swizzle eight
        atom = {0: (1024, 128), 32: (1024, 256), 64: (2048, 512), 128: (4096, 1024)}[swizzle]
        leading, stride = atom if swizzle else (atom[0], atom[1])
        mn_step = 2 * stride if swizzle else 2 * leading
        am, bm = descriptor(0, leading, stride, swizzle), descriptor(8192, leading, stride, swizzle)
        for majors in ("mk", "km", "mm"):
            da, sa = (am, mn_step) if majors[0] == "m" else (a, step_a)
            db, sb = (bm, mn_step) if majors[1] == "m" else (b, step_b)
            made.append(
                chain(
                    f"f16_n64_{majors}_swizzle{swizzle}",
                    f"wgmma_f16_n64_f32_ss_{majors}",
                    32,
                    "f16",
                    da,
                    db,
                    sa,
                    sb,
                    2,
                )
            )
        made.append(
            chain(
                f"f16_n64_f16_ss_mm_swizzle{swizzle}",
                "wgmma_f16_n64_f16_ss_mm",
                16,
                "f16",
                am,
                bm,
                mn_step,
                mn_step,
                2,
            )
        )
        made.append(
            chain(
                f"bf16_n64_mm_swizzle{swizzle}",
                "wgmma_bf16_n64_f32_ss_mm",
                32,
                "bf16",
                am,
                bm,
                mn_step,
                mn_step,
                2,
            )
        )
        made.append(
            chain(f"f16_n16_mm_swizzle{swizzle}", "wgmma_f16_n16_f32_ss_mm", 8, "f16", am, bm, mn_step, mn_step, 2)
        )
        made.append(
            chain(f"f16_n64_rs_m_swizzle{swizzle}", "wgmma_f16_n64_f32_rs_m", 32, "f16", None, bm, 0, mn_step, 2)
        )
    # n of two atoms, MN-major, 128-byte swizzle; leading and stride both ways round
    a, step_a = k_major(0, 128)
    for leading, stride in ((4096, 1024), (1024, 2048), (2048, 4096)):
        b = descriptor(8192, leading, stride, 128)
        made.append(
            chain(f"f16_n128_km_{leading}_{stride}", "wgmma_f16_n128_f32_ss_km", 64, "f16", a, b, step_a, 256, 1)
        )
    b, step_b = k_major(8192, 128)
    made.append(chain("f16_n128_kk_swizzle128", "wgmma_f16_n128_f32_ss_kk", 64, "f16", a, b, step_a, step_b, 4))
    made.append(
        chain("f16_n256_kk_swizzle128", "wgmma_f16_n256_f32_ss_kk", 128, "f16", a, b, step_a, step_b, 4, size=40960)
    )
    # no swizzle, leading and stride in other orders; MN-major too
    for leading, stride in ((128, 256), (128, 1024), (2048, 128), (4096, 256), (16, 1040)):
        a, b = descriptor(0, leading, stride, 0), descriptor(4096, leading, stride, 0)
        made.append(chain(f"f16_n16_kk_none_{leading}_{stride}", "wgmma_f16_n16_f32_ss_kk", 8, "f16", a, b))
        made.append(chain(f"f16_n16_mm_none_{leading}_{stride}", "wgmma_f16_n16_f32_ss_mm", 8, "f16", a, b))
    # the leading offset of a swizzled K-major operand does not count
    for leading in (0, 512, 4096):
        a, b = (descriptor(s, leading, 1024, 128) for s in (0, 8192))
        made.append(chain(f"f16_n16_kk_leading{leading}", "wgmma_f16_n16_f32_ss_kk", 8, "f16", a, b, 32, 32, 4))
    # scale-d 0, negated operands
    a, b = k_major(0, 128)[0], k_major(8192, 128)[0]
    made.append(chain("f16_n16_scale_d_0", "wgmma_f16_n16_f32_ss_kk", 8, "f16", a, b, 32, 32, 1, 0))
    made.append(chain("f16_n16_scale_d_0_then_1", "wgmma_f16_n16_f32_ss_kk", 8, "f16", a, b, 32, 32, 3, 0))
    for what in ("negate_a", "negate_b", "negate_both"):
        made.append(chain(f"f16_n16_{what}", f"wgmma_f16_n16_f32_ss_kk_{what}", 8, "f16", a, b, 32, 32, 2))
    made.append(chain("f16_n16_rs_negate_a", "wgmma_f16_n16_f32_rs_k_negate_a", 8, "f16", None, b, 0, 32, 2))
    made.append(chain("f16_n8_rs", "wgmma_f16_n8_f32_rs_k", 4, "f16", None, b, 0, 32, 2))
    # arithmetic on numbers that do not add up exactly
    for kernel, registers, kind in (
        ("wgmma_f16_n16_f32_ss_kk", 8, "f16"),
        ("wgmma_bf16_n16_f32_ss_kk", 8, "bf16"),
        ("wgmma_f16_n8_f16_ss_kk", 2, "f16"),
    ):
        for steps, what in ((1, "noise"), (4, "noise"), (1, "wide"), (4, "wide")):
            name = f"{kernel}_{what}_{steps}"
            made.append(chain(name, kernel, registers, kind, a, b, 32, 32, steps, what=what))
    made.append(chain("wgmma_f16_n8_f32_rs_noise", "wgmma_f16_n8_f32_rs_k", 4, "f16", None, b, 0, 32, 4, what="noise"))
    return made


def probe_cases() -> list[Case]:
    """Starts inside the swizzle's pattern, and the base offset. PTX defines little of it."""
    made = []
    kernel = "wgmma_f16_n16_f32_ss_kk"

    def probe(name: str, a: int, b: int | None = None) -> None:
        b = descriptor(12288, 16, 1024, 128) if b is None else b
        made.append(chain(f"probe_{name}", kernel, 8, "f16", a, b))

    for row in range(1, 8):
        probe(f"start_row{row}", descriptor(128 * row, 16, 1024, 128))
        probe(f"start_row{row}_base{row}", descriptor(128 * row, 16, 1024, 128, row))
        probe(f"base{row}", descriptor(0, 16, 1024, 128, row))
    probe("start_row3_k1", descriptor(128 * 3 + 32, 16, 1024, 128))
    probe("start_row3_k1_base3", descriptor(128 * 3 + 32, 16, 1024, 128, 3))
    probe("k1_base2", descriptor(32, 16, 1024, 128, 2))
    probe("k1", descriptor(32, 16, 1024, 128))
    probe("start_16", descriptor(16, 16, 1024, 128))
    probe("start_112", descriptor(112, 16, 1024, 128))
    probe("stride_1152", descriptor(0, 16, 1152, 128))
    probe("stride_1152_base1", descriptor(0, 16, 1152, 128, 1))
    probe("stride_128", descriptor(0, 16, 128, 128))
    for row in (1, 2, 3):
        probe(f"swizzle64_start_row{row}", descriptor(64 * row, 16, 512, 64))
        probe(f"swizzle32_start_row{row}", descriptor(32 * row, 16, 256, 32))
    for row in (1, 2, 3):
        probe(f"swizzle64_start_{128 * row}_base{row}", descriptor(128 * row, 16, 512, 64, row))
        probe(f"swizzle64_base{row}", descriptor(0, 16, 512, 64, row))
    probe("swizzle32_base1", descriptor(0, 16, 256, 32, 1))
    probe("none_base5", descriptor(0, 1024, 128, 0, 5))
    probe("b_start_row5", descriptor(0, 16, 1024, 128), descriptor(12288 + 640, 16, 1024, 128))
    probe("b_start_row5_base5", descriptor(0, 16, 1024, 128), descriptor(12288 + 640, 16, 1024, 128, 5))
    # MN-major: atoms that start inside the pattern
    for start, base in ((128, 0), (384, 0), (384, 3), (1024, 0)):
        a = descriptor(start, 4096, 1024, 128, base)
        b = descriptor(12288, 4096, 1024, 128)
        name = f"probe_mm_start{start}_base{base}"
        made.append(chain(name, "wgmma_f16_n16_f32_ss_mm", 8, "f16", a, b))
    # the same with TMA on the other side
    spec_a, spec_b = (tensor(F16, (64, rows), (64, rows), SWIZZLE_128) for rows in (64, 16))
    a, b = (generate.small_integers(s, 64 * rows, "f16") for s, rows in ((290, 64), (291, 16)))
    for at_a, at_b, base_a, base_b in (
        (0, 8192, 0, 0),
        (128, 9216, 0, 0),
        (384, 9216 + 640, 0, 0),
        (384, 9216 + 640, 3, 5),
        (512, 9216, 4, 0),
        (512, 9216, 0, 0),
    ):
        made.append(
            Case(
                f"tma_wgmma_{at_a}_{at_b}_base{base_a}{base_b}",
                "wgmma",
                "tma_then_wgmma",
                {"a": Buffer(a), "b": Buffer(b), "out": output(4096)},
                [
                    Map("a", spec_a),
                    Map("b", spec_b),
                    "out",
                    Int32(at_a),
                    Int32(at_b),
                    Int64(descriptor(0, 16, 1024, 128, base_a)),
                    Int64(descriptor(0, 16, 1024, 128, base_b)),
                    Int32(4),
                ],
                Exact(),
                block=(128, 1, 1),
                shared=24576,
            )
        )
    return made


def other_cases() -> list[Case]:
    made = []
    table = (
        ("tf32_n8_f32_ss", 4, "tf32"),
        ("tf32_n64_f32_ss", 32, "tf32"),
        ("tf32_n16_f32_rs", 8, "tf32"),
        ("e4m3_n8_f32_ss", 4, "e4m3"),
        ("e4m3_n64_f32_ss", 32, "e4m3"),
        ("e4m3_n64_f16_ss", 16, "e4m3"),
        ("e5m2_n64_f32_ss", 32, "e5m2"),
        ("e4m3_e5m2_n16_f32_ss", 8, "e4m3"),
        ("e5m2_e4m3_n16_f16_ss", 4, "e5m2"),
        ("e4m3_n64_f32_rs", 32, "e4m3"),
        ("e5m2_n16_f32_rs", 8, "e5m2"),
    )
    for kernel, registers, kind in table:
        mixed = kernel.startswith(("e4m3_e5m2", "e5m2_e4m3"))
        for swizzle in (0, 128) if "n64" not in kernel else (0, 32, 64, 128):
            a, step_a = k_major(0, swizzle)
            b, step_b = k_major(8192, swizzle, int(kernel.split("_n")[1].split("_")[0]))
            a = None if kernel.endswith("rs") else a
            steps = max(swizzle, 64) // 32
            for what in ("integers", "noise", "wide"):
                if what != "integers" and (swizzle != 128 or registers > 8) or what == "integers" and mixed:
                    continue  # the codes of one eight-bit type are no small integers in the other
                made.append(
                    chain(
                        f"{kernel}_{what}_swizzle{swizzle}",
                        f"wgmma_{kernel}",
                        registers,
                        kind,
                        a,
                        b,
                        step_a,
                        step_b,
                        steps,
                        what=what,
                    )
                )
    for kernel, registers in (("s8_n16_ss", 8), ("u8_s8_n64_ss", 32), ("s8_n8_ss_satfinite", 4), ("u8_n16_rs", 8)):
        for swizzle in (0, 128):
            a, step_a = k_major(0, swizzle)
            b, step_b = k_major(8192, swizzle)
            a = None if kernel.endswith("rs") else a
            made.append(
                chain(
                    f"{kernel}_swizzle{swizzle}",
                    f"wgmma_{kernel}",
                    registers,
                    "s8",
                    a,
                    b,
                    step_a,
                    step_b,
                    2,
                )
            )
    return made


def wgmma_cases() -> list[Case]:
    return half_cases() + probe_cases() + other_cases()
