"""One mutant: a part of a file, and what stands there instead."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, fields, replace


@dataclass(frozen=True)
class Mutant:
    file: str  # relative to the checkout
    start: int  # bytes
    end: int
    line: int
    operator: str
    before: str
    after: str

    @classmethod
    def of(cls, given: dict[str, object]) -> Mutant:
        """From an object of a list."""
        return cls(**{field.name: given[field.name] for field in fields(cls)})  # type: ignore[arg-type]

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line} {self.operator}"

    def key(self, text: bytes) -> str:
        """Identifies a mutant, whatever else changes in the file: its line, the one before, and equal pairs above."""
        begin = text.rfind(b"\n", 0, self.start) + 1
        end = text.find(b"\n", self.start)
        pair = text[text.rfind(b"\n", 0, max(0, begin - 1)) + 1 : end if end >= 0 else len(text)]
        parts = [self.file, pair, text[:begin].count(b"\n" + pair), self.start - begin, self.before, self.after]
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    def moved(self, old: bytes, new: bytes) -> Mutant | None:
        """The same in another version of the file, if that has it."""
        for found in re.finditer(re.escape(self.before.encode()), new):
            line = new[: found.start()].count(b"\n") + 1
            other = replace(self, start=found.start(), end=found.end(), line=line)
            if other.key(new) == self.key(old):
                return other
        return None

    def apply(self, text: bytes) -> bytes:
        assert text[self.start : self.end].decode() == self.before, f"{self.name}: the file has changed"
        return text[: self.start] + self.after.encode() + text[self.end :]
