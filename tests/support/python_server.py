"""Runs Python programs in processes of their own, without the 3 s of processor time in which each would import torch.

A server imports one library and forks a child for each program; a fork takes some 10 ms. The child imports nvfp4, so
the environment variables that nvfp4 reads are the program's own. The loader, torch and Python read theirs in the
server: a program with another LD_LIBRARY_PATH or PYTHONPATH, or without torch, needs `subprocess`.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import multiprocessing
import os
import pickle
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

MAX_BYTES = 1 << 20  # bytes of a request


class Server:
    """The parent's side."""

    def __init__(self, library: str) -> None:
        self.requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, __file__, library, str(theirs.fileno())]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])

    def close(self) -> None:
        self.requests.close()
        self.process.wait()

    def receive(self) -> int:
        answer = self.requests.recv(MAX_BYTES)
        if not answer:
            raise RuntimeError("python_server.py has ended")
        return pickle.loads(answer)

    def run(
        self, arguments: list[str], environment: Mapping[str, str], folder: str, timeout: float
    ) -> subprocess.CompletedProcess[str]:
        with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
            request = pickle.dumps((arguments, dict(environment), folder))
            socket.send_fds(self.requests, [request], [output.fileno(), errors.fileno()])
            child = self.receive()
            late = not select.select([self.requests], [], [], timeout)[0]
            if late:
                os.kill(child, signal.SIGKILL)
            status = self.receive()
            output.seek(0), errors.seek(0)
            if late:
                raise subprocess.TimeoutExpired(arguments, timeout, output.read(), errors.read())
            return subprocess.CompletedProcess(arguments, status, output.read(), errors.read())


servers: dict[str, Server] = {}  # by library


def close() -> None:
    while servers:
        servers.popitem()[1].close()


def python(
    *arguments: str | Path,
    library: str = "torch",
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    timeout: float = 600,
) -> subprocess.CompletedProcess[str]:
    """Returns what subprocess.run gives for `python ARGUMENTS` with its output captured as text."""
    if library not in servers:
        servers[library] = Server(library)
    environment = os.environ if env is None else env
    return servers[library].run([*map(str, arguments)], environment, str(cwd or Path.cwd()), timeout)


# --- the server -----------------------------------------------------------------------------------------------------


def execute(files: list[int], arguments: list[str], environment: dict[str, str], folder: str) -> None:
    """In the child: `python ARGUMENTS`, which are -m and a module, -c and a program, or a file; then their own."""
    for number, file in enumerate(files, 1):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ |= environment
    os.chdir(folder)
    first, *others = arguments
    if first == "-m":
        name, *rest = others
        sys.argv, sys.path[0] = [name, *rest], folder
        runpy.run_module(name, run_name="__main__", alter_sys=True)
        return
    sys.modules["__main__"] = module = ModuleType("__main__")
    if first == "-c":
        program, *rest = others
        sys.argv, sys.path[0] = [first, *rest], ""
    else:
        program = Path(first).read_text()
        sys.argv, sys.path[0], module.__file__ = arguments, str(Path(first).resolve().parent), first
    exec(compile(program, first, "exec"), module.__dict__)


def main(library: str, descriptor: str) -> None:
    importlib.import_module(library)
    gc.collect()
    gc.freeze()  # no collection in a child writes to the pages that all share
    requests = socket.socket(fileno=int(descriptor))
    while True:
        request, files, _, _ = socket.recv_fds(requests, MAX_BYTES, 2)
        if not request:
            return
        # Such a process ends with its exit functions, but without freeing all objects, 0.3 s of copied pages.
        child = multiprocessing.get_context("fork").Process(target=execute, args=(files, *pickle.loads(request)))
        child.start()
        for file in files:
            os.close(file)
        requests.send(pickle.dumps(child.pid))
        child.join()
        requests.send(pickle.dumps(child.exitcode))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(*sys.argv[1:])
