"""nvfp4.hosts.vllm.fuse: vLLM's layers, compiled by torch with vLLM's passes on a CPU, before and after the pass."""

from __future__ import annotations

import contextlib
import copy
import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.auto_functionalize import auto_functionalized
from vllm_host import SIZES

import nvfp4
from nvfp4 import _C
from nvfp4.layers.quantized_input import rms_norm

pytest.importorskip("vllm")  # vllm_host has set its environment
import vllm.ir  # noqa: E402
from vllm.compilation.passes.inductor_pass import pass_context  # noqa: E402
from vllm.compilation.passes.ir.inplace_functionalization import VllmIRInplaceFunctionalizationPass  # noqa: E402
from vllm.compilation.passes.pass_manager import PostGradPassManager  # noqa: E402
from vllm.config import CompilationConfig, VllmConfig, set_current_vllm_config  # noqa: E402
from vllm.config.utils import Range  # noqa: E402
from vllm.model_executor.layers.activation import SiluAndMul  # noqa: E402
from vllm.model_executor.layers.layernorm import RMSNorm  # noqa: E402
from vllm.platforms import current_platform  # noqa: E402

from nvfp4.hosts.vllm import fuse  # noqa: E402

HIDDEN, INNER = SIZES["hidden_size"], SIZES["intermediate_size"]


def linear(k: int, n: int, scale: float | None = 0.01, block_scale: str = "amax6", bias: bool = False) -> nvfp4.Linear:
    layer = torch.nn.Linear(k, n, bias)
    return nvfp4.Linear.from_linear(layer, input_global_scale=scale, block_scale=block_scale)


class Layers(torch.nn.Module):
    """A decoder layer without its attention. `change` makes it another."""

    def __init__(self, change: str = "") -> None:
        super().__init__()
        self.change = change
        scale = None if change == "dynamic scales" else 0.01
        block_scale = "four_over_six" if change == "four over six" else "amax6"
        self.norms = torch.nn.ModuleList([RMSNorm(HIDDEN, eps=1e-5), RMSNorm(HIDDEN, eps=1e-6)])
        for norm in self.norms:
            torch.nn.init.normal_(norm.weight, 1.0, 0.2)
        self.qkv = linear(HIDDEN, HIDDEN, scale, block_scale, bias=True)
        self.gate_up, self.down = (linear(k, n, scale, block_scale) for k, n in ((HIDDEN, 2 * INNER), (INNER, HIDDEN)))
        self.act = SiluAndMul()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        residual = x + 1
        y = self.norms[0](residual)
        z = self.qkv(y)
        if self.change == "second readers":
            z = z + y
        y, residual = self.norms[1](z, residual)
        z = self.gate_up(y)
        if self.change == "second readers":
            z = z + y.sum()
        if self.change == "halves in the other order":
            z = z.roll(INNER, -1)
            h = torch.nn.functional.silu(z[:, INNER:]) * z[:, :INNER]
        else:
            h = self.act(z)
        y = self.down(h)
        return (y + h.sum() if self.change == "second readers" else y), residual

    def steps(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """With the roundings of vLLM's kernels."""
        residual = x + 1
        z = self.qkv(rms_norm(residual, self.norms[0].weight, 1e-5))
        residual = z + residual
        gate, up = self.gate_up(rms_norm(residual, self.norms[1].weight, 1e-6)).chunk(2, -1)
        return self.down(torch.nn.functional.silu(gate) * up), residual


@contextlib.contextmanager
def compiling(seen: list[Counter[Any]], fused: bool) -> Iterator[Callable[[torch.nn.Module], Any]]:
    """torch.compile with vLLM's passes, and with ours; `seen` gets the operators of each graph."""
    config = VllmConfig(compilation_config=CompilationConfig(custom_ops=["none"]))
    with set_current_vllm_config(config), torch.no_grad(), vllm.ir.enable_torch_wrap(True), pass_context(Range(1, 99)):
        manager = PostGradPassManager()
        manager.configure(config)
        if fused:
            manager.add(fuse.QuantizerFusion())

        def count(graph: torch.fx.Graph) -> None:
            """In place of a pass that names operators which vLLM does not have on a CPU."""
            seen.append(Counter(n.args[0] if n.target is auto_functionalized else n.target for n in graph.nodes))
            for n in graph.nodes:
                if n.target is OPS.gemm.default:
                    seen[-1]["constant_b"] += bool(n.args[11] & _C.CONSTANT_B)
                if n.target is auto_functionalized:
                    seen[-1]["sums in place of a product"] += n.kwargs["residual"].target in fuse.PRODUCTS

        manager.fix_functionalization = count
        options = {
            "post_grad_custom_post_pass": manager,
            "pre_grad_custom_pass": VllmIRInplaceFunctionalizationPass(config),
            "enable_auto_functionalized_v2": False,
            "fx_graph_cache": False,
        }
        torch._dynamo.reset()
        yield lambda module: torch.compile(module, fullgraph=True, dynamic=True, options=options)


def run(dtype: torch.dtype, change: str = "", fused: bool = True) -> tuple[Any, Layers, Tensor, Counter[Any]]:
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    try:
        seen: list[Counter[Any]] = []
        with compiling(seen, fused) as compiled:
            module = Layers(change)
            x = torch.randn(5, HIDDEN)
            results = compiled(module)(x)
        return results, module, x, seen[-1]
    finally:
        torch.set_default_dtype(torch.float32)


OPS = torch.ops.nvfp4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_decoder_layer(dtype: torch.dtype) -> None:
    """Two norms, one with a residual, and an activation: no quantizer is left, and the bits are the steps'."""
    results, module, x, found = run(dtype)
    assert found[OPS.rms_norm_quantize.default] == 2 and found[OPS.gated_quantize.default] == 1
    assert found[OPS.gemm.default] == found["constant_b"] == 3 and not found[OPS.quantize_gemm.default]
    assert found["sums in place of a product"] == 1  # of a residual that is an input of the graph Inductor makes a copy
    with torch.no_grad():
        expected = module.steps(x)
    assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))
    plain, _, _, found = run(dtype, fused=False)
    assert found[OPS.quantize_gemm.default] == 3 and not found[OPS.gemm.default]
    for a, b in zip(results, plain, strict=True):  # vLLM's own form does not round the sum before the norm
        torch.testing.assert_close(a, b, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("change", ["dynamic scales", "four over six", "second readers", "halves in the other order"])
def test_graphs_that_are_left_alone(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(fuse.logger, "warning_once", lambda text, *arguments: said.append(text % arguments))
    results, _, _, found = run(torch.bfloat16, change)
    plain, _, _, before = run(torch.bfloat16, change, fused=False)
    if change == "halves in the other order":  # the norms are still fused
        assert found[OPS.quantize_gemm.default] == 1 and not found[OPS.gated_quantize.default] and not said
        return
    assert found == before and all(torch.equal(a, b) for a, b in zip(results, plain, strict=True))
    assert len(said) == 1 and said[0].startswith("NVFP4_VLLM_FUSE: a graph with 3 W4A4 layers is unchanged")


def test_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass is in a configuration that vLLM compiles by, and changes the key of its cache; no other has it."""
    said: list[str] = []
    monkeypatch.setattr(fuse.logger, "warning_once", lambda text, *arguments: said.append(text % arguments))
    key = current_platform.pass_key
    config = SimpleNamespace(compilation_config=CompilationConfig(mode=3, backend="inductor"))
    before = config.compilation_config.compute_hash()
    fuse.add_pass(config)  # type: ignore[arg-type]
    made = config.compilation_config.inductor_compile_config[key]
    assert isinstance(made, fuse.QuantizerFusion) and not said
    assert config.compilation_config.compute_hash() != before
    for other in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert other.uuid() == made.uuid()
    fuse.add_pass(config)  # type: ignore[arg-type]
    assert said.pop() == f"NVFP4_VLLM_FUSE: nothing is fused, as the configuration has another {key}"
    for mode, backend in ((0, "inductor"), (3, "eager")):
        config = SimpleNamespace(compilation_config=CompilationConfig(mode=mode, backend=backend))
        fuse.add_pass(config)  # type: ignore[arg-type]
        assert key not in config.compilation_config.inductor_compile_config
        assert said.pop().startswith("NVFP4_VLLM_FUSE: nothing is fused, as vLLM does not compile")


def test_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    platform = type(current_platform)
    monkeypatch.setattr(platform, "check_and_update_config", classmethod(lambda cls, config: calls.append(config)))
    calls: list[Any] = []
    monkeypatch.setattr(fuse, "add_pass", calls.append)
    monkeypatch.setenv(fuse.SWITCH, "yes")
    with pytest.raises(nvfp4.Error, match="^NVFP4_VLLM_FUSE: is 'yes'; must be 0 or 1$"):
        fuse.register()
    monkeypatch.setenv(fuse.SWITCH, "1")
    fuse.register()
    fuse.register()
    current_platform.check_and_update_config("config")
    assert calls == ["config", "config"]  # vLLM's own, then ours
