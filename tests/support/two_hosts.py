"""Two "hosts" on this machine: network namespaces joined by a cable, each with its own host name, mounts and processes."""

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

ADDRESSES = ["10.213.7.1", "10.213.7.2"]
BROKEN_AFTER = 20


def possible():
    """Why there can be no hosts here, or ""."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if missing := [tool for tool in ("ip", "unshare") if shutil.which(tool) is None]:
        return f"{', '.join(missing)} is not installed"
    probe = f"lpprobe{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "del", probe], capture_output=True)
    return "" if made.returncode == 0 else f"no network namespaces here: {made.stderr.strip()}"


def ip(*words):
    outcome = subprocess.run(["ip", *map(str, words)], capture_output=True, text=True)
    assert outcome.returncode == 0, f"ip {' '.join(map(str, words))}: {outcome.stderr}"


class TwoHosts:
    """Use as a context. Host 0 and 1 reach each other, and nothing else."""

    def __enter__(self):
        self.names = [f"lp{os.getpid()}h{host}" for host in (0, 1)]
        self.folder = tempfile.TemporaryDirectory()
        names = [f"{address} {self.host_name(host)}\n" for host, address in enumerate(ADDRESSES)]
        Path(self.folder.name, "hosts").write_text("127.0.0.1 localhost\n" + "".join(names))
        try:
            for name in self.names:
                ip("netns", "add", name)
            ip("link", "add", "cable", "netns", self.names[0], "type", "veth", "peer", "name", "cable", "netns", self.names[1])
            for name, address in zip(self.names, ADDRESSES):
                ip("-n", name, "addr", "add", f"{address}/24", "dev", "cable")
                ip("-n", name, "link", "set", "cable", "up")
                ip("-n", name, "link", "set", "lo", "up")
        except AssertionError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
        self.folder.cleanup()

    def prefix(self, host, *commands):
        """Words before a command that is to run on a host, as whose root `commands` of the shell run first."""
        setup = " && ".join([f"hostname {self.host_name(host)}", f'mount --bind "{self.folder.name}/hosts" /etc/hosts',
                             *commands, 'exec "$@"'])
        return ["ip", "netns", "exec", self.names[host], "unshare", "--uts", "--mount", "--pid", "--fork", "--kill-child",
                "--mount-proc", "sh", "-c", setup, "sh"]

    @staticmethod
    def host_name(host):
        return f"layerpress-host-{host}"

    def cut(self):
        """The cable no longer carries anything, without notice."""
        ip("-n", self.names[0], "link", "set", "cable", "down")

    def mend(self):
        """It does again."""
        ip("-n", self.names[0], "link", "set", "cable", "up")
        return self.wait_for_cable()

    def sent_bytes(self, host):
        """The bytes that a host has sent through the cable."""
        path = "/sys/class/net/cable/statistics/tx_bytes"
        outcome = subprocess.run(["ip", "netns", "exec", self.names[host], "cat", path], capture_output=True, text=True, check=True)
        return int(outcome.stdout)

    def wait_for_cable(self):
        """A fresh link needs a moment until packets pass."""
        deadline = time.monotonic() + BROKEN_AFTER
        while subprocess.run(["ip", "netns", "exec", self.names[0], "sh", "-c", "cat /sys/class/net/cable/operstate"],
                             capture_output=True, text=True).stdout.strip() != "up":
            assert time.monotonic() < deadline, "the hosts are not connected"
            time.sleep(0.05)
        return self
