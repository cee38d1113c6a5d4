"""--use-loss-mask from the command line: what counts, how it travels, and what is refused."""

import json

import pytest
from support import program, tiny_models
from support.watched_runs import contents, killed

LENGTHS = [40, 64, 33, 50]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_models.save(tmp_path_factory.mktemp("masked") / "model", hidden_size=128, intermediate_size=256)


@pytest.fixture(scope="module")
def samples():
    return [list(map(int, sample)) for sample in tiny_models.random_samples(LENGTHS)]


def write(path, samples, masks=None):
    rows = [{"input_ids": sample} | ({"loss_mask": mask} if masks else {})
            for sample, mask in zip(samples, masks or samples)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def beginnings(count):
    return [[int(i < count) for i in range(length)] for length in LENGTHS]


def compress(model, folder, dataset, *options):
    program.oneshot(model, folder, "--dataset", dataset, "--group-size", "32", "--threads", "1", *options)
    return tiny_models.tensors(folder)


def same(a, b):
    return a.keys() == b.keys() and all(a[name].equal(b[name]) for name in a)


def test_only_marked_tokens_count(model, samples, tmp_path):
    """What comes behind the marked beginnings of samples has no influence; what comes before does count."""
    masked = write(tmp_path / "masked.jsonl", samples, beginnings(20))
    found = compress(model, tmp_path / "masked", masked, "--use-loss-mask", "--summary", tmp_path / "summary.json")
    cut = compress(model, tmp_path / "cut", write(tmp_path / "cut.jsonl", [sample[:20] for sample in samples]))
    assert same(found, cut)
    assert not same(found, compress(model, tmp_path / "all", masked))
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert {module["tokens"] for module in summary["modules"]} == {80}
    assert summary["tokens"] == sum(LENGTHS)


@pytest.mark.parametrize("observer", ["minmax", "static_minmax"])
def test_scales_of_inputs_see_all_tokens(observer, model, samples, tmp_path):
    """Engines round the inputs of every token, those of prompts, too."""
    inputs = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "tensor", "dynamic": False, "observer": observer}
    weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    modifier = {"QuantizationModifier": {"config_groups": {"group_0": group}, "ignore": ["lm_head"]}}
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(json.dumps({"a_stage": {"a_modifiers": modifier}}))
    masked, found = write(tmp_path / "masked.jsonl", samples, beginnings(20)), []
    for options in (["--use-loss-mask"], []):
        program.oneshot(model, tmp_path / f"out{len(options)}", "--dataset", masked, "--recipe", recipe, "--batch-tokens", "64", *options)
        found.append(tiny_models.tensors(tmp_path / f"out{len(options)}"))
    assert sum(name.endswith("input_scale") for name in found[0]) == 14 and same(*found)


def test_token_files_carry_the_mask(model, samples, tmp_path):
    rows = write(tmp_path / "rows.jsonl", samples, [[int(i % 3 > 0) for i in range(length)] for length in LENGTHS])
    program.run("prepare", model, "--dataset", rows, "--output", tmp_path / "t.safetensors", "--use-loss-mask")
    for options in (["--use-loss-mask"], [], ["--use-loss-mask", "--batch-tokens", "64", "--pipeline", "basic"]):
        direct = compress(model, tmp_path / f"direct{len(options)}", rows, *options)
        assert same(direct, compress(model, tmp_path / f"stored{len(options)}", tmp_path / "t.safetensors", *options))


def test_refusals(model, samples, tmp_path):
    def fails(dataset, *fragments, code=1):
        program.fails("oneshot", model, "--output", tmp_path / "out", "--dataset", dataset, "--use-loss-mask",
                      fragments=fragments, code=code)
        assert not (tmp_path / "out").exists()

    fails(write(tmp_path / "unmarked.jsonl", samples, beginnings(0)), "[data.loss_mask]", "excludes every token")
    fails(write(tmp_path / "plain.jsonl", samples), "[data.rows]", "line 1", "loss_mask")
    program.run("prepare", model, "--dataset", tmp_path / "plain.jsonl", "--output", tmp_path / "plain.safetensors")
    fails(tmp_path / "plain.safetensors", "has no loss mask", "prepare --use-loss-mask")


def test_a_run_goes_on_with_the_same_mask_only(model, samples, tmp_path):
    many = write(tmp_path / "many.jsonl", samples * 20, beginnings(20) * 20)
    options = ["--dataset", many, "--group-size", "32", "--threads", "1"]
    undisturbed = contents(program.oneshot(model, tmp_path / "whole", *options, "--use-loss-mask"))
    killed(model, tmp_path / "out", *options, "--use-loss-mask", subgraphs=1)
    program.fails("oneshot", model, "--output", tmp_path / "out", *options, "--resume", code=2,
                  fragments=["--use-loss-mask was true and is false"])
    program.oneshot(model, tmp_path / "out", *options, "--use-loss-mask", "--resume")
    assert contents(tmp_path / "out") == undisturbed
