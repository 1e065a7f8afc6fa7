"""Measures the constants of the B200 model (csrc/kernels/sm100/model.h) with the programs of benchmarks/.

launch_terms.cu prints lines of text about launches, stores and exchanges, from which constants are computed here.
load_terms.cu and tcgen05_terms.cu print a constant's name and value a line.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import tempfile
from pathlib import Path

from nvfp4.cli import show

from .steps import DEVICE_FILE

MODEL = Path(__file__).resolve().parents[2] / "csrc/kernels/sm100/model.h"
TOLERANCE = 1.15  # a constant is called wrong if the ratio to the measured value is beyond
COMPILE_S, RUN_S = 150, 90
COMMIT_AND_WAIT = "commit_and_wait_cycles"  # of tcgen05_terms.cu; the model has its two parts
EVICT_NORMAL, EVICT_FIRST = "evict_normal_tb_s", "evict_first_tb_s"  # of load_terms.cu; the model has neither
PARTS = {64: 16384, 128: 32768}  # bytes that a CTA of a pair receives in launch_terms.cu's exchange, by columns
TILE_BYTES = {"column": 64 * 128 * 2, "row": 128 * 128 * 2}  # of launch_terms.cu's stores


def modelled(path: Path = MODEL) -> dict[str, tuple[float, str]]:
    """Value and unit of each constant, in the model's order; of a range the middle value."""
    text = re.sub(r"\s*\\\n\s*", " ", path.read_text())
    rows = re.findall(r'X\((\w+), ((?:[\d.]+, )+)"([^"]+)"', text)
    return {name: (statistics.median(map(float, values.split(", ")[:-1])), unit) for name, values, unit in rows}


def compute_capability() -> int:
    return json.loads(Path(DEVICE_FILE).read_text())["compute_capability"]


def code_for(number: int) -> str:
    """nvcc's option for all instructions of this generation. -arch=sm_100a of CUDA 13.0 embeds PTX without them."""
    name = f"{number}{'a' if number >= 90 else ''}"
    return f"-gencode=arch=compute_{name},code=sm_{name}"


def output_of(source: Path) -> str:
    """Compiles and runs a CUDA program; returns its output."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / source.stem
        flags = ["-O3", "-std=c++17", code_for(compute_capability()), f"-I{source.parents[1] / 'csrc'}"]
        for command, limit in ((["nvcc", *flags, "-o", made, source], COMPILE_S), ([made], RUN_S)):
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
            except subprocess.TimeoutExpired:
                raise show.CommandError(f"{source.name}: {Path(command[0]).name} took more than {limit} s") from None
            if done.returncode:
                raise show.CommandError(f"{source.name}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def measure(benchmarks: Path) -> dict[str, float]:
    """The constants that can be measured on this GPU; prints the programs' output."""
    found: dict[str, float] = {}
    sources = ["load_terms", "launch_terms"]
    sources += ["tcgen05_terms"] * (compute_capability() // 10 == 10)
    failures = []
    for name in sources:
        try:
            text = output_of(benchmarks / f"{name}.cu")
        except show.CommandError as reason:
            failures.append(str(reason))
            continue
        print(text)
        found |= of_launches(text, found) if name == "launch_terms" else named(text)
    if "barrier_cycles" in found and COMMIT_AND_WAIT in found:
        found["commit_cycles"] = found[COMMIT_AND_WAIT] - found["barrier_cycles"]
    if failures:
        print("\n".join(failures))
    if not found:
        raise show.CommandError("nothing was measured")
    return found


def named(text: str) -> dict[str, float]:
    """`name value` lines."""
    return {name: float(value) for name, value in re.findall(r"^(\w+) (-?[\d.]+)$", text, re.M)}


def of_launches(text: str, others: dict[str, float]) -> dict[str, float]:
    """Constants from launch_terms.cu's output; those in clocks need clock_ghz of `others`."""
    gaps = {
        (int(kb), int(cluster), trigger): (float(gap), float(with_prologue))
        for kb, cluster, trigger, gap, with_prologue in re.findall(
            r"112 CTAs of (\d+) KB, clusters of (\d), ([\w ,]+): gap ([\d.]+) us, ([\d.]+) with a prologue", text
        )
    }
    found: dict[str, float] = {}
    try:
        after, before = gaps[100, 2, "behind it"][0], gaps[100, 2, "trigger before the wait"][0]
        alone, with_prologue = gaps[200, 2, "behind it"]
        found["plain_gap_us"] = gaps[100, 2, "plain"][0]
    except KeyError:
        raise show.CommandError("launch_terms.cu: its output is not what this version reads") from None
    found["dependent_gap_us"] = after
    found["early_trigger_us"] = before - after
    found["exit_overlap_us"] = 0.7 - (with_prologue - alone)
    exchanges = {
        (int(size), int(columns)): (float(barrier), float(clocks))
        for size, columns, barrier, clocks in re.findall(
            r"clusters of (\d), +(\d+) columns: barrier (\d+), exchange (\d+) clocks", text
        )
    }
    found["cluster_barrier_cycles"] = statistics.mean(barrier for barrier, _ in exchanges.values())
    clocks = {columns: exchanges[2, columns][1] for columns in PARTS}
    found["remote_b_clk"] = (PARTS[128] - PARTS[64]) / max(clocks[128] - clocks[64], 1e-9)
    found["remote_latency_cycles"] = clocks[64] - PARTS[64] / found["remote_b_clk"]
    if "clock_ghz" in others:
        for side, line in (("column", "112 CTAs,  64 rows of 64 bytes"), ("row", "56 CTAs, 128 numbers of each lane")):
            beyond = re.search(rf"{line}[\w ']*: ([\d.]+) us beyond", text)
            if beyond and float(beyond[1]) > after:
                clk = (float(beyond[1]) - after) * 1e3 * others["clock_ghz"]
                found[f"{side}_store_b_clk"] = TILE_BYTES[side] / clk
    return found


def report(measured: dict[str, float], model: dict[str, tuple[float, str]], hardware: str) -> str:
    """Measured beside modelled, and which constants are wrong."""
    rows, wrong = [], []
    for name, (value, unit) in model.items():
        if name not in measured:
            rows.append([name, unit, f"{value:g}", "-", "-", "not measured"])
            continue
        ratio = measured[name] / value if value else 0.0
        verdict = "agrees" if 1 / TOLERANCE <= ratio <= TOLERANCE else "WRONG"
        wrong += [name] * (verdict == "WRONG")
        rows.append([name, unit, f"{value:g}", f"{measured[name]:.4g}", f"{ratio:.2f}", verdict])
    title = f"The constants of the B200 model (csrc/kernels/sm100/model.h), measured on {hardware}"
    table = show.plain(
        ["constant", "unit", "modelled", "measured", "ratio", "verdict"], rows, [True, True, False, False, False, True]
    )
    told = f"beyond {TOLERANCE - 1:.0%}: {', '.join(wrong) or 'none'}"
    if "B200" not in hardware:
        told += ". The model is of a B200: on another GPU a difference says nothing about it"
    return f"{title}\n{table}\n{evict_first(measured)}{told}.\n"


def evict_first(measured: dict[str, float]) -> str:
    """What EVICT_FIRST is worth to bytes that are read once while L2 is full of written lines; "": not measured."""
    if not {EVICT_NORMAL, EVICT_FIRST} <= measured.keys():
        return ""
    normal, first = measured[EVICT_NORMAL], measured[EVICT_FIRST]
    return f"read once: {first:.2f} TB/s with EVICT_FIRST, {normal:.2f} without ({first / normal - 1:+.1%})\n"
