"""Writes log/marlin_h100.csv from two runs of bench on one GPU, one after the other, or log/experts_h100.csv or
log/experts_humming_h200.csv from one:

    python -m nvfp4 bench --set readme --against marlin --json layers.json
    python -m nvfp4 bench --shapes ... --against none --json products.json   # the same shapes
    python benchmarks/marlin_log.py layers.json products.json

    python -m nvfp4 bench --set experts --against marlin --json experts.json
    python benchmarks/marlin_log.py experts.json

    python -m nvfp4 bench --set experts --m 1,8,32,128,512,2048 --against humming --json experts.json
    python benchmarks/marlin_log.py experts.json

A single call is the median less an empty pair of events, as the run measured it.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

import recorded

from nvfp4.bench import experts, marlin, report
from nvfp4.cli import show

LOG = Path(__file__).resolve().parent / "log"
NAMES = {
    "nvfp4": "W4A4",
    "nvfp4.Linear W4A4": "quantize + W4A4",
    "nvfp4.Linear W4A16": "W4A16",
    "vLLM Marlin W4A16": "Marlin",
    "torch bf16 linear": "bf16",
}


def columns(run: dict[str, Any]) -> dict[tuple[int, ...], dict[str, str]]:
    """The columns of each shape."""
    pair = re.search(r"an empty pair of CUDA events, ([\d.]+) us", run["conditions"]["single-call"])
    assert pair is not None, "a run on a GPU"
    found: dict[tuple[int, ...], dict[str, str]] = {}
    for result in run["results"]:
        own = found.setdefault(tuple(result["shape"].values()), {})
        for entry in result["implementations"]:
            name, median = NAMES[entry["name"]], {mode: entry["seconds"][mode]["median"] * 1e6 for mode in report.MODES}
            own[f"{name} us"] = three_digits(median["single_call"] - float(pair[1]))
            own[f"{name} back-to-back"] = three_digits(median["back_to_back"])
    return found


def three_digits(us: float) -> str:
    return f"{us:.{2 if us < 10 else 1 if us < 1000 else 0}f}"


def write_experts(path: str) -> None:
    """Microseconds, and how many times as long torch's bf16 and Marlin take as the layer in W4A16."""
    run = json.loads(Path(path).read_text(encoding="utf-8"))
    found = run["results"]
    if "product_ratios" in found[0]:
        write_products(found, run["conditions"]["hardware"])
        return
    names = list(found[0]["seconds"])
    header = ["model", "tokens", "hit", "floor us", *(f"{name} us" for name in names), "over bf16", "over Marlin"]
    rows = [header]
    for one in found:
        us = {name: one["seconds"][name]["median"] * 1e6 for name in names}
        ratios = [f"{us[name] / us['layer']:.2f}" for name in ("torch bf16", marlin.NAME)]
        cells = map(show.digits, (one["floor"] * 1e6, *us.values()))
        rows.append([one["model"], one["tokens"], one["hit"], *cells, *ratios])
    recorded.write(LOG / "experts_h100.csv", rows, run["conditions"]["hardware"])


def write_products(found: list[dict[str, Any]], card: str) -> None:
    names = ["layer", *experts.of_products()]
    lines = [["model", "tokens", "hit", *(f"{name} us" for name in names), *experts.PRODUCTS]]
    for one in found:
        times = [one["seconds"].get(name) for name in names]
        ratios = [one["product_ratios"].get(name) for name in experts.PRODUCTS]
        cells = [show.digits(time["median"] * 1e6) if time else "fails" for time in times]
        cells += [f"{ratio['median']:.2f}" if ratio else "-" for ratio in ratios]
        lines.append([one["model"], one["tokens"], one["hit"], *cells])
    recorded.write(LOG / "experts_humming_h200.csv", lines, card)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="layers or experts beside Marlin")
    parser.add_argument("products", nargs="?", help="of a run of layers: that of their products")
    args = parser.parse_args()
    if args.products is None:
        write_experts(args.run)
        return 0
    runs = [report.load(path) for path in (args.run, args.products)]
    layers, products = map(columns, runs)
    assert layers.keys() == products.keys(), "the same shapes"
    names = [f"{name} {what}" for name in NAMES.values() for what in ("us", "back-to-back")]
    rows = [dict(zip("mnk", shape)) | own | products[shape] for shape, own in layers.items()]
    card = runs[0]["conditions"]["hardware"]
    recorded.write_rows(LOG / "marlin_h100.csv", ["m", "n", "k", *names], rows, card)
    return 0


if __name__ == "__main__":
    sys.exit(main())
