"""Starts a program many times without loading libtorch each time: `command_server.cpp` preloaded, one server for each program."""

import atexit
import os
import select
import signal
import subprocess
import tempfile
import time
from pathlib import Path

# Read when libraries are loaded, so that a server cannot change them for one run.
LOADING = ("LD_", "OMP_", "GOMP_", "KMP_", "MKL_", "MALLOC_", "GLIBC_", "DNNL_", "ONEDNN_", "TORCH_", "PYTORCH_", "ATEN_")
WAITING = {"GOMP_SPINCOUNT": "2000"}  # as the launcher sets it


def loading_variables(environment):
    return {name: value for name, value in environment.items() if name.startswith(LOADING)}


class CommandServer:
    """Runs of one program, one after the other."""

    def __init__(self, library, program):
        self.folder = tempfile.TemporaryDirectory(prefix="command-server-")
        self.variables = loading_variables(os.environ)
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
                                        env={**WAITING, **os.environ, "LD_PRELOAD": str(library)})
        atexit.register(self.end)

    def fits(self, environment):
        """Whether a run with these variables behaves like a process of its own."""
        return loading_variables(environment) == self.variables

    def run(self, command, environment, folder, timeout):
        """The completed process, as subprocess.run gives it with captured text."""
        output, errors = (Path(self.folder.name) / name for name in ("output", "errors"))
        fields = [str(folder), str(output), str(errors), str(len(command)), *command,
                  *(f"{name}={value}" for name, value in environment.items())]
        request = b"".join(os.fsencode(field) + b"\0" for field in fields)
        self.process.stdin.write(b"%d\n" % len(request) + request)
        process = int(self.answer(time.monotonic() + timeout))
        try:
            code = int(self.answer(time.monotonic() + timeout))
        except TimeoutError:
            os.kill(process, signal.SIGKILL)
            self.answer(time.monotonic() + timeout)
            raise subprocess.TimeoutExpired(command, timeout) from None
        return subprocess.CompletedProcess(command, code, output.read_text(), errors.read_text())

    def answer(self, deadline):
        line = b""
        while not line.endswith(b"\n"):
            if not select.select([self.process.stdout], [], [], max(0, deadline - time.monotonic()))[0]:
                raise TimeoutError
            byte = self.process.stdout.read(1)
            assert byte, "the command server has ended"
            line += byte
        return line

    def end(self):
        self.process.stdin.close()
        self.process.wait()
        self.folder.cleanup()
