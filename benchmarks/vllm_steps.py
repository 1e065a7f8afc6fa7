"""Times whole-model steps in vLLM on a GPU: nvfp4's plug-in, vLLM's Marlin and bf16:

    python benchmarks/vllm_steps.py OUT.csv [--models llama,mixture] [--rounds 3] [--kernels KERNELS.csv]

It needs vLLM and transformers in one environment in which nvfp4 is installed. Models are random, with the shapes of

    llama    16 layers of Llama-3.1-8B
    mixture  8 layers of Qwen3-30B-A3B, whose experts alone are NVFP4

each compiled and with CUDA graphs. All engines are loaded at once, one in a process. Then they take turns: in a round
each is timed once, on a core of its own, while the others wait. A turn says how much processor time the others took.

A decode step is one of 100 after prompts of 64 tokens; a prefill is one step of 8 prompts of 1024 tokens, three times.
Each is run twice. vLLM prepares a step while the GPU runs the one before, so a step takes the longer of the two:

    ms    from one step of the engine to the next: the median of a turn's steps
    host  the same without the waits for the GPU's result
    gpu   between events before and after what the host enqueues for a step. A kernel in front of the first event holds
          the GPU until all is enqueued, so the host is not in it. "forward" is the part before logits and sampling.

Tokens are sampled, so that sequences differ, and with them their experts. bf16 has vLLM's dummy weights. Columns: the
median of the rounds in milliseconds; least and most of ms and of gpu. `--kernels` writes how long each kernel of a
decode step runs, by torch's profiler. Without a GPU it is a dry run with small models.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import itertools
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import recorded

RESULT = "RESULT "  # begins a line of a worker's output that is meant for the parent
PLUG_IN = {"NVFP4_VLLM_MOE": "1", "NVFP4_VLLM_W4A16": "1"}
OFF = {"NVFP4_VLLM": "0"}
RUNS = {  # model: name, quantized layers of its checkpoint, environment
    "llama": [
        ("nvfp4 W4A4", "W4A4", PLUG_IN),
        ("nvfp4 W4A4, fused quantizers", "W4A4", PLUG_IN | {"NVFP4_VLLM_FUSE": "1"}),
        ("nvfp4 W4A16", "W4A16", PLUG_IN),
        ("vLLM Marlin", "W4A16", OFF),
        ("bf16", None, OFF),
    ],
    "mixture": [
        ("nvfp4 W4A4", "W4A4", PLUG_IN),
        ("nvfp4 W4A16", "W4A16", PLUG_IN),
        ("vLLM Marlin", "W4A16", OFF),
        ("bf16", None, OFF),
    ],
}
ALGORITHMS = {"W4A4": "NVFP4", "W4A16": "W4A16_NVFP4"}
BATCHES = (1, 8, 32, 128)
PROMPT, FIRST, STEPS = 64, 8, 100  # tokens of a prompt; steps that are not timed, and those that are
PREFILL = (8, 1024)
PREFILLS = 3
PROFILED = 16  # steps
CYCLES = 2e9  # of the GPU in a second, about
LONGEST_HOLD = 0.02  # seconds


def configuration(name: str, small: bool) -> Any:
    import transformers

    common = {"vocab_size": 32000, "max_position_embeddings": 4096, "dtype": "bfloat16", "tie_word_embeddings": False}
    if name == "llama":
        sizes = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8}
        if small:
            sizes = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2}
        sizes["num_hidden_layers"] = 2 if small else 16
        return transformers.LlamaConfig(**common, **sizes, architectures=["LlamaForCausalLM"])
    sizes = {"hidden_size": 2048, "moe_intermediate_size": 768, "num_experts": 128, "head_dim": 128}
    sizes |= {"num_attention_heads": 32, "num_key_value_heads": 4, "num_hidden_layers": 8}
    if small:
        sizes |= {"hidden_size": 256, "moe_intermediate_size": 112, "num_experts": 8, "head_dim": 64}
        sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
    sizes |= {"intermediate_size": 4 * sizes["hidden_size"], "num_experts_per_tok": 8, "norm_topk_prob": True}
    return transformers.Qwen3MoeConfig(**common, **sizes, architectures=["Qwen3MoeForCausalLM"])


def write_checkpoint(folder: Path, name: str, mode: str | None) -> None:
    """A checkpoint of ModelOpt with random bytes; without a mode config.json alone."""
    import torch
    import transformers
    from safetensors.torch import save_file

    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = configuration(name, device == "cpu")
    stored = config.to_dict()
    folder.mkdir(parents=True)
    if mode is not None:
        torch.manual_seed(0)
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config)
        dense: list[str] = []
        tensors = {}
        for key, shape in shapes(model, config).items():
            quantized = ".experts." in key or (name == "llama" and key.endswith("_proj.weight"))
            if len(shape) == 2 and not quantized:
                dense.append(key.removesuffix(".weight"))
            tensors |= packed(key, shape, mode, device) if quantized else {key: plain(key, shape, device)}
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        stored["quantization_config"] = {
            "quant_method": "modelopt",
            "quant_algo": ALGORITHMS[mode],
            "ignore": dense,
            "group_size": 16,
        }
    (folder / "config.json").write_text(json.dumps(stored))


def shapes(model: Any, config: Any) -> dict[str, tuple[int, ...]]:
    """The shapes of a file's tensors. transformers keeps experts as stacks, files a matrix for each."""
    found = {}
    for key, parameter in model.named_parameters():
        if ".experts." not in key:
            found[key] = tuple(parameter.shape)
            continue
        count, rows, columns = parameter.shape
        stem, _, stack = key.rpartition(".")
        parts = ("gate_proj", "up_proj") if stack == "gate_up_proj" else ("down_proj",)
        for e in range(count):
            found |= {f"{stem}.{e}.{part}.weight": (rows // len(parts), columns) for part in parts}
    return found


def plain(key: str, shape: tuple[int, ...], device: str) -> Any:
    import torch

    if len(shape) == 1:
        return torch.ones(shape, dtype=torch.bfloat16)
    std = 1.0 if "embed_tokens" in key else 0.02
    return (torch.randn(shape, device=device) * std).bfloat16().cpu()


def packed(key: str, shape: tuple[int, ...], mode: str, device: str) -> dict[str, Any]:
    """Values of a standard deviation of some 0.02."""
    import torch

    n, k = shape
    stem = key.removesuffix(".weight")
    tensors = {
        key: torch.randint(256, (n, k // 2), dtype=torch.uint8, device=device).cpu(),
        f"{stem}.weight_scale": (torch.rand(n, k // 16, device=device) + 0.5).to(torch.float8_e4m3fn).cpu(),
        f"{stem}.weight_scale_2": torch.tensor(0.006),
    }
    return tensors | ({f"{stem}.input_scale": torch.tensor(0.002)} if mode == "W4A4" else {})


# ---- a worker: one engine; it measures once for each line of its input ----


class GpuClock:
    """The GPU's own time for each step of a model runner of vLLM's, while `hold` is not 0."""

    def __init__(self, runner: Any) -> None:
        import torch

        self.hold = 0.0  # seconds that the GPU waits in front of a step
        self.marks: list[Any] = []  # three events a step, and whether the GPU waited until the last one was enqueued
        execute, sample = runner.execute_model, runner.sample_tokens
        events: list[Any] = []

        def mark() -> None:
            events.append(torch.cuda.Event(enable_timing=True))
            events[-1].record()

        def timed_execute(*args: Any, **more: Any) -> Any:
            if not self.hold:
                return execute(*args, **more)
            events.clear()
            torch.cuda._sleep(int(self.hold * CYCLES))
            mark()
            found = execute(*args, **more)
            mark()
            return found

        def timed_sample(*args: Any, **more: Any) -> Any:
            found = sample(*args, **more)
            if self.hold:
                mark()
                self.marks.append((*events, not events[0].query()))
            return found

        runner.execute_model, runner.sample_tokens = timed_execute, timed_sample

    def taken(self, first: int, count: int) -> tuple[float, float]:
        """Medians of a step and of its forward pass, in seconds, of `count` steps after the first ones; NaN where
        the host was late."""
        import torch

        torch.cuda.synchronize()
        chosen = [mark for mark in self.marks[first : first + count] if mark[3]]
        self.marks.clear()
        if len(chosen) < count // 2 + 1:
            return math.nan, math.nan
        whole, forward = ([mark[0].elapsed_time(mark[i]) / 1e3 for mark in chosen] for i in (2, 1))
        return statistics.median(whole), statistics.median(forward)


def work(folder: Path, dummy: bool, core: int) -> None:
    import torch
    import vllm

    on_gpu = torch.cuda.is_available()
    while not (folder / "config.json").exists():
        time.sleep(0.1)
    batches, prefill = (BATCHES, PREFILL) if on_gpu else ((1, 2), (2, 16))
    options: dict[str, Any] = {"skip_tokenizer_init": True, "max_model_len": 2048, "max_num_seqs": 128}
    options |= {"enable_prefix_caching": False, "max_num_batched_tokens": 8192, "disable_log_stats": True, "seed": 0}
    options |= {"gpu_memory_utilization": 0.1}
    if on_gpu:
        options |= {"attention_backend": "TRITON_ATTN"}
        options |= {"kv_cache_memory_bytes": 2 << 30, "compilation_config": {"cudagraph_capture_sizes": [*BATCHES]}}
    else:
        options |= {"enforce_eager": True, "max_num_batched_tokens": 2048}
    if dummy:
        options["load_format"] = "dummy"
    llm = vllm.LLM(str(folder), dtype="bfloat16", **options)

    engine, names = llm.llm_engine, itertools.count()
    runner = engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    clock = GpuClock(runner) if on_gpu else None
    waits = [0.0]
    if on_gpu:
        count_waits(waits)

    def run(batch: int, prompt: int, tokens: int, salt: int) -> Iterator[tuple[float, float]]:
        """Runs until all sequences have so many tokens. Yields the seconds of each step, and those of them in which the
        host waited."""
        how = vllm.SamplingParams(
            temperature=1, max_tokens=tokens, min_tokens=tokens, ignore_eos=True, detokenize=False
        )
        for j in range(batch):
            ids = [(i * (7 + 2 * j) + salt * 131 + j * 17) % 1000 for i in range(prompt)]
            engine.add_request(str(next(names)), {"prompt_token_ids": ids}, how)
        while engine.has_unfinished_requests():
            start, waits[0] = time.perf_counter(), 0.0
            engine.step()
            yield time.perf_counter() - start, waits[0]

    def decode(batch: int, salt: int) -> dict[str, float]:
        asked = (batch, PROMPT, FIRST + STEPS + 4, salt)
        steps = list(run(*asked))[FIRST : FIRST + STEPS]
        found = {"ms": statistics.median(step for step, _ in steps)}
        found["host"] = statistics.median(step - wait for step, wait in steps)
        if clock is not None and salt:
            clock.hold = min(LONGEST_HOLD, found["ms"] + 5e-4)
            list(run(*asked))
            clock.hold = 0.0
            found["gpu"], found["forward"] = clock.taken(FIRST, STEPS)
        return found

    def prefills(salt: int) -> dict[str, float]:
        times, gpu = [], []
        for i in range(PREFILLS):
            steps = list(run(*prefill, 1, salt + 100 * i))
            times.append((sum(step for step, _ in steps), sum(step - wait for step, wait in steps)))
            if clock is not None and salt:
                clock.hold = LONGEST_HOLD
                list(run(*prefill, 1, salt + 100 * i))
                clock.hold = 0.0
                gpu.append(clock.taken(0, 1))
        found = {key: statistics.median(each) for key, each in zip(("ms", "host"), zip(*times))}
        gpu = [each for each in gpu if not math.isnan(each[0])] or gpu
        return found | {key: statistics.median(each) for key, each in zip(("gpu", "forward"), zip(*gpu))}

    def measure(salt: int) -> dict[str, dict[str, float]]:
        found = {f"decode, batch of {batch}": decode(batch, salt) for batch in batches}
        found[f"prefill, {prefill[0]} x {prefill[1]}"] = prefills(salt)
        return {what: {key: 1e3 * value for key, value in times.items()} for what, times in found.items()}

    def kernels(batch: int) -> list[tuple[str, str, str]]:
        steps = run(batch, PROMPT, FIRST + PROFILED + 4, 7)
        list(itertools.islice(steps, FIRST))
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            list(itertools.islice(steps, PROFILED))
            torch.cuda.synchronize()
        list(steps)
        return by_name((e.key, e.count, e.self_device_time_total) for e in profile.key_averages())

    measure(0)
    if on_gpu and core < (os.cpu_count() or 1):
        os.sched_setaffinity(0, {core})
    print(RESULT + json.dumps("ready"), flush=True)
    for turn, line in enumerate(sys.stdin):
        if line.startswith("kernels"):
            answer: Any = {f"decode, batch of {batch}": kernels(batch) for batch in batches} if on_gpu else {}
        else:
            answer = measure(1 + turn)
        print(RESULT + json.dumps(answer), flush=True)


def by_name(found: Iterable[tuple[str, int, float]]) -> list[tuple[str, str, str]]:
    """Name, runs and microseconds of a step, of what ran in PROFILED steps, the longest first. Arguments of a kernel's
    name are left out, and what takes less than 2 us is one row."""
    sums: dict[str, list[float]] = {}
    for key, count, us in found:
        name = re.split(r"[<(]", key.removeprefix("void "))[0].strip()
        row = sums.setdefault(name if us >= 2 * PROFILED else "others", [0.0, 0.0])
        row[0] += count / PROFILED
        row[1] += us / PROFILED
    ordered = sorted(sums.items(), key=lambda item: -item[1][1])
    return [(name, f"{count:g}", f"{us:.1f}") for name, (count, us) in ordered if us > 0]


def count_waits(waits: list[float]) -> None:
    """Adds the time in which vLLM waits for a step's results to waits[0]."""
    from vllm.v1.worker.gpu.async_utils import AsyncOutput

    get_output = AsyncOutput.get_output

    def counted(self: Any) -> Any:
        start = time.perf_counter()
        self.copy_event.synchronize()
        waits[0] += time.perf_counter() - start
        return get_output(self)

    AsyncOutput.get_output = counted


# ---- the program ----


class Engine:
    def __init__(
        self, model: str, name: str, mode: str | None, own: dict[str, str], work_folder: Path, core: int
    ) -> None:
        self.model, self.name, self.rounds = model, name, list[dict[str, dict[str, float]]]()
        folder = work_folder / f"{model}_{mode}"
        tag = f"{model}_{name}".replace(" ", "_")
        caches = {"VLLM_CACHE_ROOT": str(work_folder / f"{tag}_vllm")}
        caches |= {"TORCHINDUCTOR_CACHE_DIR": str(work_folder / f"{tag}_inductor"), "OMP_NUM_THREADS": "2"}
        more = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "TORCHINDUCTOR_COMPILE_THREADS": "2"}
        self.log = work_folder / f"{tag}.log"
        with self.log.open("a") as errors:
            self.process = subprocess.Popen(
                [sys.executable, __file__, "--worker", str(folder), str(int(mode is None)), str(core)],
                env=os.environ | caches | more | own,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def answer(self) -> Any:
        """The next result; None if the worker has ended."""
        assert self.process.stdout is not None
        with self.log.open("a") as log:
            for line in self.process.stdout:
                if line.startswith(RESULT):
                    return json.loads(line[len(RESULT) :])
                log.write(line)
        return None

    def asked(self, what: str) -> Any:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{what}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return None
        return self.answer()

    def processor_time(self) -> float:
        """Seconds."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    parser = argparse.ArgumentParser(description="Time whole-model steps in vLLM.")
    parser.add_argument("out", type=Path, metavar="OUT.csv")
    parser.add_argument("--models", default=",".join(RUNS), help="out of llama, mixture (default: both)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kernels", type=Path, metavar="KERNELS.csv")
    parser.add_argument("--commit", default="-", help="the tree under test, for the rows")
    parser.add_argument("--seconds", type=float, default=3600.0, help="end after so long, with the rounds until then")
    args = parser.parse_args()
    models = args.models.split(",")
    if unknown := [name for name in models if name not in RUNS]:
        parser.error(f"--models: {unknown[0]!r} is none of {', '.join(RUNS)}")
    start, work_folder = time.monotonic(), Path(tempfile.mkdtemp(prefix="vllm_steps_"))
    runs = [(model, *run) for model in models for run in RUNS[model]]
    engines = [Engine(*run, work_folder, 1 + i) for i, run in enumerate(runs)]
    timer = threading.Timer(args.seconds, lambda: [engine.process.kill() for engine in engines])
    timer.daemon = True
    timer.start()
    import torch

    for model, mode in dict.fromkeys((name, run[1]) for name in models for run in RUNS[name]):
        write_checkpoint(work_folder / f"{model}_{mode}", model, mode)
    print(f"checkpoints after {time.monotonic() - start:.0f} s", flush=True)
    lost = [engine for engine in engines if engine.answer() is None]
    for engine in lost:
        print(f"{engine.model}, {engine.name}: no engine\n", *engine.log.read_text().splitlines(True)[-25:])
    engines = [engine for engine in engines if engine not in lost]
    print(f"{len(engines)} engines after {time.monotonic() - start:.0f} s", flush=True)
    for _ in range(args.rounds):
        for engine in engines:
            others = [other for other in engines if other is not engine]
            before, began = sum(other.processor_time() for other in others), time.monotonic()
            if found := engine.asked("measure"):
                engine.rounds.append(found)
            used = sum(other.processor_time() for other in others) - before
            took = time.monotonic() - began
            print(f"{engine.model}, {engine.name}: {took:.1f} s, others' processor time {used:.2f} s", flush=True)
        print(f"a round after {time.monotonic() - start:.0f} s", flush=True)
    versions = [(name, f"{name}-cpu") for name in ("vllm", "torch", "transformers")]
    about = {
        "card": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "date": datetime.date.today().isoformat(),
        "software": ", ".join(f"{names[0]} {version(names)}" for names in versions),
        "commit": args.commit,
    }
    rows = [row for engine in engines for row in summary(engine)]
    for row in rows:
        print(*row.values())
    write(args.out, [row | about for row in rows], about)
    if args.kernels is not None:
        found = [(engine, engine.asked("kernels") or {}) for engine in engines]
        cells = [(engine, what, *row) for engine, steps in found for what, kernels in steps.items() for row in kernels]
        names = ("kernel", "calls", "us")
        write(
            args.kernels,
            [
                {"model": engine.model, "run": engine.name, "what": what} | dict(zip(names, row))
                for engine, what, *row in cells
            ],
            about,
        )
    for engine in engines:
        engine.process.kill()
    return 1 if lost or any(len(engine.rounds) < args.rounds for engine in engines) else 0


def summary(engine: Engine) -> list[dict[str, Any]]:
    """A row for each kind of step: medians of the rounds, in milliseconds, with the least and the most. Rounds in which
    the host was late have no time of the GPU."""
    rows = []
    for what in engine.rounds[0] if engine.rounds else []:
        row = {"model": engine.model, "run": engine.name, "what": what}
        for key in engine.rounds[0][what]:
            times = sorted(found[what][key] for found in engine.rounds if not math.isnan(found[what][key]))
            times = times or [math.nan]
            row[key] = f"{statistics.median(times):.3f}"
            if key in ("ms", "gpu"):
                row |= {f"{key} least": f"{times[0]:.3f}", f"{key} most": f"{times[-1]:.3f}"}
        rows.append(row | {"rounds": len(engine.rounds)})
    return rows


def write(path: Path, rows: list[dict[str, Any]], about: dict[str, str]) -> None:
    recorded.write_rows(path, list(rows[0] if rows else ["model"]), rows, about["card"], commit=about["commit"])


def version(names: tuple[str, ...]) -> str:
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "-"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(Path(sys.argv[2]), sys.argv[3] == "1", int(sys.argv[4]))
    else:
        sys.exit(main())
