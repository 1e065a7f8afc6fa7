"""nvfp4 as a backend of comfy-kitchen, beside its eager backend, on the CPU."""

from __future__ import annotations

import runpy
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import NO_GPU
from error_bounds import Bounded, roundings
from paths import ROOT
from torch import Tensor

import nvfp4

comfy_kitchen = pytest.importorskip("comfy_kitchen")
from comfy_kitchen.backends import eager  # noqa: E402
from comfy_kitchen.registry import registry  # noqa: E402
from comfy_kitchen.tensor import QuantizedTensor, TensorCoreNVFP4Layout  # noqa: E402

import nvfp4.comfy  # noqa: E402
from nvfp4.hosts import comfy  # noqa: E402

nvfp4.comfy.unregister()  # other files compare with comfy-kitchen's own backends

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LAYOUT = "TensorCoreNVFP4Layout"
MANAGEMENT = "comfy.model_management"
ROUNDED = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}  # half a unit, of the value


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """New tensors are filled with NaN or the largest integer, so that what nobody writes is seen."""
    nvfp4.comfy.register()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
    nvfp4.comfy.unregister()


def integer(generator: torch.Generator, low: int, high: int) -> int:
    return int(torch.randint(low, high + 1, (), generator=generator))


def bits(t: Tensor) -> Tensor:
    return t.contiguous().view(torch.uint8)


def operand(generator: torch.Generator, rows: int, k: int, exact: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Packed values, block scales in the 128x4 layout and a global scale. If exact, scales are powers of two."""
    data = torch.randint(0, 256, (rows, k // 2), dtype=torch.uint8, generator=generator)
    low, high = (0x30, 0x40) if exact else (0, 0x7E)
    codes = torch.randint(low, high + 1, (rows, k // 16), dtype=torch.uint8, generator=generator)
    scale = nvfp4.swizzle((codes & 0x78 if exact else codes).view(torch.float8_e4m3fn))
    power = 2.0 ** integer(generator, -6, 0)
    return data, scale, torch.tensor(power if exact else power * 1.37)


def numbers(data: Tensor, scale: Tensor, global_scale: Tensor) -> Tensor:
    """What an operand stands for, in fp64, with comfy-kitchen's order of nibbles."""
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
    codes = torch.stack((data >> 4, data & 15), -1).flatten(1).long()
    magnitude = values[codes & 7] * torch.where(codes > 7, -1.0, 1.0)
    blocks = comfy_kitchen.from_blocked(scale, data.shape[0], data.shape[1] // 8).double()
    return magnitude * blocks.repeat_interleave(16, 1) * global_scale.double()


# ---- the functions ----


@pytest.mark.parametrize("hi_first", [True, False])
@pytest.mark.parametrize("pad", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_quantizing_gives_the_bytes_of_the_eager_backend(
    dtype: torch.dtype, pad: bool, hi_first: bool, generator: torch.Generator
) -> None:
    for deviation in (1e-4, 1.0, 50.0):
        rows, k = integer(generator, 1, 300), integer(generator, 1, 300)
        x = (torch.randn(rows, k if pad else 16 * k, generator=generator) * deviation).to(dtype)
        x[integer(generator, 0, rows - 1)] = 0
        x[0, ::2] *= -0.0
        scale = x.abs().amax().float().clamp_min(1e-3) / 2688
        ours, theirs = (
            comfy_kitchen.quantize_nvfp4(x, scale, pad_16x=pad, hi_first=hi_first),
            eager.quantize_nvfp4(x, scale, pad_16x=pad, hi_first=hi_first),
        )
        for a, b in zip(ours, theirs, strict=True):
            assert a.dtype == b.dtype and a.shape == b.shape and torch.equal(bits(a), bits(b))


@pytest.mark.parametrize("hi_first", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_dequantizing_rounds_less_than_the_eager_backend(
    dtype: torch.dtype, hi_first: bool, generator: torch.Generator
) -> None:
    """The eager backend rounds the global scale, its product with a block scale, and that with a value, to the dtype of
    the result. In the dtype's subnormal range each of these is off by half its least number instead."""
    rows, k = integer(generator, 1, 200), 16 * integer(generator, 1, 20)
    data, scale, global_scale = operand(generator, rows, k, exact=False)
    exact = numbers(data, scale, global_scale)
    if not hi_first:
        data = comfy_kitchen.swap_nibbles(data)
    ours, theirs = (
        comfy_kitchen.dequantize_nvfp4(data, global_scale, scale, dtype, hi_first).double(),
        eager.dequantize_nvfp4(data, global_scale, scale, dtype, hi_first).double(),
    )
    unit, least = ROUNDED[dtype], torch.finfo(dtype).tiny * torch.finfo(dtype).eps / 2
    one = exact.abs() * (unit + 2.0**-23) + least
    assert ours.shape == exact.shape and bool(((ours - exact).abs() <= one).all())
    unscaled = exact.abs() / global_scale  # value * scale: what an error of the global scale is multiplied by
    three = exact.abs() * ((1 + unit) ** 3 - 1) + least * (unscaled + 6 + 1) * (1 + unit) ** 3
    assert bool(((theirs - exact).abs() <= three).all())
    assert bool(((ours - theirs).abs() <= one + three).all())


@pytest.mark.parametrize("with_alpha", [False, True])
@pytest.mark.parametrize("bias_dtype", [None, *DTYPES])
@pytest.mark.parametrize("dtype", DTYPES)
def test_exact_products(
    dtype: torch.dtype, bias_dtype: torch.dtype | None, with_alpha: bool, generator: torch.Generator
) -> None:
    """Where no sum rounds, the result is the rounded number: sums have at most 20 bits here, and with the bias 21. The
    eager backend has no product on a CPU."""
    m, n, k = (integer(generator, 1, 70), integer(generator, 1, 70), 16 * integer(generator, 1, 16))
    a, scale_a, global_a = operand(generator, m, k, exact=True)
    b, scale_b, global_b = operand(generator, n, k, exact=True)
    alpha = torch.tensor(2.0 ** integer(generator, -12, -6)) if with_alpha else None
    given = None if bias_dtype is None else torch.randint(-8, 9, (n,), generator=generator).to(bias_dtype)
    factor = (global_a * global_b if alpha is None else alpha).double()
    sums = numbers(a, scale_a, torch.tensor(1.0)) @ numbers(b, scale_b, torch.tensor(1.0)).T
    expected = sums * factor + (0 if given is None else given.double())
    result = comfy_kitchen.scaled_mm_nvfp4(
        a, b, global_a, global_b, scale_a, scale_b, bias=given, out_dtype=dtype, alpha=alpha
    )
    assert torch.equal(expected.float().double(), expected)
    assert result.dtype == dtype and torch.equal(result, expected.to(dtype))
    with pytest.raises(ValueError), comfy_kitchen.use_backend("eager"):
        comfy_kitchen.scaled_mm_nvfp4(a, b, global_a, global_b, scale_a, scale_b, out_dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_are_within_the_bound_of_their_roundings(dtype: torch.dtype, generator: torch.Generator) -> None:
    m, n, k = (integer(generator, 1, 150), integer(generator, 1, 150), 16 * integer(generator, 1, 40))
    (a, scale_a, global_a), (b, scale_b, global_b) = (operand(generator, rows, k, False) for rows in (m, n))
    bias = torch.randn(n, generator=generator)
    one = torch.tensor(1.0)
    left, right = numbers(a, scale_a, one), numbers(b, scale_b, one)
    kernel = nvfp4.info(m, n, k, device="cpu")["plan"]["kernel"]
    bounded = Bounded(left @ right.T, left.abs() @ right.abs().T, roundings(kernel, k))
    bounded.multiply(global_a * global_b)
    bounded.add(bias)
    result = comfy_kitchen.scaled_mm_nvfp4(a, b, global_a, global_b, scale_a, scale_b, bias=bias, out_dtype=dtype)
    assert bounded.verdict(result, bounded.value.to(dtype)) == ""


# ---- tensors of comfy-kitchen, as ComfyUI uses them ----


def packed(t: Tensor, **more: Any) -> Any:
    return QuantizedTensor.from_float(t, LAYOUT, **more)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_layer_of_any_shape_stays_packed(dtype: torch.dtype, bias: bool, generator: torch.Generator) -> None:
    """Rows, columns and N that comfy-kitchen pads to 16. The result is that of nvfp4 on the same numbers, and near the
    product of what comfy-kitchen's eager backend dequantizes."""
    m, n, k = (integer(generator, 1, 90) for _ in range(3))
    x, weight = (torch.randn(rows, k, generator=generator).to(dtype) for rows in (m, n))
    b = torch.randn(n, generator=generator).to(dtype) if bias else None
    calls: list[str] = []
    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        for name in comfy.CAPABILITIES:
            own = getattr(comfy, name)
            patch.setattr(comfy, name, lambda *a, _own=own, _name=name, **k: (calls.append(_name), _own(*a, **k))[1])
        q, w = packed(x), packed(weight)
        result = torch.nn.functional.linear(q, w, b)
    assert calls == ["quantize_nvfp4", "quantize_nvfp4", "scaled_mm_nvfp4"] and result.shape == (m, n)
    assert result.dtype == dtype
    more = -k % 16
    (a, scale_a), (c, scale_c) = (
        nvfp4.quantize(torch.nn.functional.pad(t, (0, more)), global_scale=own._params.scale)
        for t, own in ((x, q), (weight, w))
    )
    alpha = q._params.scale * w._params.scale
    expected = nvfp4.gemm(a, c, scale_a, scale_c, alpha=alpha, bias=b, out_dtype=dtype)
    assert torch.equal(result, expected)
    with comfy_kitchen.use_backend("eager"):
        dense = [t.to(torch.float32).dequantize().double() for t in (q, w)]
    near = dense[0] @ dense[1].T + (0 if b is None else b.double())
    size = dense[0].abs() @ dense[1].abs().T + (0 if b is None else b.double().abs())
    assert bool(((result.double() - near).abs() <= size * (ROUNDED[dtype] + (k + 10) * 2.0**-24) + 1e-7).all())


def test_a_bias_without_the_padding_of_the_weight(generator: torch.Generator) -> None:
    """comfy-kitchen hands it over so. The rows of padding give zeros."""
    q, w = packed(torch.randn(16, 32, generator=generator)), packed(torch.randn(24, 32, generator=generator))
    result = comfy_kitchen.scaled_mm_nvfp4(
        q._qdata, w._qdata, q._params.scale, w._params.scale, q._params.block_scale, w._params.block_scale,
        bias=torch.ones(24), out_dtype=torch.float32,
    )  # fmt: skip
    assert result.shape == (16, 32) and not result[:, 24:].any() and result[:, :24].all()


def test_inputs_of_zeros_and_numbers_that_are_not_finite(generator: torch.Generator) -> None:
    """Zeros give the bias, where the eager backend gives NaN. A NaN or an infinity gives no finite result."""
    weight, bias = packed(torch.randn(16, 32, generator=generator)), torch.randn(16, generator=generator)
    with torch.inference_mode():
        result = torch.nn.functional.linear(packed(torch.zeros(3, 32)), weight, bias)
        assert torch.equal(result, bias.expand(3, 16))
        for value in (float("nan"), float("inf")):
            x = torch.randn(3, 32, generator=generator)
            x[1, 5] = value
            assert not torch.nn.functional.linear(packed(x), weight, bias)[1].isfinite().any()


def test_a_file_gives_the_bits_of_nvfp4_load(generator: torch.Generator) -> None:
    """A layer as ComfyUI loads and calls it, with the input scale and the scale of the inputs before, and the same file
    through nvfp4.load."""
    n, k = 16 * integer(generator, 1, 8), 16 * integer(generator, 1, 8)
    weight = packed(torch.randn(n, k, generator=generator))
    state = {f"0.{name}": t for name, t in weight.state_dict("weight").items()}
    state |= {"0.input_scale": torch.tensor(0.0031), "0.bias": torch.randn(n, generator=generator)}
    state |= {"0.pre_quant_scale": torch.rand(k, generator=generator) + 0.5}
    state["0.comfy_quant"] = torch.tensor([*b'{"format": "nvfp4"}'], dtype=torch.uint8)
    model = torch.nn.Sequential(torch.nn.Linear(k, n))
    nvfp4.load(state, model)
    x = torch.randn(5, k, generator=generator)
    with torch.inference_mode():
        q = packed(x * state["0.pre_quant_scale"], scale=state["0.input_scale"])
        assert torch.equal(model(x), torch.nn.functional.linear(q, weight, state["0.bias"]))


# ---- which backend ----


def chosen(name: str = "quantize_nvfp4", **more: Any) -> str:
    first = torch.zeros(16, 16)
    return str(registry.get_capable_backend(name, {"x": first, "per_tensor_scale": torch.tensor(1.0), **more}))


def test_registering_twice_and_undoing_it() -> None:
    assert registry._priority.count("nvfp4") == 1 and registry._priority[0] == "nvfp4"
    nvfp4.comfy.register()
    rest = registry._priority[1:]
    assert registry._priority.count("nvfp4") == 1 and chosen() == "nvfp4"
    assert chosen("quantize_mxfp8") == "eager" and TensorCoreNVFP4Layout.supports_fast_matmul()
    assert comfy_kitchen.list_backends()["nvfp4"]["capabilities"] == sorted(comfy.CAPABILITIES)
    for _ in range(2):
        nvfp4.comfy.unregister()
        assert registry._priority == rest and chosen() == "eager"
        assert not TensorCoreNVFP4Layout.supports_fast_matmul() or torch.cuda.is_available()
    with pytest.raises(comfy_kitchen.BackendNotFoundError), comfy_kitchen.use_backend("nvfp4"):
        pass
    nvfp4.comfy.register()
    assert chosen() == "nvfp4" and registry._priority == ["nvfp4", *rest]


def test_calls_that_are_left_to_other_backends() -> None:
    assert chosen(epsilon=1e-6) == "eager"
    validate = registry.validate_backend_for_call
    given = {"x": torch.zeros(16, 16, dtype=torch.float64), "per_tensor_scale": torch.tensor(1.0)}
    assert validate("nvfp4", "quantize_nvfp4", given).failed_param == "x"
    given = {"x": torch.zeros(1, 16, 16), "per_tensor_scale": torch.tensor(1.0)}
    assert validate("nvfp4", "quantize_nvfp4", given).failed_param == "x"


@pytest.mark.parametrize(
    ("capability", "reason"),
    [((7, 5), "the compute capability is 7.5; must be 8.0 to 9.0"), ((8, 6), ""), ((9, 0), ""), ((12, 0), "12.0")],
)
def test_devices(capability: tuple[int, int], reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    index = 77  # of no GPU, as info says
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    comfy.why_not_gpu.cache_clear()
    found = comfy.why_not(torch.device("cuda", index))
    assert found and reason in found
    comfy.why_not_gpu.cache_clear()
    monkeypatch.setattr(comfy, "info", lambda *a, device: {})
    found = comfy.why_not(torch.device("cuda", index))
    assert reason in found and bool(found) == bool(reason)
    monkeypatch.setattr(torch.version, "cuda", None)
    assert comfy.why_not(torch.device("cuda", index)) == "the device is cuda; must be the CPU or an NVIDIA GPU"
    assert "meta" in comfy.why_not(torch.device("meta")) and not comfy.why_not(torch.device("cpu"))
    comfy.why_not_gpu.cache_clear()


# ---- ComfyUI, of which a module with its function stands here ----


def test_comfyui_is_told_that_products_run(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def own(device: torch.device | None = None) -> bool:
        asked.append(device)
        return False

    management = types.ModuleType(MANAGEMENT)
    management.supports_nvfp4_compute = own
    monkeypatch.setitem(sys.modules, MANAGEMENT, management)
    for _ in range(2):
        nvfp4.comfy.register()
        assert management.supports_nvfp4_compute(torch.device("cpu")) and not asked
    assert not management.supports_nvfp4_compute(torch.device("meta")) and asked == [torch.device("meta")]
    for _ in range(2):
        nvfp4.comfy.unregister()
        assert management.supports_nvfp4_compute is own
    nvfp4.comfy.register()
    nvfp4.comfy.unregister()
    del management.supports_nvfp4_compute
    with pytest.raises(ImportError, match=f"^{MANAGEMENT}: has no supports_nvfp4_compute, .*; update ComfyUI"):
        nvfp4.comfy.register()
    assert "nvfp4" not in registry._priority


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16))
@pytest.mark.parametrize("m, n, k", [(1, 48, 64), (129, 72, 80), (512, 3072, 3072)])
def test_on_a_gpu(m: int, n: int, k: int, dtype: torch.dtype, generator: torch.Generator) -> None:
    """The bytes of the eager backend, and products close to those of its dequantized tensors. By hand on an H200."""
    if not torch.cuda.is_available():
        pytest.skip(NO_GPU)
    x, w, bias = (torch.randn(*shape, generator=generator).to("cuda", dtype) for shape in ((m, k), (n, k), (n,)))
    with torch.inference_mode():
        ours = [QuantizedTensor.from_float(t, LAYOUT) for t in (x, w)]
        with comfy_kitchen.use_backend("eager"):
            theirs = [QuantizedTensor.from_float(t, LAYOUT) for t in (x, w)]
            expected = torch.nn.functional.linear(*(t.dequantize().float() for t in theirs), bias.float())
        y = torch.nn.functional.linear(*ours, bias)
    assert all(torch.equal(a._qdata, b._qdata) for a, b in zip(ours, theirs))
    assert (y.float() - expected).norm() < 1e-2 * expected.norm()


def test_the_custom_node() -> None:
    nvfp4.comfy.unregister()
    sys.modules.pop("nvfp4.comfy")
    sys.modules.pop("nvfp4.hosts.comfy")
    node = runpy.run_path(str(ROOT / "examples/comfyui_nvfp4.py"))
    assert node["NODE_CLASS_MAPPINGS"] == {} and chosen() == "nvfp4"
    sys.modules["nvfp4.comfy"], sys.modules["nvfp4.hosts.comfy"] = nvfp4.comfy, comfy


# ---- errors ----


def test_errors_name_the_argument(generator: torch.Generator) -> None:
    (a, scale, one), (b, scale_b, _) = operand(generator, 16, 32, True), operand(generator, 16, 32, True)

    def rejected(message: str, call: Any, *arguments: Any, **more: Any) -> None:
        with pytest.raises(nvfp4.Error) as error:
            call(*arguments, **more)
        assert str(error.value) == message

    multiply = comfy_kitchen.scaled_mm_nvfp4
    layout = "the 128x4 layout for 16 x 32"
    rejected(
        f"block_scale_a: shape is [128, 8]; must be [128, 4], {layout}",
        multiply, a, b, one, one, torch.zeros(128, 8).to(scale.dtype), scale_b,
    )  # fmt: skip
    rejected("alpha: shape is [2]; must have 1 element", multiply, a, b, one, one, scale, scale_b, alpha=torch.ones(2))
    rejected(
        "bias: shape is [17]; must be [16], or that of the layer before padding",
        multiply, a, b, one, one, scale, scale_b, bias=torch.zeros(17),
    )  # fmt: skip
    rejected(
        "x: has 24 columns; must be a multiple of 16, or give pad_16x=True",
        comfy_kitchen.quantize_nvfp4, torch.zeros(16, 24), one,
    )  # fmt: skip
    rejected(
        "qx: has 24 columns; must be a multiple of 16, so quantize with pad_16x=True",
        comfy_kitchen.dequantize_nvfp4, torch.zeros(16, 12, dtype=torch.uint8), one, scale,
    )  # fmt: skip


def imported(folder: Path, files: dict[str, str]) -> str:
    """The last line of the error when nvfp4.comfy is imported beside another comfy-kitchen, of these files."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    program = f"import sys; sys.path.insert(0, {str(folder)!r}); import nvfp4.comfy"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


def test_an_absent_and_another_comfy_kitchen(tmp_path: Path) -> None:
    absent = 'raise ModuleNotFoundError("No module named comfy_kitchen", name="comfy_kitchen")'
    assert imported(tmp_path / "a", {"comfy_kitchen/__init__.py": absent}) == (
        "ModuleNotFoundError: nvfp4.comfy needs comfy-kitchen: pip install comfy-kitchen, in ComfyUI's environment"
    )
    error = imported(tmp_path / "b", {"comfy_kitchen/__init__.py": ""})
    assert error.startswith("ImportError: comfy-kitchen: is version 0.2.40, with which nvfp4.comfy does not work (")
    assert error.endswith("; install 0.2.40, which is tested, or remove the custom node that imports nvfp4.comfy")
    changed = "\n".join(
        (
            "import comfy_kitchen.backends.eager as eager",
            "own = eager.scaled_mm_nvfp4",
            "def scaled_mm_nvfp4(a, b, scales): return own(a, b, *scales)",
            "eager.scaled_mm_nvfp4 = scaled_mm_nvfp4",
        )
    )
    program = f"{changed}\nimport nvfp4.comfy"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "(scaled_mm_nvfp4 takes a, b, scales); install" in done.stderr.splitlines()[-1]
