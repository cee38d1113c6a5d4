"""Runs scripts one after the other in processes that are forked from this one, which has imported the large packages already.

Reads lines of JSON, {"script", "folder", "log", "seconds"}, and answers each with the script's exit code; -9: it took too long."""

import json
import os
import runpy
import signal
import sys
import tempfile
import time
import traceback

import accelerate  # noqa: F401
import compressed_tensors.offload  # noqa: F401
import datasets  # noqa: F401
import transformers  # noqa: F401

import layerpress  # noqa: F401


def script_process(request):
    """The forked process; does not return."""
    os.setsid()
    os.chdir(request["folder"])
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.environ["TMPDIR"], tempfile.tempdir = request["folder"], None
    sys.argv = [request["script"]]
    code = 0
    try:
        runpy.run_path(request["script"], run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def ended(process, seconds):
    """The exit code, after the process or its time has ended."""
    last = time.monotonic() + seconds
    while time.monotonic() < last:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.1)
    os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return -9


for line in sys.stdin:
    request = json.loads(line)
    child = os.fork()
    if child == 0:
        script_process(request)
    print(json.dumps({"code": ended(child, request["seconds"])}), flush=True)
