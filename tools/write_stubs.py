#!/usr/bin/env python3
"""Writes the operations of nvfp4/_C.pyi from the table of operations in the built module.

    python tools/write_stubs.py [--check]

--check writes nothing and exits with 1 if the file would change.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from nvfp4 import _C  # noqa: E402

STUBS = Path(_C.__file__).with_name("_C.pyi")
BEGIN, END = "# ---- operations ----\n", "# ---- end of operations ----\n"
SCALARS = {
    "float": "float",
    "layout": "str",
    "block_scale": "str",
    "activation": "str",
    "backend": "str | None",
    "flags": "int",
    "size": "int",
}


def returned(operation: dict[str, Any]) -> str:
    """The type of the results, or of what is written where none is made."""
    count = len(operation["results"])
    return "Array" if count < 2 else f"tuple[{', '.join(['Array'] * count)}]"


def parameters(operation: dict[str, Any]) -> list[str]:
    """The arguments of an operation in their order (csrc/api/operation.h)."""
    numbers = {scalar["stands_for"] for scalar in operation["scalars"]}
    given = operation["given"]
    read = [t for t in operation["tensors"] if t["role"] != "output" or given == "given"]
    out = returned(operation)
    found = []
    for i, tensor in enumerate(read):
        made = i == 0 or tensor["role"] == "output"  # results are of its library
        kinds = (
            ["float"] * (tensor["name"] in numbers)
            + ["Array" if made else "AnyArray"]
            + ["Sequence[AnyArray]"] * tensor["list"]
        )
        found.append(f"{tensor['name']}: {' | '.join(kinds + ['None'] * tensor['optional'])}")
    found += [f"{s['name']}: {SCALARS[s['kind']]}" for s in operation["scalars"] if not s["stands_for"]]
    if given == "new_or_given":
        found.append(f"out: {out} | None")
    if any(result["dtype"] == "caller" for result in operation["results"]):
        found.append("out_dtype: DType | None")
    return found


def stub(operation: dict[str, Any]) -> str:
    result = returned(operation)
    arguments = [*parameters(operation), "/"]
    line = f"def {operation['name']}({', '.join(arguments)}) -> {result}: ..."
    if len(line) <= 120:
        return f"{line}\n"
    inside = ", ".join(arguments)
    if len(inside) <= 116:
        return f"def {operation['name']}(\n    {inside}\n) -> {result}: ...\n"
    lines = "".join(f"    {argument},\n" for argument in arguments)
    return f"def {operation['name']}(\n{lines}) -> {result}: ...\n"


def text() -> str:
    """The whole file as it should be."""
    before, _, rest = STUBS.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{''.join(stub(operation) for operation in _C.operations())}\n{END}{after}"


def main(arguments: list[str]) -> int:
    wanted = text()
    if wanted == STUBS.read_text():
        return 0
    if arguments == ["--check"]:
        print(f"{STUBS} is not what the table of operations says: run python tools/write_stubs.py")
        return 1
    STUBS.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
