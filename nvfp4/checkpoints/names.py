"""One resolver of names for all formats: which pattern of a configuration means which module of a checkpoint.

    name                 the same name
    prefix               the same name after leading parts such as "model." and "language_model."
    joined               qkv_proj for q_proj, gate_up_proj for gate_proj, experts.up_proj for experts.0.up_proj
    parent               a module above: layers.0.ffn.experts for layers.0.ffn.experts.7.w1
    wildcard             "*", "?" and "[...]" as in fnmatch
    regular expression   after "re:", matched from the start of the name

The first rule that matches counts. An exact name of one module is never taken as the prefix form of another.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from nvfp4 import _C
from nvfp4._text import shown
from nvfp4.checkpoints.patterns import FINDING, Pattern, Work, by_regex, by_wildcards

REGEX = "re:"
WILD = frozenset("*?[")
# Leading parts that hosts and producers add or leave out.
PREFIXES = frozenset(
    ("model", "language_model", "diffusion_model", "text_model", "transformer", "module", "base_model", "_orig_mod")
) | {"backbone"}
VARIANTS = ("model.", "language_model.", "model.language_model.", "language_model.model.", "model.diffusion_model.")
JOINED = {"q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj", "gate_proj": "gate_up_proj"}
JOINED |= {"up_proj": "gate_up_proj", "w1": "w13", "w3": "w13"}
ANY = (".*", "^.*", "*")  # patterns that begin so do not depend on a prefix
MAX_ABOVE = 2**25  # characters of all modules above a checkpoint's; 69,120 experts' layers have some 100,000
EXPERT = re.compile(r"(?<![^.])experts\.\d+(?=\.)")


@dataclass(frozen=True)
class Match:
    """Which pattern names a module, and by which rule.

    Attributes:
        subtree: the pattern names a module above, so it may say less about this one than the tensors do.
    """

    pattern: str
    rule: str
    subtree: bool = False

    def __str__(self) -> str:
        return f"{shown(self.pattern)} by {self.rule}"


def is_regex(pattern: str) -> bool:
    return pattern.startswith(REGEX)


def is_wild(pattern: str) -> bool:
    return not is_regex(pattern) and not WILD.isdisjoint(pattern)


def normal(name: str) -> str:
    """Without leading parts that hosts add; the last part stays."""
    while True:
        first, dot, rest = name.partition(".")
        if not dot or first not in PREFIXES:
            return name
        name = rest


def joined(name: str) -> Iterator[str]:
    """Names of layers that other programs join with this one, and of an expert's layer without its number."""
    stack = EXPERT.sub("experts", name) if "experts." in name else name
    if stack != name:
        yield stack
    for form in dict.fromkeys((name, stack)):
        parent, _, local = form.rpartition(".")
        if local in JOINED:
            yield f"{parent}.{JOINED[local]}" if parent else JOINED[local]


def parents(name: str) -> Iterator[str]:
    """The modules above, nearest first."""
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


class Modules:
    """The modules of a checkpoint.

    Attributes:
        names: of modules with tensors.
        above: these and the modules above them.
        forms: all names by which a configuration may mean one of `above`.
    """

    def __init__(self, names: Collection[str]) -> None:
        self.names = frozenset(names)
        self.above, room = set(self.names), MAX_ABOVE
        for name in self.names:
            for parent in parents(name):
                room -= len(parent)
                if room < 0:
                    raise _C.Error(f"modules: the names above them have more than {MAX_ABOVE} characters")
                if parent in self.above:  # which is among the names, or has those above it there
                    break
                self.above.add(parent)
        self.forms: set[str] = set()
        for name in self.above:
            for form in {name, normal(name)}:
                self.forms |= {form, *joined(form)}


@dataclass
class Names:
    """Patterns of one place of a configuration.

    Attributes:
        patterns: in their order.
        where: their place, for error messages.
        work: of all places of the configuration together.
        known: the checkpoint's modules; see bind.
    """

    patterns: Collection[str]
    where: str
    work: Work = field(default_factory=Work)
    known: frozenset[str] = frozenset()
    literal: dict[str, str] = field(init=False, default_factory=dict)
    short: dict[str, list[str]] = field(init=False, default_factory=dict)
    stacks: dict[str, str] = field(init=False, default_factory=dict)  # an expert's layer without its number
    starts: dict[str, str] = field(init=False, default_factory=dict)  # "x*" by "x"
    lengths: list[int] = field(init=False, default_factory=list)  # of the keys of `starts`
    others: list[tuple[str, Pattern]] = field(init=False, default_factory=list)
    missed: set[str] = field(init=False, default_factory=set)  # of `others`, those that match no module as it is named
    strange: set[str] = field(init=False, default_factory=set)  # of these, those that may match one with another prefix

    def __post_init__(self) -> None:
        for pattern in self.patterns:
            if is_regex(pattern) or is_wild(pattern):
                start = pattern[:-1]
                if not is_regex(pattern) and pattern.endswith("*") and start and WILD.isdisjoint(start):
                    self.starts[start] = pattern
                    if normal(start).strip("."):
                        self.starts.setdefault(normal(start), pattern)
                else:
                    compiled = by_regex if is_regex(pattern) else by_wildcards
                    self.others.append((pattern, compiled(self.where, pattern, self.work)))
                continue
            name = pattern.removesuffix(".weight")
            self.literal.setdefault(name, pattern)
            self.short.setdefault(normal(name), []).append(name)
            for form in joined(name) if EXPERT.search(name) else ():
                self.stacks.setdefault(form, pattern)
        self.lengths = sorted({len(start) for start in self.starts})
        self.others.sort(key=lambda entry: is_regex(entry[0]))

    def bind(self, modules: Modules) -> None:
        """Tells the checkpoint's modules: an exact name of one of them is no prefix form of another, and a pattern
        that matches none as it is named is tried with other prefixes."""
        self.known = modules.names
        self.missed = {pattern for pattern, own in self.others if not any(own.match(name) for name in modules.above)}
        self.strange = {pattern for pattern in self.missed if not pattern.removeprefix(REGEX).startswith(ANY)}

    def _by_literal(self, name: str) -> str | None:
        if name in self.literal:
            return self.literal[name]
        return self._by_prefix(name) if name in self.short else None

    def _by_prefix(self, short: str) -> str | None:
        return next((self.literal[name] for name in self.short.get(short, ()) if name not in self.known), None)

    def find(self, name: str) -> Match | None:
        """The first pattern that means this module."""
        self.work.take(FINDING + len(self.lengths), self.where)
        if not self.literal:
            return self._by_pattern(name)
        if name in self.literal:
            return Match(self.literal[name], "name")
        short = normal(name)
        forms = (name,) if short == name else (name, short)
        if pattern := self._by_prefix(short):
            return Match(pattern, "prefix")
        for form in forms:
            for other in joined(form):
                if pattern := self._by_literal(other):
                    return Match(pattern, "joined name")
            if form in self.stacks:
                return Match(self.stacks[form], "joined name")
        for form in forms:
            for parent in parents(form):
                if pattern := self._by_literal(parent):
                    return Match(pattern, "parent", True)
        return self._by_pattern(name)

    def _by_pattern(self, name: str) -> Match | None:
        if self.starts:
            for form in dict.fromkeys((name, normal(name))):
                for end in self.lengths:
                    start = form[:end]
                    if pattern := self.starts.get(start):
                        return Match(pattern, "wildcard", form.startswith(start.rstrip(".") + "."))
        for pattern, own in self.others:
            rule = "regular expression" if is_regex(pattern) else "wildcard"
            forms = [] if pattern in self.missed and name in self.known else [name]
            if pattern in self.strange:
                forms += [normal(name), *(prefix + normal(name) for prefix in VARIANTS)]
            for form in forms:
                if own.match(form) is not None:
                    above = [parent for parent in parents(form) if own.match(parent) is not None]
                    return Match(pattern, rule, bool(above) and not above[-1].rpartition(".")[2].isdigit())
        return None

    def unmatched(self, modules: Modules) -> list[str]:
        """Names that mean no module, and all patterns if none of them means one."""
        found = [
            pattern
            for name, pattern in self.literal.items()
            if modules.forms.isdisjoint((name, normal(name), *(joined(name) if EXPERT.search(name) else ())))
        ]
        if found or self.literal:
            return found
        if any(form[:end] in self.starts for form in modules.forms for end in self.lengths):
            return []
        for pattern, own in self.others:
            tried = (prefix + form for form in modules.forms for prefix in ("", *VARIANTS))
            if pattern not in self.missed or (pattern in self.strange and any(own.match(name) for name in tried)):
                return []
        return list(self.patterns)
