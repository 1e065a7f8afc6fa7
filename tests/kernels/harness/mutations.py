"""Mutations of a kernel, and what finds each: the static verifier over every schedule, or the emulator in at most 20
timings."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy
from emulate import Emulator, EmulatorError

from harness.launch import compile_ptx, device_of, only_entry
from harness.verify import Launch, Verdict, prove

SEEDS = 20
FINDS = ("not_wellsynced", "potential_race", "invalid_lifecycle")  # verdicts that count as found


@dataclass(frozen=True)
class Mutation:
    name: str
    launch: Launch
    edits: tuple[tuple[str, str], ...]  # old text, which must occur exactly once in the source, and new text
    found_by: str  # both, emulator, verifier, nobody; machine code: a test of the SASS

    def source(self) -> str:
        text = self.launch.source()
        for old, new in self.edits:
            count = text.count(old)
            assert count == 1, f"{self.name}: occurs {count} times in the source: {old}"
            text = text.replace(old, new)
        return text

    def ptx(self) -> str:
        """Without edits that of the product."""
        if not self.edits:
            return self.launch.ptx()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "mutation.cu")
            path.write_text(self.source())
            return compile_ptx(path, self.launch.device)


def mutation(name: str, launch: Launch, *edits: str, found_by: str = "both") -> Mutation:
    return Mutation(name, launch, tuple(zip(edits[::2], edits[1::2])), found_by)


def controls_of(mutations: Iterable[Mutation]) -> list[Mutation]:
    """Their launches, with the unchanged kernel."""
    launches = dict.fromkeys(one.launch for one in mutations)
    return [mutation(f"unchanged: {launch.name}", launch, found_by="nobody") for launch in launches]


def emulate(mutant: Mutation, ptx: str, seeds: int = SEEDS) -> str:
    """The emulator's finding and its seed; empty if it finds nothing."""
    text, generator = only_entry(ptx, mutant.launch.kernel), numpy.random.default_rng()
    for seed in range(seeds):
        lanes = ("together", "apart")[seed // 4 % 2]  # four seeds in a row have each kind of timing once
        emulator = Emulator(device_of(mutant.launch.device), seed=seed, lanes=lanes)
        try:
            calls = mutant.launch.start(emulator, emulator.load(text), generator)
            emulator.synchronize()
            calls[-1].check(sum(call.expected() for call in calls))
        except (EmulatorError, AssertionError) as error:
            said = "wrong result" if isinstance(error, AssertionError) else str(error).split("\n")[0].split("`: ")[-1]
            return f"seed {seed}: {said}"
    return ""


def table(mutations: Iterable[Mutation], proven_only: Sequence[Mutation] = ()) -> int:
    """Tries them; returns how many are found by others than they say."""
    surprises = 0
    print(f"{'mutation':62} {'in':16} {'verifier':18} {'s':>5}  emulator")
    for one in mutations:
        ptx = one.ptx()
        verdict = prove(one.launch, ptx, 100) if one.launch.for_verifier else Verdict("-", 0.0, 0.0)
        said = "" if one in proven_only else emulate(one, ptx)
        found = {(False, False): "nobody", (True, False): "verifier", (False, True): "emulator", (True, True): "both"}
        by = found[verdict.result in FINDS, bool(said)]
        surprises += by != ("nobody" if one.found_by == "machine code" else one.found_by)
        seen = "-" if verdict.result == "race_free" else verdict.result
        print(f"{one.name:62} {one.launch.note:16} {seen:18} {verdict.seconds:5.1f}  {said or '-'}", flush=True)
        for detail in verdict.details[:1] if seen not in FINDS else []:
            print(f"        {detail}", flush=True)
    print(f"{surprises} found by others than the list says")
    return surprises
