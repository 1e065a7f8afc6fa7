"""Mutates the sources and asks whether the tests notice.

    python tools/mutation draw --seed 1 --count 60 --output sample.json [--at COMMIT] [AREA ...]
    python tools/mutation run sample.json --results results.csv --jobs 2 [--start-within 120] [--known other.csv]
    python tools/mutation report results.csv

docs/proof/mutant_survivors.csv has the mutants that no test can find, or none does, each with the reason: they are not
run, and a report counts them apart. A survivor of a run becomes a row there, or gets a test.

`draw` needs tree-sitter, `run` what the tests need (both: `pip install ".[test]"`), nvcc and gcc. A sample is a list of
mutants: of each area, an operator is drawn first and then a place for it, so that rare operators are represented.
It holds three times the count, since some do not compile and some change no machine code; `run` goes on until `count`
of an area are decided. A list written by hand serves as well: objects with area, file, before (which occurs once in
the file) and after.

`run` stops at the first test that fails. A mutant that is in the results is not run again (`Mutant.key`).
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from areas import AREAS
from mutant import Mutant
from workplace import Workplace

ROOT = Path(__file__).resolve().parents[2]
SURVIVORS = ROOT / "docs/proof/mutant_survivors.csv"
COLUMNS = ["area", "file", "line", "operator", "before", "after", "verdict", "by", "what", "seconds", "key"]
DECIDED = ("killed", "survived")


# ---- draw


def draw(areas: Sequence[str], seed: str, count: int, root: Path) -> Iterator[dict[str, object]]:
    from mutators import mutants_of

    for area in areas:
        generator = random.Random(f"{seed} {area}")
        by_operator: dict[str, list[Mutant]] = defaultdict(list)
        for file in AREAS[area].sources(root):
            for one in mutants_of(root, file):
                by_operator[one.operator].append(one)
        for _ in range(3 * count):
            if not by_operator:
                break
            operator = generator.choice(sorted(by_operator))
            places = by_operator[operator]
            yield {"area": area, "count": count} | asdict(places.pop(generator.randrange(len(places))))
            if not places:
                del by_operator[operator]


def draw_at(commit: str, areas: Sequence[str], seed: str, count: int) -> Iterator[dict[str, object]]:
    """Draws mutants of the sources of a commit; yields those that these sources still have."""
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", commit, "csrc"], cwd=ROOT, stdout=subprocess.PIPE, check=True)
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        for one in draw(areas, seed, count, Path(folder)):
            mutant = Mutant.of(one)
            old, new = Path(folder, mutant.file), ROOT / mutant.file
            moved = mutant.moved(old.read_bytes(), new.read_bytes()) if new.exists() else None
            if moved:
                yield one | asdict(moved)


def by_hand(one: dict[str, object]) -> Mutant:
    """From a list without places."""
    text = (ROOT / str(one["file"])).read_bytes()
    before = str(one["before"]).encode()
    if text.count(before) != 1:
        sys.exit(f"mutation: {one['file']} has the text {one['before']!r} {text.count(before)} times; must be once")
    start = text.index(before)
    line = text[:start].count(b"\n") + 1
    operator = str(one.get("name", "by hand"))
    return Mutant(str(one["file"]), start, start + len(before), line, operator, before.decode(), str(one["after"]))


# ---- run


def verdicts_in(results: Path) -> dict[str, str]:
    """By key; comments before the columns are skipped (benchmarks/recorded.py)."""
    with results.open(newline="") as file:
        return {row["key"]: row["verdict"] for row in csv.DictReader(line for line in file if line[:1] != "#")}


class Run:
    """The mutants of a list, in its order, by several workers."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.seed = arguments.seed or str(random.SystemRandom().randrange(2**31))
        self.lock = threading.Lock()
        self.end = time.monotonic() + arguments.start_within if arguments.start_within else math.inf
        self.results = Path(arguments.results)
        self.known: dict[str, str] = {}  # verdicts by key
        if self.results.exists():
            self.known = verdicts_in(self.results)
        else:
            with self.results.open("w", newline="") as file:
                csv.DictWriter(file, COLUMNS).writeheader()
        self.known |= verdicts_in(SURVIVORS)
        for other in arguments.known:
            self.known |= verdicts_in(Path(other))
        self.decided: dict[str, int] = defaultdict(int)
        self.begun: dict[str, int] = defaultdict(int)
        given = json.loads(Path(arguments.mutants).read_text())
        if arguments.area:
            given = [one for one in given if one["area"] in arguments.area]
        self.unchanged = sorted({str(one["area"]) for one in given}) if arguments.unchanged else []
        self.todo = [(one, Mutant.of(one) if "start" in one else by_hand(one)) for one in interleaved(given)]

    def next(self) -> tuple[dict[str, object], Mutant, str] | None:
        """One that has to be run. As many of an area are begun as may still count."""
        with self.lock:
            place = 0
            while place < len(self.todo) and time.monotonic() < self.end:
                one, mutant = self.todo[place]
                area, count = str(one["area"]), int(one.get("count", 10**9))
                if self.decided[area] + self.begun[area] >= count:
                    place += 1
                    continue
                del self.todo[place]
                key = mutant.key((ROOT / mutant.file).read_bytes())
                known = self.known.get(key)
                if known is None or (self.arguments.again and known == "survived"):
                    self.begun[area] += 1
                    return one, mutant, key
                self.decided[area] += known in DECIDED
        return None

    def record(self, one: dict[str, object], mutant: Mutant, key: str, result: dict[str, object]) -> None:
        area = str(one["area"])
        with self.lock:
            self.begun[area] -= 1
            self.decided[area] += result["verdict"] in DECIDED
            row = {"area": area, "key": key, **result}
            row |= {name: getattr(mutant, name) for name in ("file", "line", "operator", "before", "after")}
            with self.results.open("a", newline="") as file:
                csv.DictWriter(file, COLUMNS).writerow(row)
            print(f"{area:12} {result['verdict']:10} {result['seconds']:6} s  {mutant.name}  {result['what']}"[:200])
            sys.stdout.flush()

    def work(self, place: Workplace) -> None:
        while self.unchanged:
            with self.lock:
                area = self.unchanged.pop() if self.unchanged else None
            if area:
                self.test_unchanged(place, area)
        while (found := self.next()) is not None:
            one, mutant, key = found
            tests = AREAS[str(one["area"])].tests
            self.record(one, mutant, key, place.run(mutant, tests, self.arguments.seconds, self.seed))

    def test_unchanged(self, place: Workplace, area: str) -> None:
        """Without a mutant every test must pass, or it would find all of them."""
        begin = time.monotonic()
        by, what = place.test(AREAS[area].tests, self.arguments.seconds, self.seed)
        print(f"{area:12} unchanged  {time.monotonic() - begin:6.1f} s  {by} {what}", flush=True)
        if by:
            print(place.said[-4000:], flush=True)
            with self.lock:
                self.todo = [(one, mutant) for one, mutant in self.todo if one["area"] != area]

    def go(self) -> None:
        cores = sorted(os.sched_getaffinity(0))
        jobs = self.arguments.jobs or len(cores)
        with tempfile.TemporaryDirectory(prefix="mutation-", dir=self.arguments.folder) as folder:
            first = Workplace.create(ROOT, Path(folder, "0"), cores)
            first.build_all(ROOT / "build/cuda")
            print(f"built in {time.monotonic() - START:.0f} s; NVFP4_TEST_SEED={self.seed}", flush=True)

            def place(job: int) -> Workplace:
                own = [cores[job % len(cores)], cores[(job + 1) % len(cores)]]
                return first.copy(Path(folder, str(job + 1)), own)

            with ThreadPoolExecutor(jobs) as pool:
                for future in [pool.submit(lambda job: self.work(place(job)), job) for job in range(jobs)]:
                    future.result()


def interleaved(given: list[dict[str, object]]) -> list[dict[str, object]]:
    """The areas in turn, so that a run that ends early has some of each."""
    by_area: dict[str, list[dict[str, object]]] = defaultdict(list)
    for one in given:
        by_area[str(one["area"])].append(one)
    most = max(map(len, by_area.values()), default=0)
    return [many[i] for i in range(most) for many in by_area.values() if i < len(many)]


# ---- report


def wilson(found: int, of: int) -> tuple[float, float]:
    """The 95 % confidence interval of a share (Wilson 1927)."""
    if not of:
        return 0.0, 1.0
    z, share = 1.96, found / of
    middle, half = share + z * z / (2 * of), z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    return (middle - half) / (1 + z * z / of), (middle + half) / (1 + z * z / of)


def where(row: dict[str, str]) -> str:
    """The line that it begins in and the one before."""
    last = int(row["line"])
    return "\n".join(line.strip() for line in (ROOT / row["file"]).read_text().splitlines()[max(0, last - 2) : last])


def report(results: Path, by: str) -> None:
    with results.open(newline="") as file:
        rows = list(csv.DictReader(file))
    latest = {row["key"]: row for row in rows}
    known = verdicts_in(SURVIVORS)
    groups: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    survivors = []
    for row in latest.values():
        verdict = row["verdict"]
        if verdict == "survived":
            verdict = known.get(row["key"], verdict)
            if row["key"] not in known:
                survivors.append(row)
        for name in (row[by], "all"):
            groups[name][verdict] += 1
    print(f"{'':40} {'killed':>7} {'survived':>9} {'equivalent':>11} {'broken':>7} {'unfinished':>11}  score (95 %)")
    for name in [*sorted(name for name in groups if name != "all"), "all"]:
        group = groups[name]
        decided = group["killed"] + group["survived"]
        low, high = wilson(group["killed"], decided)
        share = f"{group['killed'] / decided:5.0%} ({low:.0%} to {high:.0%})" if decided else ""
        counts = f"{group['killed']:7} {group['survived']:9} {group['equivalent']:11} {group['broken']:7}"
        counts += f" {group['unfinished']:11}"
        print(f"{name:40} {counts}  {share}")
    for row in survivors:
        print(f"\n{row['key']}  {row['area']}  {row['file']}:{row['line']}  {row['operator']}")
        print(f"  - {row['before']}\n  + {row['after']}\n  where: {json.dumps(where(row))}")


START = time.monotonic()


def main() -> None:
    parser = argparse.ArgumentParser(prog="mutation", description=__doc__.split("\n\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw", help="write a sample of mutants")
    drawing.add_argument("area", nargs="*", choices=[[], *AREAS], help="of these areas; default: all")
    drawing.add_argument("--seed", default="0", help="of the draw")
    drawing.add_argument("--count", type=int, default=60, help="mutants of an area that have to be decided")
    drawing.add_argument("--at", help="of the sources of this commit, as far as they are the same")
    drawing.add_argument("--output", required=True, help="the list, JSON")
    running = commands.add_parser("run", help="build and test the mutants of a list")
    running.add_argument("mutants", help="the list, JSON")
    running.add_argument("area", nargs="*", help="only mutants of these areas")
    running.add_argument("--results", required=True, help="CSV that rows are added to")
    running.add_argument("--known", action="append", default=[], help="CSV of other results, not to be run again")
    running.add_argument("--jobs", type=int, default=0, help="mutants at a time; default: one a core")
    running.add_argument(
        "--seconds",
        type=float,
        default=240.0,
        help="for one pytest command; longer counts as killed if it takes at most a third without a mutant",
    )
    running.add_argument("--start-within", type=float, default=0.0, help="begin no mutant after so many seconds")
    running.add_argument("--seed", default="", help="NVFP4_TEST_SEED; default: a fresh one")
    running.add_argument("--again", action="store_true", help="run again what survived")
    running.add_argument("--unchanged", action="store_true", help="first run all tests without a mutant")
    running.add_argument("--folder", help="for the copies of the checkout; default: the temporary folder")
    reporting = commands.add_parser("report", help="print scores and survivors")
    reporting.add_argument("results", help="CSV of `run`")
    reporting.add_argument("--by", choices=["area", "file", "operator"], default="file")
    arguments = parser.parse_args()
    if arguments.command == "draw":
        names = arguments.area or list(AREAS)
        of = names, arguments.seed, arguments.count
        drawn = draw_at(arguments.at, *of) if arguments.at else draw(*of, ROOT)
        Path(arguments.output).write_text(json.dumps(list(drawn), indent=1))
    elif arguments.command == "run":
        Run(arguments).go()
    else:
        report(Path(arguments.results), arguments.by)


if __name__ == "__main__":
    main()
