"""The config headers of a kernel backend as Python objects: structs, macros and instantiations.

`headers_of("sm90")` compiles all csrc/kernels/sm90/*config.h with gcc -g into a small library with a function for each
macro. The debug information gives the structs, the functions the macros' values, and the preprocessor the rows of the
`..._CONFIGS(X)` lists. A new backend or instantiation needs nothing here.
"""

from __future__ import annotations

import ctypes
import functools
import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from elftools.dwarf.die import DIE
from elftools.elf.elffile import ELFFile
from paths import CSRC

SHARED = "(?:GROUPED_)?UNITS"  # what macros of csrc/kernels/units begin with, whose kernels several backends have
ENCODINGS = {  # DW_ATE_* and bytes
    (2, 1): ctypes.c_uint8,  # bool
    (4, 4): ctypes.c_float,
    (4, 8): ctypes.c_double,
    **{(5, size): kind for size, kind in ((2, ctypes.c_int16), (4, ctypes.c_int32), (8, ctypes.c_int64))},
    **{(7, size): kind for size, kind in ((2, ctypes.c_uint16), (4, ctypes.c_uint32), (8, ctypes.c_uint64))},
    (6, 1): ctypes.c_int8,
    (8, 1): ctypes.c_uint8,
}


class Struct(ctypes.Structure):
    """A C struct. Its pointers are integers; gaps of the layout are fields named gap_..."""

    pointers: frozenset[str] = frozenset()


class Layouts:
    """The structs of a library's debug information, by name."""

    def __init__(self, library: Path) -> None:
        self.dies: dict[str, DIE] = {}
        self.made: dict[int, type] = {}
        with library.open("rb") as file:
            for unit in ELFFile(file).get_dwarf_info().iter_CUs():
                for die in unit.get_top_DIE().iter_children():
                    if die.tag == "DW_TAG_structure_type" and {"DW_AT_name", "DW_AT_byte_size"} <= set(die.attributes):
                        name = die.attributes["DW_AT_name"].value.decode()
                        self.made[die.offset] = self.struct(die)
                        self.dies[name] = die

    def __getitem__(self, name: str) -> type[Struct]:
        return self.made[self.dies[name].offset]

    def kind(self, die: DIE) -> type:
        """The ctypes type of a type's entry."""
        if die.tag in ("DW_TAG_typedef", "DW_TAG_const_type", "DW_TAG_volatile_type"):
            return self.kind(die.get_DIE_from_attribute("DW_AT_type"))
        if die.tag == "DW_TAG_pointer_type":
            return ctypes.c_uint64
        if die.tag == "DW_TAG_array_type":
            made = self.kind(die.get_DIE_from_attribute("DW_AT_type"))
            for size in reversed([child.attributes["DW_AT_upper_bound"].value + 1 for child in die.iter_children()]):
                made = made * size
            return made
        if die.tag == "DW_TAG_structure_type":
            if die.offset not in self.made:
                self.made[die.offset] = self.struct(die)
            return self.made[die.offset]
        return ENCODINGS[die.attributes["DW_AT_encoding"].value, die.attributes["DW_AT_byte_size"].value]

    def is_pointer(self, die: DIE) -> bool:
        while die.tag in ("DW_TAG_typedef", "DW_TAG_const_type", "DW_TAG_volatile_type"):
            die = die.get_DIE_from_attribute("DW_AT_type")
        return die.tag == "DW_TAG_pointer_type"

    def struct(self, die: DIE) -> type[Struct]:
        fields: list[tuple[str, type]] = []
        offsets: dict[str, int] = {}
        pointers, end, size = set(), 0, die.attributes["DW_AT_byte_size"].value

        def fill(to: int) -> None:
            if to > end:
                fields.append((f"gap_{end}", ctypes.c_uint8 * (to - end)))

        for member in die.iter_children():
            name, offset = member.attributes["DW_AT_name"].value.decode(), _offset(member)
            kind = member.get_DIE_from_attribute("DW_AT_type")
            fill(offset)
            fields.append((name, self.kind(kind)))
            if self.is_pointer(kind):
                pointers.add(name)
            offsets[name], end = offset, offset + ctypes.sizeof(self.kind(kind))
        fill(size)
        name = die.attributes["DW_AT_name"].value.decode()
        made = _structure(name, tuple(fields), frozenset(pointers))
        found = {field: getattr(made, field).offset for field in offsets}
        assert found == offsets and ctypes.sizeof(made) == size, f"{name}: {found}, not {offsets}"
        return made


@functools.cache
def _structure(name: str, fields: tuple[tuple[str, type], ...], pointers: frozenset[str]) -> type[Struct]:
    """One class for a struct that several backends have."""
    return type(name, (Struct,), {"_fields_": fields, "pointers": pointers})


def _offset(member: DIE) -> int:
    return member.attributes["DW_AT_data_member_location"].value


class Config:
    """A row of a ..._CONFIGS list. Columns and the header's macros are attributes: of SM90_GEMM_CONFIGS,
    `config.shared_bytes` is SM90_SHARED_BYTES of its columns, and `config.partials_bytes(2)` takes the argument that
    is no column."""

    def __init__(self, headers: Headers, prefixes: tuple[str, ...], name: str, columns: dict[str, int]) -> None:
        self.headers, self.prefixes, self.name, self.columns = headers, prefixes, name, columns

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "columns":
            raise AttributeError(name)
        if name in self.columns:
            return self.columns[name]
        macro = next((p + name.upper() for p in self.prefixes if p + name.upper() in self.headers.macros), None)
        if macro is None:
            raise AttributeError(f"{self.name} has no column {name} and no macro of that name")
        parameters = self.headers.macros[macro]
        values = [self._known(parameter) for parameter in parameters]
        if None not in values:
            return self.headers.value(macro, *values)

        def take(*rest: int) -> int:
            left = iter(rest)
            return self.headers.value(macro, *(next(left) if value is None else value for value in values))

        return take

    def _known(self, parameter: str) -> int | None:
        try:
            found = getattr(self, parameter)
        except AttributeError:
            return None
        return None if callable(found) else found

    def __repr__(self) -> str:
        return self.name

    @property
    def row(self) -> str:
        """The row as it stands in the header."""
        return ", ".join([self.name, *map(str, self.columns.values())])

    @property
    def kernel(self) -> str:
        return f"nvfp4_{self.name}"

    @property
    def short(self) -> str:
        """The name without the backend's and the file's."""
        return self.name.removeprefix(f"{self.headers.name}_{self.source.stem}_")

    @property
    def source(self) -> Path:
        """The file with the longest name that begins the kernel's."""
        files = self.headers.folder.glob("*.cu")
        return max(
            (x for x in files if self.name.startswith(f"{self.headers.name}_{x.stem}_")), key=lambda x: len(x.stem)
        )


class Headers:
    """The config headers of csrc/kernels/<name>."""

    def __init__(self, name: str, defines: tuple[str, ...]) -> None:
        self.name, self.folder, self.defines = name, CSRC / "kernels" / name, defines
        self.headers = config_headers(name)
        includes = "".join(f'#include "{path.relative_to(CSRC)}"\n' for path in self.headers)
        source = f'#include "common/grouped_problem.h"\n{includes}'
        self.macros, lists = {}, {}
        for macro, parameters, body in re.findall(
            rf"^#define ((?:{name.upper()}|{SHARED})_\w+)(?:\(([\w,]*)\))? (.+)$",
            self.gcc("-E", "-dM", source=source),
            re.M,
        ):
            if parameters == "X":
                lists[macro] = body
            elif not macro.endswith("_H"):
                self.macros[macro] = parameters.split(",") if parameters else []
        self.bodies = {  # a list may have another at its end
            macro: re.sub(r"(\w+)\(X\)", lambda other: lists[other[1]], body)
            for macro, body in lists.items()
            if macro.endswith("_CONFIGS")
        }
        functions = (
            f"long long value_{macro}({', '.join(f'long long {p}' for p in parameters) or 'void'}) "
            f"{{ return {macro}{'(' + ', '.join(parameters) + ')' if parameters else ''}; }}\n"
            for macro, parameters in self.macros.items()
        )
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder, "headers.so")
            flags = ("-g", "-fno-eliminate-unused-debug-types", "-shared", "-fPIC")
            self.gcc(*flags, "-o", str(library), source=source + "".join(functions))
            self.library, self.structs = ctypes.CDLL(str(library)), Layouts(library)

    def gcc(self, *flags: str, source: str) -> str:
        defines = (f"-D{name}" for name in self.defines)
        command = ["gcc", *flags, *defines, f"-I{CSRC}", "-xc", "-"]
        return subprocess.run(command, input=source, check=True, stdout=subprocess.PIPE, text=True).stdout

    def value(self, macro: str, *arguments: int) -> int:
        function: Callable[..., int] = getattr(self.library, f"value_{macro}")
        function.restype = ctypes.c_int64
        return function(*map(ctypes.c_int64, arguments))

    def configs(self, listed: str = "") -> dict[str, Config]:
        """The instantiations of all lists, or of one: "gemm", "gemv", ..."""
        found = {}
        for macro, body in self.bodies.items():
            what = macro.removeprefix(f"{self.name.upper()}_").removesuffix("_CONFIGS")
            if listed and what != listed.upper():
                continue
            columns = self.columns(macro)
            prefixes = (f"{self.name.upper()}_{what}_", f"{what}_", f"{self.name.upper()}_")
            for name, numbers in re.findall(r"X\((\w+), ([\d, ]+)\)", body):
                found[name] = Config(
                    self, prefixes, name, dict(zip(columns, map(int, numbers.split(",")), strict=True))
                )
        assert found, f"no list of {listed or self.name}"
        return found

    def columns(self, macro: str) -> list[str]:
        """By the comment above the list."""
        for path in self.headers:
            if found := re.search(rf"/\* +id, (.+) \*/\n#define {macro}\(X\)", path.read_text()):
                return [column.split()[0] for column in found[1].split(", ")]
        raise LookupError(f"{macro} has no comment that names its columns")


@functools.cache
def headers_of(name: str, *defines: str) -> Headers:
    return Headers(name, defines)


def config_headers(name: str) -> list[Path]:
    return sorted((CSRC / "kernels" / name).glob("*config.h"))
