"""Warp collectives: shuffles, votes, matches, reductions, elections, and matrices in registers."""

from __future__ import annotations

import numpy
import pytest
from small_kernel import EmulatorError, random_of, run

POISON = 0xFFFFFFFF
ALL = 0xFFFFFFFF


def bits(mask: int) -> list[int]:
    return [lane for lane in range(32) if mask >> lane & 1]


def random_partition(random: numpy.random.Generator) -> numpy.ndarray:
    """A mask of members for each lane: the warp in one to four sets."""
    of = random.integers(0, random.integers(1, 5), 32)
    return numpy.array([sum(1 << other for other in range(32) if of[other] == of[lane]) for lane in range(32)])


# Each lane loads four words from %a1 into %r10 .. %r13, and stores %r20, %r21 to %a0.
LOAD = """
  mul.wide.u32 %d0, %t, 16;
  add.u64 %d1, %a1, %d0;
  ld.global.v4.u32 {%r10, %r11, %r12, %r13}, [%d1];
"""
STORE = """
  mul.wide.u32 %d0, %t, 8;
  add.u64 %d1, %a0, %d0;
  st.global.v2.u32 [%d1], {%r20, %r21};
"""


def run_lanes(body: str, words: numpy.ndarray, seed: int = 0, device: str = "sm_100") -> numpy.ndarray:
    out = numpy.zeros((len(words), 2), numpy.uint32)
    got, _ = run(LOAD + body + STORE, [out, words.astype(numpy.uint32)], block=len(words), seed=seed, device=device)
    return got


def words_of(*columns: numpy.ndarray | int) -> numpy.ndarray:
    table = numpy.zeros((32, 4), numpy.uint32)
    for i, column in enumerate(columns):
        table[:, i] = column
    return table


# ---- shfl -----------------------------------------------------------------------------------------------------------


def shuffled(mode: str, lane: int, b: int, c: int) -> tuple[int, bool]:
    """As the PTX ISA's pseudocode has it."""
    segment, clamp, b = c >> 8 & 31, c & 31, b & 31
    lowest = lane & segment
    highest = lowest | (clamp & ~segment)
    if mode == "up":
        source, valid = lane - b, lane - b >= highest
    elif mode == "down":
        source, valid = lane + b, lane + b <= highest
    elif mode == "bfly":
        source, valid = lane ^ b, (lane ^ b) <= highest
    else:
        source = lowest | (b & ~segment & 31)
        valid = source <= highest
    return (source if valid else lane), valid


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
def test_shfl(mode: str) -> None:
    random = random_of(f"shfl {mode}")
    for trial in range(6):
        values = random.integers(0, 2**32, 32, dtype=numpy.uint32)
        b = random.integers(0, 40, 32) if trial % 2 else numpy.full(32, random.integers(0, 32))
        width = 1 << int(random.integers(0, 6))
        c = (32 - width) << 8 | (0 if mode == "up" else 31)
        if trial == 5:
            c = random.integers(0, 2**13, 32)
        members = numpy.full(32, ALL) if trial < 2 else random_partition(random)
        body = f"""
  shfl.sync.{mode}.b32 %r20|%p1, %r10, %r11, %r12, %r13;
  selp.u32 %r21, 1, 0, %p1;
"""
        got = run_lanes(body, words_of(values, b, c, members), seed=trial)
        for lane in range(32):
            source, valid = shuffled(mode, lane, int(b[lane]), int(numpy.broadcast_to(c, 32)[lane]))
            here = int(members[lane]) >> source & 1
            assert tuple(got[lane]) == (values[source] if here else POISON, valid), (mode, trial, lane)


def test_shfl_onto_itself_with_immediates() -> None:
    """The butterfly of a reduction: destination and source are one register."""
    values = random_of("butterfly").integers(0, 2**16, 32)
    steps = "".join(
        f"  shfl.sync.bfly.b32 %r10, %r20, {step}, 31, -1;\n  add.u32 %r20, %r20, %r10;\n" for step in (16, 8, 4, 2, 1)
    )
    got = run_lanes(f"  mov.u32 %r20, %r10;\n{steps}  mov.u32 %r21, 0;", words_of(values))
    assert (got[:, 0] == values.sum()).all()


def test_shfl_in_diverged_code() -> None:
    """Both sides of a branch shuffle among themselves; each may be ahead of the other."""
    random = random_of("diverged")
    for seed in range(6):
        values = random.integers(0, 2**32, 32, dtype=numpy.uint32)
        taken = int(random.integers(1, 2**32 - 1))
        side = numpy.array([taken if taken >> lane & 1 else taken ^ ALL for lane in range(32)])
        source = numpy.array([random.choice(bits(int(mask))) for mask in side])
        body = f"""
  mov.u32 %r1, {taken};
  shr.u32 %r1, %r1, %t;
  and.b32 %r1, %r1, 1;
  setp.eq.u32 %p0, %r1, 0;
  @%p0 bra OTHER;
  shfl.sync.idx.b32 %r20, %r10, %r11, 31, %r12;
  activemask.b32 %r21;
  bra.uni MEET;
OTHER:
  shfl.sync.idx.b32 %r20, %r10, %r11, 31, %r12;
  activemask.b32 %r21;
MEET:
  bar.warp.sync -1;
"""
        got = run_lanes(body, words_of(values, source, side), seed=seed)
        numpy.testing.assert_array_equal(got[:, 0], values[source])
        assert all(int(got[lane, 1]) & ~int(side[lane]) == 0 and got[lane, 1] >> lane & 1 for lane in range(32))


def test_members_arrive_one_after_another() -> None:
    """Lanes of a set come from different places; a part of the warp has exited."""
    random = random_of("arrive")
    for seed in range(6):
        values = random.integers(0, 2**20, 32)
        gone = int(random.integers(0, 2**31)) << 1  # lane 0 stays
        body = f"""
  mov.u32 %r1, {gone};
  shr.u32 %r1, %r1, %t;
  and.b32 %r1, %r1, 1;
  setp.ne.u32 %p0, %r1, 0;
  mov.u32 %r20, 5;
  mov.u32 %r21, 0;
  @%p0 bra DONE;
  mov.u32 %r2, %r11;
LOOP:
  setp.eq.u32 %p1, %r2, 0;
  sub.u32 %r2, %r2, 1;
  @!%p1 bra LOOP;
  redux.sync.add.u32 %r20, %r10, 0xffffffff;
  vote.sync.ballot.b32 %r21, 1, 0xffffffff;
  bra STORE;
DONE:
  ret;
STORE:
"""
        got = run_lanes(body, words_of(values, random.integers(0, 60, 32)), seed=seed)
        live = [lane for lane in range(32) if not gone >> lane & 1]
        for lane in live:
            assert got[lane, 0] == values[live].sum() and got[lane, 1] == gone ^ ALL
        assert (got[[lane for lane in range(32) if gone >> lane & 1]] == 0).all()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("  vote.sync.any.pred %p1, %p0, %r10;", ["lane 7 ", "not in the mask of members 0x0000007f"]),
        ("  vote.sync.any.pred %p1, %p0, %r11;", ["name another mask"]),
    ],
)
def test_wrong_members(body: str, words: list[str]) -> None:
    mixed = numpy.full(32, ALL)
    mixed[3] = 0xFF
    lanes = words_of(0x7F, mixed)
    with pytest.raises(EmulatorError) as raised:
        run_lanes(f"  setp.eq.u32 %p0, %t, 3;\n{body}", lanes)
    assert all(word in str(raised.value) for word in words), raised.value


def test_members_that_never_come_are_a_deadlock() -> None:
    body = """
  setp.eq.u32 %p0, %t, 3;
  @%p0 bra SPIN;
  bar.warp.sync -1;
  bra MEET;
SPIN:
  barrier.sync 1, 64;
MEET:
"""
    with pytest.raises(EmulatorError, match="[Dd]eadlock|wait"):
        run_lanes(body, words_of(0))


# ---- vote, match, redux, elect --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["all", "any", "uni", "ballot"])
@pytest.mark.parametrize("negated", [False, True])
def test_vote(mode: str, negated: bool) -> None:
    random = random_of(f"vote {mode} {negated}")
    for trial in range(8):
        votes = [random.integers(0, 2, 32), numpy.zeros(32, int), numpy.ones(32, int)][trial % 3]
        members = random_partition(random) if trial % 2 else numpy.full(32, ALL)
        form, take = ("b32", "") if mode == "ballot" else ("pred", "  selp.u32 %r20, 1, 0, %p1;")
        body = f"""
  setp.ne.u32 %p0, %r10, 0;
  vote.sync.{mode}.{form} {"%r20" if mode == "ballot" else "%p1"}, {"!" if negated else ""}%p0, %r11;
{take}
  mov.u32 %r21, 0;
"""
        got = run_lanes(body, words_of(votes, members), seed=trial)[:, 0]
        for lane in range(32):
            cast = {other: bool(votes[other]) != negated for other in bits(int(members[lane]))}
            expected = {
                "all": all(cast.values()),
                "any": any(cast.values()),
                "uni": len(set(cast.values())) == 1,
                "ballot": sum(vote << other for other, vote in cast.items()),
            }[mode]
            assert got[lane] == expected, (trial, lane)


@pytest.mark.parametrize("size", [32, 64])
def test_match(size: int) -> None:
    random = random_of(f"match {size}")
    for trial in range(8):
        values = random.integers(0, 3 if trial % 2 else 1, 32) * (0x10001 if size == 32 else 1)
        high = random.integers(0, 2, 32) if size == 64 else numpy.zeros(32, int)
        members = random_partition(random)
        source = "%r10" if size == 32 else "%d5"
        body = f"""
  mov.b64 %d5, {{%r10, %r12}};
  match.any.sync.b{size} %r20, {source}, %r11;
  match.all.sync.b{size} %r21|%p1, {source}, %r11;
  selp.u32 %r2, 0x80000000, 0, %p1;
  xor.b32 %r21, %r21, %r2;
"""
        got = run_lanes(body, words_of(values, members, high), seed=trial)
        for lane in range(32):
            group = bits(int(members[lane]))
            equal = [o for o in group if (values[o], high[o]) == (values[lane], high[lane])]
            together = len({(values[o], high[o]) for o in group}) == 1
            assert got[lane, 0] == sum(1 << o for o in equal)
            assert got[lane, 1] == (int(members[lane]) ^ 0x80000000 if together else 0)


@pytest.mark.parametrize(
    "operation", ["add.u32", "add.s32", "min.u32", "min.s32", "max.u32", "max.s32", "and.b32", "or.b32", "xor.b32"]
)
def test_redux(operation: str) -> None:
    random = random_of(f"redux {operation}")
    name, kind = operation.split(".")
    for trial in range(4):
        values = random.integers(0, 2**32, 32, dtype=numpy.uint32)
        members = random_partition(random) if trial else numpy.full(32, ALL)
        body = f"  redux.sync.{operation} %r20, %r10, %r11;\n  mov.u32 %r21, 0;"
        got = run_lanes(body, words_of(values, members), seed=trial)[:, 0]
        typed = values.view(numpy.int32) if kind == "s32" else values
        reduce = {
            "add": numpy.add, "min": numpy.minimum, "max": numpy.maximum,
            "and": numpy.bitwise_and, "or": numpy.bitwise_or, "xor": numpy.bitwise_xor,
        }[name]  # fmt: skip
        for lane in range(32):
            expected = reduce.reduce(typed[bits(int(members[lane]))], dtype=typed.dtype)
            assert got[lane] == expected.view(numpy.uint32)


@pytest.mark.parametrize("name", ["min", "max"])
@pytest.mark.parametrize("modifier", ["", ".abs", ".NaN", ".abs.NaN"])
def test_redux_of_floats(name: str, modifier: str) -> None:
    random = random_of(f"redux {name}{modifier}")
    for trial in range(6):
        values = random.standard_normal(32).astype(numpy.float32)
        values[random.integers(0, 32, 4)] = [0.0, -0.0, numpy.inf, -numpy.inf]
        if trial % 3 == 1:
            values[random.integers(0, 32, 5)] = numpy.nan
        if trial % 3 == 2:
            values[:] = [0.0, -0.0] * 16 if trial == 2 else numpy.nan
        body = f"  redux.sync.{name}{modifier}.f32 %r20, %r10, -1;\n  mov.u32 %r21, 0;"
        got = run_lanes(body, words_of(values.view(numpy.uint32)), seed=trial)[:, 0]
        taken = numpy.abs(values) if "abs" in modifier else values
        numbers = taken[~numpy.isnan(taken)]
        if not len(numbers) or ("NaN" in modifier and len(numbers) < 32):
            expected = 0x7FFFFFFF
        else:
            key = [(float(x), not numpy.signbit(x)) for x in numbers]  # -0 before +0
            chosen = numbers[key.index(min(key) if name == "min" else max(key))]
            expected = int(numpy.float32(chosen).view(numpy.uint32))
        assert (got == expected).all(), (trial, hex(got[0]), hex(expected))


def test_elect() -> None:
    random = random_of("elect")
    for trial in range(4):
        members = random_partition(random) if trial else numpy.full(32, ALL)
        body = "  elect.sync %r20|%p1, %r10;\n  selp.u32 %r21, 1, 0, %p1;"
        got = run_lanes(body, words_of(members), seed=trial)
        for lane in range(32):
            leader = bits(int(members[lane]))[0]
            assert tuple(got[lane]) == (leader, lane == leader)


def test_bar_warp_sync_orders_shared_memory() -> None:
    """Different bar.warp.sync of a branch meet; what one side stored, the other reads."""
    body = """
  mad.lo.u32 %r1, %t, 4, %smem;
  setp.lt.u32 %p0, %t, 16;
  @%p0 bra LOW;
  st.shared.u32 [%r1], %r10;
  bar.warp.sync -1;
  mov.u32 %r20, 0;
  bra MEET;
LOW:
  bar.warp.sync -1;
  ld.shared.u32 %r20, [%r1+64];
MEET:
  mov.u32 %r21, 0;
"""
    values = random_of("bar.warp").integers(0, 2**32, 32, dtype=numpy.uint32)
    for seed in range(8):
        got = run_lanes(body, words_of(values), seed=seed)[:, 0]
        numpy.testing.assert_array_equal(got[:16], values[16:])


# ---- matrices -------------------------------------------------------------------------------------------------------


def matrix_kernel(instruction: str, fill: int, count: int) -> str:
    """Fills shared memory from %a1, takes each lane's row offset from %a2, runs, stores %r20.. to %a0."""
    registers = ", ".join(f"%r{20 + i}" for i in range(count))
    return f"""
  mov.u32 %r1, %t;
FILL:
  mul.wide.u32 %d0, %r1, 16;
  add.u64 %d1, %a1, %d0;
  ld.global.v4.u32 {{%r2, %r3, %r4, %r5}}, [%d1];
  mad.lo.u32 %r6, %r1, 16, %smem;
  st.shared.v4.u32 [%r6], {{%r2, %r3, %r4, %r5}};
  add.u32 %r1, %r1, 32;
  setp.lt.u32 %p0, %r1, {fill // 16};
  @%p0 bra FILL;
  bar.sync 0;
  mul.wide.u32 %d0, %t, 4;
  add.u64 %d1, %a2, %d0;
  ld.global.u32 %r7, [%d1];
  add.u32 %r7, %r7, %smem;
{instruction.format(registers="{" + registers + "}")}
  mul.wide.u32 %d0, %t, {4 * count};
  add.u64 %d1, %a0, %d0;
""" + "".join(f"  st.global.u32 [%d1+{4 * i}], %r{20 + i};\n" for i in range(count))


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix(count: int, transposed: bool) -> None:
    random = random_of(f"ldmatrix {count} {transposed}")
    memory = random.integers(0, 2**16, (64, 8), dtype=numpy.uint16)
    rows = random.permutation(64)[:32]
    form = f"m8n8.x{count}{'.trans' if transposed else ''}.shared.b16"
    body = matrix_kernel(f"  ldmatrix.sync.aligned.{form} {{registers}}, [%r7];", memory.nbytes, count)
    got, *_ = run(body, [numpy.zeros((32, count), numpy.uint32), memory, (rows * 16).astype(numpy.uint32)])
    for k in range(count):
        matrix = memory[rows[8 * k : 8 * k + 8]]
        if transposed:
            matrix = matrix.T
        # row-major fragments: lane 4r + i holds elements 2i and 2i + 1 of row r
        numpy.testing.assert_array_equal(
            numpy.ascontiguousarray(got[:, k]).view(numpy.uint16).reshape(8, 8), matrix, str(k)
        )


BYTE_FORMS = [
    (shape, count, form, width)
    for shape, counts in (("m16n16", (1, 2)), ("m8n16", (1, 2, 4)))
    for form, width in (("b8", 8), ("b8x16.b4x16_p64", 4), ("b8x16.b6x16_p32", 6))
    for count in counts
    if (shape, form) != ("m8n16", "b8")
]


@pytest.mark.parametrize(("shape", "count", "form", "width"), BYTE_FORMS)
def test_ldmatrix_of_bytes(shape: str, count: int, form: str, width: int) -> None:
    random = random_of(f"ldmatrix {shape} {count} {form}")
    elements = random.integers(0, 1 << width, (64, 16), dtype=numpy.uint8)
    memory = random.integers(0, 256, (64, 16), dtype=numpy.uint8)
    for row in range(64):
        packed = sum(int(e) << width * i for i, e in enumerate(elements[row]))
        memory[row, : 2 * width] = numpy.frombuffer(packed.to_bytes(2 * width, "little"), numpy.uint8)
    rows = random.permutation(64)[:32]
    trans = ".trans" if shape == "m16n16" else ""
    registers = count * (2 if shape == "m16n16" else 1)
    text = f"  ldmatrix.sync.aligned.{shape}.x{count}{trans}.shared.{form} {{registers}}, [%r7];"
    body = matrix_kernel(text, memory.nbytes, registers)
    got, *_ = run(body, [numpy.zeros((32, registers), numpy.uint32), memory, (rows * 16).astype(numpy.uint32)])
    height = 16 if shape == "m16n16" else 8
    for matrix in range(count):
        block = elements[rows[height * matrix : height * (matrix + 1)]]
        for lane in range(32):
            row, part = divmod(lane, 4)
            if shape == "m8n16":
                expected = [block[row, 4 * part : 4 * part + 4]]
            else:  # of the transposed matrix: rows `row` and row + 8, four columns
                expected = [block.T[row, 4 * part : 4 * part + 4], block.T[row + 8, 4 * part : 4 * part + 4]]
            for k, four in enumerate(expected):
                held = got[lane, matrix * len(expected) + k]
                assert held == int.from_bytes(four.tobytes(), "little"), (matrix, lane, k)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("form", ["m8n8.x{}.shared.b16", "m8n8.x{}.trans.shared.b16", "m16n8.x{}.trans.shared.b8"])
def test_stmatrix(count: int, form: str) -> None:
    random = random_of(f"stmatrix {form} {count}")
    registers = random.integers(0, 2**32, (32, 4), dtype=numpy.uint32)
    rows = random.permutation(64)[:32]
    names = ", ".join(f"%r{10 + i}" for i in range(count))
    body = f"""{LOAD}
  mul.wide.u32 %d0, %t, 4;
  add.u64 %d1, %a2, %d0;
  ld.global.u32 %r7, [%d1];
  add.u32 %r7, %r7, %smem;
  stmatrix.sync.aligned.{form.format(count)} [%r7], {{{names}}};
  bar.sync 0;
  mov.u32 %r1, %t;
OUT:
  mad.lo.u32 %r6, %r1, 16, %smem;
  ld.shared.v4.u32 {{%r2, %r3, %r4, %r5}}, [%r6];
  mul.wide.u32 %d0, %r1, 16;
  add.u64 %d1, %a0, %d0;
  st.global.v4.u32 [%d1], {{%r2, %r3, %r4, %r5}};
  add.u32 %r1, %r1, 32;
  setp.lt.u32 %p0, %r1, 64;
  @%p0 bra OUT;
"""
    got, *_ = run(body, [numpy.zeros((64, 16), numpy.uint8), registers, (rows * 16).astype(numpy.uint32)])
    expected = numpy.full((64, 16), 0xFF, numpy.uint8)
    for k in range(count):
        held = numpy.ascontiguousarray(registers[:, k])
        if "m16n8" in form:
            matrix = numpy.zeros(
                (16, 8), numpy.uint8
            )  # an accumulator's fragment: rows r and r + 8, columns 2i, 2i + 1
            for lane in range(32):
                row, part = divmod(lane, 4)
                four = held[lane : lane + 1].view(numpy.uint8)
                matrix[row, 2 * part : 2 * part + 2] = four[:2]
                matrix[row + 8, 2 * part : 2 * part + 2] = four[2:]
            block = numpy.ascontiguousarray(matrix.T)
        else:
            block = held.view(numpy.uint16).reshape(8, 8)
            block = numpy.ascontiguousarray(block.T if "trans" in form else block).view(numpy.uint8)
        expected[rows[8 * k : 8 * k + 8]] = block
    numpy.testing.assert_array_equal(got, expected)


def test_movmatrix() -> None:
    values = random_of("movmatrix").integers(0, 2**32, 32, dtype=numpy.uint32)
    got = run_lanes("  movmatrix.sync.aligned.m8n8.trans.b16 %r20, %r10;\n  mov.u32 %r21, 0;", words_of(values))
    numpy.testing.assert_array_equal(
        numpy.ascontiguousarray(got[:, 0]).view(numpy.uint16).reshape(8, 8), values.view(numpy.uint16).reshape(8, 8).T
    )


def test_aligned_under_divergence() -> None:
    body = """
  setp.lt.u32 %p0, %t, 5;
  @%p0 movmatrix.sync.aligned.m8n8.trans.b16 %r20, %r10;
"""
    with pytest.raises(EmulatorError, match="aligned"):
        run_lanes(body, words_of(0))
