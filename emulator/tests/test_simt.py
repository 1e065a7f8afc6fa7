"""Divergence and reconvergence: random structured programs against a model, loops, calls, lanes that exit, lanes that
meet at different instructions, and violations of .aligned."""

from __future__ import annotations

import numpy
import pytest
from small_kernel import Emulator, EmulatorError, entry, module, random_of, run

MASK = 0xFFFFFFFF
REGISTERS = 4


class Exit(Exception):
    pass


class Program:
    """A random structured program, as PTX and as a function of one thread."""

    def __init__(self, random: numpy.random.Generator, exits: bool) -> None:
        self.random, self.exits = random, exits
        self.labels = self.counters = 0
        self.functions: list[list[tuple]] = []
        self.functions = [self.block(1, 0, 4) for _ in range(2)]
        self.main = self.block(3, 1, 5)

    def number(self, below: int) -> int:
        return int(self.random.integers(0, below))

    def block(self, depth: int, calls: int, most: int) -> list[tuple]:
        return [self.statement(depth, calls) for _ in range(1 + self.number(most))]

    def statement(self, depth: int, calls: int) -> tuple:
        a, b = self.number(REGISTERS), self.number(REGISTERS)
        kind = self.number(12)
        if kind < 4 or (depth == 0 and kind < 10):
            return ("set", ("add", "xor", "mul", "shr")[self.number(4)], a, b, self.number(1 << 16) | 1)
        if kind < 7:
            inverse = self.number(2)
            return (
                "if",
                a,
                1 << self.number(4),
                inverse,
                self.block(depth - 1, calls, 3),
                self.block(depth - 1, calls, 3),
            )
        if kind < 9:
            return ("loop", a, self.block(depth - 1, calls, 2))
        if kind < 11 and calls:
            return ("call", self.number(len(self.functions)))
        if kind == 11 and self.exits and self.number(3) == 0:
            return ("exit", a, self.number(64))
        return ("set", "add", a, b, 7)

    # ---- as PTX

    def label(self) -> str:
        self.labels += 1
        return f"L{self.labels}"

    def ptx_block(self, block: list[tuple]) -> str:
        return "\n".join(self.ptx(s) for s in block)

    def ptx(self, s: tuple) -> str:
        if s[0] == "set":
            _, operation, a, b, constant = s
            if operation == "mul":
                return f"mad.lo.u32 x{a}, x{a}, {constant}, x{b};"
            if operation == "shr":
                return f"shr.u32 t, x{b}, {constant % 31}; xor.b32 x{a}, x{a}, t;"
            return f"{operation}.{'u32' if operation == 'add' else 'b32'} x{a}, x{b}, {constant};"
        if s[0] == "if":
            _, a, bit, inverse, yes, no = s
            other, end = self.label(), self.label()
            return f"""and.b32 t, x{a}, {bit}; setp.{"eq" if inverse else "ne"}.u32 p, t, 0;
            @!p bra {other}; {self.ptx_block(yes)} bra {end}; {other}: {self.ptx_block(no)} {end}:"""
        if s[0] == "loop":
            _, a, body = s
            counter, again, end = f"n{self.counters}", self.label(), self.label()
            self.counters += 1
            return f"""and.b32 {counter}, x{a}, 3; {again}: setp.eq.u32 p, {counter}, 0; @p bra {end};
            sub.u32 {counter}, {counter}, 1; {self.ptx_block(body)} bra.uni {again}; {end}:"""
        if s[0] == "call":
            return f"call.uni ({XS}), f{s[1]}, ({XS}, counter);"
        return f"and.b32 t, x{s[1]}, 63; setp.eq.u32 p, t, {s[2]}; @p exit;"

    def text(self) -> tuple[str, str]:
        functions = []
        for i, body in enumerate(self.functions):
            functions.append(
                f""".func ({DECLARED}) f{i} ({DECLARED.replace("x", "y")}, .reg .u32 depth)
                {{ .reg .u32 t, n<200>; .reg .pred p; {"".join(f"mov.u32 x{r}, y{r};" for r in range(REGISTERS))}
                {self.ptx_block(body)} ret; }}"""
            )
        body = f"""
        .reg .u32 t, counter, x<{REGISTERS}>, n<200>; .reg .pred p;
        mov.u32 counter, 0; mov.u32 x0, %t;
        {"".join(f"mad.lo.u32 x{r}, %t, {2654435761 * r & MASK}, {r};" for r in range(1, REGISTERS))}
        {self.ptx_block(self.main)}
        mul.wide.u32 %d0, %t, 4; add.u64 %d0, %d0, %a0;
        {"".join(f"xor.b32 x0, x0, x{r};" for r in range(1, REGISTERS))}
        st.global.u32 [%d0], x0;
        """
        return "\n".join(functions), body

    # ---- as a function

    def execute(self, block: list[tuple], x: list[int]) -> None:
        for s in block:
            if s[0] == "set":
                _, operation, a, b, constant = s
                values = {
                    "add": x[b] + constant,
                    "xor": x[b] ^ constant,
                    "mul": x[a] * constant + x[b],
                    "shr": x[a] ^ x[b] >> constant % 31,
                }
                x[a] = values[operation] & MASK
            elif s[0] == "if":
                self.execute(s[4] if bool(x[s[1]] & s[2]) != bool(s[3]) else s[5], x)
            elif s[0] == "loop":
                for _ in range(x[s[1]] & 3):
                    self.execute(s[2], x)
            elif s[0] == "call":
                self.execute(self.functions[s[1]], x)
            elif x[s[1]] & 63 == s[2]:
                raise Exit

    def model(self, thread: int) -> int | None:
        x = [thread] + [(thread * (2654435761 * r & MASK) + r) & MASK for r in range(1, REGISTERS)]
        try:
            self.execute(self.main, x)
        except Exit:
            return None
        result = 0
        for value in x:
            result ^= value
        return result


XS = ", ".join(f"x{r}" for r in range(REGISTERS))
DECLARED = ", ".join(f".reg .u32 x{r}" for r in range(REGISTERS))


@pytest.mark.parametrize("index", range(12))
def test_random_programs(index: int) -> None:
    """Branches, loops, calls and exits, nested: each thread gets what the program says for it alone."""
    program = Program(random_of(f"simt {index}"), exits=index % 2 == 1)
    functions, body = program.text()
    expected = [program.model(t) for t in range(80)]
    for seed in (index, index + 1):
        out = run(body, [numpy.full(80, 0xDEAD, numpy.uint32)], block=80, seed=seed, variables=functions)[0]
        assert list(out) == [0xDEAD if e is None else e for e in expected], f"seed {seed}\n{body}"


STORE = "mul.wide.u32 %d0, %t, 4; add.u64 %d0, %d0, %a0; st.global.u32 [%d0], %r1;"


def lanes_of(body: str, block: int = 32, seed: int = 0) -> list[int]:
    return [int(v) for v in run(body + STORE, [numpy.zeros(block, numpy.uint32)], block=block, seed=seed)[0]]


@pytest.mark.parametrize("seed", range(4))
def test_loops_of_different_length_meet_again(seed: int) -> None:
    """Behind the loop all lanes vote together, each with the sum that it made."""
    body = """
    mov.u32 %r0, 0; mov.u32 %r2, 0;
    AGAIN: add.u32 %r2, %r2, %r0; add.u32 %r0, %r0, 1; setp.le.u32 %p0, %r0, %lane; @%p0 bra AGAIN;
    bar.warp.sync -1;
    setp.gt.u32 %p1, %r2, 100;
    vote.sync.ballot.b32 %r1, %p1, -1;
    """
    expected = sum(1 << lane for lane in range(32) if lane * (lane + 1) // 2 > 100)
    assert lanes_of(body, seed=seed) == [expected] * 32


@pytest.mark.parametrize("seed", range(6))
def test_an_elected_lane_polls_while_others_wait_for_it_in_branches(seed: int) -> None:
    """A lane waits for an mbarrier that another warp serves; the others of its warp wait for it at two other places."""
    body = """
    setp.ne.u32 %p0, %t, 0; @%p0 bra MADE;
    mbarrier.init.shared.b64 [%smem], 1;
    MADE: bar.sync 0;
    mov.u32 %r1, 0;
    setp.ge.u32 %p1, %t, 32; @%p1 bra SERVER;
    elect.sync _|%p2, -1; @!%p2 bra OTHERS;
    POLL: mbarrier.try_wait.parity.shared.b64 %p3, [%smem], 0; @!%p3 bra POLL;
    mov.u32 %r1, 1000;
    bar.warp.sync -1;
    bra DONE;
    OTHERS: setp.lt.u32 %p4, %lane, 16; @%p4 bra LOW;
    bar.warp.sync 0xffffffff;
    mov.u32 %r1, 2;
    bra DONE;
    LOW: bar.warp.sync -1;
    mov.u32 %r1, 1;
    DONE: shfl.sync.idx.b32 %r2, %r1, 0, 31, -1;
    add.u32 %r1, %r1, %r2;
    bra END;
    SERVER: setp.ne.u32 %p5, %lane, 9; @%p5 bra END;
    nanosleep.u32 20;
    mbarrier.arrive.shared.b64 _, [%smem];
    END:
    """
    out = lanes_of(body, block=64, seed=seed)
    assert out[:32] == [2000] + [1001] * 15 + [1002] * 16
    assert out[32:] == [0] * 32


@pytest.mark.parametrize("seed", range(4))
def test_masks_of_branches_are_kept_apart(seed: int) -> None:
    """Two halves synchronise among themselves, each at two places: no half may release the other. Lane 16 waits for
    what lane 31 does late."""
    body = """
    mov.u32 %r0, %lane; st.shared.u32 [%smem], 0;
    bar.warp.sync -1;
    setp.ge.u32 %p0, %lane, 16; @%p0 bra HIGH;
    and.b32 %r2, %lane, 1; setp.eq.u32 %p1, %r2, 0; @%p1 bra EVEN;
    bar.warp.sync 0xffff; mov.u32 %r1, 1; bra END;
    EVEN: bar.warp.sync 0xffff; mov.u32 %r1, 2; bra END;
    HIGH: setp.eq.u32 %p2, %lane, 31; @%p2 bra LATE;
    bar.warp.sync 0xffff0000; ld.shared.u32 %r1, [%smem]; bra END;
    LATE: mov.u32 %r3, 200;
    SPIN: sub.u32 %r3, %r3, 1; setp.ne.u32 %p3, %r3, 0; @%p3 bra SPIN;
    st.shared.u32 [%smem], 77;
    bar.warp.sync 0xffff0000; mov.u32 %r1, 5;
    END:
    """
    assert lanes_of(body, seed=seed) == [2, 1] * 8 + [77] * 15 + [5]


@pytest.mark.parametrize("seed", range(6))
def test_collectives_meet_across_branches(seed: int) -> None:
    """As on an H200: lanes that execute the same collective with the same mask at different places exchange values, and
    no register of theirs changes but the result's."""
    random = random_of(f"across {seed}")
    split = int(random.integers(1, 31))
    a, b = (int(v) for v in random.integers(0, 32, 2))
    body = f"""
    add.u32 %r2, %t, 100; add.u32 %r3, %t, 200; mov.u32 %r4, 4; mov.u32 %r5, 5;
    setp.lt.u32 %p0, %lane, {split}; @%p0 bra LOW;
    mov.u32 %r6, {b};
    shfl.sync.idx.b32 %r4, %r3, %r6, 31, -1;
    setp.ne.u32 %p1, %r4, 0; vote.sync.ballot.b32 %r8, %p1, -1;
    cvt.u64.u32 %d4, %r6; match.any.sync.b64 %r9, %d4, -1;
    redux.sync.add.u32 %r10, %lane, -1;
    bra END;
    LOW: mov.u32 %r7, {a};
    shfl.sync.idx.b32 %r5, %r2, %r7, 31, -1;
    setp.eq.u32 %p2, %r5, 0; vote.sync.ballot.b32 %r8, %p2, -1;
    cvt.u64.u32 %d5, %r7; add.u64 %d5, %d5, 64; match.any.sync.b64 %r9, %d5, -1;
    redux.sync.add.u32 %r10, %r2, -1;
    END:
    """
    stores = "mul.wide.u32 %d0, %t, 32; add.u64 %d0, %d0, %a0;" + "".join(
        f"st.global.u32 [%d0+{4 * i}], %r{r};" for i, r in enumerate((2, 3, 4, 5, 8, 9, 10))
    )
    out = run(body + stores, [numpy.zeros((32, 8), numpy.uint32)], seed=seed)[0]
    low, high = (1 << split) - 1, MASK - ((1 << split) - 1)

    def given(lane: int) -> int:
        return lane + (100 if lane < split else 200)

    total = sum(lane + (100 if lane < split else 0) for lane in range(32))
    for lane in range(32):
        mine = [4, given(a)] if lane < split else [given(b), 5]
        assert list(out[lane][:7]) == [lane + 100, lane + 200, *mine, high, low if lane < split else high, total]


@pytest.mark.parametrize("seed", range(4))
def test_lanes_that_leave_are_not_waited_for(seed: int) -> None:
    body = """
    mov.u32 %r1, 0;
    and.b32 %r2, %lane, 3; setp.eq.u32 %p0, %r2, 1; @%p0 exit;
    setp.gt.u32 %p1, %lane, 27; @!%p1 bra STAY;
    mov.u32 %r3, 40;
    SPIN: sub.u32 %r3, %r3, 1; setp.ne.u32 %p2, %r3, 0; @%p2 bra SPIN;
    exit;
    STAY: vote.sync.ballot.b32 %r1, %lane, -1;
    """
    body = body.replace(
        "vote.sync.ballot.b32 %r1, %lane, -1;", "setp.eq.u32 %p3, 0, 0; vote.sync.ballot.b32 %r1, %p3, -1; bar.sync 0;"
    )
    stay = [lane for lane in range(32) if lane % 4 != 1 and lane <= 27]
    mask = sum(1 << lane for lane in stay)
    out = lanes_of(body, block=48, seed=seed)
    assert out[:32] == [mask if lane in stay else 0 for lane in range(32)]
    assert out[32:] == [mask & 0xFFFF if lane % 4 != 1 else 0 for lane in range(16)]


def test_a_lock_between_lanes() -> None:
    """Lanes of one warp take a lock in turn: each goes on although the others spin."""
    body = """
    mov.u32 %r1, 0;
    TRY: atom.global.cas.b32 %r2, [%a1], 0, 1; setp.ne.u32 %p0, %r2, 0; @%p0 bra TRY;
    ld.volatile.global.u32 %r1, [%a1+4]; add.u32 %r3, %r1, 1; st.volatile.global.u32 [%a1+4], %r3;
    membar.gl;
    st.volatile.global.u32 [%a1], 0;
    """
    for seed in range(4):
        out, lock = run(
            body + STORE, [numpy.zeros(64, numpy.uint32), numpy.zeros(2, numpy.uint32)], block=64, seed=seed
        )
        assert sorted(out) == list(range(64))
        assert list(lock) == [0, 64]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("setp.lt.u32 %p0, %lane, 7; @%p0 bar.sync 0;", r".aligned, but only lanes 0000007f.*guard is false"),
        (
            "setp.lt.u32 %p0, %lane, 16; @%p0 bra X; bar.sync 0; bra END; X: bar.sync 0; END:",
            r"\.aligned, but only lanes \w+ execute it: lanes \w+ are at line \d+, which is \.aligned too",
        ),
        (
            "setp.lt.u32 %p0, %lane, 16; @%p0 bra END; shfl.sync.idx.b32 %r1, %r1, 0, 31, -1; END:",
            r"deadlock(.|\n)*waits for lanes 0000ffff of its warp",
        ),
        (
            "setp.eq.u32 %p0, %lane, 3; @%p0 bra END; vote.sync.any.pred %p1, %p0, 8; END:",
            r"not in the mask of members",
        ),
    ],
)
def test_lanes_that_do_not_come(body: str, message: str) -> None:
    if "deadlock" in message:  # they wait for something else for ever
        body = body.replace("END:", "bra.uni OUT; END: bar.warp.sync -1; OUT:").replace(
            "31, -1; ", "31, -1; bra OUT;", 1
        )
    for seed in range(3):
        with pytest.raises(EmulatorError, match=message):
            run(body, [], seed=seed)


def test_a_warp_has_its_lanes_again_after_a_fault() -> None:
    """A fault in the middle of divergence leaves nothing behind: the same emulator runs the next kernel."""
    emulator = Emulator("sm_90")
    bad = emulator.load(module(entry("setp.eq.u32 %p0, %lane, 5; @%p0 trap; bar.warp.sync -1;"), "sm_90"))["run"]
    good = emulator.load(module(entry("mov.u32 %r1, 3;" + STORE), "sm_90"))["run"]
    out = emulator.array(numpy.zeros(32, numpy.uint32))
    for _ in range(3):
        with pytest.raises(EmulatorError, match="lane 5"):
            emulator.launch(bad, 4, 32, [0] * 6)
        emulator.launch(good, 1, 32, [out, 0, 0, 0, 0, 0])
        assert list(out.numpy()) == [3] * 32
