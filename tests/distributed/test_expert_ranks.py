"""Mixtures of experts: the result does not depend on how many processes make it."""

import json

import numpy
import pytest
from support import exact_experts, program, ranked_runs, reference, tiny_models
from support.exact_experts import HOW, ROUTED, down_projections
from support.exact_model import differing
from support.ranked_runs import RankedRun
from support.selection import nightly_but
from test_rank_counts import equal_share

MODES = {"all tokens": [], "routed tokens": ROUTED}
BASIC = ["--pipeline", "basic"]


@pytest.fixture(scope="module")
def experts(tmp_path_factory):
    return exact_experts.ExactExperts(tmp_path_factory.mktemp("experts"))


@pytest.fixture(scope="module")
def one_process(experts, tmp_path_factory):
    """Tensors and module reports of one process with some options, made once per choice."""
    made = {}

    def get(*options):
        key = tuple(map(str, options))
        if key not in made:
            folder = tmp_path_factory.mktemp("alone")
            out = program.oneshot(experts.folder, folder / "out", *key, "--threads", "1", "--summary", folder / "summary.json")
            made[key] = tiny_models.tensors(out), reports(folder / "summary.json")
        return made[key]

    return get


def reports(path):
    return {module["module"]: module for module in json.loads(path.read_text())["modules"]}


def counts(modules):
    """What was counted for each module."""
    return {name: (module["tokens"], module.get("routed_tokens")) for name, module in modules.items()}


def check(folder, wanted):
    """All is bit for bit the same but down projections, of which nearly all is."""
    down = down_projections()
    fractions = tuple(f"{module}.weight" for module in down)
    assert [name for name in differing(folder, wanted) if not name.startswith(fractions)] == []
    assert equal_share(folder, wanted, down) >= 0.99
    found = tiny_models.tensors(folder)
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    scheme = config["config_groups"]["group_0"]
    for module in down:
        ours, theirs = (reference.Stored(tensors, module, scheme).weight() for tensors in (found, wanted))
        assert numpy.linalg.norm(ours - theirs) < 0.02 * numpy.linalg.norm(theirs), module


def compare(ranks, experts, one_process, results, *how):
    wanted, modules = one_process(*how)
    summary = results.with_name("summary.json")
    out = ranked_runs.run(ranks, experts.folder, results / "out", *how, "--summary", summary)
    check(out, wanted)
    assert counts(reports(summary)) == counts(modules)
    return modules


@pytest.mark.parametrize("ranks", nightly_but([1, 2, 3, 4], 2))
@pytest.mark.parametrize("mode", MODES)
def test_ranks(ranks, mode, experts, one_process, results):
    modules = compare(ranks, experts, one_process, results, *experts.solving, *MODES[mode])
    for name in down_projections():
        tokens, routed = modules[name]["tokens"], modules[name].get("routed_tokens")
        if mode == "all tokens":
            assert (tokens, routed) == (experts.tokens, None)
        else:
            assert tokens >= max(600, routed) and (routed > 600) == (tokens == routed)
    assert mode == "all tokens" or any(modules[name]["routed_tokens"] < 600 for name in down_projections())


@pytest.mark.parametrize("options", [[], ROUTED, ["--no-moe-calibrate-all-experts", "--min-tokens-per-expert", "5000"], BASIC,
                                     [*ROUTED, *BASIC], [*ROUTED, "--sequential-targets", "Linear"]], ids=" ".join)
def test_a_rank_without_samples(options, experts, one_process, results):
    """Three ranks, two samples; and more tokens wanted than there are."""
    data = ["--num-calibration-samples", "2", "--dataset", experts.dataset]
    compare(3, experts, one_process, results, *HOW, *data, *options)


@pytest.mark.parametrize("options", [
    BASIC, [*ROUTED, *BASIC], ["--sequential-targets", "Linear"], [*ROUTED, "--batch-tokens", "100"],
    ["--sequential-targets", "Linear", "--sequential-targets-per-subgraph", "7"],
], ids=" ".join)
def test_options(options, experts, one_process, results):
    compare(3, experts, one_process, results, *experts.solving, *options)


@pytest.mark.parametrize("ranks", nightly_but([2, 3], 2))
def test_without_data(ranks, experts, one_process, results):
    how = ["--algorithm", "rtn", "--group-size", "64"]
    out = ranked_runs.run(ranks, experts.folder, results / "out", *how)
    assert differing(out, one_process(*how)[0]) == []


@pytest.mark.parametrize("mode", MODES)
def test_killed_and_resumed_by_other_ranks(mode, experts, one_process, results):
    """In the middle of a layer, whose experts are subgraphs of their own here. The last ones may not be on disk yet."""
    how = [*experts.solving, *MODES[mode], "--sequential-targets", "Linear"]
    run = RankedRun(2, experts.folder, results / "out", *how).wait_for_subgraphs(14)
    run.kill(1).end_by_failing("rank 1")
    summary = results.with_name("summary.json")
    out = ranked_runs.run(3, experts.folder, results / "out", *how, "--resume", "--summary", summary)
    assert json.loads(summary.read_text())["resumed_subgraphs"] >= 8
    check(out, one_process(*how)[0])


def test_every_rank_compresses_its_share(experts, results):
    """Down projections are dealt out as a whole: no rank factorizes all of them."""
    flops = []
    for ranks in (1, 4):
        summary = results.with_name(f"summary-{ranks}.json")
        ranked_runs.run(ranks, experts.folder, results / f"out{ranks}", *experts.solving, "--summary", summary)
        flops.append([rank["phases"]["factorize"]["flops"] for rank in json.loads(summary.read_text())["ranks"]])
    columns = exact_experts.SIZES["moe_intermediate_size"]
    dealt = len(down_projections()) * columns**3 / 3
    shared = flops[0][0] - dealt  # of the values that many linears read; their rows are divided, or one rank has them
    assert shared > 0 and all(rank <= shared + dealt / 4 for rank in flops[1])
    assert sum(flops[1]) >= flops[0][0]
