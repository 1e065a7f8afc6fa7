"""One mutant: a part of a file, and what stands there instead."""

from __future__ import annotations

from dataclasses import dataclass, fields


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

    def apply(self, text: bytes) -> bytes:
        assert text[self.start : self.end].decode() == self.before, f"{self.name}: the file has changed"
        return text[: self.start] + self.after.encode() + text[self.end :]
