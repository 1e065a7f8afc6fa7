#!/usr/bin/env python3
"""Rewrites stored results of version 1 in place, so that this version of nvfp4 reads them.

    python tools/rename_results.py FILE...

Files: runs of `nvfp4 bench` (--json and --csv), files of `bench --tune`, runs of benchmarks/contest.py. A file that is
already of version 2 (of `bench --tune`: 3) stays as it is. Only names change, never a number; kernels get their new
names in all of them.

    bench, JSON        version 1                   version 2
      format           nvfp4-bench-1               nvfp4-bench-2
      results[]        contestants                 implementations
        each           queue_calls                 back_to_back_calls
        seconds,ratio  cold, queued                single_call, back_to_back
      conditions       "single calls"              "single-call"
                       "back to back"              "back-to-back"
      names            torch dequantise + matmul   torch dequantize + matmul
      sentences of conditions and host, with "queue" and "contestant", are put into the new words
    bench, CSV
      column           contestant                  implementation
      figure           cold, queued                single_call, back_to_back
    bench --tune
      format           nvfp4-tune 1, 2             nvfp4-tune 3
      results[]        preferred (a place)         selected (a rank)
        candidates[]   place                       rank
                       swapped                     swap_ab
                       -                           ctas_per_sm, 0
    contest.py
      format           nvfp4-contest-1             nvfp4-contest-2
      mode             queued, single              back-to-back, single-call
    kernels            sm90_dense_x_raw            sm90_prefill_mixed
                       sm90_dense_expanded         sm90_prefill_fp16
                       sm90_gemm_*_helped          sm90_gemm_*_streamk
                       sm100_gemm_*_gather         sm100_gemm_*_cp_async
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

NAMES = {"torch dequantise + matmul": "torch dequantize + matmul"}
MODES = {"cold": "single_call", "queued": "back_to_back"}
CONDITIONS = {"single calls": "single-call", "back to back": "back-to-back"}
CONTEST_MODES = {"queued": "back-to-back", "single": "single-call"}
KERNELS = (
    (re.compile(r"sm90_dense_x_raw\b"), "sm90_prefill_mixed"),
    (re.compile(r"sm90_dense_expanded\b"), "sm90_prefill_fp16"),
    (re.compile(r"(sm90_gemm_\d+x\d+)_helped\b"), r"\1_streamk"),
    (re.compile(r"(sm100_gemm_\w+)_gather\b"), r"\1_cp_async"),
)
TEXTS = (  # of the conditions and of what the host's time is of
    (
        r"cold: (.+) written before each; an empty pair of CUDA events takes (.+), in every figure",
        r"cold L2: \1 written before each call; each figure includes an empty pair of CUDA events, \2",
    ),
    (
        r"a plain queue \(no graph\) of (.+) calls between one pair of events, behind writes of (.+)",
        r"\1 calls on a stream (no graph) between one pair of events, after writes of \2",
    ),
    (r"(.+)of each contestant(.+)", r"\1of each implementation\2"),
    (
        r"the calling thread, to queue a call: over the shapes, median and range",
        r"the calling thread, to enqueue a call: median and range over the shapes",
    ),
)

Object = dict[str, Any]


def renamed(old: Object, names: dict[str, str]) -> Object:
    """The object with other keys, in the same order."""
    return {names.get(key, key): value for key, value in old.items()}


def kernel(name: str) -> str:
    for pattern, new in KERNELS:
        name = pattern.sub(new, name)
    return name


def text(old: str) -> str:
    """A known sentence of a run in the new words; any other text unchanged."""
    for pattern, new in TEXTS:
        if re.fullmatch(pattern, old):
            return re.sub(pattern, new, old, count=1)
    return old


def bench(run: Object) -> Object:
    def entry(old: Object) -> Object:
        new = renamed(old, {"queue_calls": "back_to_back_calls"})
        new["name"], new["kernel"] = NAMES.get(old["name"], old["name"]), kernel(old["kernel"])
        for figures in ("seconds", "ratio"):
            if figures in new:
                new[figures] = renamed(new[figures], MODES)
        return new

    def result(old: Object) -> Object:
        return renamed(old, {"contestants": "implementations"}) | {
            "implementations": [entry(each) for each in old["contestants"]]
        }

    return run | {
        "format": "nvfp4-bench-2",
        "conditions": {CONDITIONS.get(name, name): text(value) for name, value in run["conditions"].items()},
        "left_out": renamed(run["left_out"], NAMES),
        "host": {"of": text(run["host"]["of"]), "seconds": renamed(run["host"]["seconds"], NAMES)},
        "results": [result(old) for old in run["results"]],
    }


def tune(run: Object) -> Object:
    """From format 1 or 2. A file for sm100 kernels, of which there is none, would lack a setting."""

    def candidate(old: Object) -> Object:
        if "_sm100_" in old["kernel"]:
            raise KeyError("ctas_per_sm")
        new = renamed(old, {"place": "rank", "swapped": "swap_ab"})
        return new | {"kernel": kernel(old["kernel"]), "ctas_per_sm": 0}

    def result(old: Object) -> Object:
        return renamed(old, {"preferred": "selected"}) | {"candidates": [candidate(each) for each in old["candidates"]]}

    return run | {"format": "nvfp4-tune 3", "results": [result(old) for old in run["results"]]}


def contest(run: Object) -> Object:
    mode = {"mode": CONTEST_MODES[run["mode"]]} if "mode" in run else {}
    return run | {"format": "nvfp4-contest-2"} | mode


def emptied(old: Object, name: str) -> Object:
    """The object with an empty list of that name, as the last key."""
    return {key: value for key, value in old.items() if key != name} | {name: []}


def bench_text(run: Object) -> str:
    """As `nvfp4 bench --json` writes it: one implementation a line."""
    head = json.dumps(emptied(run, "results"), indent=1).removesuffix("[]\n}")
    blocks = []
    for result in run["results"]:
        entries = ",\n   ".join(json.dumps(entry) for entry in result["implementations"])
        frame = json.dumps(emptied(result, "implementations")).removesuffix("[]}")
        blocks.append(f"  {frame}[\n   {entries}\n  ]}}")
    return head + "[\n" + ",\n".join(blocks) + "\n ]\n}\n"


def plain_text(run: Object) -> str:
    return json.dumps(run, indent=1) + "\n"


JSON: dict[str, tuple[Callable[[Object], Object], Callable[[Object], str]]] = {
    "nvfp4-bench-1": (bench, bench_text),
    "nvfp4-tune 1": (tune, plain_text),
    "nvfp4-tune 2": (tune, plain_text),
    "nvfp4-contest-1": (contest, plain_text),
}


def csv_rewritten(old: str) -> str | None:
    """The CSV of `bench --csv` with new names; None if it is not of version 1."""
    rows = list(csv.reader(io.StringIO(old)))
    if not rows or not {"contestant", "figure", "kernel"} <= set(rows[0]):
        return None
    out = io.StringIO()
    columns = renamed(dict.fromkeys(rows[0]), {"contestant": "implementation"})
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    for values in rows[1:]:
        row = dict(zip(columns, values))
        row["implementation"] = NAMES.get(row["implementation"], row["implementation"])
        row["figure"], row["kernel"] = MODES[row["figure"]], kernel(row["kernel"])
        writer.writerow(row)
    return out.getvalue()


def rewritten(old: str) -> str | None:
    """The text of a file of version 2; None if there is nothing to rewrite."""
    try:
        run = json.loads(old)
    except ValueError:
        return csv_rewritten(old)
    if not isinstance(run, dict) or run.get("format") not in JSON:
        return None
    rename, write = JSON[run["format"]]
    return write(rename(run))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="results to rewrite in place")
    status = 0
    for path in parser.parse_args().files:
        try:
            new = rewritten(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, KeyError, TypeError, AttributeError) as error:
            print(f"{path}: cannot be rewritten: {type(error).__name__}: {error}", file=sys.stderr)
            status = 1
            continue
        if new is not None:
            path.write_text(new, encoding="utf-8")
        print(f"{'rewritten' if new is not None else 'nothing to rename'}: {path}")
    return status


if __name__ == "__main__":
    sys.exit(main())
