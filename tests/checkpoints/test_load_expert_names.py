"""Experts of checkpoints by the names and layouts of their tensors, and damaged ones."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch", reason="comes with transformers")
from moe_models import FORMATS, HIDDEN, INNER, content, other_tensors  # noqa: E402

import nvfp4  # noqa: E402
from nvfp4.checkpoints import modelopt  # noqa: E402
from nvfp4.layers.experts.module import Experts  # noqa: E402
from nvfp4.layers.packed import PackedLinear  # noqa: E402


class Small(nn.Module):
    def __init__(self, **more: Any) -> None:
        super().__init__()
        self.block = nn.Module()
        self.block.experts = Experts(3, HIDDEN, INNER, **more)
        self.norm = nn.LayerNorm(8)


def packed(rows: int, columns: int, generator: torch.Generator, given: bool) -> PackedLinear:
    linear = nn.Linear(columns, rows)
    linear.weight = nn.Parameter(torch.randn(rows, columns, generator=generator))
    linear.bias = nn.Parameter(torch.randn(rows, generator=generator))
    own = nvfp4.Linear.from_linear(linear, None).packed()
    scale = own.weight_global_scale.reciprocal().reciprocal()
    input_scale = torch.rand((), generator=generator).reciprocal().reciprocal() if given else None
    return PackedLinear(own.weight, own.weight_scale, scale, input_scale, own.bias, "nvfp4" if given else None)


def experts_of(generator: torch.Generator, gated: bool = True, given: bool = False) -> list[dict[str, PackedLinear]]:
    first = ("gate", "up") if gated else ("up",)
    return [
        {role: packed(INNER, HIDDEN, generator, given) for role in first}
        | {"down": packed(HIDDEN, INNER, generator, given)}
        for _ in range(3)
    ]


def reference(experts: list[dict[str, PackedLinear]], activation: str, unreached: bool) -> Experts:
    """Filled without the code under test. unreached: down of expert 1 has no input scale."""
    gated, given = "gate" in experts[0], experts[0]["down"].input_global_scale is not None
    own = Experts(3, HIDDEN, INNER, activation, gated, bias=True, activations="nvfp4" if given else None)
    for stack, roles in ((own.gate_up, ("gate", "up") if gated else ("up",)), (own.down, ("down",))):
        for e, layers in enumerate(experts):
            for p, role in enumerate(roles):
                one = layers[role]
                stack.weight[e, p] = one.weight
                stack.weight_scale[e, p] = nvfp4.swizzle(one.weight_scale)
                stack.weight_global_scale[e, p], stack.bias[e, p] = one.weight_global_scale, one.bias
        if given:
            scales = [[layers[role].input_global_scale for role in roles] for layers in experts]
            stack.input_global_scale = torch.tensor(scales)
    if unreached:
        own.down.input_global_scale[1] = torch.nan
    return own


def run(experts: Experts, generator: torch.Generator) -> Tensor:
    hidden = torch.randn(7, HIDDEN, generator=generator.manual_seed(1))
    index = torch.randint(0, 3, (7, 2), generator=generator)
    return experts(hidden, index, torch.rand(7, 2, generator=generator))


LOCALS = {
    "{}.gate_proj": ("{}.gate_proj", "{}.up_proj", "{}.down_proj"),
    "{}.w1": ("{}.w1", "{}.w3", "{}.w2"),
    "{}.fc1": ("{}.fc1", "{}.fc3", "{}.fc2"),
    "gate_proj.{}": ("gate_proj.{}", "up_proj.{}", "down_proj.{}"),
    "{}.up_proj": (None, "{}.up_proj", "{}.down_proj"),
    "{}.w1 without a gate": (None, "{}.w1", "{}.w2"),
}


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("style", LOCALS)
def test_names_of_layers(style: str, given: bool, format_name: str, generator: torch.Generator, tmp_path: Path) -> None:
    gated, activation = LOCALS[style][0] is not None, "silu" if LOCALS[style][0] else "relu2"
    experts, format = experts_of(generator, gated, given), FORMATS[format_name]
    tensors = other_tensors()
    for e, layers in enumerate(experts):
        for role, local in zip(("gate", "up", "down"), LOCALS[style]):
            if local is not None:
                for key, t in format.write(layers[role]).items():
                    tensors[f"block.experts.{local.format(e)}.{key}"] = t
    if given:  # an expert that no sample reached
        del tensors[f"block.experts.{LOCALS[style][2].format(1)}.{format.INPUT_SCALE}"]
    check_small(tensors, experts, activation, gated, format_name, generator, tmp_path, unreached=given)


def check_small(
    tensors: dict[str, Tensor],
    experts: list[dict[str, PackedLinear]],
    activation: str,
    gated: bool,
    format_name: str,
    generator: torch.Generator,
    tmp_path: Path,
    unreached: bool = False,
) -> None:
    """The module gives the bits of one filled by hand, and is saved as it was read."""
    model = Small(activation=activation, gated=gated, bias=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        checkpoint = nvfp4.load(tensors, model)
    assert list(checkpoint.mixtures) == ["block.experts"] and not checkpoint.layers and not checkpoint.containers
    assert checkpoint.mixtures["block.experts"] is model.block.experts
    assert "1 modules of experts" in repr(checkpoint) and checkpoint.packed_bytes == model.block.experts.nbytes
    wanted = run(reference(experts, activation, unreached), generator)
    assert torch.equal(run(model.block.experts, generator), wanted)
    nvfp4.save(model, tmp_path / "saved", format_name)
    safetensors.save_file({key: t.contiguous().clone() for key, t in tensors.items()}, tmp_path / "given.safetensors")
    assert content(tmp_path / "saved") == content(tmp_path)
    other = "modelopt" if format_name != "modelopt" else "compressed-tensors"
    nvfp4.save(model, tmp_path / "other", other)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nvfp4.load(tmp_path / "other", model)
    assert torch.equal(run(model.block.experts, generator), wanted)


@pytest.mark.parametrize("joiner", [".", "_"])
@pytest.mark.parametrize("scalars", ["one", "each", "pairs"])
@pytest.mark.parametrize("upside_down", [False, True])
@pytest.mark.parametrize("format_name", FORMATS)
def test_names_of_stacks(
    format_name: str, upside_down: bool, scalars: str, joiner: str, generator: torch.Generator, tmp_path: Path
) -> None:
    """Stacks [E, N, K/2] and [E, K/2, N] with one global scale, one for each expert, or one for each gate and up."""
    experts, format = experts_of(generator, given=True), FORMATS[format_name]
    weight_key, scale_key, global_key = format.REQUIRED
    if scalars != "pairs":  # gate and up, or all experts, share their scales
        for e, layers in enumerate(experts):
            for role in ("gate", "up", "down"):
                like = experts[0 if scalars == "one" else e]["down" if role == "down" else "gate"]
                one = layers[role]
                layers[role] = PackedLinear(
                    one.weight, one.weight_scale, like.weight_global_scale, like.input_global_scale, one.bias
                )
    tensors = other_tensors()
    for name, roles in (("gate_up_proj", ("gate", "up")), ("down_proj", ("down",))):
        written = [[format.write(layers[role]) for role in roles] for layers in experts]
        for key in written[0][0]:
            t = torch.stack(
                [
                    torch.stack(
                        [
                            one[key].view(torch.uint8) if one[key].dtype == torch.float8_e4m3fn else one[key]
                            for one in row
                        ]
                    )
                    for row in written
                ]
            )
            if key in (weight_key, scale_key, "bias"):
                t = t.flatten(1, 2)
                t = t.transpose(1, 2).contiguous() if upside_down and t.ndim == 3 else t
                t = t.view(torch.float8_e4m3fn) if key == scale_key else t
            else:
                t = t.reshape(3, -1)
                t = t[0, 0] if scalars == "one" else t[:, 0] if scalars == "each" else t
            end = "" if key == "weight" and joiner == "_" else f"{joiner}{key}"
            tensors[f"block.experts.{name}{end}"] = t.contiguous().clone()
    check_small(tensors, experts, "silu", True, format_name, generator, tmp_path)


# ---- damage ----


def small_tensors(generator: torch.Generator) -> dict[str, Tensor]:
    tensors = other_tensors()
    for e, layers in enumerate(experts_of(generator)):
        for role, one in layers.items():
            tensors |= {f"block.experts.{e}.{role}_proj.{key}": t for key, t in modelopt.write(one).items()}
    return tensors


def nan_scale(t: Tensor) -> Tensor:
    t = t.clone()
    t.view(torch.uint8)[7, 1] = 0x7F
    return t


DAMAGED: dict[str, tuple[str, Callable[[Tensor], Tensor] | None]] = {
    r"block.experts.1.up_proj.weight_scale_2: is missing; a layer of modelopt has": ("1.up_proj.weight_scale_2", None),
    r"block.experts.1.up_proj.weight_scale_2: is 0; must be positive and finite": (
        "1.up_proj.weight_scale_2",
        torch.zeros_like,
    ),
    r"block.experts.1.up_proj.weight_scale_2: is float32 [2]; must have 1 element": (
        "1.up_proj.weight_scale_2",
        lambda t: t.repeat(2),
    ),
    r"block.experts.2.down_proj.weight_scale: is nan at row 7, column 1 (1 of 192 are such); must be finite": (
        "2.down_proj.weight_scale",
        nan_scale,
    ),
    r"block.experts.0.gate_proj.weight: shape is [48, 16]; must be [48, 32]": (
        "0.gate_proj.weight",
        lambda t: t[:, :16].contiguous(),
    ),
    r"block.experts.0.gate_proj.weight_scale: shape is [32, 4]; must be [48, 4]": (
        "0.gate_proj.weight_scale",
        lambda t: t[:32].contiguous(),
    ),
    r"block.experts.0.down_proj.bias: is in the model but not in the checkpoint": ("0.down_proj.bias", None),
    r"block.experts.0.down_proj.bias: shape is [32]; must be [64]": ("0.down_proj.bias", lambda t: t[:32]),
    r"block.experts.2.up_proj: is missing; the model has 3 experts": ("2.up_proj.", None),
    r"block.experts: has no layers of up; must have gate, up, down": ("up_proj.", None),
    r"block.experts.0.up_proj.pre_quant_scale: is no tensor of an NVFP4 layer of modelopt": (
        "0.up_proj.pre_quant_scale",
        lambda t: torch.ones(HIDDEN),
    ),
    r"block.experts.3.up_proj: is there; the model has 3 experts": ("3.up_proj", lambda t: t),
    r"block.experts.0.gate_proj: has no place in the model's experts": ("gate_up_proj", lambda t: t),
}


@pytest.mark.parametrize("message", DAMAGED)
def test_damaged_experts(message: str, generator: torch.Generator) -> None:
    """The message names the tensor, and the model stays as it was."""
    tensors, (place, change) = small_tensors(generator), DAMAGED[message]
    names = [name for name in tensors if (place in name if place[-1] == "." else name.endswith(place))]
    if place.startswith(("3.", "gate_up")):
        more = {name: t for name, t in tensors.items() if "2.up_proj" in name}
        tensors |= {name.replace("2.up_proj", place): t for name, t in more.items()}
    elif not names and change is not None:
        tensors[f"block.experts.{place}"] = change(torch.ones(1))
    for name in names:
        if change is None:
            del tensors[name]
        else:
            tensors[name] = change(tensors[name])
    model = Small(bias=True)
    before, old = copy.deepcopy(model.state_dict()), model.block.experts
    with pytest.raises(nvfp4.Error) as raised:
        nvfp4.load(tensors, model)
    assert str(raised.value).startswith(message)
    assert model.block.experts is old
    assert all(torch.equal(t.float(), before[key].float()) for key, t in model.state_dict().items())


def stacked_tensors(generator: torch.Generator) -> dict[str, Tensor]:
    """gpt-oss's form: K before N."""
    tensors, experts = other_tensors(), experts_of(generator)
    for name, roles in (("gate_up_proj", ("gate", "up")), ("down_proj", ("down",))):
        rows = [[layers[role] for role in roles] for layers in experts]
        weight = torch.stack([torch.cat([one.weight for one in row]).T for row in rows])
        scale = torch.stack([torch.cat([one.weight_scale.view(torch.uint8) for one in row]).T for row in rows])
        tensors[f"block.experts.{name}"] = weight.contiguous()
        tensors[f"block.experts.{name}_weight_scale"] = scale.contiguous().view(torch.float8_e4m3fn)
        tensors[f"block.experts.{name}_weight_scale_2"] = torch.tensor(0.01)
        tensors[f"block.experts.{name}_bias"] = torch.stack([torch.cat([one.bias for one in row]) for row in rows])
    return tensors


MUTATIONS: list[Callable[[Tensor], Tensor]] = [
    lambda t: t[:0],
    lambda t: t[1:],
    lambda t: t[..., :1],
    lambda t: t.unsqueeze(0),
    lambda t: t.flatten(),
    lambda t: t.reshape(-1)[0],
    lambda t: t.transpose(0, -1),
    lambda t: t.float(),
    lambda t: t.view(torch.int8) if t.element_size() == 1 else t.half(),
    lambda t: torch.full_like(t.float(), torch.nan).to(t.dtype),
    lambda t: torch.zeros_like(t.float()).to(t.dtype),
    lambda t: torch.cat([t, t]) if t.ndim else torch.stack([t, t]),
]


@pytest.mark.parametrize("stacks", [False, True])
def test_mutated_tensors(stacks: bool, generator: torch.Generator) -> None:
    """Any change of a tensor is read, or an nvfp4.Error that leaves the model alone."""
    whole = (stacked_tensors if stacks else small_tensors)(generator)
    names, errors = [name for name in whole if "experts" in name], 0
    model = Small(bias=True)
    nvfp4.load(dict(whole), model)
    for _ in range(150):
        name = names[int(torch.randint(len(names), (), generator=generator))]
        change = MUTATIONS[int(torch.randint(len(MUTATIONS), (), generator=generator))]
        if whole[name].ndim == 0 and change in MUTATIONS[:3] + MUTATIONS[6:7]:
            continue
        old = model.block.experts
        try:
            nvfp4.load({**whole, name: change(whole[name])}, model)
        except nvfp4.Error as raised:
            assert "experts" in str(raised) and model.block.experts is old
            errors += 1
    assert errors > 50


def test_more_than_one_mode(generator: torch.Generator, tmp_path: Path) -> None:
    tensors = small_tensors(generator) | {"block.experts.0.up_proj.input_scale": torch.tensor(0.5)}
    safetensors.save_file({key: t.contiguous() for key, t in tensors.items()}, tmp_path / "model.safetensors")
    layers = {
        f"block.experts.{e}.{local}_proj": {"quant_algo": "W4A16_NVFP4" if e or local != "up" else "NVFP4"}
        for e in range(3)
        for local in ("gate", "up", "down")
    }
    config = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": config}))
    with pytest.raises(nvfp4.Error, match=r"^block.experts: has experts of W4A16 and W4A4; must have one mode$"):
        nvfp4.load(tmp_path, Small(bias=True))
    nvfp4.load(tmp_path, Small(bias=True), activations=None)
