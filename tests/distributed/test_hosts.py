"""Two machines, played by network namespaces: own host name, own copy of the checkpoint, one shared output folder."""

import json
import shutil

import pytest
from support import ranked_runs, two_hosts
from support.exact_model import differing
from support.ranked_runs import GRACE, TIMEOUT, RankedRun, rank_environment, unfinished
from test_rank_summaries import triangle_bytes

pytestmark = pytest.mark.skipif(bool(two_hosts.possible()), reason=two_hosts.possible())
PORT = 29533


@pytest.fixture
def hosts():
    with two_hosts.TwoHosts() as made:
        yield made.wait_for_cable()


@pytest.fixture(scope="module")
def copies(exact, tmp_path_factory):
    """Each host's own checkpoint: mounted where the other has its own."""
    parent = tmp_path_factory.mktemp("copies")
    return [shutil.copytree(exact.folder, parent / str(host), copy_function=shutil.copyfile) for host in (0, 1)]


def own_model(copies, mount, host):
    return f'mount --bind "{copies[host]}" "{mount}"'


@pytest.fixture
def mounted(tmp_path):
    """The path at which every host finds its model."""
    folder = tmp_path / "model"
    folder.mkdir()
    return folder


def two_ranks(hosts, model, out, exact, *options, commands=lambda host: []):
    """One rank per host, without a launcher."""
    environment = lambda host: rank_environment(host, 2, PORT, two_hosts.ADDRESSES[0], local=(0, 1))
    return RankedRun(2, model, out, *exact.solving, *options, prefix_of=lambda host: hosts.prefix(host, *commands(host)),
                     environment_of=environment, port=PORT)


class TwoAgents(RankedRun):
    """Each host has its own torchrun."""

    def __init__(self, hosts, ranks_per_host, model, out, *arguments, commands, options):
        self.out, self.ranks, self.port = out, 2 * ranks_per_host, PORT
        self.processes, self.logs = {}, {}
        self.mark = f"{ranked_runs.SESSION}-agents"
        for host in (0, 1):
            launcher = ranked_runs.torchrun(ranks_per_host, PORT, "--nnodes", 2, *options(host))
            self.launch(host, [*hosts.prefix(host, *commands(host)), *launcher, ranked_runs.program.PROGRAM, "oneshot", model,
                               "--output", out, "--threads", "1", *arguments], {})


RENDEZVOUS = {
    "static": lambda host: ["--node-rank", host, "--master-addr", two_hosts.ADDRESSES[0]],
    "c10d": lambda host: ["--rdzv-backend", "c10d", "--rdzv-id", "hosts", "--rdzv-endpoint",
                          f"{two_hosts.ADDRESSES[0]}:{PORT}", "--local-addr", two_hosts.ADDRESSES[host]],
}


@pytest.mark.parametrize("rendezvous, ranks", [("static", 1), ("c10d", 2)])
def test_agents_on_two_hosts(rendezvous, ranks, hosts, copies, mounted, exact, expected, results, tmp_path):
    """torchrun on both: the tensors of one host, each rank's host in the summary."""
    run = TwoAgents(hosts, ranks, mounted, results / "out", *exact.solving, "--summary", tmp_path / "summary.json",
                    commands=lambda host: [own_model(copies, mounted, host)], options=RENDEZVOUS[rendezvous])
    assert differing(run.end_well(), expected) == []
    summary = json.loads((tmp_path / "summary.json").read_text())
    names = sorted(entry["host"] for entry in summary["ranks"])
    assert names == sorted([hosts.host_name(0), hosts.host_name(1)] * ranks)
    assert list(results.iterdir()) == [results / "out"]


def test_bytes_on_the_cable(hosts, copies, mounted, exact, expected, results, tmp_path):
    """What the kernel counts on the interface is what the ranks say that they sent, and no weights."""
    before = [hosts.sent_bytes(host) for host in (0, 1)]
    run = two_ranks(hosts, mounted, results / "out", exact, "--summary", tmp_path / "summary.json",
                    commands=lambda host: [own_model(copies, mounted, host)])
    assert differing(run.end_well(), expected) == []
    ranks = json.loads((tmp_path / "summary.json").read_text())["ranks"]
    for host, entry in enumerate(ranks):
        counted = hosts.sent_bytes(host) - before[host]
        assert triangle_bytes(exact) * 0.9 < entry["sent_bytes"]
        assert entry["sent_bytes"] * 0.95 < counted < entry["sent_bytes"] * 1.3 + 500_000


def test_cable_is_cut(hosts, exact, expected, results):
    """Both sides end within the time-out, each naming the other, and the work goes on later."""
    out = results / "out"
    run = two_ranks(hosts, exact.folder, out, exact, "--timeout", TIMEOUT).wait_for_subgraphs(2)
    hosts.cut()
    ended = run.end(TIMEOUT + GRACE)
    assert all(code != 0 for code in ended.codes), ended.errors
    # Each host is alone now, so each says it once.
    lines = [[line for line in text.splitlines() if line.startswith("error: ")] for text in ended.texts]
    assert [len(found) for found in lines] == [1, 1], ended.errors
    assert "rank 1" in lines[0][0] and ("rank 0" in lines[1][0] or "store" in lines[1][0]), ended.errors
    assert not out.exists() and unfinished(out).exists()
    assert differing(ranked_runs.run(3, exact.folder, out, *exact.solving, "--resume"), expected) == []


def test_dead_rank_of_another_host(hosts, exact, results):
    """One message on each host, both with the rank and the host where it died."""
    run = two_ranks(hosts, exact.folder, results / "out", exact, "--timeout", TIMEOUT).wait_for_subgraphs(2)
    victim = [process for process in ranked_runs.survivors(run.mark) if process.is_rank and process.environment["RANK"] == "1"]
    victim[0].kill()
    ended = run.end(TIMEOUT + GRACE)
    assert all(code != 0 for code in ended.codes)
    for line in ended.error_lines:
        assert "rank 1 " in line and hosts.host_name(1) in line, ended.errors
    assert any(line.startswith("error: ") for line in ended.texts[0].splitlines())


def test_output_is_not_shared(hosts, exact, results):
    """Host 1 has a disk of its own where host 0 writes."""
    private = lambda host: [f'mount -t tmpfs none "{results}"'] if host == 1 else []
    run = two_ranks(hosts, exact.folder, results / "out", exact, "--timeout", TIMEOUT, commands=private)
    ended = run.end(TIMEOUT + GRACE)
    assert all(code != 0 for code in ended.codes)
    assert any("shared" in line and str(results) in line for line in ended.error_lines), ended.errors
    assert list(results.iterdir()) == []


def test_checkpoint_of_one_host_is_missing(hosts, copies, mounted, exact, results):
    run = two_ranks(hosts, mounted, results / "out", exact, "--timeout", TIMEOUT,
                    commands=lambda host: [own_model(copies, mounted, host)] if host == 0 else [])
    ended = run.end(TIMEOUT + GRACE)
    assert all(code != 0 for code in ended.codes)
    assert any("rank 1" in line and str(mounted) in line for line in ended.error_lines), ended.errors
    assert list(results.iterdir()) == []
