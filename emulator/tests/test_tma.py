"""Tensor copies against a model in numpy: every rank, type, swizzle and border; multicast, pairs, stores, reductions,
padded types, rows by name, replaced fields; the rules of tensor maps; faults."""

from __future__ import annotations

import dataclasses
import itertools

import numpy
import pytest
from emulate import EmulatorError
from small_kernel import Emulator, entry, module, random_of

U8, U16, U32, S32, U64, S64, F16, F32, F64, BF16, F32_FTZ, TF32, TF32_FTZ, B4, B4_P64, B6_P32 = range(16)
BITS = [8, 16, 32, 32, 64, 64, 16, 32, 64, 16, 32, 32, 32, 4, 4, 6]
SPANS = {0: None, 1: 32, 2: 64, 3: 128, 4: 128, 5: 128, 6: 128}
POISON = 0xFF


def swizzled(address: int, mode: int) -> int:
    """PTX ISA 5.5.7, from its tables: which 16-byte unit (8-byte, with the flip) of a line goes where."""
    line, unit, rest = address // 128, address // 8 % 16, address % 8
    tables = {
        1: lambda k: k ^ (line % 2) << 1,
        2: lambda k: k ^ (line % 4) << 1,
        3: lambda k: k ^ (line % 8) << 1,
        4: lambda k: k ^ (line % 4) << 2,
        5: lambda k: k ^ (line % 4) << 2 ^ line % 2,
        6: lambda k: k ^ (line % 2) << 3,
    }
    return line * 128 + (tables[mode](unit) if mode else unit) * 8 + rest


@dataclasses.dataclass
class Tensor:
    """A tensor in global memory and the box that copies move."""

    kind: int
    dims: list[int]
    strides: list[int]  # bytes
    box: list[int]
    steps: list[int]
    swizzle: int = 0
    fill: int = 0

    @property
    def counts(self) -> list[int]:
        return [self.box[0]] + [-(-b // s) for b, s in zip(self.box[1:], self.steps[1:])]

    @property
    def row(self) -> int:
        return self.box[0] * BITS[self.kind] // 8

    @property
    def rows(self) -> int:
        return int(numpy.prod(self.counts[1:], dtype=int))

    @property
    def transaction(self) -> int:
        return self.row * self.rows

    @property
    def pitch(self) -> int:
        shared = 128 if self.kind > B4 else self.row
        return SPANS[self.swizzle] or shared

    @property
    def global_bytes(self) -> int:
        return sum((d - 1) * s for d, s in zip(self.dims[1:], self.strides)) + self.dims[0] * BITS[self.kind] // 8

    def places(self, at: tuple[int, ...], store: bool = False) -> list[tuple[int, int | None]]:
        """(byte in the box's packed rows, byte in global memory or None) for every byte of the box. A store is clipped
        by 16 bytes (as on an H200)."""
        made = []
        bits = BITS[self.kind]
        end = -(-self.dims[0] * bits // 128) * 128 // bits if store else self.dims[0]
        ranges = [range(n) for n in reversed(self.counts[1:])]
        for row, index in enumerate(itertools.product(*ranges)):
            where = [at[i + 1] + k * self.steps[i + 1] for i, k in enumerate(reversed(index))]
            inside = all(0 <= w < d for w, d in zip(where, self.dims[1:]))
            base = sum(w * s for w, s in zip(where, self.strides))
            for byte in range(self.row):
                element = at[0] + byte * 8 // bits
                here = inside and 0 <= element < end
                made.append((row * self.row + byte, base + at[0] * bits // 8 + byte if here else None))
        return made

    def shared_place(self, packed: int, base: int) -> int:
        """The address in shared memory of a byte of the packed rows, `base` being the destination."""
        row, byte = divmod(packed, self.row)
        if self.kind == B4_P64:
            byte = byte // 8 * 16 + byte % 8
        elif self.kind == B6_P32:
            byte = byte // 12 * 16 + byte % 12
        return swizzled(base + row * self.pitch + byte, self.swizzle)

    def load(self, memory: numpy.ndarray, at: tuple[int, ...], base: int, size: int) -> numpy.ndarray:
        image = numpy.full(size, POISON, numpy.uint8)
        for packed, source in self.places(at):
            outside = (0xF7, 0x7F)[packed % 2] if self.fill else 0
            image[self.shared_place(packed, base)] = outside if source is None else memory[source]
        return image


def draw_tensor(random: numpy.random.Generator, kind: int, rank: int, swizzle: int, steps: bool = False) -> Tensor:
    bits = BITS[kind]
    span = SPANS[swizzle] or 128
    inner = 128 if kind > B4 else int(random.integers(1, span // 16 + 1)) * 128 // bits
    box = [inner] + [int(random.integers(1, 6)) for _ in range(rank - 1)]
    step = [1] + [int(random.integers(1, 4)) if steps else 1 for _ in range(rank - 1)]
    dims = [int(random.integers(1, 4)) * inner] + [int(random.integers(1, 9)) for _ in range(rank - 1)]
    if kind <= B4:
        dims[0] += int(random.integers(0, inner // 2 + 1)) // 2 * 2
    align = 32 if kind > B4 else 16
    strides, stride = [], -(-(dims[0] * bits // 8) // align) * align
    for d in dims[1:]:
        stride += int(random.integers(0, 3)) * align
        strides.append(stride)
        stride *= d
    return Tensor(kind, dims, strides, box, step, swizzle)


def draw_place(random: numpy.random.Generator, t: Tensor, wild: bool = True) -> tuple[int, ...]:
    unit = 128 if t.kind > B4 else 128 // BITS[t.kind]
    low = -(t.box[0] // unit) if wild else 0
    at = [int(random.integers(low, t.dims[0] // unit + 1)) * unit]
    return tuple(at + [int(random.integers(-b if wild else 0, d + 1)) for b, d in zip(t.box[1:], t.dims[1:])])


class Bench:
    """An emulator, a tensor in its memory and its map."""

    def __init__(self, t: Tensor, memory: numpy.ndarray, device: str = "sm_100", seed: int = 0) -> None:
        self.emulator, self.device, self.tensor = Emulator(device, seed), device, t
        # 256 bytes in front, so that rows in front of the tensor have an address of their own
        self.memory = self.emulator.array(numpy.concatenate([numpy.full(256, POISON, numpy.uint8), memory]))
        self.map = self.make_map(t)

    def make_map(self, t: Tensor) -> object:
        class At:
            address = self.memory.address + 256

        made = self.emulator.tensor_map(t.kind, At, t.dims, t.strides, t.box, t.steps, 0, t.swizzle, 0, t.fill)
        return self.emulator.array(numpy.frombuffer(made, numpy.uint8))

    def run(self, body: str, out: numpy.ndarray, *, shared: int, **options: object) -> numpy.ndarray:
        kernel = self.emulator.load(module(entry(body), self.device))["run"]
        result = self.emulator.array(out)
        self.emulator.launch(kernel, args=[self.map, result, self.memory, 0, 0, 0], shared=shared, **options)
        return result.numpy().copy()


def coordinates(at: tuple[int, ...]) -> str:
    return "{" + ", ".join(str(x) for x in at) + "}"


INIT = """
    setp.eq.u32 %p0, %t, 0;
    @%p0 mbarrier.init.shared::cta.b64 [%smem], 1;
    fence.mbarrier_init.release.cluster;
    bar.sync 0;
"""


def wait(parity: int | str = 0, label: str = "WAIT") -> str:
    return f"""
{label}:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [%smem], {parity};
    @!%p1 bra {label};
"""


def dump(start: int, size: int, target: str = "%a1") -> str:
    """Every thread copies words of shared memory, from `start` of the dynamic part, to global memory."""
    return f"""
    shl.b32 %r20, %t, 2;
DUMP:
    setp.ge.u32 %p2, %r20, {size};
    @%p2 bra DUMPED;
    add.u32 %r21, %r20, %smem;
    ld.shared.u32 %r22, [%r21 + {start}];
    cvt.u64.u32 %d20, %r20;
    add.u64 %d20, {target}, %d20;
    st.global.u32 [%d20], %r22;
    mov.u32 %r23, %ntid.x;
    mad.lo.u32 %r20, %r23, 4, %r20;
    bra DUMP;
DUMPED:
"""


DATA = 1024  # where the box lies, from the start of dynamic shared memory; %smem itself is a multiple of 1024


def load_body(t: Tensor, at: tuple[int, ...], offset: int, form: str = "", size: int = 0) -> str:
    instruction = f"cp.async.bulk.tensor.{len(t.dims)}d.shared::cta.global{form}.mbarrier::complete_tx::bytes"
    return f"""{INIT}
    @!%p0 bra WAIT;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%smem], {t.transaction};
    add.u32 %r0, %smem, {DATA + offset};
    {instruction} [%r0], [%a0, {coordinates(at)}], [%smem];
{wait()}{dump(DATA, size)}"""


def check_load(t: Tensor, at: tuple[int, ...], name: str, offset: int = 0, device: str = "sm_100") -> None:
    random = random_of(name)
    memory = random.integers(0, 256, t.global_bytes, dtype=numpy.uint8)
    size = -(-(offset + t.rows * t.pitch) // 4) * 4 + 128
    for seed in (int(random.integers(1 << 20)) * 4 + k for k in range(3)):
        bench = Bench(t, memory, device, seed)
        out = bench.run(load_body(t, at, offset, size=size), numpy.zeros(size, numpy.uint8), shared=DATA + size + 128)
        numpy.testing.assert_array_equal(out, t.load(memory, at, offset, size), err_msg=f"{t} at {at} seed {seed}")


@pytest.mark.parametrize("rank", range(1, 6))
@pytest.mark.parametrize("swizzle", range(7))
def test_load(rank: int, swizzle: int) -> None:
    name = f"tma load {rank} {swizzle}"
    random = random_of(name)
    for kind in random.choice([U8, U16, U32, S32, U64, S64, F16, F32, F64, BF16, F32_FTZ, B4], 3, replace=False):
        t = draw_tensor(random, int(kind), rank, swizzle, steps=bool(random.integers(2)))
        check_load(t, draw_place(random, t), name, int(random.integers(0, 5)) * 128)


@pytest.mark.parametrize("kind", [B4_P64, B6_P32])
@pytest.mark.parametrize("swizzle", [0, 3, 4])
def test_load_padded(kind: int, swizzle: int) -> None:
    name = f"tma padded {kind} {swizzle}"
    t = draw_tensor(random_of(name), kind, 3, swizzle)
    check_load(t, draw_place(random_of(name), t), name)


@pytest.mark.parametrize("kind", [F16, BF16, F32, F64])
def test_fill_with_nan(kind: int) -> None:
    name = f"tma nan {kind}"
    t = dataclasses.replace(draw_tensor(random_of(name), kind, 2, 0), fill=1)
    check_load(t, (t.dims[0] // 16 * 16 - 16, -1), name)


def test_tf32_is_rounded() -> None:
    """To nearest, ties to even; NaN becomes 0x7fffe000; subnormals stay (as an H200 does)."""
    cases = {0x3F801000: 0x3F800000, 0x3F801001: 0x3F802000, 0x3F803000: 0x3F804000, 0x3F800FFF: 0x3F800000}
    cases |= {0x7F7FFFFF: 0x7F800000, 0x7F800001: 0x7FFFE000, 0xFF800000: 0xFF800000, 0x007FFFFF: 0x00800000}
    words = numpy.array(list(cases), numpy.uint32)
    t = Tensor(TF32, [8], [], [8], [1])
    bench = Bench(t, words.view(numpy.uint8))
    out = bench.run(load_body(t, (0,), 0, size=32), numpy.zeros(32, numpy.uint8), shared=2048)
    assert [hex(x) for x in out.view(numpy.uint32)] == [hex(x) for x in cases.values()]


@pytest.mark.parametrize("seed", range(4))
def test_gather_rows(seed: int) -> None:
    random = random_of(f"gather {seed}")
    t = Tensor(U16, [96, 20], [192], [64, 1], [1, 1], swizzle=3)
    memory = random.integers(0, 256, t.global_bytes, dtype=numpy.uint8)
    rows = [int(r) for r in random.integers(-2, 23, 4)]
    at = int(random.integers(-1, 6)) * 8
    body = f"""{INIT}
    @!%p0 bra WAIT;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%smem], 512;
    add.u32 %r0, %smem, {DATA};
    cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes
        [%r0], [%a0, {coordinates((at, *rows))}], [%smem];
{wait()}{dump(DATA, 512)}"""
    out = Bench(t, memory, seed=seed).run(body, numpy.zeros(512, numpy.uint8), shared=2048)
    wanted = numpy.zeros(512, numpy.uint8)
    for i, row in enumerate(rows):
        wanted |= numpy.where(
            numpy.arange(512) // 128 == i, dataclasses.replace(t, box=[64, 4]).load(memory, (at, row - i), 0, 512), 0
        ).astype(numpy.uint8)
    numpy.testing.assert_array_equal(out, wanted)


# ---- stores ---------------------------------------------------------------------------------------------------------


def store_body(t: Tensor, at: tuple[int, ...], offset: int, size: int, form: str = "", opcode: str = "cp.async") -> str:
    return f"""
    shl.b32 %r20, %t, 2;
FILL:
    cvt.u64.u32 %d0, %r20;
    add.u64 %d0, %a1, %d0;
    ld.global.u32 %r1, [%d0];
    add.u32 %r2, %r20, %smem;
    st.shared.u32 [%r2 + {DATA}], %r1;
    mov.u32 %r23, %ntid.x;
    mad.lo.u32 %r20, %r23, 4, %r20;
    setp.lt.u32 %p2, %r20, {size};
    @%p2 bra FILL;
    fence.proxy.async.shared::cta;
    bar.sync 0;
    setp.ne.u32 %p0, %t, 0;
    @%p0 bra DONE;
    add.u32 %r0, %smem, {DATA + offset};
    {opcode}.bulk.tensor.{len(t.dims)}d.global.shared::cta{form}.bulk_group [%a0, {coordinates(at)}], [%r0];
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
DONE:
"""


def stored(t: Tensor, memory: numpy.ndarray, image: numpy.ndarray, at: tuple[int, ...], base: int) -> numpy.ndarray:
    result = memory.copy()
    for packed, target in t.places(at, store=True):
        if target is not None and target < memory.size:
            result[target] = image[t.shared_place(packed, base)]
    return result


@pytest.mark.parametrize("rank", range(1, 6))
@pytest.mark.parametrize("swizzle", [0, 1, 2, 3, 4, 6])
def test_store(rank: int, swizzle: int) -> None:
    random = random_of(f"tma store {rank} {swizzle}")
    t = draw_tensor(random, int(random.choice([U8, U16, U32, U64, BF16, B4])), rank, swizzle, bool(random.integers(2)))
    at, base = draw_place(random, t, wild=False), int(random.integers(0, 4)) * 128
    size = base + t.rows * t.pitch
    image = random.integers(0, 256, -(-size // 128) * 128, dtype=numpy.uint8)
    memory = random.integers(0, 256, t.global_bytes, dtype=numpy.uint8)
    for seed in (int(random.integers(1 << 20)) * 4 + k for k in range(3)):
        bench = Bench(t, memory, seed=seed)
        bench.run(store_body(t, at, base, image.size), image, shared=DATA + image.size)
        wanted = stored(t, memory, image, at, base)
        numpy.testing.assert_array_equal(bench.memory.numpy()[256:], wanted, err_msg=f"{t} at {at} seed {seed}")


def test_store_6_bits() -> None:
    """One element a byte in shared memory; its low six bits are packed."""
    random = random_of("tma 6 bits")
    t = Tensor(B6_P32, [256, 4], [192], [128, 2], [1, 1])
    image = random.integers(0, 256, 256, dtype=numpy.uint8)
    memory = random.integers(0, 256, t.global_bytes, dtype=numpy.uint8)
    bench = Bench(t, memory)
    bench.run(store_body(t, (128, 1), 0, 256), image, shared=2048)
    wanted = memory.copy()
    for row in range(2):
        bits = numpy.unpackbits(image[128 * row : 128 * row + 128, None], axis=1, bitorder="little")[:, :6]
        start = (1 + row) * 192 + 96
        wanted[start : start + 96] = numpy.packbits(bits.reshape(-1), bitorder="little")
    numpy.testing.assert_array_equal(bench.memory.numpy()[256:], wanted)


def test_scatter_rows() -> None:
    random = random_of("scatter")
    t = Tensor(U16, [96, 20], [192], [64, 1], [1, 1], swizzle=3)
    memory = random.integers(0, 256, t.global_bytes, dtype=numpy.uint8)
    image = random.integers(0, 256, 512, dtype=numpy.uint8)
    rows = [3, 17, 25, 0]
    body = store_body(t, (8, *rows), 0, 512, ".tile::scatter4")
    bench = Bench(t, memory)
    bench.run(body, image, shared=2048)
    wanted = memory.copy()
    for i, row in enumerate(rows):
        line = [image[swizzled(128 * i + k, 3)] for k in range(128)]
        if row < 20:
            wanted[192 * row + 16 : 192 * row + 144] = line
    numpy.testing.assert_array_equal(bench.memory.numpy()[256:], wanted)


REDUCTIONS = [
    ("add", U32, "u4"), ("add", S32, "i4"), ("add", U64, "u8"), ("add", F32, "f4"), ("add", F16, "f2"),
    ("min", U32, "u4"), ("min", S32, "i4"), ("max", U64, "u8"), ("max", S64, "i8"), ("max", F16, "f2"),
    ("inc", U32, "u4"), ("dec", U32, "u4"), ("and", U32, "u4"), ("or", U64, "u8"), ("xor", S32, "u4"),
]  # fmt: skip


def reduced(name: str, old: numpy.ndarray, new: numpy.ndarray) -> numpy.ndarray:
    with numpy.errstate(over="ignore"):
        results = {
            "add": lambda: old + new,
            "min": lambda: numpy.minimum(old, new),
            "max": lambda: numpy.maximum(old, new),
            "inc": lambda: numpy.where(old >= new, 0, old + 1),
            "dec": lambda: numpy.where((old == 0) | (old > new), new, old - 1),
            "and": lambda: old & new,
            "or": lambda: old | new,
            "xor": lambda: old ^ new,
        }
        return results[name]().astype(old.dtype)


@pytest.mark.parametrize(("operation", "kind", "dtype"), REDUCTIONS)
def test_reduce(operation: str, kind: int, dtype: str) -> None:
    random = random_of(f"tma reduce {operation} {kind}")
    inner = 128 // numpy.dtype(dtype).itemsize
    t = Tensor(kind, [inner * 2, 6], [256], [inner, 4], [1, 1], swizzle=3)

    def draw(shape: tuple[int, ...]) -> numpy.ndarray:
        if dtype[0] == "f":
            return random.standard_normal(shape).astype(dtype)
        small = random.integers(0, 6, shape)
        return numpy.where(random.integers(0, 2, shape), small, random.integers(0, 1 << 62, shape)).astype(dtype)

    old, new = draw((6, inner * 2)), draw((4, inner))
    image = numpy.zeros(512, numpy.uint8)
    for i, byte in enumerate(new.view(numpy.uint8).reshape(-1)):
        image[swizzled(i, 3)] = byte
    bench = Bench(t, old.view(numpy.uint8).reshape(-1))
    body = store_body(t, (inner, 3), 0, 512, f".{operation}", "cp.reduce.async")
    bench.run(body, image, shared=2048)
    wanted = old.copy()
    wanted[3:, inner:] = reduced(operation, old[3:, inner:], new[:3])
    numpy.testing.assert_array_equal(bench.memory.numpy()[256:].view(dtype).reshape(6, -1), wanted)


# ---- clusters -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("pair", [False, True])
def test_multicast(seed: int, pair: bool) -> None:
    """CTA 1 of four loads into 0, 1 and 3; with .cta_group::2 the even CTA of each pair is told of the pair's bytes."""
    random = random_of(f"multicast {seed} {pair}")
    t = Tensor(U16, [64, 16], [128], [64, 8], [1, 1], swizzle=3)
    memory = random.integers(0, 256, t.global_bytes, dtype=numpy.uint8)
    expected = {0: 2048, 2: 1024} if pair else {0: 1024, 1: 1024, 3: 1024}
    arms = "\n".join(f"setp.eq.u32 %p3, %r5, {rank};\n@%p3 mov.u32 %r6, {count};" for rank, count in expected.items())
    form = ".multicast::cluster" + (".cta_group::2" if pair else "")
    body = f"""
    mov.u32 %r5, %cluster_ctarank;
    mov.u32 %r6, 0;
    {arms}
    setp.eq.u32 %p0, %t, 0;
    @%p0 mbarrier.init.shared::cta.b64 [%smem], 1;
    @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%smem], %r6;
    fence.mbarrier_init.release.cluster;
    barrier.cluster.arrive;
    barrier.cluster.wait;
    setp.eq.and.u32 %p4, %r5, 1, %p0;
    add.u32 %r0, %smem, {DATA};
    mapa.shared::cluster.u32 %r1, %smem, {0 if pair else 1};
    mov.b16 %h0, 11;
    @%p4 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes{form}
        [%r0], [%a0, {{0, 4}}], [%r1], %h0;
{wait()}
    barrier.cluster.arrive;
    barrier.cluster.wait;
    mul.wide.u32 %d21, %r5, 1024;
    add.u64 %d21, %a1, %d21;
{dump(DATA, 1024, "%d21")}
    barrier.cluster.arrive;
    barrier.cluster.wait;
"""
    bench = Bench(t, memory, seed=seed)
    out = bench.run(body, numpy.zeros(4096, numpy.uint8), shared=2048 + 128, grid=4, cluster=4).reshape(4, 1024)
    wanted = t.load(memory, (0, 4), 0, 1024)
    for rank in (0, 1, 3):
        numpy.testing.assert_array_equal(out[rank], wanted)
    assert (out[2] == POISON).all()


# ---- tensormap.replace ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_replaced_fields(seed: int) -> None:
    """A map is copied to shared memory, changed there, written back and used."""
    random = random_of(f"replace {seed}")
    first = Tensor(U8, [64, 4], [64], [16, 1], [1, 1])
    t = Tensor(U32, [40, 9], [192], [16, 5], [1, 2], swizzle=2)
    memory = random.integers(0, 256, t.global_bytes, dtype=numpy.uint8)
    fields = [
        ("elemtype", "b32", "2"), ("swizzle_mode", "b32", "2"), ("fill_mode", "b32", "0"), ("rank", "b32", "1"),
        ("global_dim", "b32", "0, 40"), ("global_dim", "b32", "1, 9"), ("global_stride", "b64", "0, 192"),
        ("box_dim", "b32", "0, 16"), ("box_dim", "b32", "1, 5"), ("element_stride", "b32", "1, 2"),
        ("swizzle_atomicity", "b32", "0"), ("interleave_layout", "b32", "0"), ("global_address", "b64", "%d10"),
    ]  # fmt: skip
    changes = "\n".join(
        f"    @%p0 tensormap.replace.tile.{field}.shared::cta.b1024.{kind} [%smem + 128], {value};"
        for field, kind, value in fields
    )
    body = f"""{INIT}
    add.u64 %d10, %a2, 256;
    shl.b32 %r1, %t, 2;
    cvt.u64.u32 %d0, %r1;
    add.u64 %d0, %d0, %a0;
    ld.global.u32 %r2, [%d0];
    add.u32 %r1, %r1, %smem;
    st.shared.u32 [%r1 + 128], %r2;
    bar.warp.sync -1;
{changes}
    bar.warp.sync -1;
    add.u32 %r1, %smem, 128;
    tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%a0], [%r1], 128;
    fence.proxy.tensormap::generic.acquire.gpu [%a0], 128;
    @!%p0 bra WAIT;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%smem], {t.transaction};
    add.u32 %r0, %smem, {DATA};
    cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%r0], [%a0, {{8, -1}}], [%smem];
{wait()}{dump(DATA, 192)}"""
    bench = Bench(first, memory, seed=seed)
    out = bench.run(body, numpy.zeros(192, numpy.uint8), shared=2048)
    numpy.testing.assert_array_equal(out, t.load(memory, (8, -1), 0, 192))


# ---- rules and faults -----------------------------------------------------------------------------------------------

GOOD = {
    "kind": U16, "dims": [64, 8], "strides": [128], "box": [64, 8], "element_strides": [1, 1], "swizzle": 3,
}  # fmt: skip
RULES = {
    "rank 0": ({"dims": [], "strides": [], "box": [], "element_strides": []}, "rank is 0"),
    "rank 6": ({"dims": [64] * 6, "strides": [128] * 5, "box": [1] * 6, "element_strides": [1] * 6}, "rank is 6"),
    "type": ({"kind": 16}, "element type is 16"),
    "dimension 0": ({"dims": [64, 0]}, "dimension 1 has 0"),
    "dimension too large": ({"dims": [64, 2**32 + 1]}, "it must be 1 to 2"),
    "stride unaligned": ({"strides": [136]}, "multiple of 16"),
    "stride too large": ({"strides": [2**40]}, "less than 2"),
    "box 0": ({"box": [64, 0]}, "box dimension 1 is 0"),
    "box 257": ({"box": [64, 257]}, "box dimension 1 is 257"),
    "inner box": ({"box": [60, 8]}, "multiple of 16 bytes"),
    "inner box and swizzle": ({"swizzle": 2}, "at most 64"),
    "element stride 9": ({"element_strides": [1, 9]}, "element stride 1 is 9"),
    "element stride 0": ({"element_strides": [0, 1]}, "element stride 0 is 0"),
    "swizzle 7": ({"swizzle": 7}, "swizzle is 7"),
    "fill of integers": ({"fill": 1}, "needs a floating-point type"),
    "interleave of two dimensions": ({"interleave": 1}, "has 3 at least"),
    "interleave and stride": ({"interleave": 2, "dims": [64, 8, 2], "strides": [144, 1152], "box": [64, 8, 1],
                               "element_strides": [1, 1, 1], "swizzle": 1}, "multiple of 32"),
    "box larger than shared memory": ({"kind": F64, "box": [16, 256, 8], "dims": [16, 256, 8],
                                       "strides": [128, 32768], "element_strides": [1, 1, 1]}, "more than the"),
    "odd 4-bit dimension": ({"kind": B4, "dims": [255, 8], "box": [128, 8]}, "must be even"),
    "padded box": ({"kind": B4_P64, "dims": [256, 8], "box": [64, 8]}, "must be 128"),
    "padded dimension": ({"kind": B6_P32, "dims": [200, 8], "strides": [192], "box": [128, 8]}, "multiple of 128"),
    "padded stride": ({"kind": B4_P64, "dims": [256, 8], "strides": [144], "box": [128, 8]}, "multiple of 32"),
    "padded swizzle": ({"kind": B4_P64, "dims": [256, 8], "box": [128, 8], "swizzle": 2}, "does not go with"),
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_rule(name: str) -> None:
    change, message = RULES[name]
    emulator = Emulator("sm_100")
    array = emulator.empty(4096, numpy.uint8)
    emulator.tensor_map(array=array, **GOOD)
    with pytest.raises(EmulatorError, match=message):
        emulator.tensor_map(array=array, **(GOOD | change))


@pytest.mark.parametrize("change", [{"kind": B4, "box": [128, 8]}, {"swizzle": 4}, {"swizzle": 6}])
def test_rule_of_hopper(change: dict) -> None:
    for device, works in (("sm_100", True), ("sm_90", False), ("sm_80", False)):
        emulator = Emulator(device)
        array = emulator.empty(4096, numpy.uint8)
        if works:
            emulator.tensor_map(array=array, **(GOOD | change))
        else:
            with pytest.raises(EmulatorError, match="compute capability"):
                emulator.tensor_map(array=array, **(GOOD | change))


def faulty(at: tuple[int, ...] = (0, 0), offset: int = 0, **change: object) -> tuple[Tensor, str]:
    t = Tensor(U16, [64, 8], [128], [64, 4], [1, 1])
    return t, load_body(t, at, offset, size=64)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (f"{DATA};", f"{DATA + 64};", "must be a multiple of 128"),
        (f"{DATA};", "65536;", "outside of the shared memory"),
        ("{0, 0}", "{4, 0}", "the first coordinate is 4"),
        ("[%a0, {0, 0}]", "[%a0 + 32, {0, 0}]", "64"),
        ("[%a0, {0, 0}]", "[%a1, {0, 0}]", "no tensor map"),
        ("tensor.2d", "tensor.1d", "1 coordinates|2 coordinates"),
        ("2d", "im2col.2d", "im2col"),
        ("[%smem];\n\nWAIT", "[%smem + 8];\n\nWAIT", "no mbarrier"),
        (f"{DATA};", "0;", "mbarrier is in use"),
    ],
)
def test_fault(old: str, new: str, message: str) -> None:
    t, body = faulty()
    assert old in body
    memory = numpy.zeros(t.global_bytes, numpy.uint8)
    with pytest.raises(EmulatorError, match=message):
        Bench(t, memory).run(body.replace(old, new), numpy.zeros(1024, numpy.uint8), shared=4096)


def test_rank_must_agree() -> None:
    t, body = faulty()
    body = body.replace("tensor.2d", "tensor.3d").replace("{0, 0}", "{0, 0, 0}")
    with pytest.raises(EmulatorError, match="3 dimensions and the tensor map 2"):
        Bench(t, numpy.zeros(t.global_bytes, numpy.uint8)).run(body, numpy.zeros(64, numpy.uint8), shared=4096)


def test_tensor_beyond_its_memory() -> None:
    t, body = faulty()
    with pytest.raises(EmulatorError, match="box of the tensor"):
        Bench(t, numpy.zeros(300, numpy.uint8)).run(body, numpy.zeros(64, numpy.uint8), shared=4096)


def test_exit_before_a_store_has_read() -> None:
    """Without wait_group the block is gone while its shared memory is still to be read: found by lazy seeds."""
    t = Tensor(U16, [64, 8], [128], [64, 4], [1, 1])
    body = store_body(t, (0, 0), 0, 512).replace("cp.async.bulk.wait_group 0;", "")
    with pytest.raises(EmulatorError, match="exited while 1 asynchronous"):
        Bench(t, numpy.zeros(t.global_bytes, numpy.uint8), seed=1).run(body, numpy.zeros(512, numpy.uint8), shared=2048)


@pytest.mark.parametrize("mistake", ["no wait", "no fence"])
def test_mistakes_show(mistake: str) -> None:
    random = random_of(f"tma {mistake}")
    t = Tensor(U16, [64, 8], [128], [64, 8], [1, 1])
    memory = random.integers(0, 128, t.global_bytes, dtype=numpy.uint8)
    wrong = 0
    for seed in range(20):
        bench = Bench(t, memory, seed=seed)
        if mistake == "no wait":
            body = load_body(t, (0, 0), 0, size=1024).replace("@!%p1 bra WAIT", "@!%p1 bra NEXT")
            body = body.replace("mbarrier.try_wait", "mbarrier.test_wait").replace(
                "    shl.b32 %r20", "NEXT:\n    shl.b32 %r20"
            )
            body += wait(label="LATER")
            out = bench.run(body, numpy.zeros(1024, numpy.uint8), shared=2048)
            wrong += not numpy.array_equal(out, memory)
        else:
            body = store_body(t, (0, 0), 0, 1024).replace("fence.proxy.async.shared::cta;", "")
            image = random.integers(0, 128, 1024, dtype=numpy.uint8)
            bench.run(body, image, shared=2048)
            wrong += not numpy.array_equal(bench.memory.numpy()[256:], image)
    assert wrong


def test_map_as_a_parameter() -> None:
    random = random_of("tma parameter")
    t = Tensor(U16, [64, 8], [128], [64, 8], [1, 1], swizzle=3)
    memory = random.integers(0, 256, t.global_bytes, dtype=numpy.uint8)
    bench = Bench(t, memory)
    text = module(entry(load_body(t, (0, 0), 0, size=1024)))
    text = text.replace(".param .u64 a0,", ".param .align 64 .b8 a0[128],")
    text = text.replace("ld.param.u64 %a0, [a0];", "mov.b64 %a0, a0;\n  cvta.param.u64 %a0, %a0;")
    out = bench.emulator.empty(1024, numpy.uint8)
    kernel = bench.emulator.load(text)["run"]
    bench.emulator.launch(kernel, args=[bench.map.numpy().tobytes(), out, 0, 0, 0, 0], shared=2048)
    numpy.testing.assert_array_equal(out.numpy(), t.load(memory, (0, 0), 0, 1024))
