"""Rules of the PTX ISA for wgmma and setmaxnreg, checked with fences=text: registers of A that change, warps of a
warpgroup that diverge. And the state after a fault."""

from __future__ import annotations

import numpy
import pytest
from small_kernel import Emulator, EmulatorError, entry, module
from test_wgmma import (
    COMMIT,
    FENCE,
    MMA,
    ROWS,
    WAIT,
    Matrix,
    Small,
    check,
    execute,
    image,
    listed,
    pack,
    pack_a,
    random_of,
    small,
    small_integers,
    to_bits,
    unpack,
)

SEEDS = range(12)
DONE = [COMMIT, f"{WAIT} 0;"]


# --- A in registers --------------------------------------------------------------------------------------------------


class InRegisters:
    """f16, N = 16, A in %z0 to %z3 and other values of A in %z4 to %z7."""

    def __init__(self, name: str) -> None:
        random = random_of(name)
        bits, values = small_integers(random, "f16", (ROWS, 32))
        b_bits, b_values = small_integers(random, "f16", (16, 64))
        unused, b = Matrix(b_bits, "f16"), Matrix(b_bits, "f16")
        self.memory = image(unused, b)
        self.c = random.integers(-100, 101, (ROWS, 16))
        self.accumulator = pack(to_bits(self.c, "f32"), False)
        self.a = numpy.concatenate([pack_a(bits[:, :16], "f16"), pack_a(bits[:, 16:], "f16")])
        self.products = [values[:, i : i + 16] @ b_values[:, :16].T for i in (0, 16)]
        self.descriptor = f"mov.u64 %d5, {b.descriptor()};"

    def multiply(self, first: int = 0) -> list[str]:
        shape = "m64n16k16.f32.f16.f16"
        return [self.descriptor, f"{MMA}{shape} {listed('x', 8)}, {listed('z', 4, first)}, %d5, 1, 1, 1, 0;"]

    def run(self, body: list[str], seed: int) -> numpy.ndarray:
        return execute(body, self.memory, self.accumulator, a=self.a, seed=seed)


OVERWRITE = [f"xor.b32 %z{i}, %z{i}, 0x3c003c00;" for i in range(4)]


def test_registers_of_a_change_before_the_wait() -> None:
    """A register is read whenever the engine likes: some seed sees what is written before the wait."""
    wrong = 0
    for seed in SEEDS:
        s = InRegisters(f"a changes {seed}")
        result = unpack(s.run([FENCE, *s.multiply(), COMMIT, *OVERWRITE, f"{WAIT} 0;"], seed), 16, False)
        wrong += not numpy.array_equal(result, to_bits(s.c + s.products[0], "f32"))
    assert wrong


@pytest.mark.parametrize("seed", SEEDS)
def test_registers_of_a_change_after_the_wait(seed: int) -> None:
    s = InRegisters(f"a changes late {seed}")
    moves = [f"mov.b32 %z{i}, %z{4 + i};" for i in range(4)]
    body = [FENCE, *s.multiply(), *DONE, *moves, FENCE, *s.multiply(), *DONE]
    check(s.run(body, seed), s.c + s.products[0] + s.products[1])


@pytest.mark.parametrize("seed", SEEDS)
def test_registers_of_a_are_copied_behind_the_fence(seed: int) -> None:
    """As compilers do: what some register had at the fence is good in another too, also out of half a wide one."""
    s = InRegisters(f"a copied {seed}")
    body = ["mov.b64 %d10, {%z4, %z5};", "mov.b32 %z4, 0;", "mov.b32 %z5, 0;", FENCE]
    body += ["mov.b64 {%z0, %z1}, %d10;", "mov.b32 %z2, %z6;", "mov.b32 %z3, %z7;", *s.multiply(), *DONE]
    check(s.run(body, seed), s.c + s.products[1])


@pytest.mark.parametrize("again", [False, True], ids=["first", "again"])
def test_registers_of_a_need_a_fence(again: bool) -> None:
    s = InRegisters("a needs a fence")
    before = [FENCE, *(s.multiply() + DONE if again else [])]
    with pytest.raises(EmulatorError, match=r"register 0 of A has been written since the last wgmma\.fence"):
        s.run([*before, *OVERWRITE, *s.multiply(), *DONE], 0)
    s.run([*before, *OVERWRITE, FENCE, *s.multiply(), *DONE], 0)


# --- accumulators ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("again", [False, True], ids=["first", "again"])
@pytest.mark.parametrize("register", [0, 5])
def test_accumulators_need_a_fence(again: bool, register: int) -> None:
    s = small("d needs a fence")
    before = [FENCE, *(s.multiply(0) + DONE if again else [])]
    change = f"add.f32 %x{register}, %x{register}, %x{register};"
    for seed in range(4):
        with pytest.raises(EmulatorError, match=r"wgmma\.fence"):
            execute([*before, change, *s.multiply(1), *DONE], s.memory, s.accumulator, seed=seed)
        execute([*before, change, FENCE, *s.multiply(1), *DONE], s.memory, s.accumulator, seed=seed)
        execute([*before, change, *s.multiply(1, scale="%zero"), *DONE], s.memory, s.accumulator, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_accumulators_are_copied_behind_the_fence(seed: int) -> None:
    s = small(f"d copied {seed}")
    moves = [f"mov.b32 %y{i}, %x{i};" for i in range(8)]
    back = [f"mov.b32 %x{i}, %y{i};" for i in range(8)]
    body = [FENCE, *moves, *s.multiply(0, "y"), *DONE, *back, *s.multiply(1), *DONE]
    check(execute(body, s.memory, s.accumulator, seed=seed), s.c + s.products[0] + s.products[1])


# --- four warps ------------------------------------------------------------------------------------------------------

BY_WARP = "shr.u32 %r4, %t, 5; setp.eq.u32 %p0, %r4, {warp};"


def by_warp(warp: int) -> list[str]:
    return [BY_WARP.format(warp=warp)]


def faults(s: Small, body: list[str], match: str) -> None:
    for seed in range(4):
        with pytest.raises(EmulatorError, match=match):
            execute(body, s.memory, s.accumulator, seed=seed)


@pytest.mark.parametrize("warp", range(4))
@pytest.mark.parametrize("skipped", ["everything", "the second wgmma"])
def test_a_warp_skips_wgmma(warp: int, skipped: str) -> None:
    s = small("skips")
    first = [FENCE, *s.multiply(0)] if skipped == "the second wgmma" else []
    rest = [*s.multiply(1), *DONE] if first else [FENCE, *s.multiply(0), *DONE]
    faults(s, [*by_warp(warp), *first, "@%p0 bra OVER;", *rest, "OVER:"], "all warps of a warpgroup must")


def test_a_warp_skips_the_last_wait() -> None:
    s = small("skips the wait")
    body = [*by_warp(2), FENCE, *s.multiply(0), *DONE, "@%p0 bra OVER;", f"{WAIT} 0;", "OVER:"]
    faults(s, body, "all warps of a warpgroup must")


def test_a_warp_runs_another_wgmma() -> None:
    """Even where it is one of the same shape."""
    s = small("another")
    body = [*by_warp(1), FENCE, "@%p0 bra OTHER;", *s.multiply(0), "bra SAME;", "OTHER:", *s.multiply(0), "SAME:"]
    faults(s, [*body, *DONE], "ran another instruction in its place")


@pytest.mark.parametrize("which", ["a", "b"])
def test_a_warp_has_another_descriptor(which: str) -> None:
    s = small("descriptors")
    body = [*by_warp(3), FENCE, *s.multiply(0), *DONE]
    body.insert(-3, f"@%p0 add.u64 %d{4 if which == 'a' else 5}, %d{4 if which == 'a' else 5}, 2;")
    faults(s, body, f"{which}-desc is .* must be the same in all warps")


# --- the state after a fault ------------------------------------------------------------------------------------------


def test_a_fault_while_wgmma_is_under_way() -> None:
    """The next emulator starts afresh, many times over."""
    for seed in range(8):
        s = small(f"fault {seed}")
        trap = ["setp.eq.u32 %p0, %t, 77;", "@%p0 ld.global.u32 %r4, [256];"]
        with pytest.raises(EmulatorError):
            execute(
                [FENCE, *s.multiply(0), *s.multiply(1), COMMIT, *trap, f"{WAIT} 0;"], s.memory, s.accumulator, seed=seed
            )
        check(execute([FENCE, *s.multiply(0), *DONE], s.memory, s.accumulator, seed=seed), s.c + s.products[0])


BULK = """
mov.u32 %r0, 1;
mbarrier.init.shared::cta.b64 [%smem], %r0;
fence.proxy.async.shared::cta;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%smem], 64;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%smem + 128], [%a0], 64, [%smem];
WAITING:
mbarrier.try_wait.parity.shared::cta.b64 %p0, [%smem], 0;
@!%p0 bra WAITING;
"""


@pytest.mark.parametrize("seed", range(4))
def test_a_bulk_copy_from_nowhere(seed: int) -> None:
    """With readable host memory, the copy itself faults at an unmapped address."""
    emulator = Emulator("sm_90", seed, host_memory=1)
    kernel = emulator.load(module(entry("setp.ne.u32 %p0, %t, 0; @%p0 ret;" + BULK), "sm_90"))["run"]
    with pytest.raises(EmulatorError, match="not mapped|no memory|outside"):
        emulator.launch(kernel, 1, 32, [0x10000] + [0] * 5, 1024)
    good = Emulator("sm_90", seed)
    kernel = good.load(module(entry("setp.ne.u32 %p0, %t, 0; @%p0 ret;" + BULK), "sm_90"))["run"]
    good.launch(kernel, 1, 32, [good.array(numpy.zeros(64, numpy.uint8))] + [0] * 5, 1024)


# --- setmaxnreg, nanosleep, pmevent ----------------------------------------------------------------------------------


def simple(body: str, *, block: int = 128, seed: int = 0, device: str = "sm_90", **settings: str) -> numpy.ndarray:
    """The kernel stores what %r0 has at the end."""
    emulator = Emulator(device, seed, **settings)
    store = "mul.wide.u32 %d0, %t, 4; add.u64 %d0, %d0, %a0; st.global.u32 [%d0], %r0;"
    kernel = emulator.load(module(entry(f"shr.u32 %r4, %t, 5; mov.u32 %r0, %t;\n{body}\n{store}"), device))["run"]
    out = emulator.empty(block, numpy.uint32)
    emulator.launch(kernel, 1, block, [out, 0, 0, 0, 0, 0], 1024)
    return out.numpy().copy()


SETMAXNREG = "setmaxnreg.{}.sync.aligned.u32 {};"


@pytest.mark.parametrize("device", ["sm_90", "sm_100"])
@pytest.mark.parametrize("count", [24, 40, 168, 256])
def test_setmaxnreg_changes_nothing_else(device: str, count: int) -> None:
    body = "setp.lt.u32 %p0, %t, 128; @%p0 bra FIRST;"
    body += f"{SETMAXNREG.format('inc', count)} bra OVER; FIRST: {SETMAXNREG.format('dec', count)} OVER:"
    for seed in range(4):
        numpy.testing.assert_array_equal(simple(body, block=256, seed=seed, device=device), numpy.arange(256))


@pytest.mark.parametrize("count", [16, 23, 28, 264, 0, -8])
def test_setmaxnreg_counts(count: int) -> None:
    with pytest.raises(EmulatorError, match="multiple of 8 from 24 to 256"):
        simple(SETMAXNREG.format("dec", count))


def test_setmaxnreg_forms() -> None:
    for text in (
        "setmaxnreg.sync.aligned.u32 24;",
        "setmaxnreg.dec.aligned.u32 24;",
        "setmaxnreg.dec.sync.aligned.s32 24;",
    ):
        with pytest.raises(EmulatorError):
            simple(text)


@pytest.mark.parametrize("warp", range(4))
def test_setmaxnreg_by_three_warps(warp: int) -> None:
    body = f"setp.eq.u32 %p0, %r4, {warp}; @%p0 bra OVER; {SETMAXNREG.format('dec', 24)} OVER:"
    for seed in range(4):
        with pytest.raises(EmulatorError, match="all warps of a warpgroup must"):
            simple(body, seed=seed)
        simple(body, seed=seed, fences="hardware")


def test_setmaxnreg_by_half_a_warp() -> None:
    with pytest.raises(EmulatorError, match=r"\.aligned"):
        simple(f"setp.lt.u32 %p0, %lane, 16; @%p0 bra OVER; {SETMAXNREG.format('dec', 24)} OVER:")


def test_setmaxnreg_differs_in_a_warpgroup() -> None:
    body = "setp.eq.u32 %p0, %r4, 1; @%p0 bra OTHER;"
    body += f"{SETMAXNREG.format('dec', 24)} bra OVER; OTHER: {SETMAXNREG.format('dec', 32)} OVER:"
    with pytest.raises(EmulatorError, match="ran another instruction in its place"):
        simple(body)


@pytest.mark.parametrize("seed", range(8))
def test_nanosleep_lets_others_run(seed: int) -> None:
    """Warp 1 writes what warp 0 polls for, sleeping."""
    body = """
setp.eq.u32 %p0, %r4, 0; @%p0 bra POLL;
nanosleep.u32 %r4;
st.volatile.shared.u32 [%smem], 7;
bra OVER;
POLL:
nanosleep.u32 100;
ld.volatile.shared.u32 %r0, [%smem];
setp.ne.u32 %p0, %r0, 7; @%p0 bra POLL;
OVER:"""
    got = simple(body, block=64, seed=seed, device="sm_80")
    assert (got[:32] == 7).all()


def test_nanosleep_takes_time() -> None:
    body = """
mov.u64 %d1, %globaltimer;
WAITING:
nanosleep.u32 1000000;
mov.u64 %d2, %globaltimer; sub.u64 %d2, %d2, %d1;
setp.lt.u64 %p0, %d2, 20000000; @%p0 bra WAITING;"""
    simple(body, block=32, device="sm_80")


def test_nanosleep_and_pmevent_forms() -> None:
    for text in ("nanosleep.u64 %d0;", "nanosleep.u32 %d0;", "pmevent %r0;"):
        with pytest.raises(EmulatorError):
            simple(text, device="sm_80")


def test_pmevent_does_nothing() -> None:
    numpy.testing.assert_array_equal(simple("pmevent 3; pmevent.mask 0x8001;", device="sm_80"), numpy.arange(128))
