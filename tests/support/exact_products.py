"""Products of every shape and form whose result is defined to the bit, and one function that runs and judges them.

The data are random 4-bit values with scales 0, 1, 2 and 3: sums are multiples of 1/4 below 2^22, exact in fp32 in any
order. What is around the operands is adversarial: NaN bytes in the padding of the scales, random bytes between rows, an
output of NaN inside random bytes.

`python tests/support/exact_products.py [BACKEND]` runs all of it: tests do so once for each instruction set of the CPU.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass

import backend_table
import torch
from guarded_buffers import Guarded

import nvfp4
from nvfp4 import reference

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
A_TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
ALPHAS = (None, "float", "one", "vector")
BIASES = (None, "fp32", "out")
CS = (None, "c", "out", "unread")  # "unread": beta = 0 and a c of NaN
LIMIT = 12945  # largest K whose sums are exact whatever the data: 324*K <= 2^22


@dataclass(frozen=True)
class Case:
    m: int
    n: int
    k: int
    l: int | None = None  # noqa: E741 (None: no batch dimension)
    layout: str = "128x4"
    out_dtype: torch.dtype = torch.float16
    alpha: str | None = None
    bias: str | None = None
    c: str | None = None
    pitched: bool = False  # rows of every matrix lie further apart than they are long
    typed: bool = False  # float4_e2m1fn_x2 and float8_e4m3fn rather than uint8
    scales: str = "contest"
    a: str | None = None  # "fp16", "bf16": of 16 bits, multiples of 1/2 up to 6

    def __str__(self) -> str:
        dtype = str(self.out_dtype).removeprefix("torch.")
        size = f"{self.m}x{self.n}x{self.k}" + (f"x{self.l}" if self.l is not None else "")
        form = [f"alpha:{self.alpha}" * bool(self.alpha), f"bias:{self.bias}" * bool(self.bias)]
        form += [
            f"a:{self.a}" * bool(self.a),
            f"c:{self.c}" * bool(self.c),
            "pitched" * self.pitched,
            "typed" * self.typed,
        ]
        return "-".join([size, self.layout, dtype, *filter(None, form)])


class Call:
    """The arguments of one product, all of them guarded, and the result that the definition gives."""

    def __init__(self, case: Case, generator: torch.Generator, device: str) -> None:
        batch = () if case.l is None else (case.l,)
        self.buffers: list[Guarded] = []

        def place(values: torch.Tensor, pitched: bool = case.pitched) -> torch.Tensor:
            row = values.shape[-1] * values.element_size()
            pitch = (row // 16 + 2) * 16 if pitched else None
            buffer = Guarded(values.shape, values.dtype, device, generator=generator, pitch=pitch, values=values)
            self.buffers.append(buffer)
            return buffer.tensor

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator)

        def operand(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
            data = torch.randint(0, 256, (*batch, rows, case.k // 2), dtype=torch.uint8, generator=generator)
            choices = torch.tensor(reference.SCALE_SETS[case.scales], dtype=torch.uint8)
            scale = choices[torch.randint(0, len(choices), (*batch, rows, case.k // 16), generator=generator)]
            if case.layout == "128x4":
                scale = place(reference.swizzle(scale, padding=reference.E4M3_NAN), pitched=False)
            else:
                scale = place(scale)
            data = place(data)
            if case.typed:
                return data.view(torch.float4_e2m1fn_x2), scale.view(torch.float8_e4m3fn)
            return data, scale

        scale_a: torch.Tensor | None
        if case.a:
            halves = torch.randint(-12, 13, (*batch, case.m, case.k), generator=generator) / 2
            a, scale_a = place(halves.to(A_TYPES[case.a])), None
        else:
            a, scale_a = operand(case.m)
        b, scale_b = operand(case.n)
        self.operands = (a, b, scale_a, scale_b)
        self.out = Guarded(
            (*batch, case.m, case.n),
            case.out_dtype,
            device,
            generator=generator,
            pitch=(case.n * case.out_dtype.itemsize // 16 + 2) * 16 if case.pitched else None,
            values=normal(*batch, case.m, case.n).to(case.out_dtype) if case.c == "out" else None,
        )
        self.options: dict[str, object] = {"scale_layout": case.layout}
        if case.alpha == "float":
            self.options["alpha"] = float(normal(1))
        elif case.alpha:
            self.options["alpha"] = place(normal(case.n if case.alpha == "vector" else 1), pitched=False)
        if case.bias:
            bias = normal(case.n).to(torch.float32 if case.bias == "fp32" else case.out_dtype)
            self.options["bias"] = place(bias, pitched=False)
        if case.c:
            shape = (*batch, case.m, case.n)
            c = torch.full(shape, torch.nan) if case.c == "unread" else normal(*shape)
            self.options["c"] = self.out.tensor if case.c == "out" else place(c.to(case.out_dtype))
            self.options["beta"] = 0.0 if case.c == "unread" else float(normal(1))
        self.expected = reference.gemm(*self.operands, **self.options, out_dtype=case.out_dtype)

    def run(self, **more: object) -> torch.Tensor:
        return nvfp4.gemm(*self.operands, **self.options, out=self.out.tensor, **more)

    def verdict(self) -> str:
        """ "" if the result is the expected one bit for bit and no byte but its own was written."""
        equal, message = reference.compare(self.out.tensor, self.expected, exact=True)
        if not equal:
            return message
        if not self.out.unchanged_around():
            return "bytes around out were written"
        return "" if all(buffer.unchanged() for buffer in self.buffers) else "an input was written"


def generator(*salt: object) -> torch.Generator:
    """Fresh numbers each session, and the same ones again with NVFP4_TEST_SEED as the session printed it."""
    seed = int(os.environ["NVFP4_TEST_SEED"])
    return torch.Generator().manual_seed(random.Random(f"{seed} {salt}").getrandbits(62))


def takes(case: Case, backend: str) -> bool:
    """Whether the backend has kernels for the type of A, and for how B lies."""
    linear = case.layout == "linear" or not (case.pitched or case.k % 32 == 0)
    a = str(A_TYPES[case.a]).removeprefix("torch.") if case.a else "uint8"
    return backend_table.takes(backend, a, linear=linear, m=case.m)


def run(case: Case, backend: str, device: str) -> str:
    call = Call(case, generator(case), device)
    result = call.run(backend=backend)
    if result is not call.out.tensor and result.data_ptr() != call.out.tensor.data_ptr():
        return "out was not returned"
    return call.verdict()


def cases() -> list[Case]:
    """Over 300: edges of every tile size in M and N, K from 16 with and without whole 128x4 blocks, each in another
    combination of layout, output type and epilogue."""
    rows = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 130, 191, 255, 256, 257)
    ks = (16, 32, 48, 64, 80, 112, 128, 144, 240, 256, 272, 464, 480, 496, 512, 528, 1008, 1040, 2064)
    forms = list(itertools.product(("128x4", "linear"), DTYPES, ALPHAS, BIASES, CS, (False, True)))
    rng = random.Random(0)  # the list is the same every time; the data are not
    rng.shuffle(forms)
    shapes = [(m, n, k, None) for m, n, k in itertools.product((1, 2, 16, 127, 129), (1, 8, 128, 130), (16, 48, 464))]
    while len(shapes) < 320:
        m, n, k, batch = rng.choice(rows), rng.choice(rows), rng.choice(ks), rng.choice((None, 1, 2, 3))
        if m * n * k * (batch or 1) <= 6e6:
            shapes.append((m, n, k, batch))
    shapes += [(1, 2000, 4096, None), (3, 513, 7168, None), (260, 516, 1040, None), (16, 640, 2048, 2)]
    shapes += [(385, 1, 4112, None), (1, 1, 12944, None), (130, 300, 528, 3)]
    # Every instantiation of the sm80 kernel, with K cut and not, as an H200 plans it (test_driver.py checks that).
    shapes += [(385, 65, 528, None), (127, 1, 8208, None), (33, 5000, 272, None), (129, 65, 8208, None)]
    shapes += [(33, 5000, 16, None), (129, 65, 4112, None), (50, 57, 8208, None), (5, 9, 4112, None)]
    found = []
    for i, (m, n, k, batch) in enumerate(shapes):
        layout, dtype, alpha, bias, c, pitched = forms[i % len(forms)]
        found.append(Case(m, n, k, batch, layout, dtype, alpha, bias, c, pitched, typed=i % 3 == 0))
    # A of 16 bits: edges of the tiles of sm80/w4a16.cu in every quarter of a block of 128 rows, and of sm90's.
    rows, columns = (1, 2, 4, 5, 8, 9, 16, 17, 33, 64, 65, 130), (1, 8, 31, 32, 33, 40, 72, 100, 128, 129, 160, 257)
    for i in range(60):
        layout, dtype, alpha, bias, c, pitched = rng.choice(forms)
        k, batch = rng.choice((16, 48, 64, 96, 128, 208, 256, 1024, 1040, 2080)), rng.choice((None, None, 1, 2, 3))
        m, n, a = rng.choice(rows), rng.choice(columns), ("fp16", "bf16")[i % 2]
        found.append(Case(m, n, k, batch, layout, dtype, alpha, bias, c, pitched, typed=i % 3 == 0, a=a))
    return found


def run_all(backend: str, device: str, step: int = 1, report: Callable[[str], None] = print) -> int:
    """Every step-th case, beginning anywhere."""
    chosen = [case for case in cases() if takes(case, backend)][
        random.Random(os.environ["NVFP4_TEST_SEED"]).randrange(step) :: step
    ]
    failures = [(case, text) for case in chosen if (text := run(case, backend, device))]
    for case, text in failures:
        report(f"{case}: {text}")
    report(f"{len(chosen)} cases on {backend}, {len(failures)} wrong")
    return len(failures)


if __name__ == "__main__":
    os.environ.setdefault("NVFP4_TEST_SEED", str(random.SystemRandom().randrange(2**31)))
    chosen = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    on_gpu = chosen != "cpu" and torch.cuda.is_available()  # an emulated GPU takes CPU tensors
    sys.exit(bool(run_all(chosen, "cuda" if on_gpu else "cpu", *map(int, sys.argv[2:]))))
