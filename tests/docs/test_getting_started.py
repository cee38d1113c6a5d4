"""The commands of docs/getting-started.md run as they stand, in an empty folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import program

PAGE = program.REPOSITORY / "docs" / "getting-started.md"
MODEL = program.TEST_MODEL


def commands(name):
    """The page's commands that begin with `name`, with their continued lines."""
    text = re.sub(r" \\\n +", " ", PAGE.read_text(encoding="utf-8"))
    return re.findall(rf"^    ({name} .*)$", text, re.MULTILINE)


def test_commands_are_found():
    assert [command.split()[1] for command in commands("layerpress")] == ["inspect", "oneshot", "eval"]


@pytest.mark.nightly
@pytest.mark.skipif(not MODEL.is_dir(), reason=f"no checkpoint at {MODEL}; ./demo makes it")
def test_from_text_to_quality(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "smollm2").symlink_to(MODEL)
    path = os.pathsep.join([str(program.PROGRAM.parent), str(Path(sys.executable).parent), os.environ["PATH"]])
    (text,) = (command for command in commands("python") if "docs_text" in command)
    outputs = []
    for command in [text.replace("examples/", f"{program.REPOSITORY}/examples/"), *commands("layerpress")]:
        done = subprocess.run(command, shell=True, cwd=tmp_path, env=os.environ | {"PATH": path}, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {done.stderr[-2000:]}"
        outputs.append(done.stdout)
    divergence = float(re.search(r"KL divergence +([0-9.]+)", outputs[-1])[1])
    assert 0 < divergence < 0.3
