"""What torch does to an nvfp4.Linear: as a module, its dense copies, its errors, its import; in torch.compile, traces,
CUDA graphs, autocast, forward mode, and with meta and fake tensors."""

from __future__ import annotations

import copy
import importlib.util
import io
import math
import pickle
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import torch
from conftest import FULL, NO_GPU, gpu
from error_bounds import U
from linear_layers import DTYPES, MODES, K, N, exact_layer, expected, integers, packed, same, state_is, state_of
from torch._subclasses.fake_tensor import FakeTensorMode

import nvfp4
from nvfp4.layers.packed import PackedLinear

# ---- a module's life ----


@pytest.mark.parametrize("cast", ["to", "half", "bfloat16", "double", "parent", "type", "parent_type"])
def test_casts_change_the_bias_alone(cast: str, generator: torch.Generator) -> None:
    layer = exact_layer(generator, "nvfp4")
    before, alpha, places = state_of(layer), layer.alpha.clone(), [t.data_ptr() for t in layer.buffers()]
    if cast == "parent":
        torch.nn.Sequential(layer, torch.nn.Linear(8, 8)).to(torch.float16)
    elif cast == "to":
        layer.to(torch.bfloat16)
    elif cast == "type":
        layer.type(torch.bfloat16)
    elif cast == "parent_type":
        torch.nn.Sequential(layer, torch.nn.Linear(8, 8)).type("torch.HalfTensor")
    else:
        getattr(layer, cast)()
    bias = {"half": torch.float16, "double": torch.float64, "parent": torch.float16, "parent_type": torch.float16}.get(
        cast, torch.bfloat16
    )
    assert layer.bias.dtype == bias and same(layer.alpha, alpha)
    assert state_is(layer, before | {"bias": before["bias"].to(bias)})
    moved = [t.data_ptr() for name, t in layer.named_buffers() if name != "bias"]
    assert set(moved) <= set(places)  # no byte is copied
    before = state_of(layer)
    with pytest.raises(nvfp4.Error, match=r"^dtype: is int8; must be a floating-point type$"):
        layer.type(torch.int8)
    assert state_is(layer, before)


def test_moves(device: str, generator: torch.Generator) -> None:
    layer = exact_layer(generator, "nvfp4")
    layer.bias.round_()  # fits into fp16
    before, x = state_of(layer), integers(generator, 3, K)
    want = expected(layer, x, torch.float32)
    layer.to(device, torch.float16)
    assert {t.device.type for t in layer.buffers()} == {device} and layer.bias.dtype == torch.float16
    assert same(layer(x.to(device)).cpu(), want)
    layer.to("cpu", torch.float32)
    assert state_is(layer, before)
    empty = layer.to("meta").to_empty(device=device)
    assert empty.weight.device.type == device and empty.alpha.dtype == torch.float32
    empty.load_state_dict(before)
    assert same(empty(x.to(device)).cpu(), want)


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("static", [False, True])
def test_state_dict_round_trip(static: bool, vector: bool, assign: bool, generator: torch.Generator) -> None:
    """Into layers that have what the state has not: a static scale, a vector of global scales."""
    layer = exact_layer(generator, "nvfp4", vector=vector)
    if not static:
        layer.input_global_scale = None
        layer.update_alpha()
    names = {"weight", "weight_scale", "weight_global_scale", "bias"} | ({"input_global_scale"} if static else set())
    state, x = state_of(layer), torch.randn(3, K, generator=generator)
    assert set(state) == names
    for other in (nvfp4.Linear(K, N), exact_layer(generator, "nvfp4"), exact_layer(generator, "nvfp4", vector=True)):
        parent = torch.nn.ModuleDict({"a": other})
        parent.load_state_dict({f"a.{name}": t for name, t in state.items()}, assign=assign)
        assert state_is(other, state) and same(other.alpha, layer.alpha) and same(other(x), layer(x))


def test_state_dict_names_what_is_wrong(generator: torch.Generator) -> None:
    state = state_of(exact_layer(generator, "nvfp4"))
    for name, value, message in (
        ("weight", torch.zeros(N, 8, dtype=torch.uint8), "size mismatch for weight"),
        ("weight_global_scale", torch.ones(3), "size mismatch for weight_global_scale"),
        ("weight_scale", None, 'Missing key.*"weight_scale"'),
        ("zero_point", torch.ones(1), 'Unexpected key.*"zero_point"'),
    ):
        wrong = {key: t for key, t in (state | {name: value}).items() if t is not None}
        with pytest.raises(RuntimeError, match=message):
            nvfp4.Linear(K, N).load_state_dict(wrong)


def nested(layout: torch.layout) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls them a prototype
        return torch.nested.nested_tensor([torch.ones(4, 64), torch.ones(2, 64)], layout=layout)


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda: nested(torch.strided), "nested"),
        (lambda: nested(torch.jagged), "nested"),
        (lambda: torch.ones(4, 64).to_sparse(), "sparse_coo"),
    ],
    ids=["nested", "jagged", "sparse"],
)
def test_inputs_of_other_layouts(make: Callable[[], torch.Tensor], found: str) -> None:
    """The layers, and the functions, which name torch's constant."""
    x = make()
    values, scales = nvfp4.quantize(torch.ones(4, 64))
    layers = {
        "x": (nvfp4.Linear(64, 32), nvfp4.Fp8Linear(64, 32), nvfp4.Fp8Linear(64, 32, activations="token")),
        "hidden": (nvfp4.Experts(2, 64, 32), lambda x: nvfp4.Experts(2, 64, 32)(x, values, scales)),
    }
    calls = {
        "x": (nvfp4.quantize, nvfp4.amax_scale),
        "a": (lambda x: nvfp4.gemm(x, values, None, scales),),
        "c": (lambda x: nvfp4.gemm(values, values, scales, scales, c=x),),
        "ids": (lambda x: nvfp4.moe_route(x, 4),),
        "gate": (lambda x: nvfp4.gated(x, None, "silu"),),
    }
    given = "nested" if found == "nested" else f"torch.{found}"
    for name, functions in layers.items():
        for function in functions:
            with pytest.raises(nvfp4.Error, match=f"^{name}: layout is {found}; must be strided$"):
                function(x)
    for name, functions in calls.items():
        for function in functions:
            with pytest.raises(nvfp4.Error, match=f"^{name}: layout is {given}; must be torch.strided$"):
                function(x)
    with pytest.raises(nvfp4.Error, match=f"^bias: layout is {found}; must be strided$"):
        PackedLinear(values, nvfp4.unswizzle(scales, 4, 4), torch.ones(()), bias=x)


@pytest.mark.parametrize("value", [None, 3, "text", [1.0]], ids=lambda value: type(value).__name__)
@pytest.mark.parametrize(
    "make",
    [
        lambda: nvfp4.Linear.from_linear(torch.nn.Linear(K, N)),
        lambda: nvfp4.Fp8Linear(K, N),
        lambda: nvfp4.Experts(2, 32, 16, bias=True).down,
    ],
    ids=["Linear", "Fp8Linear", "Stack"],
)
def test_state_dict_of_no_tensors_is_rejected(make: Callable[[], torch.nn.Module], value: object) -> None:
    """Every value of a state, and every buffer that may have one. A missing one is torch's error."""
    state = make().state_dict()
    names = {*make()._buffers} - make()._non_persistent_buffers_set
    assert names > {"weight_scale", "bias"}
    for name in names:
        layer = make()
        before = {key: t.clone() for key, t in layer.state_dict().items()}
        with pytest.raises(RuntimeError, match=f"up.{name}: is of type {type(value).__name__}; must be a torch.Tensor"):
            torch.nn.ModuleDict({"up": layer}).load_state_dict(
                {f"up.{k}": t for k, t in (state | {name: value}).items()}
            )
        after = layer.state_dict()
        assert after.keys() == before.keys()
        assert all(t.view(torch.uint8).equal(after[k].view(torch.uint8)) for k, t in before.items() if t.ndim)
    for name in state:
        with pytest.raises(RuntimeError, match=f'Missing key.*"{name}"'):
            make().load_state_dict({key: t for key, t in state.items() if key != name} | {"bias_": torch.ones(1)})


@pytest.mark.parametrize("assign", [False, True])
def test_state_dict_of_other_dtypes_is_rejected(assign: bool, generator: torch.Generator) -> None:
    """A byte of a scale is no number to convert; the layer stays as it was."""
    source = exact_layer(generator, "nvfp4")
    state, scale = state_of(source), source.weight_scale
    for name, value, found, wanted in (
        ("weight", state["weight"].float(), "float32 [N, K/2]", "uint8 [N, K/2]"),
        ("weight_scale", scale.view(torch.uint8), "uint8 SCALES", "float8_e4m3fn SCALES"),
        ("weight_scale", scale.float(), "float32 SCALES", "float8_e4m3fn SCALES"),
        ("weight_global_scale", torch.ones((), dtype=torch.bfloat16), "bfloat16 []", "float32 []"),
        ("input_global_scale", torch.ones(1, dtype=torch.float16), "float16 [1]", "float32"),
    ):
        layer = exact_layer(generator, "nvfp4")
        if name == "input_global_scale":
            layer.input_global_scale = None
        before, parent = state_of(layer), torch.nn.ModuleDict({"up": layer})
        with pytest.raises(RuntimeError) as error:
            parent.load_state_dict({f"up.{key}": t for key, t in (state | {name: value}).items()}, assign=assign)
        message = f"up.{name}: is {found}; must be {wanted}"
        for word, shape in (("[N, K/2]", [N, K // 2]), ("SCALES", list(scale.shape))):
            message = message.replace(word, str(shape))
        assert message in str(error.value) and state_is(layer, before)


@pytest.mark.parametrize("way", ["deepcopy", "pickle", "save", "safetensors"])
def test_copies(way: str, tmp_path: Path, generator: torch.Generator) -> None:
    layer, x = exact_layer(generator, "nvfp4", vector=True), torch.randn(3, K, generator=generator)
    if way == "deepcopy":
        other = copy.deepcopy(layer)
    elif way == "pickle":
        other = pickle.loads(pickle.dumps(layer))
    elif way == "save":
        file = io.BytesIO()
        torch.save(layer.state_dict(), file)
        file.seek(0)
        other = nvfp4.Linear(K, N)
        other.load_state_dict(torch.load(file, weights_only=True))
    else:
        safetensors = pytest.importorskip("safetensors.torch")
        safetensors.save_model(layer, str(tmp_path / "layer.safetensors"))
        other = nvfp4.Linear(K, N)
        other.load_state_dict(safetensors.load_file(tmp_path / "layer.safetensors"))
    assert other.weight.data_ptr() != layer.weight.data_ptr()
    assert state_is(other, layer.state_dict()) and same(other(x), layer(x))
    assert repr(other) == repr(layer)


def test_packed_round_trip(generator: torch.Generator) -> None:
    for activations in MODES:
        layer = exact_layer(generator, activations, vector=True)
        packed = layer.packed()
        assert packed.weight_scale.shape == (N, K // 16) and packed.nbytes == N * K // 2 + N * K // 16 + N * 8 + (
            4 if activations else 0
        )
        other = nvfp4.Linear.from_packed(packed)
        assert state_is(other, layer.state_dict()) and other.activations == activations
        assert other.weight.data_ptr() == layer.weight.data_ptr()
    store = torch.empty(1 + packed.weight.numel(), dtype=torch.uint8)
    unaligned = store[1:].view_as(packed.weight).copy_(packed.weight)
    other = nvfp4.Linear.from_packed(PackedLinear(unaligned, *list(vars(packed).values())[1:]))
    assert state_is(other, layer.state_dict()) and other(torch.ones(1, K)).shape == (1, N)


def test_it_is_a_torch_linear_that_has_buffers_alone() -> None:
    """What libraries look for: PEFT, and code that counts or initializes parameters."""
    layer = nvfp4.Linear(64, 3)
    assert isinstance(layer, torch.nn.Linear) and [*layer.parameters()] == []
    with pytest.raises(nvfp4.Error, match="^layer: has no parameters to reset"):
        layer.reset_parameters()


def test_repr() -> None:
    assert repr(nvfp4.Linear(64, 3, bias=False)) == (
        "nvfp4.Linear(in_features=64, out_features=3, bias=False, W4A4, input_global_scale=dynamic)"
    )
    fused = nvfp4.Linear.fuse([nvfp4.Linear.from_linear(torch.nn.Linear(64, 3), None) for _ in range(2)])
    assert repr(fused).endswith("out_features=6, bias=True, W4A16, weight_global_scale=[N])")


def test_repr_of_packed_tensors_is_short() -> None:
    assert repr(packed(bias=torch.zeros(4), activations=None)) == (
        "PackedLinear(weight=uint8 [4, 16], weight_scale=float8_e4m3fn [4, 2], weight_global_scale=float32 [], "
        "input_global_scale=None, bias=float32 [4], activations=None, pre_quant_scale=None, divisors=None)"
    )


# ---- dense again ----


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_to_linear_is_exact_where_the_dtype_holds_the_weight(dtype: torch.dtype, generator: torch.Generator) -> None:
    """A global scale that is a power of two: each weight is value * scale, which has 6 significant bits."""
    w = torch.randn(N, K, generator=generator)
    data, scale = nvfp4.quantize(w, scale_layout="linear")
    bias = torch.randn(N, generator=generator)
    tensors = PackedLinear(data, scale, torch.tensor(0.25), bias=bias, activations=None)
    linear = nvfp4.Linear.from_packed(tensors).eval().to_linear(dtype)
    exact = nvfp4.dequantize(data, scale, scale_layout="linear").double() / 4
    assert type(linear) is torch.nn.Linear and not linear.training
    assert linear.weight.dtype == linear.bias.dtype == dtype and linear.weight.requires_grad
    assert torch.equal(linear.weight.double(), exact) and torch.equal(linear.bias, bias.to(dtype))
    assert linear.bias.data_ptr() != bias.data_ptr()


def test_dequantize_with_a_global_scale_for_each_row(generator: torch.Generator) -> None:
    layers = [nvfp4.Linear.from_linear(torch.nn.Linear(K, n, bias=False)) for n in (5, 130)]
    whole = nvfp4.Linear.fuse(layers).dequantize()
    assert torch.equal(whole, torch.cat([layer.dequantize() for layer in layers]))


def test_the_dtype_of_a_dense_copy_follows_the_layer() -> None:
    """That of the dense weight, the bias or the constructor's argument, and what `.to` makes of it."""
    half, bf16 = torch.float16, torch.bfloat16
    layer = nvfp4.Linear.from_linear(torch.nn.Linear(K, N, bias=False, dtype=bf16))
    assert layer.dtype == bf16 and layer.dequantize().dtype == bf16 and copy.deepcopy(layer).dtype == bf16
    assert layer.half().dtype == half and layer.to("cpu").dtype == half and layer.to_linear().weight.dtype == half
    assert nvfp4.Linear.fuse([layer]).dtype == half and pickle.loads(pickle.dumps(layer)).dtype == half
    assert nvfp4.Linear(K, N, dtype=bf16).dtype == bf16
    assert nvfp4.Linear.from_packed(packed(bias=torch.zeros(4, dtype=half))).dtype == half
    assert nvfp4.Linear.from_packed(packed(), dtype=half).dtype == half
    assert nvfp4.Linear.from_packed(packed()).dtype == torch.get_default_dtype()
    assert layer.to_linear(torch.float32).weight.dtype == torch.float32
    with pytest.raises(nvfp4.Error, match="^dtype: is float64; must be float16, bfloat16 or float32$"):
        layer.to_linear(torch.float64)


# ---- errors ----


def test_errors_name_argument_rule_and_value() -> None:
    linear = torch.nn.Linear
    nan, layer = linear(32, 2), nvfp4.Linear(32, 4)
    with torch.no_grad():
        nan.weight[1, 3] = math.nan
    fp8, one, u8 = torch.float8_e4m3fn, torch.tensor(1.0), torch.uint8
    calls = {
        "in_features: is 40; must be a positive multiple of 16": lambda: nvfp4.Linear(40, 2),
        "in_features: is 0; must be a positive multiple of 16": lambda: nvfp4.Linear(0, 2),
        "in_features: is of type str; must be an integer": lambda: nvfp4.Linear("64", 2),
        "out_features: is of type float; must be an integer": lambda: nvfp4.Linear(64, 2.0),
        "linear: is of type NoneType; must be a torch.nn.Linear": lambda: nvfp4.Linear.from_linear(None),
        "linear: is of type Conv2d; must be a torch.nn.Linear": lambda: nvfp4.Linear.from_linear(
            torch.nn.Conv2d(16, 16, 1)
        ),
        "x: is of type ndarray; must be a torch.Tensor": lambda: layer(numpy.zeros((2, 32), numpy.float32)),
        "out_features: is -1; must be 0 or more": lambda: nvfp4.Linear(16, -1),
        "activations: is 'fp8'; must be 'nvfp4' or None": lambda: nvfp4.Linear(16, 2, activations="fp8"),
        "dtype: is float64; must be float16, bfloat16 or float32": lambda: nvfp4.Linear(16, 2, dtype=torch.float64),
        "weight: has a value that is NaN or infinite; must be finite": lambda: nvfp4.Linear.from_linear(nan),
        "weight: dtype is float64; must be float16, bfloat16 or float32": lambda: nvfp4.Linear.from_linear(
            linear(16, 2).double()
        ),
        "in_features: is 24; must be a positive multiple of 16": lambda: nvfp4.Linear.from_linear(linear(24, 2)),
        "input_global_scale: is 0; must be positive and finite": lambda: nvfp4.Linear.from_linear(
            linear(16, 2), "nvfp4", 0.0
        ),
        "input_global_scale: has 2 elements; must have 1": lambda: nvfp4.Linear.from_linear(
            linear(16, 2), "nvfp4", torch.ones(2)
        ),
        "input_global_scale: is given but activations is None; must be None then": lambda: nvfp4.Linear.from_linear(
            linear(16, 2), None, 1.0
        ),
        "x: shape is [2, 16]; the last dimension must be in_features = 32": lambda: layer(torch.zeros(2, 16)),
        "x: shape is []; the last dimension must be in_features = 32": lambda: layer(one),
        "x: dtype is float64; must be float16, bfloat16 or float32": lambda: layer(torch.zeros(2, 32).double()),
        "layers: has none; must have 1 or more": lambda: nvfp4.Linear.fuse([]),
        "layers: in_features of layer 1 is 16 but of layer 0 32": lambda: nvfp4.Linear.fuse(
            [layer, nvfp4.Linear(16, 4)]
        ),
        "layers: activations of layer 1 is None but of layer 0 nvfp4": lambda: nvfp4.Linear.fuse(
            [layer, nvfp4.Linear(32, 4, activations=None)]
        ),
        "block_scale: is 'amax4'; must be 'amax6' or 'four_over_six'": lambda: nvfp4.Linear(16, 2, block_scale="amax4"),
        "layers: block_scale of layer 1 is four_over_six but of layer 0 amax6": lambda: nvfp4.Linear.fuse(
            [layer, nvfp4.Linear(32, 4, block_scale="four_over_six")]
        ),
        "layers: input_global_scale of layer 1 is 2.0 but of layer 0 None": lambda: nvfp4.Linear.fuse(
            [layer, nvfp4.Linear.from_linear(linear(32, 4), "nvfp4", 2.0)]
        ),
        "layers: bias of layer 1 is None but of layer 0 float32": lambda: nvfp4.Linear.fuse(
            [layer, nvfp4.Linear(32, 4, bias=False)]
        ),
        "weight: is of type list; must be a torch.Tensor": lambda: packed(weight=[1]),
        "weight: dtype is int8; must be uint8": lambda: packed(weight=torch.zeros(4, 16, dtype=torch.int8)),
        "weight: has 3 dimensions; must have 2 ([N, K/2])": lambda: packed(weight=torch.zeros(1, 4, 16, dtype=u8)),
        "weight: K is 40; must be a positive multiple of 16": lambda: packed(weight=torch.zeros(4, 20, dtype=u8)),
        "weight_scale: shape is [4, 3]; must be [4, 2]": lambda: packed(weight_scale=torch.zeros(4, 3).to(fp8)),
        "weight_scale: dtype is bfloat16; must be float8_e4m3fn": lambda: packed(
            weight_scale=torch.zeros(4, 2).bfloat16()
        ),
        "weight_global_scale: shape is [3]; must be [] or [4]": lambda: packed(weight_global_scale=torch.ones(3)),
        "weight_global_scale: dtype is bfloat16; must be float32": lambda: packed(weight_global_scale=one.bfloat16()),
        "weight_global_scale: is -1; must be positive and finite": lambda: packed(
            weight_global_scale=torch.tensor([1.0, 1, -1, 1])
        ),
        "input_global_scale: is inf; must be positive and finite": lambda: packed(
            input_global_scale=torch.tensor(math.inf)
        ),
        "input_global_scale: shape is [1]; must be []": lambda: packed(input_global_scale=one[None]),
        "input_global_scale: is given but activations is None; must be None then ": lambda: packed(
            input_global_scale=one, activations=None
        ),
        "bias: shape is [3]; must be [4]": lambda: packed(bias=torch.zeros(3)),
        "activations: is 'int8'; must be 'nvfp4' or None": lambda: packed(activations="int8"),
    }
    for message, call in calls.items():
        with pytest.raises(nvfp4.Error) as error:
            call()
        assert str(error.value) == message.strip()


# ---- the package ----


def test_torch_is_imported_at_the_first_use() -> None:
    code = (
        "import sys, nvfp4; from nvfp4 import *; assert 'torch' not in sys.modules and 'Linear' in dir(nvfp4); "
        "print(nvfp4.Linear(16, 2)); assert nvfp4.Linear is nvfp4.Linear; from nvfp4 import Linear"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("nvfp4.Linear("), done.stderr


def test_without_torch_the_error_names_what_needs_it(tmp_path: Path) -> None:
    (tmp_path / "nvfp4").symlink_to(Path(nvfp4.__file__).parent)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import nvfp4; nvfp4.Linear"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stderr.splitlines()[-1] == ("ModuleNotFoundError: nvfp4.Linear needs torch, which is not installed")
    with pytest.raises(AttributeError, match="^module 'nvfp4' has no attribute 'linears'$"):
        nvfp4.linears  # noqa: B018


@pytest.mark.parametrize(
    ("module", "needs"), [("transformers", "transformers"), ("peft", "peft"), ("parallel", "torch")]
)
def test_modules_for_hosts_are_imported_at_their_first_use(module: str, needs: str) -> None:
    """And one whose host is missing says so. dir() leaves them out: help() imports what it lists."""
    code = (
        "import sys, nvfp4\n"
        f"assert not {{'torch', 'transformers', 'peft', 'nvfp4.{module}'}} & {{*sys.modules}}\n"
        f"assert {module!r} not in dir(nvfp4)\n"
        f"nvfp4.{module}\n"
        f"assert nvfp4.{module} is sys.modules['nvfp4.{module}']\n"
    )
    if importlib.util.find_spec(needs) is not None:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    hidden = f"import sys, nvfp4; sys.modules[{needs!r}] = None; nvfp4.{module}"
    done = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].startswith(f"ModuleNotFoundError: nvfp4.{module} needs {needs}"), done.stderr


# ---- compiled, traced and captured; autocast, forward mode; meta and fake tensors ----


@pytest.mark.parametrize("compiler", ["aot_eager", "inductor"])
@pytest.mark.parametrize(("activations", "static"), [("nvfp4", False), ("nvfp4", True), (None, False)])
def test_compile(activations: str | None, static: bool, compiler: str, device: str, generator: torch.Generator) -> None:
    if compiler == "inductor" and shutil.which("g++") is None:
        pytest.skip("inductor needs g++")
    torch._dynamo.reset()
    layer = nvfp4.Linear.from_linear(torch.nn.Linear(K, N), activations, 0.01 if static else None).to(device)
    compiled = torch.compile(layer, fullgraph=True, backend=compiler)
    modes = [torch.no_grad, torch.inference_mode]  # a graph each, which takes inductor seconds
    for rows in (5, 9, 130):
        x = torch.randn(2, rows, K, generator=generator).to(device, torch.bfloat16)
        for mode in modes[: None if compiler == "aot_eager" or FULL else 1]:
            with mode():
                assert same(compiled(x), layer(x))
    if activations is None:
        gradients = []
        for run in (compiled, layer):
            x = torch.ones(3, K, dtype=torch.bfloat16, device=device, requires_grad=True)
            run(x).sum().backward()
            gradients.append(x.grad)
        assert same(*gradients)


@pytest.mark.parametrize(("activations", "static"), [("nvfp4", False), ("nvfp4", True), (None, False)])
def test_cuda_graph(activations: str | None, static: bool, generator: torch.Generator) -> None:
    if not gpu():
        pytest.skip(NO_GPU)
    layer = nvfp4.Linear.from_linear(torch.nn.Linear(K, N), activations, 0.01 if static else None).cuda()
    x = torch.zeros(7, K, dtype=torch.bfloat16, device="cuda")
    with torch.no_grad():
        layer(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = layer(x)
        for _ in range(3):
            x.copy_(torch.randn(7, K, generator=generator))
            graph.replay()
            assert same(y, layer(x))


def within_a_contraction(traced: torch.Tensor, eager: torch.Tensor, bias: torch.Tensor) -> bool:
    """Whether the two differ by no more than s * alpha + bias with one rounding and with two. On a GPU torch.jit fuses
    this multiplication and this addition, which W4A16 leaves to torch for fp32 inputs, into a kernel with an fma. With
    p = s * alpha the results are (p (1 + d1) + bias) (1 + d2) and (p + bias) (1 + d3), where no d exceeds U, so they
    differ by U |p| + 2 U |p + bias| at most, but for terms of U^2. |p| <= |p + bias| + |bias|."""
    bound = U * (3 * eager.double().abs() + bias.double().abs()) * (1 + 8 * U)
    return traced.dtype == eager.dtype and bool(((traced.double() - eager.double()).abs() <= bound).all())


def test_the_bound_of_a_contraction(generator: torch.Generator) -> None:
    """It holds for an fma, also where the sum cancels, and is no more than some units in the last place."""
    sums, bias = torch.randn(2, 100_000, generator=generator)
    alpha = torch.rand((), generator=generator) + 0.5
    bias[::3] = -(sums * alpha)[::3]
    eager = sums * alpha + bias
    fused = (sums.double() * alpha.double() + bias.double()).float()
    assert not torch.equal(eager, fused) and within_a_contraction(fused, eager, bias)
    assert not within_a_contraction(eager * (1 + 2.0**-20), eager, bias)


def test_jit_trace_runs_the_operators(device: str, generator: torch.Generator) -> None:
    """Otherwise a trace has no record of what wrote the result."""
    for activations, static in (("nvfp4", True), ("nvfp4", False), (None, False)):
        layer = exact_layer(generator, activations).to(device)
        if not static:
            layer.input_global_scale = None
            layer.update_alpha()
        for dtype in DTYPES:
            x = torch.randn(3, K, generator=generator).to(device, dtype)
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # deprecated; sizes become constants
                traced = torch.jit.trace(layer, x)
                for rows in (3, 5):
                    y = torch.randn(rows, K, generator=generator).to(device, dtype)
                    if device == "cuda" and activations is None and dtype == torch.float32:
                        assert within_a_contraction(traced(y), layer(y), layer.bias)
                    else:
                        assert same(traced(y), layer(y))
                quantized = torch.jit.trace(lambda x: nvfp4.quantize(x)[0], x)
                assert same(quantized(-x), nvfp4.quantize(-x)[0])


def test_forward_mode_is_rejected_where_it_would_be_0(generator: torch.Generator) -> None:
    x = torch.randn(3, K, generator=generator)
    for activations, dtype in (("nvfp4", torch.float32), ("nvfp4", torch.bfloat16), (None, torch.float16)):
        layer, given = exact_layer(generator, activations), x.to(dtype)
        with pytest.raises(nvfp4.Error, match=r"^x: has a tangent; nvfp4 has no forward-mode derivatives"):
            torch.func.jvp(layer, (given,), (given,))
        with torch.autograd.forward_ad.dual_level():
            assert same(layer(given), layer(given.clone()))
    layer = exact_layer(generator, None)
    layer.bias.zero_()
    y, tangent = torch.func.jvp(layer, (x,), (x,))
    assert torch.allclose(y, tangent)  # without a bias it is linear


@pytest.mark.parametrize("activations", MODES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_casts_the_input(
    dtype: torch.dtype, activations: str | None, device: str, generator: torch.Generator
) -> None:
    layer = nvfp4.Linear.from_linear(torch.nn.Linear(K, N), activations).to(device)
    x = torch.randn(5, K, generator=generator).to(device)
    for given in (x, x.bfloat16(), x.half()):
        with torch.no_grad():
            want = layer(given.to(dtype))
            with torch.autocast(device, dtype):
                assert same(layer(given), want)
                assert layer(given).dtype == torch.nn.Linear(K, N, device=device)(given).dtype
    if activations is None:
        with torch.autocast(device, dtype):
            x.requires_grad_()
            layer(x).sum().backward()
        assert x.grad is not None and x.grad.dtype == torch.float32


@pytest.mark.parametrize("activations", MODES)
def test_meta_tensors(activations: str | None) -> None:
    layer = nvfp4.Linear(K, N, activations=activations, device="meta")
    assert {t.device.type for t in layer.buffers()} == {"meta"}
    y = layer(torch.empty(2, 3, K, dtype=torch.float16, device="meta"))
    assert (y.shape, y.dtype, y.device.type) == ((2, 3, N), torch.float16, "meta")
    linear = torch.nn.Linear(K, N, device="meta")
    assert nvfp4.Linear.from_linear(linear, activations).weight.device.type == "meta"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activations", MODES)
def test_fake_tensors_of_a_gpu(activations: str | None, dtype: torch.dtype) -> None:
    """The GPU that they claim to be on need not exist; weight-only products take another path there."""
    with FakeTensorMode():
        layer = nvfp4.Linear(K, N, activations=activations, device="cuda:0")
        with torch.no_grad():
            y = layer(torch.empty(2, 3, K, dtype=dtype, device="cuda:0"))
    assert (y.shape, y.dtype, str(y.device)) == ((2, 3, N), dtype, "cuda:0")
