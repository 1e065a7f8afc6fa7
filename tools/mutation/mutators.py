"""Mutation operators: every small change that they can make to a C or CUDA file, found in its syntax tree.

tree-sitter parses; where it does not understand the text (an X macro, a GNU extension) nothing is mutated.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import tree_sitter_c
import tree_sitter_cuda
from mutant import Mutant
from tree_sitter import Language, Node, Parser

# Statements that order threads, CTAs, grids or asynchronous operations.
SYNC = re.compile(
    rb"\b(mbarrier_\w+|fence_\w+|barrier_\w+|named_barrier\w*|flag_\w+|__sync\w+|cp_async_\w+|griddepcontrol_\w+|"
    rb"wgmma_(fence|commit|wait)\w*|tcgen05_(fence|wait|commit|alloc|dealloc|relinquish)\w*|"
    rb"pthread_\w+|atomic_\w+|__atomic_\w+)\s*[(<]"
)
PARITY = re.compile(rb"phase|parity")
OTHER = {
    b"<": b"<=", b"<=": b"<", b">": b">=", b">=": b">", b"==": b"!=", b"!=": b"==",
    b"+": b"-", b"-": b"+", b"*": b"/", b"/": b"*", b"%": b"/", b"&": b"|", b"|": b"&", b"<<": b">>", b">>": b"<<",
}  # fmt: skip
COMPARISONS = (b"<", b"<=", b">", b">=", b"==", b"!=")
# Names that a hand confuses: of the other operand, the other direction, rows for batches.
CONFUSED = [
    (r"\ba_", "b_"), (r"\bb_", "a_"), (r"\bscale_a", "scale_b"), (r"\bscale_b", "scale_a"),
    (r"\bsfa", "sfb"), (r"\bsfb", "sfa"), (r"mma_a", "mma_b"), (r"mma_b", "mma_a"),
    (r"_pitch\b", "_batch"), (r"_batch\b", "_pitch"), (r"\bpitch\b", "batch"), (r"\bbatch\b", "pitch"),
    (r"\bm\b", "n"), (r"\bn\b", "m"), (r"_m\b", "_n"), (r"_n\b", "_m"), (r"\bx\b", "y"), (r"\by\b", "x"),
    (r"_begin\b", "_end"), (r"_end\b", "_begin"), (r"full\b", "empty"), (r"empty\b", "full"),
]  # fmt: skip


Change = tuple[str, Node, bytes]  # operator, what it replaces, by what


def parser_of(path: Path, text: bytes) -> Node:
    """The tree with fewer errors: a header may be C or CUDA."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # tree-sitter-cuda's way to name its language
        languages = [Language(module.language()) for module in (tree_sitter_cuda, tree_sitter_c)]
    if path.suffix == ".c":
        languages = languages[1:]
    trees = [Parser(language).parse(text).root_node for language in languages]
    return min(trees, key=lambda tree: sum(node.type == "ERROR" or node.is_missing for node in descend(tree)))


def descend(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children:
        yield from descend(child)


def code(root: Node) -> Iterator[Node]:
    """Nodes inside function bodies without inline assembly, preprocessor lines and what was not understood."""

    def inside(node: Node) -> Iterator[Node]:
        if node.type in ("gnu_asm_expression", "ERROR") or node.type.startswith("preproc_"):
            return
        if not node.has_error:
            yield node
        for child in node.named_children:
            yield from inside(child)

    for node in descend(root):
        if node.type == "function_definition":
            body = node.child_by_field_name("body")
            if body is not None:
                yield from inside(body)


def statements(node: Node) -> Iterator[Change]:
    if node.type != "expression_statement" or node.parent.type == "for_statement":
        return
    sync = SYNC.search(node.text) is not None
    yield "drop sync" if sync else "drop statement", node, b";"
    after = node.next_named_sibling
    if sync and after is not None and after.type in ("expression_statement", "if_statement", "for_statement"):
        yield "move sync", node, b";"  # its text goes behind the next statement (mutants_of)


def expressions(node: Node) -> Iterator[Change]:
    if node.type == "binary_expression":
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        sign = node.child_by_field_name("operator")
        if sign.text in OTHER:
            yield "comparison" if sign.text in COMPARISONS else "arithmetic", sign, OTHER[sign.text]
        elif sign.text in (b"&&", b"||"):
            yield "predicate dropped", node, left.text
            yield "predicate dropped", node, right.text
        elif sign.text == b"^" and right.text == b"1":
            yield "parity", node, left.text
    elif node.type == "number_literal" and node.text.isdigit() and node.parent.type != "array_declarator":
        value = int(node.text)
        yield "constant by one", node, b"%d" % (value + 1)
        if value:
            yield "constant by one", node, b"%d" % (value - 1)
    elif node.type in ("identifier", "field_identifier"):
        name = node.text.decode()
        for pattern, other in CONFUSED:
            if re.search(pattern, name):
                yield "name exchanged", node, re.sub(pattern, other, name, count=1).encode()


def conditions(node: Node) -> Iterator[Change]:
    condition = node.child_by_field_name("condition")
    if condition is None or node.type not in ("if_statement", "conditional_expression", "while_statement"):
        return
    if condition.type in ("parenthesized_expression", "condition_clause"):
        condition = condition.named_children[0]
    if node.type != "while_statement":
        yield "branch inverted", condition, b"!(" + condition.text + b")"
        yield "condition constant", condition, b"1"
    yield "condition constant", condition, b"0"


def calls(node: Node) -> Iterator[Change]:
    if node.type != "argument_list" or node.parent.type != "call_expression":
        return
    arguments = node.named_children
    sync = SYNC.search(node.parent.text) is not None
    for argument in arguments:
        if sync and PARITY.search(argument.text) and b"^" not in argument.text:
            yield "parity", argument, b"(" + argument.text + b") ^ 1"


OPERATORS: list[Callable[[Node], Iterator[Change]]] = [statements, expressions, conditions, calls]


def exchanged(node: Node, text: bytes, file: str) -> Iterator[Mutant]:
    """Neighbouring arguments of a call, exchanged."""
    if node.type != "argument_list" or node.parent.type != "call_expression":
        return
    for one, two in zip(node.named_children, node.named_children[1:]):
        if one.text != two.text and not {one.type, two.type} & {"string_literal", "comment"}:
            between = text[one.end_byte : two.start_byte]
            yield mutant(file, "arguments exchanged", one, text, two.text + between + one.text, two.end_byte)


def mutant(file: str, operator: str, node: Node, text: bytes, after: bytes, end: int | None = None) -> Mutant:
    end = node.end_byte if end is None else end
    before = text[node.start_byte : end].decode()
    return Mutant(file, node.start_byte, end, node.start_point[0] + 1, operator, before, after.decode())


def mutants_of(root: Path, file: str) -> list[Mutant]:
    """In the order of the text, without doubles."""
    text = (root / file).read_bytes()
    found: dict[tuple[int, int, str], Mutant] = {}

    def keep(one: Mutant) -> None:
        found.setdefault((one.start, one.end, one.after), one)

    for node in code(parser_of(Path(file), text)):
        for operator in OPERATORS:
            for name, at, after in operator(node):
                if name == "move sync":
                    following = at.next_named_sibling
                    gap = text[at.end_byte : following.start_byte]
                    keep(mutant(file, name, at, text, following.text + gap + at.text, following.end_byte))
                else:
                    keep(mutant(file, name, at, text, after))
        for one in exchanged(node, text, file):
            keep(one)
    return sorted(found.values(), key=lambda one: (one.start, one.end, one.after))
