"""Runs kernel_hooks.py in a process of its own: the hooks register operators that the extension module defines, too."""

import subprocess
import sys
from pathlib import Path


def test_kernel_hooks():
    checks = Path(__file__).with_name("kernel_hooks.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", checks]
    process = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stdout + process.stderr
    assert "2 passed" in process.stdout
