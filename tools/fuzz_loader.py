"""Mutates checkpoints of five formats, and one of mixed precision. Reads each in a process of its own, with limits of
time and memory.

    python tools/fuzz_loader.py --files 10000 --seed 1

Of a folder that is mutated in one to three places (bytes, numbers of headers, nodes of JSON, kinds of files) nvfp4.load
without and with a model, inspect and convert may raise nvfp4.Error and nothing else. After an error the model is as it
was, and no output is left. A process that needs more than 8 s of processor time, 60 s, or 1 GB more than it begins with
has failed. Exit status: 0 none failed, 1 some did; --keep DIR keeps their folders.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

import nvfp4
from nvfp4.checkpoints import comfy_kitchen, compressed_tensors, gguf, inspect, modelopt, torchao
from nvfp4.checkpoints.convert import convert
from nvfp4.layers.packed import PackedLinear

CPU_SECONDS, SECONDS, BYTES = 8, 60, 10**9
FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
N, K = 32, 64
FOUR = {"num_bits": 4, "type": "float", "group_size": 16}
Files = dict[str, bytes]


# ---- sound checkpoints ----


def model() -> nn.Module:
    return nn.ModuleDict({"up": nn.Linear(K, N), "down": nn.Linear(N * 2, N, bias=False), "norm": nn.LayerNorm(N)})


def dumped(content: Any) -> bytes:
    return json.dumps(content).encode()


def sound() -> dict[str, Files]:
    """The files of each format's checkpoint."""
    torch.manual_seed(0)
    layers = {"up": nvfp4.Linear.from_linear(nn.Linear(K, N), input_global_scale=0.5).packed()}
    layers["down"] = nvfp4.Linear.from_linear(nn.Linear(N * 2, N, bias=False), input_global_scale=0.25).packed()
    others = {"norm.weight": torch.ones(N), "norm.bias": torch.zeros(N)}

    def tensors(write: Callable[..., dict[str, Tensor]]) -> dict[str, Tensor]:
        named = {f"{name}.{key}": t for name, layer in layers.items() for key, t in write(layer).items()}
        return {name: t.contiguous() for name, t in (named | others).items()}

    def whole(content: dict[str, Tensor], metadata: dict[str, str] | None = None, config: Any = None) -> Files:
        files = {FILE: save(content, metadata or {"format": "pt"}), "tokenizer.json": b"{}"}
        return files | ({} if config is None else {"config.json": dumped({"quantization_config": config})})

    group = {"targets": ["Linear", "re:.*up$"], "weights": FOUR, "input_activations": FOUR | {"dynamic": "local"}}
    groups = {"quant_method": "compressed-tensors", "ignore": ["re:lm_.*"], "config_groups": {"group_0": group}}
    found = {"compressed-tensors": whole(tensors(compressed_tensors.write), None, groups)}
    own = tensors(modelopt.write)
    found["modelopt"] = whole(own) | {INDEX: dumped({"weight_map": dict.fromkeys(own, FILE)})}
    found["modelopt"]["hf_quant_config.json"] = dumped(
        {"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_*"], "quantized_layers": {}}}
    )
    kind = {"_type": "QuantizeTensorToNVFP4Kwargs", "_data": {"use_dynamic_per_tensor_scale": False}}
    data = {"is_swizzled_scales": False, "block_size": 16, "act_quant_kwargs": kind}
    metadata = {f"{name}.weight": json.dumps({"_type": "NVFP4Tensor", "_data": data}) for name in layers}
    found["torchao"] = whole(tensors(torchao.write), metadata | {"tensor_names": json.dumps(list(metadata))})
    marked = tensors(comfy_kitchen.write)
    marked |= {f"{name}.comfy_quant": torch.tensor(list(b'{"format": "nvfp4"}'), dtype=torch.uint8) for name in layers}
    found["comfy-kitchen"] = whole(marked)
    found["ComfyUI's FP8"] = whole(*comfy_eight_bits(others))
    found["mixed precision"] = whole(mixed(layers) | others, None, MIXED)
    with contextlib.suppress(ModuleNotFoundError):
        import gguf as _  # noqa: F401

        found["GGUF"] = {"model.gguf": gguf_file(tensors(gguf.write))}
    return found


MIXED: dict[str, Any] = {
    "quant_method": "modelopt",
    "quant_algo": "MIXED_PRECISION",
    "quantized_layers": {
        "up": {"quant_algo": "FP8"},
        "down": {"quant_algo": "NVFP4_AWQ", "group_size": 16, "pre_quant_scale": True},
    },
    "kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False},
}


def mixed(layers: dict[str, PackedLinear]) -> dict[str, Tensor]:
    """An FP8 layer, an NVFP4 one with a pre_quant_scale, and a scale of a KV cache."""
    down = dataclasses.replace(layers["down"], pre_quant_scale=torch.rand(N * 2).bfloat16() + 0.5)
    up = {"weight": torch.randn(N, K).to(torch.float8_e4m3fn), "weight_scale": torch.tensor(0.01)}
    up |= {"input_scale": torch.tensor(0.02), "bias": torch.zeros(N), "k_scale": torch.tensor(0.5)}
    named = {"up": up, "down": modelopt.write(down)}
    return {f"{name}.{key}": t.contiguous() for name, own in named.items() for key, t in own.items()}


def comfy_eight_bits(others: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """An MXFP8 and an FP8 layer as files for ComfyUI have them, and their marks."""
    up = {"weight": torch.randn(N, K).to(torch.float8_e4m3fn), "bias": torch.zeros(N)}
    up["weight_scale"] = nvfp4.swizzle(torch.full((N, K // 32), 127, dtype=torch.uint8))
    down = {"weight": torch.randn(N, N * 2).to(torch.float8_e4m3fn), "weight_scale": torch.tensor(0.01)}
    named = {"up": up, "down": down | {"input_scale": torch.tensor(0.02)}}
    marks = {"up": {"format": "mxfp8", "full_precision_matrix_mult": True}}
    marks |= {"down": {"format": "float8_e4m3fn", "full_precision_matrix_mult": False}}
    tensors = {f"{name}.{key}": t.contiguous() for name, own in named.items() for key, t in own.items()}
    return tensors | others, {"_quantization_metadata": json.dumps({"layers": marks})}


def gguf_file(tensors: dict[str, Tensor]) -> bytes:
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    pairs = [text("general.architecture") + struct.pack("<I", 8) + text("llama")]
    pairs.append(text("tokens") + struct.pack("<IIQ", 9, 8, 3) + text("a") + text("b") + text("c"))
    infos, data = b"", b""
    for name, t in tensors.items():
        blocks = name.endswith(".blocks")
        shape = [*t.shape][::-1]
        shape = [shape[0] // gguf.BYTES * gguf.VALUES, *shape[1:]] if blocks else shape or [1]
        infos += text(name.replace("blocks", "weight")) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        infos += struct.pack("<IQ", 40 if blocks else 0, len(data))
        content = bytes(t.reshape(-1).view(torch.uint8).tolist())
        data += content + bytes(-len(content) % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)) + b"".join(pairs) + infos
    return head + bytes(-len(head) % 32) + data


# ---- mutations ----

NUMBERS = (0, 1, 2, 3, 5, 8, 16, 40, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
TEXTS = (
    "",
    "..",
    "../x",
    "/etc/passwd",
    "re:(a+)+$",
    "re:(",
    "re:.*",
    "*",
    "[",
    "*a" * 40,
    "\x00",
    "\x1b[2J",
    "\ud800",
)
TEXTS += ("NVFP4", "U8", "F8_E4M3", "F4", "BOOL", "up", "up.weight", FILE, "Linear", "a" * 5000, "\n")


def value(draw: random.Random) -> Any:
    kind = draw.randrange(7)
    if kind == 0:
        return draw.choice((-1, 1)) * draw.choice(NUMBERS)
    if kind == 1:
        return draw.choice(TEXTS)
    if kind == 2:
        return draw.choice((None, True, False, 0.5, float("inf"), float("nan"), 1e300))
    if kind == 3:
        return [value(draw) for _ in range(draw.randrange(4))]
    if kind == 4:
        return {draw.choice(TEXTS): value(draw) for _ in range(draw.randrange(4))}
    if kind == 5:
        return 10 ** draw.choice((99, 200, 4000))
    return draw.choice(NUMBERS)


def mutate_node(content: Any, draw: random.Random) -> Any:
    """Replaces, removes, copies or renames one node of JSON."""
    spots: list[tuple[Any, Any]] = []
    stack = [content]
    while stack:
        node = stack.pop()
        children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, child in children:
            spots.append((node, key))
            stack.append(child)
    if not spots:
        return value(draw)
    node, key = draw.choice(spots)
    kind = draw.randrange(6)
    if kind == 0:
        del node[key]
    elif kind == 1 and isinstance(node, dict):
        node[draw.choice((draw.choice(TEXTS), str(key) + "x", str(key).upper()))] = node.pop(key)
    elif kind == 2:
        other, place = draw.choice(spots)
        with contextlib.suppress(LookupError, ValueError):
            node[key] = json.loads(json.dumps(other[place]))
    elif kind == 3 and isinstance(node[key], int):
        node[key] += draw.choice((-1, 1, 2, 8, 2**32))
    else:
        node[key] = value(draw)
    return content


def mutate_text(text: bytes, draw: random.Random) -> bytes:
    """What json.dumps does not write."""
    kind = draw.randrange(5)
    if kind == 0:
        return text.replace(b": ", b": " + b"[" * draw.choice((10, 500, 100_000)), 1)
    if kind == 1:
        return text.replace(b"}", b', "x": ' + b"9" * draw.choice((50, 500, 5000, 10**6)) + b"}", 1)
    if kind == 2:
        return b"[" * draw.choice((60, 1000, 10**6)) + text
    if kind == 3:
        return text[: draw.randrange(len(text) + 1)]
    return mutate_bytes(text, draw)


def mutate_json(text: bytes, draw: random.Random) -> bytes:
    if draw.random() < 0.25:
        return mutate_text(text, draw)
    try:
        return dumped(mutate_node(json.loads(text), draw))
    except (ValueError, RecursionError):
        return mutate_bytes(text, draw)


def mutate_bytes(data: bytes, draw: random.Random, most: int | None = None) -> bytes:
    """In the first `most` bytes."""
    changed = bytearray(data)
    if not changed:
        return b"\0"
    at = draw.randrange(min(len(changed), most or len(changed)))
    kind = draw.randrange(7)
    if kind == 0:
        changed[at] ^= 1 << draw.randrange(8)
    elif kind == 1:
        changed[at : at + 4] = struct.pack("<I", draw.choice(NUMBERS) & 0xFFFFFFFF)
    elif kind == 2:
        changed[at : at + 8] = struct.pack("<Q", draw.choice(NUMBERS))
    elif kind == 3:
        del changed[at:]
    elif kind == 4:
        del changed[at : at + draw.choice((1, 4, 8, 64))]
    elif kind == 5:
        changed[at:at] = changed[at : at + draw.choice((1, 8, 64))]
    else:
        changed[at : at + 16] = draw.randbytes(16)
    return bytes(changed)


def mutate_file(name: str, data: bytes, draw: random.Random) -> bytes:
    if name.endswith(".json"):
        return mutate_json(data, draw)
    if name.endswith(".gguf"):
        return mutate_bytes(data, draw, draw.choice((32, 120, 600, None)))
    length = struct.unpack_from("<Q", data)[0] if len(data) >= 8 else 0
    if draw.random() < 0.25 or length > len(data):
        return mutate_bytes(data, draw, draw.choice((8, 200, None)))
    header = mutate_header(data[8 : 8 + length], draw)
    return struct.pack("<Q", len(header)) + header + data[8 + length :]


def mutate_header(header: bytes, draw: random.Random) -> bytes:
    """Also JSON inside strings of the metadata."""
    with contextlib.suppress(ValueError, RecursionError, AttributeError):
        content = json.loads(header)
        inner = [key for key, text in content.get("__metadata__", {}).items() if str(text).startswith("{")]
        if inner and draw.random() < 0.6:
            key = draw.choice(inner)
            mutated = mutate_json(content["__metadata__"][key].encode(), draw)
            content["__metadata__"][key] = mutated.decode("utf-8", "replace")
            return dumped(content)
    return mutate_json(header, draw)


def mutate_kind(path: Path, draw: random.Random) -> None:
    """Another kind of file, or a link."""
    if path.is_symlink() or not path.is_file():
        return
    data = path.read_bytes()
    path.unlink()
    kind = draw.randrange(8)
    if kind == 0:
        os.mkfifo(path)
    elif kind == 1:
        path.mkdir()
    elif kind == 2:
        path.with_name(path.name + ".gguf").write_bytes(data)
    elif kind == 3:
        path.with_name("stored").write_bytes(data)
        path.symlink_to("stored")
    elif kind >= 4:
        path.symlink_to(draw.choice(("/dev/zero", "/etc/passwd", "none", path.name, "/proc/self/environ", "/dev/null")))


def write_mutated(files: Files, folder: Path, draw: random.Random) -> None:
    folder.mkdir()
    content = dict(files)
    kinds = 0
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        name = draw.choice(list(content))
        if draw.random() < 0.06:
            kinds += 1
        else:
            content[name] = mutate_file(name, content[name], draw)
    for name, data in content.items():
        (folder / name).write_bytes(data)
    for _ in range(kinds):
        mutate_kind(folder / draw.choice(list(content)), draw)


# ---- one file ----


def state(module: nn.Module) -> dict[str, Any]:
    kinds = {name: type(child) for name, child in module.named_modules()}
    return kinds | {name: t.clone() for name, t in module.state_dict().items()}


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(
        torch.equal(t, b[name]) if isinstance(t, Tensor) else t is b[name] for name, t in a.items()
    )


def check(source: Path, place: Path) -> str:
    """What is wrong, or nothing."""
    own = model()
    before = state(own)
    calls: dict[str, Callable[[], Any]] = {
        "load": lambda: nvfp4.load(source),
        "load without mmap": lambda: nvfp4.load(source, mmap=False),
        "load into a model": lambda: nvfp4.load(source, own),
        "inspect": lambda: inspect.inspect(source),
    }
    if source.is_dir():
        for format in ("modelopt", "compressed-tensors"):
            calls[f"convert to {format}"] = lambda format=format: convert(source, place / format, format)
    entries = {path.name for path in place.iterdir()}
    for what, call in calls.items():
        failed = True
        try:
            call()
            failed = False
        except nvfp4.Error as error:
            if not str(error).isprintable() or len(str(error)) > 10_000:
                return f"{what}: the message {str(error)[:1000]!r} is long, or not printable"
        except BaseException:
            return f"{what}: {traceback.format_exc()}"
        if failed and what == "load into a model" and not same(before, state(own)):
            return f"{what}: raised, but the model changed"
        left = {path.name for path in place.iterdir()} - entries
        if left != (set() if failed or not what.startswith("convert") else {what.split()[-1]}):
            return f"{what}: left {left}"
        entries |= left
    return ""


def in_a_process(source: Path, place: Path) -> str:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + BYTES, used + BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 2))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.alarm(SECONDS)
        try:
            os.write(writing, check(source, place).encode("utf-8", "backslashreplace")[-60_000:])
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return f"ended by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"ended with status {os.WEXITSTATUS(status)}" if os.WEXITSTATUS(status) else said  # a sanitizer found it


# ---- many ----


def fuzz(files: int, seed: int, seconds: float, keep: Path | None = None) -> tuple[int, list[str]]:
    """How many files were tried, and what failed."""
    torch.set_num_threads(1)  # a thread pool would not survive the fork
    formats, failures, start = sound(), [], time.monotonic()
    for i in range(files):
        if time.monotonic() - start > seconds:
            return i, failures
        draw = random.Random(f"{seed} {i}")
        name = list(formats)[i % len(formats)]
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            write_mutated(formats[name], place / "in", draw)
            source = place / "in" / "model.gguf" if name == "GGUF" else place / "in"
            if name != "GGUF" and draw.random() < 0.2:
                source = source / FILE
            wrong = in_a_process(source, place)
            if wrong:
                failures.append(f"file {i} of seed {seed} ({name}): {wrong}")
                print(failures[-1], flush=True)
                if keep is not None:
                    shutil.copytree(place / "in", keep / f"{seed}-{i}", symlinks=True)
    return files, failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further file after so long")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where folders of failed files go")
    args = parser.parse_args()
    formats = list(sound())
    for name in formats:
        with tempfile.TemporaryDirectory() as folder:
            for file, data in sound()[name].items():
                Path(folder, file).write_bytes(data)
            found = nvfp4.load(Path(folder, "model.gguf") if name == "GGUF" else folder, model())
            wanted = {"mixed precision": "modelopt", "ComfyUI's FP8": "comfy-kitchen"}.get(name, name)
            if len(found.all_layers) != 2 or found.format != wanted:
                raise SystemExit(f"{name}: the sound file is read as {found}")
    print(f"seed {args.seed}, formats: {', '.join(formats)}", flush=True)
    tried, failures = fuzz(args.files, args.seed, args.seconds, args.keep)
    print(f"{tried} files, {len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
