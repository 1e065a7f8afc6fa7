"""wgmma: layouts in shared memory, register fragments, sums, chains, groups and waits, against models that know nothing
of the C code: numpy where sums are exact, the fractions of arithmetic.py where they are not.

A matrix is put into shared memory element by element, at the addresses that PTX ISA 9.7.15.5.1 gives it; the
descriptors of each instruction then say where it begins. What an H200 gave for many of these is in ../golden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy
import pytest
from arithmetic import D_F16, D_F32, D_S32, ELEMENTS, FORMATS, SM90_WGMMA, TensorOp, output
from small_kernel import Emulator, EmulatorError, entry, load_only, module, random_of

BASE = 0x400  # where dynamic shared memory begins
SWIZZLES = {"none": 0, "128": 1, "64": 2, "32": 3}  # in bits 62-63 of a descriptor
SPAN = {"none": 16, "32": 32, "64": 64, "128": 128}
SIZE = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}
ROWS = 64


# --- layouts ---------------------------------------------------------------------------------------------------------


@dataclass
class Matrix:
    """Patterns [row, k] of A, or [column, k] of B, in shared memory at `start`."""

    bits: numpy.ndarray
    kind: str
    swizzle: str = "128"
    transposed: bool = False  # MN-major
    start: int = 0
    lead: int = field(init=False)
    stride: int = field(init=False)

    def __post_init__(self) -> None:
        size, span, (rows, depth) = SIZE[self.kind], SPAN[self.swizzle], self.bits.shape
        if self.transposed and self.swizzle == "none":
            self.stride, self.lead = 128, (rows // 8) * 128  # between eights of rows, between eights of k
        elif self.transposed:
            self.stride = 8 * span  # between eights of k
            self.lead = depth // 8 * self.stride  # between spans of rows
        elif self.swizzle == "none":
            self.lead, self.stride = 128, depth * size // 16 * 128  # between 16 bytes of k, between eights of rows
        else:
            self.lead, self.stride = 16, max(1, depth * size // span) * 8 * span

    @property
    def bytes(self) -> int:
        return (
            int(max(self.address(r, k) for r in (0, self.bits.shape[0] - 1) for k in (0, self.bits.shape[1] - 1)))
            + 1024
        )

    def address(self, row: int, k: int) -> int:
        """Of an element, from `start`, before the swizzle."""
        size, span = SIZE[self.kind], SPAN[self.swizzle]
        if self.transposed and self.swizzle == "none":
            return row // 8 * self.stride + k // 8 * self.lead + k % 8 * 16 + row % 8 * size
        if self.transposed:
            per = span // size
            return row // per * self.lead + k // 8 * self.stride + k % 8 * span + row % per * size
        if self.swizzle == "none":
            return row // 8 * self.stride + k * size // 16 * self.lead + row % 8 * 16 + k * size % 16
        # spans side by side along k: each holds eight rows at a time
        return row // 8 * self.stride + k * size // span * 8 * span + row % 8 * span + k * size % span

    def swizzled(self, address: int) -> int:
        absolute = BASE + self.start + address
        mask = {"none": 0, "32": 1, "64": 3, "128": 7}[self.swizzle]
        return (absolute ^ (absolute >> 7 & mask) << 4) - BASE

    def put(self, memory: numpy.ndarray) -> None:
        size = SIZE[self.kind]
        for row in range(self.bits.shape[0]):
            for k in range(self.bits.shape[1]):
                at = self.swizzled(self.address(row, k))
                value = int(self.bits[row, k]).to_bytes(size, "little")
                memory[at : at + size] = numpy.frombuffer(value, numpy.uint8)

    def descriptor(self, k: int = 0) -> int:
        """Of the slice that begins at k."""
        start = BASE + self.start + self.address(0, k)
        return start >> 4 | self.lead >> 4 << 16 | self.stride >> 4 << 32 | SWIZZLES[self.swizzle] << 62


# --- the kernel ------------------------------------------------------------------------------------------------------

PROLOGUE = """
.reg .b32 %x<{registers}>;
.reg .b32 %y<{registers}>;
.reg .b32 %z<64>;
.reg .pred %copied, %one, %zero;
setp.eq.u32 %one, %t, %t; setp.ne.u32 %zero, %t, %t;
mov.u32 %r0, %t;
FILL:
setp.ge.u32 %copied, %r0, {words};
@%copied bra FILLED;
mul.wide.u32 %d0, %r0, 4; add.u64 %d0, %d0, %a0;
ld.global.u32 %r1, [%d0];
shl.b32 %r2, %r0, 2; add.u32 %r2, %r2, %smem;
st.shared.u32 [%r2], %r1;
add.u32 %r0, %r0, {threads};
bra FILL;
FILLED:
fence.proxy.async.shared::cta;
bar.sync 0;
mul.wide.u32 %d0, %t, 4; add.u64 %d1, %d0, %a1; add.u64 %d2, %d0, %a2; add.u64 %d3, %d0, %a3;
"""
MMA = "wgmma.mma_async.sync.aligned."
FENCE, COMMIT, WAIT = "wgmma.fence.sync.aligned;", "wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned"


def listed(name: str, count: int, first: int = 0) -> str:
    return "{" + ", ".join(f"%{name}{first + i}" for i in range(count)) + "}"


def loads(name: str, base: str, count: int, threads: int) -> list[str]:
    return [f"ld.global.u32 %{name}{i}, [{base} + {4 * threads * i}];" for i in range(count)]


def execute(
    body: Sequence[str],
    memory: numpy.ndarray,
    accumulator: numpy.ndarray,
    *,
    a: numpy.ndarray | None = None,
    seed: int = 0,
    result: str = "x",
) -> numpy.ndarray:
    """Runs `body` between loading and storing registers [register, thread]: accumulators in %x, A in %z."""
    count, threads = accumulator.shape
    lines = [PROLOGUE.format(registers=max(count, 4), words=len(memory) // 4, threads=threads)]
    lines += loads("x", "%d1", count, threads)
    lines += loads("z", "%d2", 0 if a is None else len(a), threads)
    lines += body
    lines += [f"st.global.u32 [%d3 + {4 * threads * i}], %{result}{i};" for i in range(count)]
    emulator = Emulator("sm_90", seed)
    kernel = emulator.load(module(entry("\n".join(lines)), "sm_90"))["run"]
    image = emulator.array(memory.view(numpy.uint32))
    start = emulator.array(accumulator)
    registers = emulator.array(numpy.zeros((1, threads), numpy.uint32) if a is None else a)
    out = emulator.array(numpy.full_like(accumulator, 0xFFFFFFFF))
    emulator.launch(kernel, 1, threads, [image, start, registers, out, 0, 0], len(memory))
    return out.numpy().copy()


# --- fragments in registers ------------------------------------------------------------------------------------------


def accumulator_places(n: int) -> list[tuple[numpy.ndarray, numpy.ndarray]]:
    """Of value i of each of 128 threads: row and column (9.7.15.5.1.1, figure of D)."""
    thread = numpy.arange(128)
    row, column = thread // 32 * 16 + thread % 32 // 4, thread % 4 * 2
    return [(row + 8 * (i // 2 % 2), column + i % 2 + 8 * (i // 4)) for i in range(n // 2)]


def pack(matrix: numpy.ndarray, half: bool) -> numpy.ndarray:
    """D as registers [register, thread of the warpgroup]."""
    cells = numpy.array([matrix[place] for place in accumulator_places(matrix.shape[1])], numpy.uint32)
    return cells[0::2] | cells[1::2] << 16 if half else cells


def unpack(registers: numpy.ndarray, n: int, half: bool) -> numpy.ndarray:
    if half:
        cells = numpy.empty((2 * len(registers), 128), numpy.uint32)
        cells[0::2], cells[1::2] = registers & 0xFFFF, registers >> 16
        registers = cells
    matrix = numpy.zeros((ROWS, n), numpy.uint32)
    for place, values in zip(accumulator_places(n), registers, strict=True):
        matrix[place] = values
    return matrix


def pack_a(bits: numpy.ndarray, kind: str) -> numpy.ndarray:
    """A as four registers a thread: rows g and g + 8 by turns, then the second half of K."""
    per = 4 // SIZE[kind]
    thread = numpy.arange(128)
    row, column = thread // 32 * 16 + thread % 32 // 4, thread % 4 * per
    registers = numpy.zeros((4, 128), numpy.uint64)
    for i in range(4):
        for j in range(per):
            value = bits[row + 8 * (i % 2), column + 4 * per * (i // 2) + j]
            registers[i] |= value.astype(numpy.uint64) << (8 * SIZE[kind] * j)
    return registers.astype(numpy.uint32)


# --- numbers ---------------------------------------------------------------------------------------------------------


def small_integers(
    random: numpy.random.Generator, kind: str, shape: tuple[int, int]
) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Patterns and values whose sums of products are exact."""
    if kind in ("s8", "u8"):
        values = random.integers(-128, 128, shape) if kind == "s8" else random.integers(0, 256, shape)
        return (values & 0xFF).astype(numpy.uint32), values
    values = random.integers(-3, 4, shape)
    patterns = {value: encode(kind, value) for value in range(-3, 4)}
    return numpy.vectorize(patterns.__getitem__)(values).astype(numpy.uint32), values


def encode(kind: str, value: int) -> int:
    if kind == "tf32":
        return int(numpy.float32(value).view(numpy.uint32))
    if kind == "bf16":
        return int(numpy.float32(value).view(numpy.uint32)) >> 16
    return FORMATS[kind].encode(value, 0)


def any_numbers(random: numpy.random.Generator, kind: str, shape: tuple[int, int]) -> numpy.ndarray:
    if kind in ("s8", "u8"):
        return random.integers(0, 256, shape).astype(numpy.uint32)
    if kind in ("e4m3", "e5m2"):
        bits = random.integers(0, 256, shape).astype(numpy.uint32)
        bits[(bits & 0x7F) > FORMATS[kind].largest] = 0
        return bits
    values = random.standard_normal(shape) * 2.0 ** random.integers(-8, 9, shape)
    if kind == "f16":
        return values.astype(numpy.float16).view(numpy.uint16).astype(numpy.uint32)
    single = values.astype(numpy.float32).view(numpy.uint32)
    return single if kind == "tf32" else single >> 16


def to_bits(values: numpy.ndarray, d: str) -> numpy.ndarray:
    """Exact values as accumulators."""
    if d == "s32":
        return values.astype(numpy.int64).astype(numpy.uint32)
    if d == "f16":
        return values.astype(numpy.float16).view(numpy.uint16).astype(numpy.uint32)
    return values.astype(numpy.float32).view(numpy.uint32)


# --- every shape, exactly --------------------------------------------------------------------------------------------

TYPES = [
    ("f16", "f16", "f16"),
    ("f32", "f16", "f16"),
    ("f32", "bf16", "bf16"),
    ("f32", "tf32", "tf32"),
    *((d, a, b) for d in ("f16", "f32") for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")),
    *(("s32", a, b) for a in ("s8", "u8") for b in ("s8", "u8")),
]
SEEDS = [0, 1, 2, 3, 6]


def tail_of(
    kinds: tuple[str, str, str], in_registers: bool, signs: tuple[int, int], transposes: tuple[int, int]
) -> str:
    d, a, _ = kinds
    text = "" if d == "s32" else f", {signs[0]}, {signs[1]}"
    if SIZE[a] == 2:
        text += f", {transposes[1]}" if in_registers else f", {transposes[0]}, {transposes[1]}"
    return text


def depth_of(kind: str) -> int:
    return 32 // SIZE[kind]


def image(*matrices: Matrix) -> numpy.ndarray:
    """Places the matrices one behind the other, and returns shared memory with noise around them."""
    at = 0
    for matrix in matrices:
        matrix.start = at
        at += (matrix.bytes + 1023) // 1024 * 1024
    memory = numpy.random.default_rng(at).integers(0, 256, at).astype(numpy.uint8)
    for matrix in matrices:
        matrix.put(memory)
    return memory


@pytest.mark.parametrize("n", range(8, 257, 8))
def test_every_width(n: int) -> None:
    """All N, with types, swizzles, orders, signs and the place of A drawn anew."""
    random = random_of(f"width {n}")
    for _ in range(3):
        kinds = TYPES[random.integers(len(TYPES))]
        if kinds[0] == "s32" and n > 32 and n % 16:
            continue
        check_exactly(random, kinds, n)


@pytest.mark.parametrize("kinds", TYPES, ids="-".join)
@pytest.mark.parametrize("in_registers", [False, True], ids=["SS", "RS"])
def test_every_type(kinds: tuple[str, str, str], in_registers: bool) -> None:
    random = random_of(f"{kinds} {in_registers}")
    for _ in range(2):
        check_exactly(random, kinds, int(random.choice([8, 16, 24, 32, 64])), in_registers=in_registers)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("swizzles", [(a, b) for a in SWIZZLES for b in SWIZZLES], ids=str)
@pytest.mark.parametrize("transposes", [(0, 0), (0, 1), (1, 0), (1, 1)], ids=str)
def test_every_layout(kind: str, swizzles: tuple[str, str], transposes: tuple[int, int]) -> None:
    random = random_of(f"{kind} {swizzles} {transposes}")
    check_exactly(random, ("f32", kind, kind), 64, swizzles=swizzles, transposes=transposes, in_registers=False)


@pytest.mark.parametrize("kind", ["tf32", "e4m3", "s8"])
@pytest.mark.parametrize("swizzle", list(SWIZZLES))
def test_every_swizzle_of_rows(kind: str, swizzle: str) -> None:
    d = "s32" if kind == "s8" else "f32"
    check_exactly(random_of(f"{kind} {swizzle}"), (d, kind, kind), 48, swizzles=(swizzle, swizzle), in_registers=False)


def check_exactly(
    random: numpy.random.Generator,
    kinds: tuple[str, str, str],
    n: int,
    *,
    swizzles: tuple[str, str] | None = None,
    transposes: tuple[int, int] | None = None,
    in_registers: bool | None = None,
) -> None:
    """A chain over several slices of K, where no sum is rounded."""
    d, a_kind, b_kind = kinds
    step = depth_of(a_kind)
    slices = int(random.integers(1, 5))
    depth = 4 * step  # a whole span of 128 bytes
    in_registers = bool(random.integers(2)) if in_registers is None else in_registers
    if swizzles is None:
        swizzles = str(random.choice(list(SWIZZLES))), str(random.choice(list(SWIZZLES)))
    if transposes is None:
        transposes = (int(random.integers(2)), int(random.integers(2)))
    if SIZE[a_kind] != 2:
        transposes = (0, 0)
    if in_registers:
        transposes = (0, transposes[1])
    # a span along M or N must not be wider than the matrix that this test stores
    swizzles = tuple(
        s if not t or rows * 2 % SPAN[s] == 0 else "none"
        for s, t, rows in zip(swizzles, transposes, (ROWS, n), strict=True)
    )
    a_bits, a_values = small_integers(random, a_kind, (ROWS, depth))
    b_bits, b_values = small_integers(random, b_kind, (n, depth))
    a = Matrix(a_bits, a_kind, swizzles[0], bool(transposes[0]))
    b = Matrix(b_bits, b_kind, swizzles[1], bool(transposes[1]))
    memory = image(a, b)
    signs = (1, 1) if d == "s32" else (int(random.choice([-1, 1])), int(random.choice([-1, 1])))
    use_c = bool(random.integers(2))
    c_values = random.integers(-100, 101, (ROWS, n))
    half = d == "f16"
    accumulator = pack(to_bits(c_values, d), half)
    fragments = numpy.concatenate([pack_a(a_bits[:, s * step : (s + 1) * step], a_kind) for s in range(4)])
    saturate = ".satfinite" if d == "s32" and random.integers(2) else ""
    body = [FENCE]
    for s in range(slices):
        scale = "%one" if s or use_c else str(random.choice(["%zero", "0", "!%one"]))
        where = listed("z", 4, 4 * s) if in_registers else "%d4"
        body += [f"mov.u64 %d4, {a.descriptor(s * step)};", f"mov.u64 %d5, {b.descriptor(s * step)};"]
        body.append(
            f"wgmma.mma_async.sync.aligned.m64n{n}k{step}{saturate}.{d}.{a_kind}.{b_kind} "
            f"{listed('x', len(accumulator))}, {where}, %d5, {scale}{tail_of(kinds, in_registers, signs, transposes)};"
        )
        if random.integers(2):
            body.append(COMMIT)
    body += [COMMIT, f"{WAIT} 0;"]
    total = (c_values if use_c else 0) + signs[0] * signs[1] * (
        a_values[:, : slices * step] @ b_values[:, : slices * step].T
    )
    seed = int(random.integers(0, 64))
    result = execute(body, memory, accumulator, a=fragments if in_registers else None, seed=seed)
    message = f"{kinds} n {n} swizzles {swizzles} transposes {transposes} registers {in_registers} seed {seed}"
    numpy.testing.assert_array_equal(unpack(result, n, half), to_bits(total, d), message)


# --- bits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kinds", TYPES, ids="-".join)
def test_sums(kinds: tuple[str, str, str]) -> None:
    """Two instructions in a chain, with numbers whose sums are cut."""
    d, a_kind, b_kind = kinds
    random = random_of(f"sums {kinds}")
    n, step, half = 8, depth_of(a_kind), d == "f16"
    a_bits, b_bits = any_numbers(random, a_kind, (ROWS, 2 * step)), any_numbers(random, b_kind, (n, 2 * step))
    a, b = Matrix(a_bits, a_kind, "64"), Matrix(b_bits, b_kind, "64")
    memory = image(a, b)
    if d == "s32":
        c = random.integers(0, 1 << 32, (ROWS, n), numpy.uint64).astype(numpy.uint32)
        c[:4] = [[0x7FFFFF00 + i] * n for i in range(4)]
        c[4:8] = [[0x80000100 + i] * n for i in range(4)]
    else:
        c = any_numbers(random, "f16" if half else "tf32", (ROWS, n))
    saturate = d == "s32" and bool(random.integers(2))
    negate = d != "s32" and bool(random.integers(2))
    op = TensorOp(
        architecture=SM90_WGMMA,
        k=step,
        a_type=ELEMENTS.index(a_kind),
        b_type=ELEMENTS.index(b_kind),
        d_type={"f32": D_F32, "f16": D_F16, "s32": D_S32}[d],
        negate_a=negate,
        saturate=saturate,
    )
    accumulator = pack(c, half)
    body, expected = [FENCE], c.astype(object)
    for s in range(2):
        body += [f"mov.u64 %d4, {a.descriptor(s * step)};", f"mov.u64 %d5, {b.descriptor(s * step)};"]
        body.append(
            f"wgmma.mma_async.sync.aligned.m64n{n}k{step}{'.satfinite' * saturate}.{d}.{a_kind}.{b_kind} "
            f"{listed('x', len(accumulator))}, %d4, %d5, 1{tail_of(kinds, False, (-1 if negate else 1, 1), (0, 0))};"
        )
        rows, columns = (
            [b"".join(int(x).to_bytes(SIZE[kind], "little") for x in row) for row in bits[:, s * step : (s + 1) * step]]
            for bits, kind in ((a_bits, a_kind), (b_bits, b_kind))
        )
        for i in range(ROWS):
            for j in range(n):
                expected[i, j] = output(op, rows[i], columns[j], b"", b"", int(expected[i, j]))
    body += [COMMIT, f"{WAIT} 0;"]
    result = execute(body, memory, accumulator, seed=int(random.integers(0, 64)))
    numpy.testing.assert_array_equal(unpack(result, n, half), expected.astype(numpy.uint32))


# --- time ------------------------------------------------------------------------------------------------------------


@dataclass
class Small:
    """f16, N = 16, with everything that the tests of time need."""

    memory: numpy.ndarray
    accumulator: numpy.ndarray
    c: numpy.ndarray
    products: list[numpy.ndarray]
    descriptors: list[tuple[int, int]]

    def multiply(self, s: int, registers: str = "x", scale: str = "%one") -> list[str]:
        a, b = self.descriptors[s]
        return [
            f"mov.u64 %d4, {a};",
            f"mov.u64 %d5, {b};",
            f"{MMA}m64n16k16.f32.f16.f16 {listed(registers, 8)}, %d4, %d5, {scale}, 1, 1, 0, 0;",
        ]


def small(name: str) -> Small:
    random = random_of(name)
    a_bits, a_values = small_integers(random, "f16", (ROWS, 64))
    b_bits, b_values = small_integers(random, "f16", (16, 64))
    a, b = Matrix(a_bits, "f16"), Matrix(b_bits, "f16")
    memory = image(a, b)
    c = random.integers(-100, 101, (ROWS, 16))
    products = [a_values[:, s : s + 16] @ b_values[:, s : s + 16].T for s in range(0, 64, 16)]
    descriptors = [(a.descriptor(s), b.descriptor(s)) for s in range(0, 64, 16)]
    return Small(memory, pack(to_bits(c, "f32"), False), c, products, descriptors)


def check(result: numpy.ndarray, expected: numpy.ndarray) -> None:
    numpy.testing.assert_array_equal(unpack(result, 16, False), to_bits(expected, "f32"))


@pytest.mark.parametrize("seed", SEEDS)
def test_chain_of_groups(seed: int) -> None:
    """Groups that follow each other into one accumulator, waited for with some still allowed."""
    s = small(f"groups {seed}")
    body = [FENCE]
    for i in range(4):
        body += [*s.multiply(i), COMMIT, f"{WAIT} {3 - i};"]
    check(execute(body, s.memory, s.accumulator, seed=seed), s.c + sum(s.products))


@pytest.mark.parametrize("seed", SEEDS)
def test_two_accumulators(seed: int) -> None:
    """Waiting for all groups but one delivers the older one, and the younger one later."""
    s = small(f"two {seed}")
    body = [FENCE, *s.multiply(0), COMMIT, *s.multiply(1, "y", "%zero"), COMMIT, f"{WAIT} 1;"]
    body += [f"add.f32 %x{i}, %x{i}, %x{i};" for i in range(8)]
    body += [f"{WAIT} 0;", *[f"add.f32 %x{i}, %x{i}, %y{i};" for i in range(8)]]
    check(execute(body, s.memory, s.accumulator, seed=seed), 2 * (s.c + s.products[0]) + s.products[1])


@pytest.mark.parametrize("seed", SEEDS)
def test_accumulators_are_renamed_before_the_wait(seed: int) -> None:
    """As compilers do: a mov carries what the register will hold, also into the next of the chain."""
    s = small(f"renamed {seed}")
    body = [FENCE, *s.multiply(0), COMMIT]
    body += [f"mov.b32 %y{i}, %x{i};" for i in range(8)]
    body += [f"mov.b32 %x{i}, 0;" for i in range(8)]
    body += [*s.multiply(1, "y"), COMMIT, f"{WAIT} 0;"]
    check(execute(body, s.memory, s.accumulator, seed=seed, result="y"), s.c + s.products[0] + s.products[1])


@pytest.mark.parametrize("seed", SEEDS)
def test_pairs_are_packed_before_the_wait(seed: int) -> None:
    s = small(f"packed {seed}")
    body = [FENCE, *s.multiply(0), COMMIT]
    body += [f"mov.b64 %d{10 + i}, {{%x{2 * i}, %x{2 * i + 1}}};" for i in range(4)]
    body += [f"{WAIT} 0;", *[f"mov.b64 {{%y{2 * i}, %y{2 * i + 1}}}, %d{10 + i};" for i in range(4)]]
    check(execute(body, s.memory, s.accumulator, seed=seed, result="y"), s.c + s.products[0])


@pytest.mark.parametrize("wait", ["", f"{COMMIT} {WAIT} 1;", f"{WAIT} 0;"], ids=["none", "one allowed", "no commit"])
def test_no_wait_gives_poison(wait: str) -> None:
    """A result that nothing has waited for is NaN, whenever the operation happens."""
    for seed in SEEDS:
        s = small(f"poison {seed}")
        body = [FENCE, *s.multiply(0), wait]
        body += [f"add.f32 %y{i}, %x{i}, 0f00000000;" for i in range(8)]
        body += [COMMIT, f"{WAIT} 0;"]
        result = execute(body, s.memory, s.accumulator, seed=seed, result="y")
        assert numpy.isnan(result.view(numpy.float32)).all(), f"seed {seed}"


def test_operands_change_before_the_wait() -> None:
    """Shared memory that is overwritten while the operation is under way: some seed reads it after that."""
    wrong = 0
    for seed in range(12):
        s = small(f"overwritten {seed}")
        body = [FENCE, *s.multiply(0), COMMIT, "bar.sync 0;"]
        body += ["shl.b32 %r4, %t, 4; add.u32 %r4, %r4, %smem; mov.b32 %r5, 0;"]
        body += [f"st.shared.v4.b32 [%r4 + {2048 * i}], {{%r5, %r5, %r5, %r5}};" for i in range(4)]
        body += ["fence.proxy.async.shared::cta;", f"{WAIT} 0;"]
        result = unpack(execute(body, s.memory, s.accumulator, seed=seed), 16, False)
        wrong += not numpy.array_equal(result, to_bits(s.c + s.products[0], "f32"))
    assert wrong


def test_writes_without_a_proxy_fence_are_not_seen() -> None:
    s = small("proxy")
    body = ["shl.b32 %r4, %t, 4; add.u32 %r4, %r4, %smem; mov.b32 %r5, 0;"]
    body += [f"st.shared.v4.b32 [%r4 + {2048 * i}], {{%r5, %r5, %r5, %r5}};" for i in range(4)]
    body += ["bar.sync 0;", FENCE, *s.multiply(0), COMMIT, f"{WAIT} 0;"]
    check(execute(body, s.memory, s.accumulator, seed=1), s.c + s.products[0])


@pytest.mark.parametrize("seed", SEEDS)
def test_two_warpgroups(seed: int) -> None:
    """Each has its own accumulators and its own groups; their rows are their own warps'."""
    s = small(f"warpgroups {seed}")
    accumulator = numpy.concatenate([s.accumulator, s.accumulator], axis=1)
    body = ["setp.lt.u32 %p0, %t, 128; @%p0 bra FIRST;"]
    body += [FENCE, *s.multiply(1), COMMIT, f"{WAIT} 0;", "bra DONE;", "FIRST:"]
    body += [FENCE, *s.multiply(0), COMMIT, f"{WAIT} 0;", "DONE:"]
    result = execute(body, s.memory, accumulator, seed=seed)
    check(result[:, :128], s.c + s.products[0])
    check(result[:, 128:], s.c + s.products[1])


# --- faults and rejections --------------------------------------------------------------------------------------------


def test_no_fence() -> None:
    s = small("no fence")
    with pytest.raises(EmulatorError, match="no wgmma.fence"):
        execute([*s.multiply(0), COMMIT, f"{WAIT} 0;"], s.memory, s.accumulator)


def test_descriptor_differs_among_lanes() -> None:
    s = small("lanes")
    body = [FENCE, *s.multiply(0)]
    body.insert(-1, "cvt.u64.u32 %d6, %lane; add.u64 %d5, %d5, %d6;")
    with pytest.raises(EmulatorError, match="same everywhere"):
        execute(body, s.memory, s.accumulator)


def test_matrix_outside_of_shared_memory() -> None:
    s = small("outside")
    s.descriptors[0] = (s.descriptors[0][0], 0x3FFF | s.descriptors[0][1])
    with pytest.raises(EmulatorError, match="outside"):
        execute([FENCE, *s.multiply(0)], s.memory, s.accumulator)


def test_half_a_warpgroup() -> None:
    s = small("half")
    with pytest.raises(EmulatorError, match="warpgroup"):
        execute([FENCE, *s.multiply(0)], s.memory, s.accumulator[:, :64])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"{MMA}m64n16k16.f32.f16.bf16 {listed('r', 8)}, %d0, %d1, 1, 1, 1, 0, 0;", "cannot be multiplied"),
        (f"{MMA}m64n16k16.f16.bf16.bf16 {listed('r', 4)}, %d0, %d1, 1, 1, 1, 0, 0;", "f16 accumulator"),
        (f"{MMA}m64n16k8.f32.f16.f16 {listed('r', 8)}, %d0, %d1, 1, 1, 1, 0, 0;", "with .f16 it is 16"),
        (f"{MMA}m64n40k32.s32.s8.s8 {listed('r', 20)}, %d0, %d1, 1;", "multiple of 16"),
        (f"{MMA}m64n264k16.f32.f16.f16 {listed('r', 8)}, %d0, %d1, 1, 1, 1, 0, 0;", "shape"),
        (f"{MMA}m64n16k16.f32.f16.f16 {listed('r', 8)}, %d0, %d1, 1, 2, 1, 0, 0;", "must be 1 or -1"),
        (f"{MMA}m64n16k16.f32.f16.f16 {listed('r', 8)}, %d0, %d1, 1, 1, 1, 2, 0;", "must be 0 or 1"),
        (f"{MMA}m64n16k16.f32.f16.f16 {listed('r', 4)}, %d0, %d1, 1, 1, 1, 0, 0;", "needs 8"),
        (f"{MMA}m64n16k16.satfinite.f32.f16.f16 {listed('r', 8)}, %d0, %d1, 1, 1, 1, 0, 0;", "saturation"),
        (f"{MMA}m64n16k8.f32.tf32.tf32 {listed('r', 8)}, %d0, %d1, 1, 1, 1, 0, 0;", "operand"),
        (f"{MMA}m64n8k256.s32.b1.b1.and.popc {listed('r', 4)}, %d0, %d1, 1;", "single bits"),
        (
            f"wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16 {listed('r', 4)}, %d0, %d1, %r9, 0, 1, 1, 1;",
            "sparse",
        ),
    ],
)
def test_rejected(text: str, reason: str) -> None:
    with pytest.raises(EmulatorError, match=reason):
        load_only(text, "sm_90")


def test_rejected_for_other_targets() -> None:
    with pytest.raises(EmulatorError, match="sm_90a"):
        load_only(FENCE, "sm_100")
