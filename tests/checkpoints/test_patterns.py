"""Patterns of a configuration: re's answers, in time that no pattern can make exponential."""

from __future__ import annotations

import os
import random
import re
import time
import tracemalloc
import warnings
from typing import Any

import pytest

import nvfp4
from nvfp4.checkpoints import compressed_tensors, modelopt, patterns
from nvfp4.checkpoints.names import Modules
from nvfp4.checkpoints.patterns import Pattern, Work

NVFP4 = {"num_bits": 4, "type": "float", "group_size": 16}


def by_regex(where: str, pattern: str) -> Pattern:
    return patterns.by_regex(where, pattern, Work())


def drawn(draw: random.Random, depth: int) -> str:
    """A regular expression without two repeats inside each other, which would make re slow."""
    kind = draw.random()
    if depth == 0 or kind < 0.35:
        items = ["a", "b", ".", "[ab]", "[^a]", r"\.", r"\w", r"\d", "A", "1", "^", "$", r"\b", r"\B", "[a-c1]"]
        return draw.choice([*items, "(?i:A)", r"(?a:\w)", r"(?s:.)", "b*", "a+", ".*", ".*?", "c?", "a{2}", "b{1,3}"])
    if kind < 0.6:
        return drawn(draw, depth - 1) + drawn(draw, depth - 1)
    if kind < 0.8:
        return f"(?:{drawn(draw, depth - 1)}|{drawn(draw, depth - 1)})"
    if kind < 0.9:
        return draw.choice(["(?=", "(?!"]) + drawn(draw, depth - 1) + ")"
    if kind < 0.95:
        return draw.choice(["(?<=", "(?<!"]) + draw.choice(["a", "ab", ".", "b1"]) + ")"
    return f"({drawn(draw, depth - 1)})" + draw.choice(["", "?", "{2}"])


def test_answers_are_those_of_re() -> None:
    draw, found = random.Random(os.environ["NVFP4_TEST_SEED"]), set()
    for _ in range(1500):
        pattern = drawn(draw, 4)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = re.compile(pattern)
        ours = by_regex("x", pattern)
        for _ in range(10):
            name = "".join(draw.choice("abcA1.\n é") for _ in range(draw.randrange(9)))
            expected = theirs.match(name) is not None
            found.add(expected)
            assert (ours.match(name) is not None) == expected, (pattern, name)
    assert found == {True, False}


@pytest.mark.parametrize("held", [2**10, 2**12, 2**14])
def test_answers_where_few_steps_are_kept(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are dropped within a name, also by the automaton of an assertion."""
    monkeypatch.setattr("nvfp4.checkpoints.patterns.MAX_HELD", held)
    draw, found, work = random.Random(os.environ["NVFP4_TEST_SEED"]), set(), Work()
    given = [
        ".*a.{7}b.{3}c",
        "(?:a|b|c)*(?:ca|cb).{5}$",
        ".*a(?=.{6}b.*a.{4}c)b.*",
        "(?:a|bb|c+a)*$",
        ".*(?!.*a.{5}b)b.a",
    ]
    regexes = [(re.compile(pattern), patterns.by_regex("x", pattern, work)) for pattern in given]
    for _ in range(300):
        name = "".join(draw.choice("abc") for _ in range(draw.randrange(40)))
        for theirs, ours in regexes:
            expected = theirs.match(name) is not None
            found.add((theirs, expected))
            assert (ours.match(name) is not None) == expected, (theirs, name)
    assert len(found) == 2 * len(given)


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+$",
        "(a|a)*b",
        "(?:a?){60}a{60}b",
        "(?=(a*)*b)",
        "(a*)*(a*)*(a*)*b",
        ".*.*.*.*.*.*.*b",
        "((a|b)*c|(a|d)*e)*f",
    ],
)
def test_no_pattern_takes_exponential_time(pattern: str) -> None:
    """re needs 2^41 steps for the first, and 41^7 for one with seven stars."""
    before, regex = time.process_time(), by_regex("x", pattern)
    for length in (41, 1000):
        assert regex.match("a" * length + "!") is None
    assert time.process_time() - before < 5


REJECTED = {
    "x: 're:(' is no regular expression: missing ), unterminated subpattern": "re:(",
    "is no regular expression: the repetition number is too large": "re:a{4294967296}",
    "is no regular expression: it has more than 4096 instructions": "re:(((a{1000}){1000}){1000}){1000}",
    "is no regular expression: it has more than 4096 instructions ": "re:(((){60000}){60000}){60000}",
    "is no regular expression: maximum recursion depth exceeded": "re:" + "(" * 5000 + ")" * 5000,
    "is no regular expression: groupref is not supported, which can take exponential time": r"re:(a*)\1",
    "has 2000003 characters; must have at most 16384": "re:" + "a|" * 1_000_000,
}


@pytest.mark.parametrize("message", REJECTED)
def test_what_is_rejected(message: str) -> None:
    before = time.process_time()
    with pytest.raises(nvfp4.Error) as error:
        by_regex("x", REJECTED[message])
    assert message.strip() in str(error.value) and len(str(error.value)) < 500
    assert time.process_time() - before < 5


def test_names_and_steps_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(nvfp4.Error, match=r"^'aaa.* has 2000 characters; must have at most 1024 for patterns$"):
        by_regex("x", "a*").match("a" * 2000)
    monkeypatch.setattr("nvfp4.checkpoints.patterns.MAX_STEPS", 1000)
    monkeypatch.setattr("nvfp4.checkpoints.patterns.ADDING", 0)
    regex = by_regex("x", "(?:.?(?!b)){20}")
    with pytest.raises(nvfp4.Error, match=r"^x: '\(\?:.*': is where .* have taken 1000 steps; must take fewer$"):
        for i in range(1000):
            regex.match(f"a{i}")


def test_memory_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each character of these names leads to a set of some 200 states that no other has."""
    monkeypatch.setattr("nvfp4.checkpoints.patterns.MAX_HELD", 2**20)
    draw, work = random.Random(os.environ["NVFP4_TEST_SEED"]), Work()
    regexes = [patterns.by_regex("x", f".*a.{{{count}}}c", work) for count in (400, 401)]
    tracemalloc.start()
    for _ in range(5):
        name = "".join(draw.choice("ab") for _ in range(600))
        for regex in regexes:
            assert regex.match(name) is None and regex.match(f"{name}a{name[:400]}cc") is not None
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * 2**20


def expert_names(layers: int) -> list[str]:
    return [f"model.layers.{i}.mlp.experts.{j}.up_proj" for i in range(layers) for j in range(500)]


def modes(format: Any, many: str, layers: int) -> tuple[list[str | None], float]:
    """The modes of 500 modules a layer, a fifth of which a configuration lists by name, and the seconds it took."""
    names = expert_names(layers)
    listed = names[: len(names) // 5]
    if format is modelopt:
        config = {"ignore": listed if many == "ignore" else ["lm_head*"], "quant_algo": "NVFP4"}
    else:
        group = {"targets": listed if many == "targets" else ["Linear"], "weights": NVFP4, "input_activations": NVFP4}
        ignore = listed if many == "ignore" else ["re:.*lm_head", "re:^(?!.*proj).*$"]
        config = {"ignore": ignore, "config_groups": {"a": group}}
    before = time.process_time()
    mode = format.recipe(config).mode
    return [mode(name) for name in names], time.process_time() - before


@pytest.mark.parametrize("format", [compressed_tensors, modelopt])
@pytest.mark.parametrize("many", ["ignore", "targets"])
def test_time_is_linear_in_modules(many: str, format: Any) -> None:
    """20,000 modules take 10 times as long as 2,000, plus noise. It was 30 times where each name that is not ignored
    was compared with all that are. Another program on the machine slows some runs, so the fastest count."""
    few, most = [], []
    for _ in range(3):
        few.append(modes(format, many, 4)[1])
        found, seconds = modes(format, many, 40)
        most.append(seconds)
        if min(most) < 20 * min(few):
            break
    assert min(most) < 20 * min(few)
    quantized = 4000 if many == "targets" and format is compressed_tensors else 20_000 - 4000 * (many == "ignore")
    assert found.count("W4A4") == quantized


NAMES = expert_names(40)
MANY: dict[str, list[str]] = {
    "regular expressions": [f"re:.*layers.{i}.x" for i in range(5000)],
    "with assertions": [f"re:^(?!.*layers.{i}.up).*$" for i in range(5000)],
    "wildcards": [f"*layers.{i}.x?" for i in range(5000)],
    "hard wildcards": ["*" + "[a-z]" * 200 + f"{i}?" for i in range(5000)],
    "long repeats": [f"re:(a{{60}}){{30}}{i}" for i in range(5000)],
    "many lengths": [f"{'x' * i}*" for i in range(1, 5000)],
}


@pytest.mark.parametrize("place", ["ignore", "groups"])
@pytest.mark.parametrize("kind", MANY)
def test_time_of_all_patterns_together(kind: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """5,000 patterns on 20,000 modules end in an error that names one, within the time of MAX_STEPS."""
    monkeypatch.setattr("nvfp4.checkpoints.patterns.MAX_STEPS", 2 * 10**6)  # a 50th
    four = {"weights": NVFP4, "input_activations": NVFP4}
    config: dict[str, object] = {"config_groups": {"a": {"targets": ["Linear"], **four}}, "ignore": MANY[kind]}
    if place != "ignore":
        config = {"config_groups": {str(i): {"targets": [own], **four} for i, own in enumerate(MANY[kind])}}
    before = time.process_time()
    with pytest.raises(nvfp4.Error, match=r"^(ignore|config_groups\.\d+\.targets).* have taken 2000000 steps; must"):
        recipe, modules = compressed_tensors.recipe(config), Modules(NAMES)
        for names in recipe.names:
            names.bind(modules)
        for name in NAMES:
            recipe.look(name)
    assert time.process_time() - before < 4


def test_patterns_of_large_checkpoints_are_within_the_limit() -> None:
    """18,432 layers with the longest lists of patterns that producers write, and more."""
    names = [
        f"model.layers.{i}.mlp.experts.{j}.{p}_proj" for i in range(48) for j in range(128) for p in ("up", "k", "o")
    ]
    ignore = ["lm_head", *(f"model.layers.{i}.self_attn*" for i in range(48)), *(f"*.{i}.mlp.gate" for i in range(48))]
    ignore += ["re:.*lm_head", "re:.*mlp.gate$", "re:visual.*", "re:.*shared_expert_gate$", "re:^(?!.*proj).*$"]
    recipe = modelopt.recipe({"quant_algo": "NVFP4", "ignore": ignore})
    modules = Modules(names)
    for places in recipe.names:
        places.bind(modules)
    assert all(recipe.mode(name) == "W4A4" for name in names)
    left = {places.work.steps for places in recipe.names}
    assert len(left) == 1 and left.pop() > patterns.MAX_STEPS * 0.9
