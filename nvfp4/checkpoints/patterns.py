"""Names of layers by a configuration's patterns, in time that grows with the length of name and pattern.

Python's re tries alternatives one after another: `(a+)+$` takes 2^n steps for a name of n letters. Here a regular
expression becomes the instructions of Thompson's automaton, all of whose states advance together over the name, and
steps that were made before are looked up. The syntax is re's. References to groups, atomic groups, possessive repeats
and conditions are rejected; no producer writes such.
"""

from __future__ import annotations

import fnmatch
import re
import warnings
from array import array
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from nvfp4 import _C
from nvfp4._text import shown

try:
    from re import _compiler as compiler  # type: ignore[attr-defined]
    from re import _constants as constants  # type: ignore[attr-defined]
    from re import _parser as parser  # type: ignore[attr-defined]
except ImportError:  # Python 3.10
    import sre_compile as compiler
    import sre_constants as constants
    import sre_parse as parser

MAX_PATTERN = 2**14  # characters
MAX_INSTRUCTIONS = 2**12  # a repeat of up to n times counts n times
MAX_NAME = 2**10  # characters
MAX_STEPS = 10**8  # of all patterns of a configuration over all names of a checkpoint: some 20 s
# Steps of 0.2 us: to read a character of a pattern, to add an instruction, to find a name among literal ones.
READING, ADDING, FINDING = 16, 8, 16
# Bytes that sets of states and steps that were made may hold, of all patterns together; of each what its objects take.
MAX_HELD, HELD = 2**26, 256
WILDCARDS = 128  # comparisons of re's own match for a step, at worst a character of the name with one of the pattern

SINGLE = (constants.LITERAL, constants.NOT_LITERAL, constants.ANY, constants.IN)
TYPE_FLAGS = re.ASCII | re.LOCALE | re.UNICODE
# Instructions: a character or a position, tested by re's own match of the one item; a choice of next instructions;
# an assertion, with its program, the characters that it looks back, and what is wanted; the end.
CHARACTER, POSITION, SPLIT, LOOK, MATCH = range(5)
MATCHED, DEAD, START = -1, 0, 1  # numbers of sets of states


class Pattern(Protocol):
    """The part of a compiled pattern that is used: match, which returns None or an object that is true."""

    def match(self, string: str) -> object: ...


class Work:
    """The patterns of one configuration share this: the steps that they may take, the memory of those that were made,
    and tests of single characters."""

    def __init__(self) -> None:
        self.steps, self.held = MAX_STEPS, 0
        self.automata: list[Automaton] = []
        self.single: dict[str, Callable[[str, int], Any]] = {}

    def take(self, steps: int, pattern: str) -> None:
        """Counts steps; `pattern` is for the error message."""
        self.steps -= steps
        if self.steps < 0:
            raise _C.Error(
                f"{pattern}: is where the patterns of the configuration, on the names of this checkpoint, have taken "
                f"{MAX_STEPS} steps; must take fewer"
            )

    def hold(self, count: int) -> None:
        """Counts bytes that are to be kept. All that was kept before is dropped first if both are too much."""
        if self.held + count > MAX_HELD:
            self.held = 0
            for automaton in self.automata:
                automaton.forget()
        self.held += count


def by_wildcards(where: str, pattern: str, work: Work) -> Pattern:
    """*, ? and [...] have the meaning of fnmatch, whose regular expression does not try another place for a "*" that
    has matched: its time is quadratic at most.

    Args:
        where: the pattern's place in a configuration.
        work: of the configuration.
    """
    check_length(where, pattern)
    own = f"{where}: {shown(pattern)}"
    work.take(READING * len(pattern), own)
    try:
        return Limited(Wildcards(own, re.compile(fnmatch.translate(pattern)), len(pattern), work))
    except (re.error, OverflowError, RecursionError) as error:
        raise _C.Error(f"{own} is no pattern: {error}") from None


def by_regex(where: str, pattern: str, work: Work) -> Pattern:
    """A regular expression, matched from the start of a name.

    Args:
        where: the pattern's place in a configuration.
        work: of the configuration.

    Raises:
        nvfp4.Error: the pattern is none, or is too long, or has what can take exponential time. `match` raises it for a
            name that is too long, and where names take too many steps.
    """
    check_length(where, pattern)
    own = f"{where}: {shown(pattern)}"
    work.take(READING * len(pattern), own)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of sets inside sets
            tree = parser.parse(pattern.removeprefix("re:"))
        return Limited(Automaton(own, tree, tree.state.flags, Limits(work)))
    except (re.error, OverflowError, RecursionError) as error:
        raise _C.Error(f"{own} is no regular expression: {error}") from None


class Limited:
    """A pattern for names that are not too long."""

    def __init__(self, pattern: Pattern) -> None:
        self.pattern = pattern

    def match(self, string: str) -> object:
        if len(string) > MAX_NAME:
            raise _C.Error(f"{shown(string)} has {len(string)} characters; must have at most {MAX_NAME} for patterns")
        return self.pattern.match(string)


class Wildcards:
    """A pattern with re's own match, of which it counts the comparisons."""

    def __init__(self, pattern: str, own: re.Pattern[str], length: int, work: Work) -> None:
        self.pattern, self.own, self.length, self.work = pattern, own.match, length, work

    def match(self, string: str) -> object:
        self.work.take(1 + len(string) * self.length // WILDCARDS, self.pattern)
        return self.own(string)


def check_length(where: str, pattern: str) -> None:
    if len(pattern) > MAX_PATTERN:
        raise _C.Error(f"{where}: {shown(pattern)} has {len(pattern)} characters; must have at most {MAX_PATTERN}")


class Limits:
    """Bounds that an expression and those inside its assertions share."""

    def __init__(self, work: Work) -> None:
        self.instructions, self.work = MAX_INSTRUCTIONS, work

    def instruction(self, pattern: str) -> None:
        self.instructions -= 1
        if self.instructions < 0:
            raise re.error(f"it has more than {MAX_INSTRUCTIONS} instructions")
        self.work.take(ADDING, pattern)


class Automaton:
    """An expression's instructions, and the steps that were made. `pattern` is for error messages."""

    def __init__(self, pattern: str, tree: Any, flags: int, limits: Limits) -> None:
        self.pattern, self.flags, self.limits = pattern, flags, limits
        self.instructions: list[tuple[int, Any]] = []
        self.sequence(tree)
        self.add(MATCH)
        self.last = START  # the number of the newest set of states; none is given twice
        self.forget()
        limits.work.automata.append(self)

    def forget(self) -> None:
        """Drops all sets of states but DEAD and START."""
        self.states = {DEAD: packed(()), START: packed((0,))}  # by number
        self.sets = {states: number for number, states in self.states.items()}
        self.known: dict[tuple[int, str, str], int] = {}  # number, character before and behind: the next number

    # ---- instructions ----

    def add(self, kind: int, what: Any = None) -> int:
        self.limits.instruction(self.pattern)
        self.instructions.append((kind, what))
        return len(self.instructions) - 1

    def jump(self, at: int, *targets: int) -> None:
        self.instructions[at] = (SPLIT, targets)

    def sequence(self, tree: Any) -> None:
        self.limits.instruction(self.pattern)  # what is empty can be repeated too
        for operator, argument in tree:
            self.item(operator, argument)

    def item(self, operator: Any, argument: Any) -> None:
        if operator in SINGLE:
            self.add(CHARACTER, self.tested(operator, argument))
        elif operator is constants.AT:
            self.add(POSITION, self.tested(operator, argument))
        elif operator is constants.BRANCH:
            self.branch(argument[1])
        elif operator is constants.SUBPATTERN:
            _, more, less, tree = argument
            flags = self.flags
            self.flags = ((flags & ~TYPE_FLAGS if more & TYPE_FLAGS else flags) | more) & ~less
            self.sequence(tree)
            self.flags = flags
        elif operator in (constants.MIN_REPEAT, constants.MAX_REPEAT):
            self.repeat(*argument)
        elif operator in (constants.ASSERT, constants.ASSERT_NOT):
            direction, tree = argument
            low, high = tree.getwidth()
            if direction < 0 and low != high:
                raise re.error("look-behind requires fixed-width pattern")
            inner = Automaton(self.pattern, tree, self.flags, self.limits)
            self.add(LOOK, (inner, low if direction < 0 else 0, operator is constants.ASSERT))
        elif operator is constants.FAILURE:
            self.add(SPLIT, ())
        else:
            raise re.error(f"{str(operator).lower()} is not supported, which can take exponential time")

    def tested(self, operator: Any, argument: Any) -> Callable[[str, int], Any]:
        """re's own match of a single item, at an index of a name."""
        key = f"{operator} {argument} {self.flags}"
        single = self.limits.work.single
        if key not in single:
            state = parser.State()
            state.flags = self.flags
            tree = parser.SubPattern(state, [(operator, argument)])
            single[key] = compiler.compile(tree).match
        return single[key]

    def branch(self, branches: Sequence[Any]) -> None:
        split = self.add(SPLIT, ())
        starts, ends = [], []
        for tree in branches:
            starts.append(len(self.instructions))
            self.sequence(tree)
            ends.append(self.add(SPLIT, ()))
        self.jump(split, *starts)
        for end in ends:
            self.jump(end, len(self.instructions))

    def repeat(self, low: int, high: Any, tree: Any) -> None:
        for _ in range(low):
            self.sequence(tree)
        if high is constants.MAXREPEAT:
            split = self.add(SPLIT, ())
            self.sequence(tree)
            self.add(SPLIT, (split,))
            self.jump(split, split + 1, len(self.instructions))
            return
        splits = []
        for _ in range(high - low):
            splits.append(self.add(SPLIT, ()))
            self.sequence(tree)
        for split in splits:
            self.jump(split, split + 1, len(self.instructions))

    # ---- names ----

    def match(self, string: str) -> object:
        return self.matches(string, 0, {}) or None

    def matches(self, name: str, start: int, seen: dict[tuple[int, int], bool]) -> bool:
        """Whether the name has a match that begins at an index. `seen` keeps the assertions' results of this name."""
        current, before = START, name[start - 1] if start else ""
        whole = "\n" not in name  # $ also matches before a last line feed
        for at in range(start, len(name) + 1):
            key = (current, before, name[at : at + 1])
            following = self.known.get(key) if whole else None
            if following is None:
                following = self.advance(current, name, at, seen, key)
            if following <= DEAD:
                break
            current, before = following, key[2]
        self.limits.work.take(at - start + 1, self.pattern)
        return following == MATCHED

    def advance(
        self, current: int, name: str, at: int, seen: dict[tuple[int, int], bool], key: tuple[int, str, str]
    ) -> int:
        """The number of the states behind a character, or MATCHED. Notes it, if only the key decides."""
        done, stack, following, noted = set(), unpacked(self.states[current]), set(), True
        tested: dict[Any, Any] = {}  # by test: many states have the same one
        result = None
        while stack and result is None:
            state = stack.pop()
            if state in done:
                continue
            done.add(state)
            kind, what = self.instructions[state]
            if kind == MATCH:
                result = MATCHED
            elif kind == SPLIT:
                stack.extend(what)
            elif kind == LOOK:
                noted = False
                if self.looks(what, name, at, seen):
                    stack.append(state + 1)
            else:
                if what not in tested:
                    tested[what] = what(name, at)
                if tested[what] and kind == CHARACTER:
                    following.add(state + 1)
                elif tested[what]:
                    stack.append(state + 1)
        self.limits.work.take(len(done), self.pattern)
        states = packed(sorted(following))
        is_new = result is None and states not in self.sets
        self.limits.work.hold((HELD + len(states)) * is_new + HELD * noted)
        if result is None:
            result = self.number(states)
        if noted:
            self.known[key] = result
        return result

    def number(self, states: bytes) -> int:
        if states not in self.sets:
            self.last += 1
            self.sets[states] = self.last
            self.states[self.last] = states
        return self.sets[states]

    def looks(self, what: Sequence[Any], name: str, at: int, seen: dict[tuple[int, int], bool]) -> bool:
        inner, back, wanted = what
        key = (id(inner), at)
        if key not in seen:
            seen[key] = at >= back and inner.matches(name, at - back, seen)
        return seen[key] == wanted


def packed(states: Sequence[int]) -> bytes:
    """States, which are places of instructions, in 2 bytes each."""
    return array("H", states).tobytes()


def unpacked(states: bytes) -> list[int]:
    return memoryview(states).cast("H").tolist()
