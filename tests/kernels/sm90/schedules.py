"""Launches of csrc/kernels/sm90/gemm.cu for the static verifier, and its PTX rewritten for it. The verifier does not
know wgmma: `with_reads` puts in its place what it reads of shared memory, and when."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from harness import verify
from harness.headers import Config
from harness.launch import Generator, chain
from harness.values import FP16, FP32
from sm90.gemm import CONFIGS, STAGE_K, Product, Schedule, StreamK


@dataclass(frozen=True)
class Launch(verify.Launch):
    """One launch of a kernel with one tile along mma_a and `tiles` along mma_b. mma_a is A and the output fp32; with
    `plain` mma_a is B and the output fp16."""

    config_name: str
    note: str
    stages: int  # along K
    tail: int = 0  # values along K behind the last full stage
    tiles: int = 1
    clusters: int = 0  # 0: one a tile
    split_k: int = 1
    in_stages: bool = False
    calls: int = 1  # dependent launches, each adds the result before
    plain: bool = False
    streamk: StreamK | None = None

    schedule = Schedule
    inlined = (
        "kernels/sm90/mainloop.cuh",
        "kernels/sm90/reduce.cuh",
        "kernels/sm90/schedule.cuh",
        "kernels/common/flags.cuh",
    )

    @property
    def config(self) -> Config:
        return CONFIGS[self.config_name]

    @property
    def for_verifier(self) -> bool:
        """The verifier takes one grid of one cluster, and does not evaluate the alignment test of plain output."""
        return self.calls == 1 and not self.streamk and not self.plain

    @property
    def size(self) -> tuple[int, int, int]:
        mma_m, mma_n = self.config.mma_tile_m, self.tiles * self.config.mma_tile_n
        return (*((mma_n, mma_m) if self.plain else (mma_m, mma_n)), self.stages * STAGE_K + self.tail)

    def start(self, emulator: Any, module: Any, generator: Generator) -> list[Product]:
        form = {"pitch": (self.size[2] // 2 + 15) // 16 * 16, "out_type": FP16 if self.plain else FP32}
        calls = chain([Product(emulator, generator, *self.size, **form) for _ in range(self.calls)])
        for call in calls:
            how = {"clusters": self.clusters, "in_stages": self.in_stages, "wait": False, "streamk": self.streamk}
            call.launch(module, self.config, self.plain, self.split_k, **how)
        return calls

    def readable(self, text: str) -> str:
        return with_reads(without_bit_fields(text))


def launches() -> Iterator[Launch]:
    """Launches of every instantiation but stream-K: two stages more than the pipeline has, several tiles for one CTA,
    every kind of split-K, a partial last stage."""
    for name, config in CONFIGS.items():
        if config.streamk:
            continue
        yield Launch(name, "wrap", config.stages + 2)
        yield Launch(name, "tiles", 1, 16, tiles=config.stages // 2 + 2, clusters=1)
        yield Launch(name, "tail", 1, 48)
        for split in (2, 4, 8) if config.mma_tile_m == 128 else (2, 4):
            yield Launch(name, f"split {split}", split + 1, split_k=split)
            yield Launch(name, f"split {split} in stages", split, split_k=split, in_stages=True)
        yield Launch(name, "split 3, one stage", 1, split_k=3)


# ---- rewrites of PTX that sentryward 0.1.1 does not support -----------------------------------------------------


def without_bit_fields(text: str) -> str:
    """Rewrites bfi as a shift and masks."""

    def spelled(found: re.Match[str]) -> str:
        to, inserted, into, at, bits = found.groups()
        mask = (1 << int(bits)) - 1 << int(at) & 0xFFFFFFFF
        keep = 0xFFFFFFFF - mask
        return (
            f"{{ .reg .b32 field, rest; shl.b32 field, {inserted}, {at}; and.b32 field, field, {signed(mask)};"
            f" and.b32 rest, {into}, {signed(keep)}; or.b32 {to}, field, rest; }}"
        )

    return re.sub(r"bfi\.b32 (%r\d+), (%r\d+), (%r\d+), (\d+), (\d+);", spelled, text)


def signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word


def with_reads(text: str) -> str:
    """Rewrites wgmma as its reads of shared memory by every warp: at the issue and at the wait that completes it.
    Accesses ordered with both are ordered with all moments between. A wait is warp-wide, so a warp barrier follows it.
    8 rows of mma_b stand for all, since one copy writes all of them."""

    def reads(descriptor: str, guard: str = "") -> str:
        return (
            f"{guard} cvt.u32.u64 wg_at, {descriptor}; {guard} and.b32 wg_at, wg_at, 16383; "
            f"{guard} shl.b32 wg_at, wg_at, 4; mov.u32 wg_lane, %tid.x; and.b32 wg_lane, wg_lane, 7; "
            f"shl.b32 wg_lane, wg_lane, 7; {guard} add.u32 wg_at, wg_at, wg_lane; "
            f"{guard} ld.shared.v4.b32 {{wg_a, wg_b, wg_c, wg_d}}, [wg_at]; "
        )

    lines: list[str] = []
    group: list[str] = []  # descriptors of the wgmma since the last commit
    most = max(sum(1 for _ in re.findall(r"wgmma\.mma_async", part)) for part in text.split("wgmma.commit_group"))
    for line in text.split("\n"):
        if product := re.search(r"wgmma\.mma_async.*\}, (%rd\d+), add, 1, 1, 0;", line):
            if product[1] not in group:
                group.append(product[1])
            lines += [f"mov.b64 wg_now{group.index(product[1])}, {product[1]};", reads(product[1])]
        elif "wgmma.commit_group" in line:
            for i in range(most):
                now = i if i < len(group) else 0  # a group of fewer reads its first again
                lines.append(f"mov.b64 wg_before{i}, wg_last{i}; mov.b64 wg_last{i}, wg_now{now};")
            lines.append("add.u32 wg_groups, wg_groups, 1;")
            group = []
        elif wait := re.search(r"wgmma\.wait_group\.sync\.aligned (\d);", line):
            lines.append("setp.ge.u32 wg_one, wg_groups, 1; setp.ge.u32 wg_two, wg_groups, 2;")
            for i in range(most):  # a wait for groups before the last two has no effect here
                if wait[1] in "01":
                    lines.append(reads(f"wg_before{i}", "@wg_two"))
                if wait[1] == "0":
                    lines.append(reads(f"wg_last{i}", "@wg_one"))
            lines.append("bar.warp.sync -1;" + (" mov.u32 wg_groups, 0;" if wait[1] == "0" else ""))
        elif "wgmma.fence" not in line:
            lines.append(line)
    text = "\n".join(lines)
    assert "wgmma" not in text
    registers = "".join(f".reg .b64 wg_now{i}, wg_last{i}, wg_before{i}; " for i in range(most))
    registers += ".reg .b32 wg_at, wg_lane, wg_a, wg_b, wg_c, wg_d, wg_groups; .reg .pred wg_one, wg_two;"
    body = text.index("\n{\n") + 3
    first = body + re.search(r"^(mov|ld)\.", text[body:], re.MULTILINE).start()
    return text[:body] + registers + "\n" + text[body:first] + "mov.u32 wg_groups, 0;\n" + text[first:]
