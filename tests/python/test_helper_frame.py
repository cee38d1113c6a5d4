"""What all helpers share: requests, answers, one line for a fault, no access tokens in it."""

import io
import json
import os
import signal
import subprocess
import sys

import pytest
from layerpress_frame.faults import Fault
from layerpress_frame.hub_kernels import hub_kernel
from layerpress_frame.program import main
from support.program import REPOSITORY

SCRIPTS = ("prepare.py", "export_graph.py", "hub.py", "report.py", "run_tasks.py")


def ran(work, request="{}"):
    answers, faults = io.StringIO(), io.StringIO()
    code = main("room.name", work, io.BytesIO(request.encode()), answers, faults)
    return code, answers.getvalue(), faults.getvalue()


def raising(fault):
    def work(request, report):
        raise fault

    return work


def test_answers_are_lines(capsys):
    def work(request, report):
        print("a library's words")
        report({"done": 1})
        return {"got": request["x"]}

    assert ran(work, '{"x": 5}') == (0, '{"done": 1}\n{"got": 5}\n', "")
    assert capsys.readouterr() == ("", "a library's words\n")


@pytest.mark.parametrize("document, fragment", [("", "not JSON"), ("[]", "not a JSON object"), ("[" * 100_000, "not JSON")])
def test_request_that_is_none(document, fragment):
    code, answers, faults = ran(raising(AssertionError), document)
    assert (code, answers) == (2, "") and faults.startswith("error: [room.name] ") and fragment in faults


@pytest.mark.parametrize("fault, line", [
    (Fault("a.json: bad\n  thing"), "[room.name] a.json: bad thing"),
    (Fault("a.json: bad", "other.place"), "[other.place] a.json: bad"),
    (KeyboardInterrupt(), "[room.name] interrupted"),
])
def test_faults_are_one_line(fault, line):
    assert ran(raising(fault)) == (1, "", f"error: {line}\n")


def test_unforeseen_faults_name_their_place():
    class Panic(BaseException):
        """As libraries written in Rust raise them."""

    code, _, faults = ran(raising(Panic("several\nlines")))
    assert code == 1 and "Panic at test_helper_frame.py:" in faults and "several lines: please report this" in faults


def test_tokens_are_replaced(monkeypatch, tmp_path):
    import huggingface_hub

    monkeypatch.setenv("HF_TOKEN", "secretOfTheVariable")
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: "secretOfTheFile")
    for fault in (Fault, ValueError):
        _, _, line = ran(raising(fault("sent secretOfTheVariable, secretOfTheFile and hf_abcdefghijkl")))
        assert "sent ***, *** and ***" in line


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_helper_answers_in_one_line(script):
    process = subprocess.run([sys.executable, "-s", REPOSITORY / "python" / script], input="[", capture_output=True, text=True, timeout=60)
    assert process.returncode == 2 and process.stdout == ""
    assert process.stderr.startswith("error: [") and "not JSON" in process.stderr and process.stderr.count("\n") == 1


def test_a_helper_ends_with_its_parent():
    """Its files would be of no use."""
    child = ("import time\nfrom layerpress_frame.program import run\n"
             "def work(request, report):\n    report({'waits': True})\n    time.sleep(60)\n"
             "run('room.name', work)")
    parent = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}], input=b'{{}}')"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "python")}
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True)
    assert json.loads(process.stdout.readline())["waits"]
    process.send_signal(signal.SIGKILL)
    assert "error: [room.name] interrupted" in process.stderr.read()  # which ends when the helper has ended
    process.wait()


@pytest.mark.parametrize("config, kernel", [
    ({"attn_implementation": "org/kernel"}, "org/kernel"), ({"text_config": {"_attn_implementation": "org/kernel"}}, "org/kernel"),
    ({"attn_implementation": {"": "sdpa", "vision_config": "paged|org/kernel"}}, "paged|org/kernel"), ({"attn_implementation": "sdpa"}, None),
    ({"model_type": "org/name"}, None)])
def test_code_of_the_hub_in_a_config_is_found(config, kernel):
    assert hub_kernel(config) == kernel
