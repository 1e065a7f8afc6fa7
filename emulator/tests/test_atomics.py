"""atom and red: every operation and type, lane after lane on places that collide."""

from __future__ import annotations

import numpy
import pytest
from small_kernel import EmulatorError, random_of, run

INTEGERS = [
    f"{operation}.{kind}"
    for operation, kinds in {
        "add": ["u32", "s32", "u64"],
        "min": ["u32", "s32", "u64", "s64"],
        "max": ["u32", "s32", "u64", "s64"],
        "inc": ["u32"],
        "dec": ["u32"],
        "and": ["b32", "b64"],
        "or": ["b32", "b64"],
        "xor": ["b32", "b64"],
        "exch": ["b32", "b64", "b128"],
        "cas": ["b16", "b32", "b64", "b128"],
    }.items()
    for kind in kinds
]
FLOATS = ["add.f32", "add.f64", "add.noftz.f16", "add.noftz.bf16", "add.noftz.f16x2", "add.noftz.bf16x2"]
VECTORS = (
    ["add.v2.f32", "add.v4.f32"]
    + [f"{op}.noftz.{v}.{t}" for op in ("add", "min", "max") for v in ("v2", "v4", "v8") for t in ("f16", "bf16")]
    + [f"{op}.noftz.{v}.{t}x2" for op in ("add", "min", "max") for v in ("v2", "v4") for t in ("f16", "bf16")]
)
PLACES = 8


def reduced(operation: str, kind: str, old: int, b: int, c: int) -> int:
    size = int(kind[1:])

    def signed(x: int) -> int:
        return x - (1 << size) if kind[0] == "s" and x >> (size - 1) else x

    results = {
        "add": lambda: old + b,
        "min": lambda: min(old, b, key=signed),
        "max": lambda: max(old, b, key=signed),
        "inc": lambda: 0 if old >= b else old + 1,
        "dec": lambda: b if old == 0 or old > b else old - 1,
        "and": lambda: old & b,
        "or": lambda: old | b,
        "xor": lambda: old ^ b,
        "exch": lambda: b,
        "cas": lambda: c if old == b else old,
    }
    return results[operation]() & ((1 << size) - 1)


def atomic_kernel(space: str, instruction: str, moves: tuple[str, str, str], size: int, device_space: str) -> str:
    """`instruction` acts on [%d9], of the place whose number each thread finds in %a2; b, c from %a3, old to %a4."""
    load_b, load_c, store = moves
    bring = back = ""
    base = "  mov.u64 %d8, %a1;\n"
    if "shared" in space:
        bring = f"""
  setp.ge.u32 %p0, %t, {PLACES * size // 4};
  mul.wide.u32 %d0, %t, 4;
  add.u64 %d1, %a1, %d0;
  mad.lo.u32 %r1, %t, 4, %smem;
  @!%p0 ld.global.u32 %r2, [%d1];
  @!%p0 st.shared.u32 [%r1], %r2;
  bar.sync 0;
"""
        back = """
  bar.sync 0;
  @!%p0 ld.shared.u32 %r2, [%r1];
  @!%p0 st.global.u32 [%d1], %r2;
"""
        base = "  mov.u64 %d8, smem;\n" + ("  cvta.shared.u64 %d8, %d8;\n" if space == "generic shared" else "")
    return f"""{bring}
  mul.wide.u32 %d2, %t, 4;
  add.u64 %d2, %a2, %d2;
  ld.global.u32 %r3, [%d2];
{base}
  mul.wide.u32 %d3, %r3, {size};
  add.u64 %d9, %d8, %d3;
  mul.wide.u32 %d4, %t, {2 * size};
  add.u64 %d5, %a3, %d4;
  add.u64 %d6, %d5, {size};
{load_b}
{load_c}
  {instruction.replace("SPACE", device_space)}
  mul.wide.u32 %d4, %t, {size};
  add.u64 %d7, %a4, %d4;
{store}
{back}"""


SPACES = {"global": ".global", "generic global": "", "shared": ".shared", "generic shared": ""}


@pytest.mark.parametrize("space", SPACES)
def test_integers(space: str) -> None:
    random = random_of(f"atomics {space}")
    for form in INTEGERS:
        operation, kind = form.split(".")
        size = int(kind[1:]) // 8
        count = 2 if size == 16 else 1  # numbers are kept as words of at most 64 bits
        word = min(size, 8)
        small = operation in ("inc", "dec", "cas")

        def draw(shape: tuple[int, ...], word: int = word, small: bool = small) -> numpy.ndarray:
            return random.integers(0, 3 if small else 1 << 8 * word, shape, dtype=f"u{word}")

        memory, operands = draw((PLACES, count)), draw((32, 2, count))
        places = random.integers(0, PLACES, 32, dtype=numpy.uint32)
        name = {2: "%h", 4: "%r", 8: "%d", 16: "%q"}[size]
        d, b, c = f"{name}1" if size == 16 else f"{name}10", f"{name}2", f"{name}3"
        if size in (4, 8):
            b, c = f"{name}20", f"{name}21"
        bits = 8 * size
        sem = str(random.choice(["", ".relaxed.gpu", ".acq_rel.cta", ".acquire.sys", ".release.cluster", ".gpu"]))
        third = f", {c}" if operation == "cas" else ""
        instruction = f"atom{sem}SPACE.{form} {d}, [%d9], {b}{third};"
        moves = (
            f"  ld.global.b{bits} {b}, [%d5];",
            f"  ld.global.b{bits} {c}, [%d6];",
            f"  st.global.b{bits} [%d7], {d};",
        )
        kernel = atomic_kernel(space, instruction, moves, size, SPACES[space])
        olds = numpy.zeros((32, count), memory.dtype)
        after, _, _, returned = run(kernel, [0, memory, places, operands, olds])

        def number(words: numpy.ndarray, word: int = word) -> int:
            return int.from_bytes(numpy.ascontiguousarray(words).tobytes(), "little")

        state = [number(memory[i]) for i in range(PLACES)]
        for lane in range(32):
            at = int(places[lane])
            assert number(returned[lane]) == state[at], (form, lane)
            state[at] = reduced(operation, kind, state[at], number(operands[lane, 0]), number(operands[lane, 1]))
        assert [number(after[i]) for i in range(PLACES)] == state, form

        if operation in ("exch", "cas"):
            continue
        kernel = atomic_kernel(
            space, f"red{sem if 'acq' not in sem else ''}SPACE.{form} [%d9], {b};", moves, size, SPACES[space]
        )
        after, *_ = run(kernel, [0, memory, places, operands, olds])
        assert [number(after[i]) for i in range(PLACES)] == state, form


def from_bf16(bits: numpy.ndarray) -> numpy.ndarray:
    return (bits.astype(numpy.uint32) << 16).view(numpy.float32)


def to_bf16(values: numpy.ndarray) -> numpy.ndarray:
    bits = values.astype(numpy.float32).view(numpy.uint32).astype(numpy.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(numpy.uint16)


def combine(operation: str, kind: str, a: numpy.ndarray, b: numpy.ndarray, flush: bool) -> numpy.ndarray:
    """Of the patterns of one element each."""
    if kind == "f64":
        return (a.view(numpy.float64) + b.view(numpy.float64)).view(numpy.uint64)
    if kind == "f32":
        x, y = a.view(numpy.float32).copy(), b.view(numpy.float32).copy()
        tiny = numpy.finfo(numpy.float32).tiny
        for values in (x, y) if flush else ():
            values[numpy.abs(values) < tiny] *= 0
        total = x + y
        if flush:
            total[numpy.abs(total) < tiny] *= 0
        return total.view(numpy.uint32)
    x, y = (a.view(numpy.float16), b.view(numpy.float16)) if kind == "f16" else (from_bf16(a), from_bf16(b))
    if operation == "add":
        if kind == "f16":
            return (x + y).view(numpy.uint16)
        return to_bf16(x.astype(numpy.float64) + y.astype(numpy.float64))
    less = (x < y) | ((x == y) & numpy.signbit(x) & ~numpy.signbit(y))  # -0 is less than +0
    return numpy.where(less == (operation == "min"), a, b)


@pytest.mark.parametrize("space", SPACES)
def test_floats(space: str) -> None:
    random = random_of(f"float atomics {space}")
    for form in FLOATS + (VECTORS if "global" in space else []):
        parts = form.split(".")
        vector = next((int(p[1:]) for p in parts if p[0] == "v"), 1)
        kind, operation = parts[-1].removesuffix("x2"), parts[0]
        element = {"f64": 8, "f32": 4}.get(kind, 2)
        register = 4 if "x2" in form else element
        size = register * vector
        elements = size // element

        def draw(shape: tuple[int, ...], kind: str = kind) -> numpy.ndarray:
            values = random.standard_normal(shape) * 2.0 ** random.integers(-3, 4, shape)
            if kind == "f32":  # some subnormal ones
                values = numpy.where(random.random(shape) < 0.3, values * 1e-39, values)
            if kind == "f16":
                values = numpy.where(random.random(shape) < 0.3, values * 1e-6, values)
            if kind == "bf16":
                return to_bf16(values.astype(numpy.float32))
            kinds = {"f64": (numpy.float64, "u8"), "f32": (numpy.float32, "u4"), "f16": (numpy.float16, "u2")}
            return values.astype(kinds[kind][0]).view(kinds[kind][1])

        memory, operands = draw((PLACES, elements)), draw((32, 2, elements))
        places = random.integers(0, PLACES, 32, dtype=numpy.uint32)
        name = {2: "%h", 4: "%r", 8: "%d"}[register]
        d, b = [f"{name}{10 + i}" for i in range(vector)], [f"{name}{20 + i}" for i in range(vector)]

        def braced(names: list[str]) -> str:
            return "{" + ", ".join(names) + "}" if len(names) > 1 else names[0]

        moves = (
            "\n".join(f"  ld.global.b{8 * register} {r}, [%d5+{i * register}];" for i, r in enumerate(b)),
            "",
            "\n".join(f"  st.global.b{8 * register} [%d7+{i * register}], {r};" for i, r in enumerate(d)),
        )
        olds = numpy.zeros((32, elements), memory.dtype)
        expected, before = memory.copy(), numpy.empty_like(olds)
        for lane in range(32):
            at = places[lane]
            before[lane] = expected[at]
            expected[at] = combine(operation, kind, expected[at], operands[lane, 0], "global" in space)
        kernel = atomic_kernel(space, f"atomSPACE.{form} {braced(d)}, [%d9], {braced(b)};", moves, size, SPACES[space])
        after, _, _, returned = run(kernel, [0, memory, places, operands, olds])
        numpy.testing.assert_array_equal(after, expected, f"{space} {form}")
        numpy.testing.assert_array_equal(returned, before, f"{space} {form}")
        kernel = atomic_kernel(space, f"redSPACE.{form} [%d9], {braced(b)};", moves, size, SPACES[space])
        after, *_ = run(kernel, [0, memory, places, operands, olds])
        numpy.testing.assert_array_equal(after, expected, f"{space} {form}")


def test_counting_across_blocks() -> None:
    body = """
  atom.global.add.u32 %r1, [%a0], 1;
  mul.wide.u32 %d0, %r1, 4;
  add.u64 %d0, %d0, %a1;
  atom.global.exch.b32 %r2, [%d0], 1;
  red.global.add.L2::cache_hint.u32 [%a0+4], %r2, %d0;
  atom.global.max.u32 _, [%a0+8], %r1;
"""
    for seed in range(4):
        counts, seen = run(
            body, [numpy.zeros(3, numpy.uint32), numpy.zeros(8 * 96, numpy.uint32)], grid=8, block=96, seed=seed
        )
        assert counts.tolist() == [8 * 96, 0, 8 * 96 - 1] and seen.all()


def test_a_lock() -> None:
    """Threads of several blocks take a lock in turn, with a plain read and write under it."""
    body = """
  setp.ne.u32 %p0, %lane, 0;
  @%p0 bra DONE;
SPIN:
  atom.acquire.gpu.global.cas.b32 %r1, [%a0], 0, 1;
  setp.ne.u32 %p1, %r1, 0;
  @%p1 bra SPIN;
  ld.global.u32 %r2, [%a0+4];
  add.u32 %r2, %r2, 1;
  st.global.u32 [%a0+4], %r2;
  atom.release.gpu.global.exch.b32 %r1, [%a0], 0;
DONE:
"""
    for seed in range(6):
        (got,) = run(body, [numpy.zeros(2, numpy.uint32)], grid=4, block=128, seed=seed)
        assert got.tolist() == [0, 16]


def test_atomics_of_a_cluster() -> None:
    body = """
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
  setp.ne.u32 %p0, %t, 0;
  @%p0 bra SKIP;
  st.shared.u32 [%smem], 0;
SKIP:
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
  mapa.shared::cluster.u32 %r1, %smem, 0;
  mov.u32 %r2, %cluster_ctarank;
  add.u32 %r2, %r2, 1;
  red.shared::cluster.add.u32 [%r1], %r2;
  atom.shared::cluster.add.u32 %r3, [%r1], 100;
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
  ld.shared.u32 %r4, [%smem];
  mov.u32 %r5, %cluster_ctarank;
  setp.eq.u32 %p1, %r5, 0;
  @%p1 st.global.u32 [%a0], %r4;
"""
    (got,) = run(body, [numpy.zeros(1, numpy.uint32)], grid=2, cluster=2, block=64)
    assert got[0] == 64 * (1 + 2) + 128 * 100


def test_atomics_on_local_memory() -> None:
    body = """
  .local .align 4 .b8 own[4];
  mov.u64 %d0, own;
  cvta.local.u64 %d0, %d0;
  atom.add.u32 %r0, [%d0], 1;
"""
    with pytest.raises(EmulatorError, match="local memory"):
        run(body, [])
