"""Mutated checkpoints: tools/fuzz_loader.py on a bounded number of files, and what it notices."""

from __future__ import annotations

import os

import pytest
from paths import ROOT
from python_server import python

pytest.importorskip("safetensors.torch", reason="comes with the extra `test`")

FILES = int(os.environ.get("NVFP4_FUZZED_FILES", "300"))
SECONDS = 50  # begin no further file then, where this is not given
SEED = os.environ["NVFP4_TEST_SEED"]


def test_mutated_checkpoints_raise_nvfp4_errors() -> None:
    limit = [] if "NVFP4_FUZZED_FILES" in os.environ else ["--seconds", str(SECONDS)]
    done = python(ROOT / "tools/fuzz_loader.py", "--files", str(FILES), "--seed", SEED, *limit)
    print(done.stdout)  # with the seed
    assert done.returncode == 0, done.stdout + done.stderr
    tried = int(done.stdout.splitlines()[-1].split()[0])
    assert tried == FILES or (limit and tried >= 20)
    assert f"seed {SEED}, formats: compressed-tensors, modelopt, torchao, comfy-kitchen" in done.stdout


FAULTS = {
    "RuntimeError: injected": "raise RuntimeError('injected')",
    "ended by SIGXCPU": "import itertools; all(itertools.count(1))",
    "MemoryError": "bytearray(3 * 10**9)",
    "ended with status 77": "import os; os._exit(77)",
    "ended by SIGSEGV": "import ctypes; ctypes.string_at(0)",
    "raised, but the model changed": "if args[1:]: args[1].up.bias.data += 1; raise nvfp4.Error('x')",
    "is long, or not printable": "raise nvfp4.Error('\\x1b[2J')",
    "left {'more'}": "(next(path for path in Path(args[0], 'x').parents if path.name == 'in').parent / 'more').touch()",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_the_fuzzer_notices(fault: str) -> None:
    code = f"""
import sys
sys.path.insert(0, "tools")
from pathlib import Path
import fuzz_loader, nvfp4

def load(*args, **options):
    {FAULTS[fault]}

nvfp4.load = load
fuzz_loader.CPU_SECONDS = 1
fuzz_loader.mutate_kind = lambda path, draw: None
print(fuzz_loader.fuzz(1, 1, 100)[1])
"""
    done = python("-c", code, cwd=ROOT)
    assert fault in done.stdout, done.stdout + done.stderr
