"""Records what a GPU gives for every case, or checks a driver against what was recorded.

    python record.py --out vectors.npz                 on the GPU: writes all results, and where they are from
    python record.py --check [--library libcuda.so.1]  compares; prints each difference and exits with 1 if there is one

nvcc (NVCC, or on PATH) compiles the kernels to PTX, once for each version of the source. The file of results has an
array CASE/BUFFER for each buffer that is kept, CASE/error where the driver failed, and the text `provenance`."""

import argparse
import contextlib
import ctypes
import datetime
import functools
import hashlib
import json
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from cases import ARCHITECTURES, HERE, Case, Coordinates, Int32, Int64, Map, all_cases
from cases_tma import encodings
from driver import Driver, DriverError

VECTORS = HERE / "vectors.npz"
ENCODINGS = "encodings"
SECONDS_PER_CASE = 40


def find_nvcc() -> str | None:
    return os.environ.get("NVCC") or shutil.which("nvcc")


@functools.cache
def compile_ptx(source: str, architecture: str) -> Path:
    """The PTX of a source file, from the cache if neither it nor a header has changed."""
    files = [HERE / f"{source}.cu", *sorted(HERE.glob("*.cuh"))]
    digest = hashlib.sha256(b"\0".join(f.read_bytes() for f in files)).hexdigest()[:16]
    cache = Path(
        os.environ.get("EMULATE_GOLDEN_CACHE") or Path(tempfile.gettempdir(), f"emulator-golden-{os.getuid()}")
    )
    ptx = cache / f"{source}-{architecture}-{digest}.ptx"
    if not ptx.exists():
        nvcc = find_nvcc()
        if nvcc is None:
            sys.exit("record.py: no nvcc was found: put it on PATH or name it in NVCC")
        cache.mkdir(parents=True, exist_ok=True)
        part = cache / f"{ptx.name}.{os.getpid()}"
        command = [nvcc, "-std=c++17", "-ptx", f"-arch={architecture}", "-o", str(part), str(files[0])]
        subprocess.run(command, check=True)
        part.rename(ptx)
    return ptx


@functools.cache
def kernels(source: str) -> dict[str, Path]:
    """The PTX to run each kernel of a source file from: that of the oldest architecture that has the kernel."""
    found: dict[str, Path] = {}
    for architecture in ARCHITECTURES[source]:
        ptx = compile_ptx(source, architecture)
        found = dict.fromkeys(re.findall(r"\.entry (\w+)\(", ptx.read_text()), ptx) | found
    return found


def run(driver: Driver, case: Case) -> dict[str, np.ndarray]:
    """The bytes of every kept buffer after the launch."""
    function = driver.function(kernels(case.source)[case.kernel], case.kernel)
    pointers = {name: driver.allocate(buffer.init) for name, buffer in case.buffers.items()}
    try:
        params = []
        for arg in case.args:
            if isinstance(arg, str):
                params.append(ctypes.c_uint64(pointers[arg]))
            elif isinstance(arg, Int32):
                params.append(ctypes.c_uint32(arg.value & 0xFFFFFFFF))
            elif isinstance(arg, Int64):
                params.append(ctypes.c_uint64(arg.value))
            elif isinstance(arg, Coordinates):
                params.append((ctypes.c_int32 * 5)(*arg.values))
            elif isinstance(arg, Map):
                code, tensor_map = driver.encode_tiled(arg.spec, pointers[arg.buffer])
                if code:
                    raise DriverError("cuTensorMapEncodeTiled", code, driver.explain(code))
                params.append(tensor_map)
        driver.launch(function, params, case.grid, case.block, case.shared, case.cluster)
        kept = {name: buffer for name, buffer in case.buffers.items() if buffer.keep}
        return {name: driver.read(pointers[name], buffer.init.nbytes) for name, buffer in kept.items()}
    finally:
        with contextlib.suppress(DriverError):  # after a fault everything fails, and the fault is what to report
            for pointer in pointers.values():
                driver.free(pointer)


def encoding_codes(driver: Driver) -> np.ndarray:
    """cuTensorMapEncodeTiled's answer to each of the encodings."""
    memory = driver.allocate(np.zeros(1 << 16, np.uint8))
    codes = [driver.encode_tiled(spec, memory + offset)[0] for _, spec, offset in encodings()]
    driver.free(memory)
    return np.array(codes, np.int32)


# ---- recording: a child process runs the cases; a fault ends it and the next child goes on behind the case


def record_some(directory: Path) -> int:
    driver = Driver()
    (directory / "provenance.json").write_text(json.dumps(driver.describe()))
    if not (directory / f"{ENCODINGS}.npz").exists():
        np.savez(directory / f"{ENCODINGS}.npz", codes=encoding_codes(driver))
    for i, case in enumerate(all_cases()):
        target = directory / f"{i}.npz"
        if target.exists():
            continue
        (directory / "current").write_text(str(i))
        try:
            result = run(driver, case)
        except DriverError as error:
            np.savez(target, error=np.array(str(error)))
            print(f"{case.name}: {error}", flush=True)
            return 3
        np.savez(directory / "part.npz", **result)
        (directory / "part.npz").rename(target)
    return 0


def record(out: Path) -> None:
    for source in ARCHITECTURES:
        kernels(source)
    cases = all_cases()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        code = 3
        while code:
            child = subprocess.Popen([sys.executable, __file__, "--child", name])
            done, since = -1, time.monotonic()
            while (code := child.poll()) is None:
                time.sleep(0.05)
                now = len(list(directory.glob("*.npz")))
                if now != done:
                    done, since = now, time.monotonic()
                elif time.monotonic() - since > SECONDS_PER_CASE:
                    child.kill()
                    child.wait()
                    code = -9
                    break
            if code and code != 3:
                i = int((directory / "current").read_text())
                print(f"{cases[i].name}: the process ended with {code}", flush=True)
                np.savez(directory / f"{i}.npz", error=np.array(f"process ended with {code}"))
        arrays = {}
        for name, prefix in [*((str(i), case.name) for i, case in enumerate(cases)), (ENCODINGS, ENCODINGS)]:
            with np.load(directory / f"{name}.npz") as result:
                arrays |= {f"{prefix}/{key}": result[key] for key in result.files}
        provenance = json.loads((directory / "provenance.json").read_text())
    provenance["date"] = datetime.date.today().isoformat()
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        provenance["driver"] = subprocess.run(query, capture_output=True, text=True).stdout.split("\n")[0].strip()
    nvcc = subprocess.run([find_nvcc() or "nvcc", "--version"], capture_output=True, text=True).stdout
    provenance["nvcc"] = " ".join(re.findall(r"release [\d.]+, V[\d.]+", nvcc))
    np.savez_compressed(out, provenance=np.array(json.dumps(provenance)), **arrays)
    print(f"{len(cases)} cases and {len(encodings())} encodings recorded on {provenance['device']}")


# ---- checking: again in a child, so that a fault or a crash costs one case


def judge(case: Case, got: dict[str, np.ndarray], stored: dict[str, np.ndarray]) -> tuple[str, list[str]]:
    """`agrees` or `differs`, and the messages to print."""
    if f"{case.name}/error" in stored:
        return "differs", [f"{case.name}: ran here, but on hardware: {stored[case.name + '/error']}"]
    complaints = []
    for name, result in got.items():
        want = stored[f"{case.name}/{name}"]
        complaint = case.rule(result, want, case.rows)
        if complaint:
            complaints.append(f"{case.name}, {name}: {complaint}")
    return ("differs" if complaints else "agrees"), complaints


def check_some(library: str | None, cases: list[Case], stored: dict, verbose: bool, answers: Connection) -> None:
    """Sends a verdict and messages for each case, until one fails."""
    driver = Driver(library)
    for case in cases:
        try:
            got = run(driver, case)
        except DriverError as error:
            if case.may_reject or f"{case.name}/error" in stored:
                answers.send(("rejected", [f"{case.name}: rejected: {error}"] if verbose else []))
            else:
                answers.send(("differs", [f"{case.name}: {error}"]))
            return
        answers.send(judge(case, got, stored))


def check_encodings(library: str | None, answers: Connection) -> None:
    with np.load(VECTORS) as stored:
        codes = stored[f"{ENCODINGS}/codes"]
    for (label, _, _), got, want in zip(encodings(), encoding_codes(Driver(library)), codes, strict=True):
        text = f"encoding, {label}: {got} here, {want} on hardware"
        answers.send(("agrees", []) if got == want else ("differs", [text]))


def in_child(work: Callable[..., None], *args: object) -> tuple[list[tuple[str, list[str]]], int]:
    """The verdicts that `work` sent before it ended, and its exit code."""
    fork = multiprocessing.get_context("fork")
    receive, send = fork.Pipe(duplex=False)
    child = fork.Process(target=work, args=(*args, send))
    child.start()
    send.close()
    answers = []
    with contextlib.suppress(EOFError):
        while True:
            answers.append(receive.recv())
    child.join()
    return answers, child.exitcode or 0


def check(library: str | None, sources: list[str], only: str | None, verbose: bool) -> int:
    tally = {"agrees": 0, "rejected": 0, "differs": 0}

    def count(verdict: str, messages: list[str]) -> None:
        tally[verdict] += 1
        for message in messages:
            print(message, flush=True)

    for source in sources:
        if source == ENCODINGS:
            answers, code = in_child(check_encodings, library)
            for answer in answers:
                count(*answer)
            if code:
                count("differs", [f"the encodings ended with exit code {code}"])
            continue
        cases = [c for c in all_cases() if c.source == source and (not only or re.search(only, c.name))]
        names = {case.name for case in cases}
        with np.load(VECTORS) as vectors:
            stored = {key: vectors[key] for key in vectors.files if key.partition("/")[0] in names}
        kernels(source)
        while cases:
            answers, code = in_child(check_some, library, cases, stored, verbose)
            for answer in answers:
                count(*answer)
            cases = cases[len(answers) :]
            if code and cases:
                count("differs", [f"{cases[0].name}: the process ended with exit code {code}"])
                cases = cases[1:]
    print(f"{tally['agrees']} agree, {tally['rejected']} rejected as they may be, {tally['differs']} differ")
    with np.load(VECTORS) as vectors:
        print(f"recorded: {vectors['provenance']}")
    return 1 if tally["differs"] else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the vectors")
    parser.add_argument("--library", help="the driver, if not the system's libcuda.so.1")
    parser.add_argument(
        "--source", action="append", choices=[*ARCHITECTURES, ENCODINGS], help="only cases of this file"
    )
    parser.add_argument("--only", help="only cases whose name matches this regular expression")
    parser.add_argument("--verbose", action="store_true", help="also what was rejected")
    parser.add_argument("--list", action="store_true", help="print the cases")
    parser.add_argument("--out", type=Path, default=VECTORS, help="where to record to")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.list:
        for case in all_cases():
            print(case.source, case.kernel, case.name)
        return 0
    if arguments.child:
        return record_some(arguments.child)
    if arguments.check:
        sources = arguments.source or [*ARCHITECTURES, ENCODINGS]
        return check(arguments.library, sources, arguments.only, arguments.verbose)
    record(arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
