"""CTAs that share an SM contend for its tensor memory: an allocation waits for free columns, no column belongs
to two CTAs, and holding columns while waiting for more is a deadlock."""

from __future__ import annotations

from dataclasses import dataclass

import numpy
import pytest
from tensor_core import COLUMNS, HEADER, Emulator, EmulatorError, random_of

# A CTA allocates and deallocates `rounds` times, as many columns as the table says. Around each allocation and before
# the deallocation it draws a ticket from a counter in global memory, so that the host sees in which order things were.
KERNEL = """
.visible .entry contend(.param .u64 counter, .param .u64 columns, .param .u64 records, .param .u32 rounds)
{
  .reg .b32 %slot, %block, %round, %rounds, %columns, %address, %sm, %i, %asked, %got, %gone;
  .reg .b64 %counter, %table, %records, %at, %offset; .reg .pred %p;
  ld.param.u64 %counter, [counter];
  ld.param.u64 %table, [columns];
  ld.param.u64 %records, [records];
  ld.param.u32 %rounds, [rounds];
  mov.u32 %slot, smem;
  mov.u32 %block, %ctaid.x;
  mov.u32 %round, 0;
again:
  mad.lo.u32 %i, %block, %rounds, %round;
  mad.wide.u32 %at, %i, 4, %table;
  ld.global.u32 %columns, [%at];
  mov.u32 %sm, %smid;
  atom.global.add.u32 %asked, [%counter], 1;
  tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%slot], %columns;
  ld.shared.u32 %address, [%slot];
  atom.global.add.u32 %got, [%counter], 1;
  LAST
  nanosleep.u32 100;
  atom.global.add.u32 %gone, [%counter], 1;
  tcgen05.dealloc.cta_group::1.sync.aligned.b32 %address, %columns;
  mad.wide.u32 %at, %i, 24, %records;
  st.global.u32 [%at], %sm;
  st.global.u32 [%at + 4], %columns;
  st.global.u32 [%at + 8], %address;
  st.global.u32 [%at + 12], %asked;
  st.global.u32 [%at + 16], %got;
  st.global.u32 [%at + 20], %gone;
  add.u32 %round, %round, 1;
  setp.lt.u32 %p, %round, %rounds;
  @%p bra again;
  ret;
}
"""
RELINQUISH = """
  add.u32 %i, %round, 1;
  setp.lt.u32 %p, %i, %rounds;
  @%p bra notyet;
  tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
notyet:
  mad.lo.u32 %i, %block, %rounds, %round;
"""


@dataclass
class Record:
    """An allocation: where, how much, and the tickets of its warp's 32 lanes' first one."""

    sm: int
    columns: int
    address: int
    asked: int
    got: int
    gone: int

    def holds_while(self, other: Record) -> bool:
        return self.got < other.gone and other.got < self.gone

    def waited_for(self, other: Record) -> bool:
        """Asked while the other one held what it needed, and got it when that was gone."""
        return self.sm == other.sm and other.got < self.asked < other.gone < self.got


def contend(columns: numpy.ndarray, seed: int, relinquish: bool = True) -> list[Record]:
    """`columns` of each CTA and round."""
    emulator = Emulator("sm_100", seed)
    text = HEADER + KERNEL.replace("LAST", RELINQUISH if relinquish else "")
    counter = emulator.array(numpy.zeros(1, numpy.uint32))
    records = emulator.empty((columns.size, 6), numpy.uint32)
    table = emulator.array(columns.astype(numpy.uint32))
    arguments = [counter, table, records, columns.shape[1]]
    emulator.launch(emulator.load(text)["contend"], columns.shape[0], 32, arguments, 64)
    return [Record(*map(int, row)) for row in records.numpy()]


def check(records: list[Record], seed: int) -> None:
    for i, one in enumerate(records):
        assert one.address % 32 == 0 and one.address + one.columns <= COLUMNS
        for other in records[:i]:
            if one.sm == other.sm and one.holds_while(other):
                apart = one.address + one.columns <= other.address or other.address + other.columns <= one.address
                assert apart, f"seed {seed}: {one} and {other}"


@pytest.mark.parametrize("columns", [256, 512])
def test_allocation_waits_for_another_cta(columns: int) -> None:
    """In some seeds, CTAs share an SM, and one gets its columns when another one has gone."""
    shared = waited = apart = 0
    for seed in range(24):
        records = contend(numpy.full((8, 1), columns), seed)
        check(records, seed)
        shared += len({r.sm for r in records}) < len(records)
        apart += len({r.sm for r in records}) > 1
        waited += any(one.waited_for(other) for one in records for other in records)
    assert shared and apart and waited


@pytest.mark.parametrize("seed", range(40))
def test_no_deadlock(seed: int) -> None:
    """Each CTA takes less every time, and no more before it has given that back."""
    random = random_of(f"contention {seed}")
    first = random.choice([128, 256, 512], (12, 1))
    columns = numpy.maximum(first >> numpy.arange(3), 32)
    check(contend(columns, seed, relinquish=bool(random.integers(2))), seed)


# Two CTAs take half each, and then want the other half.
HOLD = """
.visible .entry hold(.param .u64 counter)
{
  .reg .b32 %slot, %first, %second, %n; .reg .b64 %counter; .reg .pred %p;
  ld.param.u64 %counter, [counter];
  mov.u32 %slot, smem;
  tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%slot], 256;
  ld.shared.u32 %first, [%slot];
  atom.global.add.u32 %n, [%counter], 1;
meet:
  ld.volatile.global.u32 %n, [%counter];
  setp.lt.u32 %p, %n, 64;
  @%p bra meet;
  tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%slot], 256;
  ld.shared.u32 %second, [%slot];
  tcgen05.dealloc.cta_group::1.sync.aligned.b32 %first, 256;
  tcgen05.dealloc.cta_group::1.sync.aligned.b32 %second, 256;
  ret;
}
"""


def test_holding_while_waiting_is_a_deadlock() -> None:
    """... if they are on one SM, which some seeds have."""
    deadlocks = 0
    for seed in range(24):
        emulator = Emulator("sm_100", seed)
        counter = emulator.array(numpy.zeros(1, numpy.uint32))
        try:
            emulator.launch(emulator.load(HEADER + HOLD)["hold"], 2, 32, [counter], 64)
        except EmulatorError as error:
            assert "eadlock" in str(error) and "256 columns" in str(error), str(error)
            deadlocks += 1
    assert 0 < deadlocks < 24
