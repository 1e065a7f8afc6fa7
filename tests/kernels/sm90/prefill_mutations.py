"""Mutations of what sm90_prefill_divided adds to csrc/kernels/sm90/prefill.cu: blocks of mma_b that CTAs dequantize for
each other, and their flags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from emulate import Emulator
from harness import verify
from harness.headers import Config
from harness.launch import Generator
from harness.mutations import mutation
from sm90.operands import dequant_ptx
from sm90.prefill import ALL_CONFIGS, CHUNK, PrefillProduct


@dataclass(frozen=True)
class Divided(verify.Launch):
    """The pre-pass and the kernel. The verifier takes one cluster, and blocks are taken from a counter in memory."""

    note: str
    rows: tuple[int, int]  # of mma_a and mma_b
    clusters: int

    config: ClassVar[Config] = ALL_CONFIGS["sm90_prefill_divided"]
    inlined = ("kernels/common/flags.cuh",)
    for_verifier = False

    def start(self, emulator: Emulator, module: Any, generator: Generator) -> list[PrefillProduct]:
        product = PrefillProduct(emulator, generator, *self.rows, 2 * CHUNK + 320)
        product.launch_prefill(emulator.load(dequant_ptx()), module, self.config, False, self.clusters, wait=False)
        return [product]


WAVES = Divided("two waves", (300, 1100), 4)

FENCE = "        fence_proxy_async_global();\n        __syncwarp();\n"
ARRIVE = "        if (lane == 0) flag_arrive_at_both(s.flags + block, s.flags + s.blocks + 1);\n"
RELEASE = '    asm volatile("fence.acq_rel.gpu;" ::: "memory");\n'
TAKE = "        const uint32_t block = piece / SM90_PREFILL_BLOCK_PIECES;\n"
WAIT = "                flags.wait(k / BLOCK_STAGES);\n"
ALL_DONE = "s.blocks * SM90_PREFILL_BLOCK_PIECES) has_flags"

PREFILL_MUTATIONS = [
    mutation(f"divided: {name}", WAVES, *edits, found_by=found_by)
    for name, found_by, *edits in (
        ("no proxy fence before the arrivals", "emulator", FENCE + ARRIVE, ARRIVE),
        ("no release before the arrivals", "emulator", RELEASE, ""),
        ("arrives before the stores", "emulator", FENCE + ARRIVE, FENCE, TAKE, TAKE + ARRIVE),
        ("no wait for a block", "emulator", WAIT, ""),
        ("waits for the tile's first block alone", "emulator", WAIT, WAIT.replace("k / BLOCK_STAGES", "0")),
        ("half of the pieces taken for all", "emulator", f"== {ALL_DONE}", f">= {ALL_DONE.replace(')', ' / 2)')}"),
        # In the emulator what was fenced and released reaches every later copy; test_flags_are_acquired finds it.
        ("flags without acquire", "nobody", "ld.acquire.gpu.global", "ld.relaxed.gpu.global"),
    )
]
