"""tools/words.txt and tools/check_words.py: replaced words, comments that begin with a riddle, and spelling."""

from __future__ import annotations

import subprocess

import pytest
from paths import ROOT, module_at

check_words = module_at(ROOT / "tools/check_words.py")
RULES = check_words.read_rules((ROOT / "tools/words.txt").read_text())
SUBJECT, SPELLING = "say first what the thing is, in a sentence with subject and verb", "quantize, initialize"


# Lines are in two parts, so that the check does not find them here.
@pytest.mark.parametrize(
    ("path", "begin", "end", "replacement"),
    [
        ("csrc/api/plan.c", "/* ", "Those backends of a mask that take the operation. */", SUBJECT),
        ("csrc/kernels/sm90/nn.cu", "    // ", "Of a group of 8 rows", SUBJECT),
        ("nvfp4/linear.py", "    x = 1  # ", "As gemm takes it", SUBJECT),
        ("tests/support/paths.py", '    """', 'Of GPU kernels, oldest first."""', SUBJECT),
        ("tools/build_wheels.sh", "#", "Of both wheels", SUBJECT),
        ("nvfp4/linear.py", "# Quantis", "ation and back", SPELLING),
        ("csrc/cpu/quantize.c", "int initialis", "ed;", SPELLING),
        ("csrc/api/plan.c", "int32_t kernel; ", "/* of the backend; as in the table, of those */", ""),
        ("csrc/api/plan.c", "/* ", "Ofcom; Asia: a longer word */", ""),
        ("csrc/api/plan.c", "/* ", "The backends. Of these, one. */", ""),
        ("nvfp4/linear.py", "# ", "Quantize, initialize", ""),
        ("README.md", "# ", "Of pages", ""),
    ],
)
def test_prose(path: str, begin: str, end: str, replacement: str) -> None:
    """The check finds the line with its replacement text, or nothing. grep -E, which selects lines first, agrees."""
    line = begin + end
    found = check_words.matches(path, line, RULES)
    assert [message.partition(", write: ")[2] for message in found] == ([replacement] if replacement else [])
    patterns = "|".join(f"({rule.pattern.pattern})" for rule in RULES if rule.replacement in (SUBJECT, SPELLING))
    done = subprocess.run(["grep", "-cE", patterns], input=line, text=True, capture_output=True)
    assert done.stdout.strip() == ("1" if replacement or path.endswith(".md") else "0")


# Lines are in two parts here too.
@pytest.mark.parametrize(
    ("path", "begin", "end", "replacement"),
    [
        ("csrc/api/gemm.c", "const gemm_", "family *x;", "backend"),
        ("docs/kernels/sm90.md", "All families", " of kernels rank", "backend"),
        ("csrc/cpu/nn.c", "p->x == OP_", "GEMM_NN", "product_kind, PRODUCT_..., PRODUCT_KINDS"),
        ("tests/core/test_api.c", "conversion_", "problem p;", "row op: row_op_problem ..."),
        ("nvfp4/experts.py", "MOST", "_EXPERTS = 8", "MAX_, MIN_"),
        ("csrc/cpu/nn.c", "p->sfa", "_pitch", "scale_a_..., scale_b_... (sfa and sfb are the tensor core's)"),
        ("csrc/nvfp4.h", "#define NVFP4_MOE_MOST", "_EXPERTS", ""),
        ("csrc/kernels/sm100/gemm.cu", "m.mma_", "sfa", ""),
        ("csrc/kernels/common/wgmma.cuh", "/* PTX wrappers of an instruction ", "family */", ""),
    ],
)
def test_replaced_words(path: str, begin: str, end: str, replacement: str) -> None:
    found = check_words.matches(path, begin + end, RULES)
    assert [message.partition(", write: ")[2] for message in found] == ([replacement] if replacement else [])
