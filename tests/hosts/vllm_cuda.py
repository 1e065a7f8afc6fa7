"""Whole models in vLLM on a GPU, beside transformers with nvfp4:

    python tests/hosts/vllm_cuda.py OUT.csv [--only REGEX] [--seconds S] [--workers N]
    python tests/hosts/vllm_cuda.py OUT.csv --table   # prints the table of docs/vllm.md from a file

It needs vLLM, transformers and pytest in one environment in which nvfp4 is installed. It makes small random
checkpoints and runs 64 greedy tokens of three prompts in each cell of PLAN: a model, a format, a mode, a dtype and a
way to run, with the plug-in or with vLLM's own kernels. A row of the file has, besides what was run, where and when:

    tokens      how many equal transformers' own
    mean, most  distance of vLLM's log probabilities (of its token and of the likeliest two) from transformers' for the
                same tokens
    movement    the same mean between transformers with "sdpa" and with "eager" attention, or with the prompt in chunks;
                of gpt-oss, for which it has one attention, also with fp32
    commit      of nvfp4, as --commit says
    verdict     equal tokens, equal probabilities, times the movement, equal bits (batch invariance), or what went wrong

In fp32 tokens must be equal, and probabilities within 0.001; in W4A4 a mean of twice the movement will do, since the
last bit of a sum may move a 4-bit activation by a whole step. In 16 bits hosts round at other places, and a random
model soon chooses another token: there the mean must be at most twice the movement, or twice the mean of vLLM's own run
of the dense weights, where routers of experts choose by rounded numbers. The exit status is 1 if a cell of nvfp4's does
not hold.

A worker process has one environment, and makes one engine after another. Without a GPU it is a dry run on the CPU.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import importlib.metadata
import itertools
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SUPPORT = Path(__file__).resolve().parents[1] / "support"
sys.path.append(str(SUPPORT.parents[1] / "benchmarks"))

import recorded  # noqa: E402

ROW = "ROW "  # begins a line of a worker's output that is a row
DENSE_WEIGHTS = "dense"  # in place of a format: the dequantized values
NVFP4, VLLM, INVARIANT = "nvfp4", "vLLM", "nvfp4, VLLM_BATCH_INVARIANT=1"
ENVIRONMENTS = {
    NVFP4: {"NVFP4_VLLM_MOE": "1", "NVFP4_VLLM_W4A16": "1"},
    VLLM: {"NVFP4_VLLM": "0"},
    INVARIANT: {"NVFP4_VLLM_MOE": "1", "VLLM_BATCH_INVARIANT": "1"},
}
CHUNK = 32  # tokens of a prompt at a time
TWO = {"tensor_parallel_size": 2, "disable_custom_all_reduce": True}  # NCCL adds the ranks' sums
MODES = {  # vLLM's compilation mode 0 is none
    "eager": {"enforce_eager": True},
    "graphs": {"compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}},
    "compiled, graphs": {},
    "cached prefix, chunked prefill": {
        "compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"},
        "enable_prefix_caching": True,
        "max_num_batched_tokens": CHUNK,
    },
    "two GPUs, eager": {"enforce_eager": True} | TWO,
    "two GPUs, graphs": {"compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}} | TWO,
    "alone and in batches": {"enforce_eager": True},
}
SHORT = {"two GPUs, eager": "two GPUs", "two GPUs, graphs": "two GPUs in graphs"}
SHORT |= {"compiled, graphs": "compiled", "cached prefix, chunked prefill": "cached and chunked"}
SHORT |= {"qwen3-moe": "Qwen3-MoE", "mixtral": "Mixtral", "deepseek-v3": "DeepSeek-V3", "modelopt": "ModelOpt"}
PREFIX = 64  # tokens that the prompts share where prefixes are cached
FULL = [("float32", "eager"), ("float32", "graphs"), ("float32", "cached prefix, chunked prefill")]
FULL += [("bfloat16", "eager")]
COMPILED = [("float32", "compiled, graphs"), ("bfloat16", "compiled, graphs")]
SOME = [("float32", "graphs"), ("bfloat16", "compiled, graphs")]
MORE = [("float32", "graphs"), *COMPILED]
MIXTURE = [("float32", "eager"), ("float32", "graphs"), ("bfloat16", "graphs")]
MIXTURE_MORE = [*MIXTURE, ("float32", "compiled, graphs")]
PARALLEL = [("float32", "two GPUs, eager"), ("float32", "two GPUs, graphs")]
BATCHES = [("bfloat16", "alone and in batches")]
OWN = [("bfloat16", "eager")]
FORMATS = [("modelopt", "W4A4"), ("compressed-tensors", "W4A16")]
PLAN = [  # a row is a worker's at a time; the longest first
    (NVFP4, "Llama", "modelopt", "W4A4", FULL),
    (NVFP4, "Llama", "modelopt", "W4A4", COMPILED),
    (NVFP4, "Llama", "compressed-tensors", "W4A16", FULL),
    (NVFP4, "Llama", "compressed-tensors", "W4A16", COMPILED),
    (NVFP4, "qwen3-moe", "modelopt", "W4A16", COMPILED),
    (NVFP4, "qwen3-moe", "modelopt", "W4A16", MIXTURE),
    (NVFP4, "qwen3-moe", "compressed-tensors", "W4A4", MIXTURE_MORE),
    *((by, "Llama", "compressed-tensors", "W4A16", BATCHES) for by in (INVARIANT, NVFP4)),
    (INVARIANT, "Llama", "modelopt", "W4A4", BATCHES),
    (INVARIANT, "qwen3-moe", "modelopt", "W4A16", BATCHES),
    (INVARIANT, "qwen3-moe", "compressed-tensors", "W4A4", BATCHES),
    (VLLM, "Llama", "compressed-tensors", "W4A16", OWN),
    (VLLM, "Llama", "modelopt", "W4A16", OWN),
    (VLLM, "Llama", "modelopt", "W4A4", OWN),
    (VLLM, "qwen3-moe", "modelopt", "W4A16", OWN),
    *((VLLM, name, DENSE_WEIGHTS, "W4A16", OWN) for name in ("qwen3-moe", "gpt-oss", "mixtral", "deepseek-v3")),
    (NVFP4, "gpt-oss", "modelopt", "W4A16", MIXTURE),
    (NVFP4, "gpt-oss", "modelopt", "W4A4", MIXTURE_MORE),
    *((NVFP4, name, "modelopt", "W4A4", MORE) for name in ("Qwen3", "Qwen2", "Phi3")),
    *((NVFP4, name, "compressed-tensors", "W4A16", SOME) for name in ("Qwen3", "Qwen2", "Phi3")),
    (NVFP4, "deepseek-v3", "modelopt", "W4A16", MIXTURE),
    (NVFP4, "deepseek-v3", "compressed-tensors", "W4A4", MIXTURE_MORE),
    (NVFP4, "mixtral", "compressed-tensors", "W4A16", MIXTURE),
    (NVFP4, "mixtral", "modelopt", "W4A4", MIXTURE_MORE),
    (NVFP4, "Llama", "compressed-tensors", "W4A4", SOME),
    (NVFP4, "Llama", "modelopt", "W4A16", SOME),
    *((NVFP4, model, *kind, [cell]) for model in ("Llama", "qwen3-moe") for kind in FORMATS for cell in PARALLEL),
]
SIZES = {"hidden_size": 256, "head_dim": 64, "vocab_size": 1024, "max_position_embeddings": 512, "eos_token_id": None}
DENSE = SIZES | {"intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}
LATENT = {"head_dim": 32, "qk_rope_head_dim": 32, "qk_nope_head_dim": 32, "qk_head_dim": 64, "v_head_dim": 32}
MIXTURES = {
    "qwen3-moe": {"moe_intermediate_size": 224},
    "mixtral": {"intermediate_size": 224},
    "deepseek-v3": {**LATENT, "moe_intermediate_size": 224, "topk_method": "noaux_tc", "scoring_func": "sigmoid"},
    "gpt-oss": {"intermediate_size": 224},
}


@dataclass(frozen=True)
class Cell:
    by: str
    model: str
    format: str
    mode: str
    dtype: str
    way: str

    def __str__(self) -> str:
        return " | ".join(dataclasses.astuple(self))


def wide(cell: Cell) -> bool:
    return cell.way.startswith("two GPUs")


def planned(only: str, gpus: int) -> list[list[Cell]]:
    """The cells of each checkpoint and environment."""
    groups = [[Cell(*row[:4], dtype, way) for dtype, way in row[4]] for row in PLAN]
    groups = [[cell for cell in group if not wide(cell) or gpus > 1] for group in groups]
    return [chosen for group in groups if (chosen := [cell for cell in group if re.search(only, str(cell))])]


# ---- a worker: reads groups of cells from its input, a JSON list a line ----


def work(folder: Path) -> None:
    sys.path.insert(0, str(SUPPORT))
    import torch
    import vllm_host

    for line in sys.stdin:
        cells = [Cell(*fields) for fields in json.loads(line)]
        torch.manual_seed(0)
        for row in Checkpoint(cells[0], folder, vllm_host).rows(cells):
            print(ROW + json.dumps(row), flush=True)
        print(ROW, flush=True)  # the group's end


class Checkpoint:
    """A random checkpoint, and transformers' model of it in a dtype, which is made once."""

    def __init__(self, cell: Cell, folder: Path, host: Any) -> None:
        import torch

        self.host, self.device = host, "cuda" if torch.cuda.is_available() else "cpu"
        self.folder = Path(tempfile.mkdtemp(dir=folder))
        if cell.model in MIXTURES:
            from moe_models import Mixture

            changes = SIZES | MIXTURES[cell.model]
            made = Mixture(cell.model, cell.mode, self.folder, **changes)
            if cell.format == DENSE_WEIGHTS:
                self.folder /= "dense"
            else:
                self.folder = made.write(self.folder / "model", cell.format)
        else:
            activations = "nvfp4" if cell.mode == "W4A4" else None
            host.dense_checkpoint(self.folder, cell.format, activations, cell.model, **DENSE)
        self.models: dict[str, Any] = {}
        self.greedy: dict[tuple[str, tuple[int, ...]], list[int]] = {}

    def rows(self, cells: list[Cell]) -> Iterator[dict[str, Any]]:
        import torch

        for cell in cells:
            start = time.monotonic()
            found: dict[str, Any] = dict.fromkeys(("layers", "tokens", "mean", "most", "movement"), "")
            try:
                found |= self.run(cell)
            except Exception as error:  # the next cell may run
                found["verdict"] = f"error: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
                if not isinstance(error, (RuntimeError, ValueError, NotImplementedError)):
                    raise
            torch._dynamo.reset()
            yield dataclasses.asdict(cell) | found | {"seconds": f"{time.monotonic() - start:.1f}"}

    def run(self, cell: Cell) -> dict[str, Any]:
        given = self.host.prompts(1021)
        if cell.way.startswith("cached"):
            given = [[*range(PREFIX), *prompt] for prompt in given]
        options = {"max_model_len": 256, "max_num_seqs": 8, "enable_prefix_caching": False, "seed": 0} | MODES[cell.way]
        if self.device == "cuda":
            options |= {"attention_backend": "TRITON_ATTN", "gpu_memory_utilization": 0.05}
            options |= {"kv_cache_memory_bytes": 1 << 28}
        elif cell.model == "deepseek-v3":
            options["compilation_config"] = {"custom_ops": ["none"]}
        with self.host.engines() as make:
            llm = make(self.folder, cell.dtype, **options)
            layers = llm.apply_model(what_runs)[0]
            if cell.way == "alone and in batches":
                return {"layers": layers} | self.batches(cell, llm, given)
            outputs = self.host.generate(llm, given)
            if cell.way.startswith("cached"):  # the second time the prefix is in the cache
                outputs = self.host.generate(llm, given)
        return {"layers": layers} | self.compared(cell, given, outputs)

    def batches(self, cell: Cell, llm: Any, given: list[list[int]]) -> dict[str, Any]:
        """Each prompt alone, all at once, and all among others: tokens and log probabilities must have equal bits."""
        others = [[(i * 29 + 7 * j) % 1021 for i in range(5 + 11 * j)] for j in range(5)]
        runs = [
            [self.host.generate(llm, [prompt])[0] for prompt in given],
            self.host.generate(llm, given),
            self.host.generate(llm, [*others[:3], *given, *others[3:]])[3:6],
        ]
        bits = [
            [(list(o.token_ids), [{t: l.logprob for t, l in step.items()} for step in o.logprobs]) for o in run]
            for run in runs
        ]
        same = sum(own == first for run in bits[1:] for own, first in zip(run, bits[0]))
        total = 2 * len(given)
        verdict = "equal bits" if same == total else f"bits of {total - same} of {total} sequences depend on the batch"
        return {"tokens": f"{same}/{total} sequences", "verdict": verdict}

    def compared(self, cell: Cell, given: list[list[int]], outputs: list[Any]) -> dict[str, Any]:
        model, equal, total = self.model(cell.dtype), 0, 0
        distances: list[float] = []
        movements: dict[str, list[float]] = {}
        for prompt, own in zip(given, outputs, strict=True):
            tokens = list(own.token_ids)
            key = (cell.dtype, tuple(prompt))
            if key not in self.greedy:
                self.greedy[key] = self.host.reference(model, prompt)
            equal += sum(a == b for a, b in zip(tokens, self.greedy[key], strict=True))
            total += len(tokens)
            expected = self.host.log_probabilities(model, prompt, tokens)
            shown = [(i, t, l.logprob) for i, step in enumerate(own.logprobs) for t, l in step.items()]
            distances += [abs(value - float(expected[i, t])) for i, t, value in shown]
            for name, other in self.others(cell, model, prompt, tokens):
                movements.setdefault(name, []).extend(abs(float(other[i, t] - expected[i, t])) for i, t, _ in shown)
        mean, most = sum(distances) / len(distances), max(distances)
        movement = max(sum(moved) / len(moved) for moved in movements.values())
        found = {"tokens": f"{equal}/{total}", "mean": f"{mean:.6f}", "most": f"{most:.6f}"}
        if cell.dtype == "float32" and most < 1e-3 and (equal == total or cell.mode == "W4A4"):
            verdict = "equal tokens" if equal == total else "equal probabilities"
        else:
            verdict = f"{mean / movement:.2f} times the movement" if movement else "transformers does not move"
        return found | {"movement": f"{movement:.6f}", "verdict": verdict}

    def others(self, cell: Cell, model: Any, prompt: list[int], tokens: list[int]) -> Iterator[tuple[str, Any]]:
        """transformers' log probabilities by other orders of its sums; of gpt-oss, for which it has one attention, in
        fp32."""
        usual = model.config._attn_implementation
        if cell.model == "gpt-oss":
            yield "fp32", self.host.log_probabilities(self.model("float32"), prompt, tokens)
        else:
            model.set_attn_implementation("sdpa" if usual == "eager" else "eager")
            yield "attention", self.host.log_probabilities(model, prompt, tokens)
            model.set_attn_implementation(usual)
        yield "chunks", self.host.log_probabilities(model, prompt, tokens, CHUNK)

    def model(self, dtype: str) -> Any:
        import transformers

        import nvfp4.transformers

        if dtype not in self.models:
            dense = self.folder.name == "dense"
            load = transformers.AutoModelForCausalLM.from_pretrained if dense else nvfp4.transformers.load
            self.models[dtype] = load(self.folder, dtype=dtype).to(self.device).eval()
        return self.models[dtype]


def what_runs(model: Any) -> str:
    """How many of vLLM's layers run by what: nvfp4, or a kernel of vLLM's."""
    found: dict[str, int] = {}
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if method is None or type(method).__name__.startswith("Unquantized") or "KVCache" in type(method).__name__:
            continue
        inner = getattr(module, "scheme", method)
        kernel = getattr(inner, "kernel", None) or getattr(method, "nvfp4_backend", None)
        own = getattr(module, "nvfp4", None)
        if own is None:
            name = f"{type(inner).__name__} {getattr(kernel, 'name', None) or type(kernel).__name__}"
        else:
            name = "nvfp4.Experts" if type(own).__name__ == "Experts" else "nvfp4.Linear"
        found[name] = found.get(name, 0) + 1
    return ", ".join(f"{count} {name}" for name, count in sorted(found.items()))


# ---- the program ----


def environment(by: str, folder: Path, gpu: int | None) -> dict[str, str]:
    """Caches are a worker's own. `gpu` is the one it sees; None for all."""
    folder.mkdir()
    caches = {"VLLM_CACHE_ROOT": str(folder / "vllm"), "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
    more = {"TRITON_F32_DEFAULT": "ieee", "OMP_NUM_THREADS": "2", "TORCHINDUCTOR_COMPILE_THREADS": "2"}
    more |= {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1", "VLLM_WORKER_MULTIPROC_METHOD": "spawn", "PYTHONUNBUFFERED": "1"}
    more |= {"VLLM_ALLREDUCE_USE_SYMM_MEM": "0"}  # it would use NVLink's multicast
    more |= {} if gpu is None else {"CUDA_VISIBLE_DEVICES": str(gpu)}
    return os.environ | caches | more | ENVIRONMENTS[by]


def serve(
    by: str,
    gpu: int | None,
    groups: queue.Queue[list[Cell]],
    folder: Path,
    deadline: float,
    report: Callable[[dict[str, Any]], None],
) -> None:
    """Hands groups to a worker, and starts another one after a crash. The log is beside the worker's folder."""
    for count in itertools.count():
        own = folder.with_name(f"{folder.name}_{count}")
        log = own.with_suffix(".log")
        command = [sys.executable, __file__, "--worker", str(own)]
        with log.open("a") as errors:
            process = subprocess.Popen(
                command,
                env=environment(by, own, gpu),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
            timer = threading.Timer(max(0.0, deadline - time.monotonic()), process.kill)
            timer.start()
            done = 0
            cells: list[Cell] = []
            while done == len(cells):
                try:
                    cells = groups.get_nowait()
                except queue.Empty:
                    break
                done = converse(process, cells, errors, report)
            timer.cancel()
            process.kill()  # an engine's teardown takes seconds
            process.wait()
        late = time.monotonic() >= deadline
        lost = cells[done:]
        with contextlib.suppress(queue.Empty):
            while late:
                lost += groups.get_nowait()
        for cell in lost:
            verdict = "not run: no time" if late else f"error: the worker ended: {last_line(log)}"
            report(dataclasses.asdict(cell) | {"verdict": verdict})
        if groups.empty():
            return


def converse(process: Any, cells: list[Cell], log: Any, report: Callable[[dict[str, Any]], None]) -> int:
    """Returns how many rows the worker gave."""
    done = 0
    try:
        process.stdin.write(json.dumps([dataclasses.astuple(cell) for cell in cells]) + "\n")
        process.stdin.flush()
    except BrokenPipeError:
        return done
    for line in process.stdout:
        if line.strip() == ROW.strip():
            break
        if line.startswith(ROW):
            report(json.loads(line[len(ROW) :]))
            done += 1
        else:
            log.write(line)
    return done


def last_line(path: Path) -> str:
    lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][-300:] if lines else "no output"


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare vLLM on a GPU with transformers.")
    parser.add_argument("out", type=Path, metavar="OUT.csv")
    parser.add_argument("--only", default="", metavar="REGEX", help="cells: 'by | model | format | mode | dtype | way'")
    parser.add_argument("--seconds", type=float, default=3600.0, help="give up what is not done by then")
    parser.add_argument("--workers", type=int, help="processes beside those of two GPUs (default: 12 on a GPU, else 1)")
    parser.add_argument("--commit", default="-", help="the tree under test, for the rows")
    parser.add_argument("--table", action="store_true", help="run nothing, and print the table of the file")
    args = parser.parse_args()
    if args.table:
        print(table(recorded.rows(args.out)))
        return 0
    import torch

    start, gpus = time.monotonic(), torch.cuda.device_count()
    groups = planned(args.only, gpus)
    about = {
        "card": torch.cuda.get_device_name() if gpus else "CPU",
        "date": datetime.date.today().isoformat(),
        "software": ", ".join(f"{name} {version(name)}" for name in ("vllm", "torch", "transformers")),
        "commit": args.commit,
    }
    rows: list[dict[str, Any]] = []

    def report(row: dict[str, Any]) -> None:
        rows.append(row | about)
        cell = Cell(*(row[field.name] for field in dataclasses.fields(Cell)))
        print(f"{time.monotonic() - start:5.0f} s  {cell}: {row['verdict']} {row.get('tokens', '')}", flush=True)

    threads = []
    work_folder = Path(tempfile.mkdtemp(prefix="vllm_cuda_"))
    workers = args.workers or (12 if gpus else 1)
    for by, both in itertools.product(ENVIRONMENTS, (True, False)):
        own: queue.Queue[list[Cell]] = queue.Queue()
        for group in groups:
            if group[0].by == by and wide(group[0]) == both:
                own.put(group)
        share = own.qsize() if both else max(1, workers * own.qsize() // len(groups))
        for i in range(min(own.qsize(), share)):
            folder = work_folder / f"{re.sub(r'[^A-Za-z0-9]+', '_', by)}_{'two_' if both else ''}{i}"
            gpu = i % gpus if gpus and not both else None
            work_of = (by, gpu, own, folder, start + args.seconds, report)
            threads.append(threading.Thread(target=serve, args=work_of))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    order = [cell for group in groups for cell in group]
    fields = [*(field.name for field in dataclasses.fields(Cell)), "layers", "tokens", "mean", "most", "movement"]
    fields += ["verdict", "seconds", *about]
    key = [dataclasses.astuple(cell) for cell in order]
    rows.sort(key=lambda row: key.index(tuple(row[name] for name in fields[:6])))
    recorded.write_rows(args.out, fields, rows, about["card"], commit=args.commit)
    failed = [row for row in rows if not holds(row, rows)]
    for row in failed:
        print(f"does not hold: {Cell(*(row[name] for name in fields[:6]))}: {row['verdict']}")
    print(f"{len(order)} cells, {len(failed)} of nvfp4's do not hold; logs in {work_folder}")
    return 1 if failed or len(rows) < len(order) else 0


def holds(row: dict[str, Any], rows: list[dict[str, Any]]) -> bool:
    """Whether a row of nvfp4's is as it must be; of vLLM's own kernels nothing is asked."""
    if row["by"] == VLLM or row["way"] == BATCHES[0][1]:
        return row["by"] != INVARIANT or row["verdict"] == "equal bits"
    if row["verdict"] in ("equal tokens", "equal probabilities"):
        return True
    if not row.get("mean") or (row["dtype"] == "float32" and row["mode"] != "W4A4"):
        return False
    theirs = [
        float(other["mean"])
        for other in rows
        if (other["model"], other["format"], other["dtype"]) == (row["model"], DENSE_WEIGHTS, row["dtype"])
        if other.get("mean")
    ]
    return float(row["mean"]) <= 2 * max([float(row["movement"]), *theirs])


def table(rows: list[dict[str, str]]) -> str:
    """A row for each model, format, mode and whose kernels ran; a cell has verdicts, each with how the model ran."""
    found: dict[tuple[str, ...], dict[str, dict[str, list[str]]]] = {}
    for row in rows:
        model, format_name = (SHORT.get(row[name], row[name]) for name in ("model", "format"))
        what = row["mode"] if row["format"] != DENSE_WEIGHTS else "weights"
        key = (model, f"{format_name} {what}", row["by"].replace("VLLM_BATCH_INVARIANT=1", "batch invariant"))
        cells = found.setdefault(key, {"float32": {}, "bfloat16": {}})
        verdict = row["verdict"].replace(" times the movement", "")
        cells[row["dtype"]].setdefault(verdict, []).append(SHORT.get(row["way"], row["way"]))
    lines = ["| model | checkpoint | kernels | fp32 | bf16 |", "|:--|:--|:--|:--|:--|"]
    for key, cells in sorted(found.items(), key=lambda item: item[0][0].lower()):
        texts = [
            "; ".join(f"{verdict}: {', '.join(ways)}" for verdict, ways in cell.items()) for cell in cells.values()
        ]
        lines.append("| " + " | ".join([*key, *texts]) + " |")
    return "\n".join(lines)


def version(name: str) -> str:
    for distribution in (name, f"{name}-cpu"):
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "-"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(Path(sys.argv[2]))
    else:
        sys.exit(main())
