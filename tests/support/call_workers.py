"""Runs calls (generated_calls.py, fuzzed_calls.py) in processes that may die: a page fault becomes a verdict, and the
next one starts a new process.

`Workers` starts one process that imports torch, 2.5 s, and calls nothing. It forks a child for each target ("cpu-avx2",
"sm_90", "cuda"), and another one when a child dies; a fork takes some 10 ms. The child imports the package, which reads
once from the environment which driver and which instructions of the CPU it is to use.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import pickle
import select
import signal
import struct
import subprocess
import sys
import traceback
from collections.abc import Callable
from typing import Any

from paths import gpu_backends

TARGETS = [*(f"cpu-{isa}" for isa in ("reference", "portable", "avx2", "avx512vnni", "amx"))]
TARGETS += [*(name.replace("sm", "sm_") for name in gpu_backends()), "cuda"]
PATIENCE = 300.0  # seconds for one problem


def send(fd: int, message: Any) -> None:
    data = pickle.dumps(message)
    data = struct.pack("<I", len(data)) + data
    while data:
        data = data[os.write(fd, data) :]


def receive(fd: int) -> Any:
    """None at the end of the stream."""

    def exactly(count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = os.read(fd, count - len(data))
            if not more:
                return b""
            data += more
        return data

    head = exactly(4)
    data = exactly(struct.unpack("<I", head)[0]) if head else b""
    return pickle.loads(data) if data else None


class Workers:
    """The parent's side."""

    def __init__(self) -> None:
        import emulate

        import nvfp4

        self.library = str(emulate.build()) if nvfp4.info()["archs"] else ""
        self.process = subprocess.Popen(
            [sys.executable, __file__, self.library], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )

    def ask(self, target: str, function: str, *arguments: Any) -> Any:
        """The result, not None, of a function of generated_calls.py in the target's child ("fuzzed_calls.verdict": of
        another module, without the target); a string that says how the child died."""
        send(self.process.stdin.fileno(), (target, pickle.dumps((function, arguments))))
        reply = self.process.stdout.fileno()
        if not select.select([reply], [], [], PATIENCE)[0]:
            self.close()
            return f"no answer after {PATIENCE:.0f} s"
        answer = receive(reply)
        if answer is None:
            raise RuntimeError("call_workers.py has ended")
        return answer

    def run(self, target: str, case: Any) -> str:
        """The verdict on a Gemm, Conversion, Grouped, Step, Sorted or Layer (generated_*.py): "" if it is right."""
        module, function = type(case).__module__, f"run_{type(case).__name__.lower()}"
        if module == "generated_calls":
            return self.ask(target, function, case)
        return self.ask(target, f"{module}.{function}", target, case)

    def close(self) -> None:
        self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        self.process.kill()
        self.process.wait()


# --- the child ----------------------------------------------------------------------------------------------------


class SignalAction(ctypes.Structure):
    """struct sigaction of 64-bit Linux."""

    _fields_ = [
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_byte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    ]


SA_SIGINFO = 4
SI_ADDR = 16  # offset in siginfo_t
HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


def on_fault(report: Callable[[int], None]) -> Any:
    """Calls report with the address of a fault of the calling thread, and ends the process. Threads of the package's
    pool block signals: their faults kill the process without a report. Python code runs in the handler: the process
    ends anyway. Keep the result."""

    def handle(number: int, info: int, context: int) -> None:
        report(ctypes.c_uint64.from_address(info + SI_ADDR).value)
        os._exit(0)

    callback = HANDLER(handle)
    action = SignalAction(ctypes.cast(callback, ctypes.c_void_p), flags=SA_SIGINFO)
    for number in (signal.SIGSEGV, signal.SIGBUS):
        assert ctypes.CDLL(None).sigaction(number, ctypes.byref(action), None) == 0
    return callback


def serve(target: str, library: str, requests: int, replies: int) -> None:
    if target.startswith("sm_"):
        os.environ |= {"NVFP4_LIBCUDA": library, "EMULATE_DEVICE": target, "EMULATE_QUIET": "1"}
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if target.startswith("cpu-"):
        os.environ["NVFP4_CPU"] = target.removeprefix("cpu-")
    assert "nvfp4" not in sys.modules, "it has read another child's environment"
    import generated_calls

    named = target.removeprefix("cpu-")
    if named != target and generated_calls.nvfp4.info()["cpu_kernel"] != named:
        raise AssertionError(f"{target}: the package runs {generated_calls.nvfp4.info()['cpu_kernel']}")

    def report(address: int) -> None:
        send(replies, f"a fault at {address:#x}, {generated_calls.where(address)}")

    handler = on_fault(report)
    while (request := receive(requests)) is not None:
        function, arguments = pickle.loads(request)
        try:
            module, _, name = function.rpartition(".")
            if module:
                result = getattr(importlib.import_module(module), name)(*arguments)
            else:
                result = getattr(generated_calls, name)(target, *arguments)
        except Exception:
            result = traceback.format_exc()
        send(replies, result)
    del handler


class Child:
    def __init__(self, target: str, library: str) -> None:
        from_parent, self.requests = os.pipe()
        self.replies, to_parent = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.requests), os.close(self.replies)
            code = 1
            try:
                serve(target, library, from_parent, to_parent)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(from_parent), os.close(to_parent)

    def ask(self, request: Any) -> Any:
        with contextlib.suppress(BrokenPipeError):
            send(self.requests, request)
        return receive(self.replies)

    def close(self) -> None:
        """The child ends when no process has the pipe for writing, not even another child."""
        os.close(self.requests), os.close(self.replies)

    def wait(self) -> str:
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return f"the process was killed by {signal.Signals(-code).name}" if code < 0 else f"the process exited ({code})"


def main(library: str) -> None:
    requests, replies = os.dup(0), os.dup(1)
    os.dup2(2, 1)  # what others print
    import hypothesis.strategies  # noqa: F401  (for all children, as torch; nvfp4 reads its environment in each)
    import torch  # noqa: F401

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's, which then closes the pipe
    children: dict[str, Child] = {}
    while (request := receive(requests)) is not None:
        target, call = request  # the call's arguments are of modules that import the package
        if target not in children:
            children[target] = Child(target, library)
        answer = children[target].ask(call)
        if answer is None or (isinstance(answer, str) and answer.startswith("a fault at")):
            child = children.pop(target)
            child.close()
            death = child.wait()
            answer = death if answer is None else answer
        send(replies, answer)
    for child in children.values():
        child.close()
    for child in children.values():
        child.wait()


if __name__ == "__main__":
    main(sys.argv[1])
