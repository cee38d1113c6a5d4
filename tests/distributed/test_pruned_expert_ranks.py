"""Removing experts: several processes choose those that one chooses."""

import json

from support import program, tiny_models
from support.pruned_experts import COUNTS, recipe
from support.ranked_runs import RankedRun


def test_two_ranks(tmp_path):
    source = tiny_models.save(tmp_path / "model", "Qwen3Moe", num_experts=8, num_experts_per_tok=2, moe_intermediate_size=48,
                              head_dim=16)
    samples = program.write_samples(tmp_path / "samples.jsonl", tiny_models.random_samples([30, 64, 17, 64, 40], seed=7))
    kept = []
    for ranks in (1, 2):
        (folder := tmp_path / f"ranks{ranks}").mkdir()
        report = folder / "kept.json"
        arguments = ["--recipe", recipe(folder, report_path=str(report)), "--dataset", samples, "--dtype", "fp32", "--threads", "1"]
        if ranks == 1:
            program.oneshot(source, folder / "out", *arguments)
        else:
            RankedRun(ranks, source, folder / "out", *arguments).end_well()
        kept.append(json.loads(report.read_text()))
        config = json.loads((folder / "out" / "config.json").read_text())
        assert [config[key] for key in COUNTS if key in config] == [4]
    assert kept[0] == kept[1]
    first, second = (tiny_models.tensors(tmp_path / f"ranks{ranks}" / "out") for ranks in (1, 2))
    assert first.keys() == second.keys() and all(first[name].equal(second[name]) for name in first)
