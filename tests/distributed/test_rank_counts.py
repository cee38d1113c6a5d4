"""The result does not depend on how many processes make it."""

import json

import numpy
import pytest
import torch
from support import program, ranked_runs, tiny_models
from support.exact_model import EXACT, differing, save_tokenizer
from support.selection import nightly_but
from support.watched_runs import RUN

FIRST_GROUP = [f"model.layers.0.self_attn.{name}_proj" for name in "qkv"]
CHANNEL = {"quant_stage": {"quant_modifiers": {"GPTQModifier": {
    "ignore": ["lm_head", "re:.*o_proj", "re:.*down_proj"],
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
        "num_bits": 4, "type": "int", "symmetric": False, "strategy": "channel"}}}}}}}
ROUNDING = ["--algorithm", "rtn", "--group-size", "64"]


def equal_share(folder, wanted, modules):
    """The share of equal 4-bit codes."""
    found, equal, count = tiny_models.tensors(folder), 0, 0
    for module in modules:
        ours, theirs = (t[f"{module}.weight_packed"].numpy().view(numpy.uint8) for t in (found, wanted))
        equal += ((ours & 15) == (theirs & 15)).sum() + ((ours >> 4) == (theirs >> 4)).sum()
        count += 2 * ours.size
    return equal / count


def check_complete(folder, model):
    """The checkpoint's index, config and companions are those of one process."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    shards = {file.name for file in folder.glob("*.safetensors")}
    assert set(index["weight_map"].values()) == shards and index["weight_map"].keys() == tiny_models.tensors(folder).keys()
    others = {file.name for file in model.iterdir()} - {"model.safetensors"} | {"recipe.yaml", "README.md", RUN}
    assert {file.name for file in folder.iterdir()} == others | shards | {"model.safetensors.index.json"}


@pytest.mark.parametrize("ranks", nightly_but([1, 2, 3, 4], 2, 3))
def test_exact_sums_give_the_same_bytes(ranks, exact, expected, alone, results, untouched):
    out = ranked_runs.run(ranks, exact.folder, results / "out", *exact.solving)
    assert differing(out, expected) == []
    assert (out / "config.json").read_bytes() == (alone(*exact.solving) / "config.json").read_bytes()
    if ranks > 1:
        check_complete(out, exact.folder)
        assert len(list(out.glob("*.safetensors"))) == ranks
    assert list(results.iterdir()) == [out]


def test_torchrun(exact, expected, results):
    assert differing(ranked_runs.TorchRun(2, exact.folder, results / "out", *exact.solving).end_well(), expected) == []


@pytest.mark.parametrize("options", [
    ["--scheme", "W4A16_ASYM", "--group-size", "64"], ["--scheme", "W8A8"], ["--scheme", "FP8_BLOCK"],
    ["--scheme", "FP8_DYNAMIC"], ["--scheme", "W8A8", "--observer", "mse"], ["--group-size", "64", "--observer", "mse"],
    ["--group-size", "64", "--observer", "minmax"],
    ["--group-size", "64", "--pipeline", "basic"], ["--group-size", "64", "--pipeline", "two_pass"],
    ["--group-size", "64", "--sequential-targets", "Linear"],
    ["--group-size", "64", "--max-shard-size", "200KB"], ["--group-size", "64", "--batch-tokens", "100"],
], ids=" ".join)
def test_options(options, exact, alone, results):
    how = [*EXACT, *exact.data, *options]
    assert differing(ranked_runs.run(3, exact.folder, results / "out", *how), tiny_models.tensors(alone(*how))) == []


@pytest.mark.parametrize("modifiers", [
    {"SparseGPTModifier": {"sparsity": 0.5}}, {"WandaPruningModifier": {"sparsity": None, "mask_structure": "2:4"}},
    {"SparseGPTModifier": {"sparsity": None, "mask_structure": "2:4"}, "GPTQModifier": {"scheme": "W8A8"}},
    {"WandaPruningModifier": {"sparsity": 0.5, "sparsity_profile": "owl", "owl_m": 3, "owl_lmbda": 0.1}},
], ids=lambda modifiers: " ".join(modifiers))
def test_pruning(modifiers, exact, alone, results, tmp_path):
    """Dense rows travel between ranks, too."""
    recipe = tmp_path / "recipe.yaml"
    ignore = ["lm_head", "re:.*lm_head", *EXACT[1:]]
    recipe.write_text(json.dumps({"prune_stage": {f"m{i}_modifiers": {kind: {**arguments, "ignore": ignore}}
                                                  for i, (kind, arguments) in enumerate(modifiers.items())}}))
    how = ["--recipe", recipe, *exact.data]
    assert differing(ranked_runs.run(2, exact.folder, results / "out", *how), tiny_models.tensors(alone(*how))) == []


def test_embeddings(exact, alone, results):
    how = ["--targets", "Linear,Embedding", *ROUNDING]
    assert differing(ranked_runs.run(3, exact.folder, results / "out", *how), tiny_models.tensors(alone(*how))) == []


def test_loss_mask(exact, alone, results, tmp_path):
    """Some samples count as a whole, some in part, some not at all."""
    masks = [[int(i % 4 < number % 5) for i in range(len(sample))] for number, sample in enumerate(exact.samples)]
    rows = [{"input_ids": list(map(int, sample)), "loss_mask": mask} for sample, mask in zip(exact.samples, masks)]
    (tmp_path / "masked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    how = [*EXACT, "--group-size", "64", "--dataset", tmp_path / "masked.jsonl", "--use-loss-mask"]
    wanted = tiny_models.tensors(alone(*how))
    assert differing(ranked_runs.run(3, exact.folder, results / "out", *how), wanted) == []
    assert differing(alone(*how[:-1]), wanted) != []


def test_recipe(exact, alone, results, tmp_path):
    (tmp_path / "recipe.json").write_text(json.dumps(CHANNEL))
    how = ["--recipe", tmp_path / "recipe.json", *exact.data]
    assert differing(ranked_runs.run(2, exact.folder, results / "out", *how), tiny_models.tensors(alone(*how))) == []


@pytest.mark.parametrize("ranks", nightly_but([2, 3, 4], 3))
@pytest.mark.parametrize("scheme", [["--group-size", "64"], ["--scheme", "FP8_BLOCK"]], ids=["W4A16", "FP8_BLOCK"])
def test_without_data(ranks, scheme, exact, alone, results):
    """Nothing is summed, so every tensor of every model is the same."""
    how = ["--algorithm", "rtn", *scheme]
    assert differing(ranked_runs.run(ranks, exact.folder, results / "out", *how), tiny_models.tensors(alone(*how))) == []


@pytest.mark.parametrize("more", [{}, {"QuantizationModifier": {"scheme": "FP8_DYNAMIC", "ignore": ["lm_head"]}}], ids=["alone", "FP8"])
def test_rotations(more, exact, alone, results, tmp_path):
    modifiers = {"SpinQuantModifier": {"transform_type": "random-hadamard"}, **more}
    (tmp_path / "recipe.json").write_text(json.dumps({"quant_stage": {"quant_modifiers": modifiers}}))
    how = ["--recipe", tmp_path / "recipe.json"]
    wanted = tiny_models.tensors(alone(*how))
    assert differing(ranked_runs.run(2, exact.folder, results / "out", *how), wanted) == []
    assert not torch.equal(wanted["model.embed_tokens.weight"], tiny_models.tensors(exact.folder)["model.embed_tokens.weight"])


def test_plan_without_data(exact, results):
    """A rank's plan counts the linears that it compresses, which are about half of all."""
    how = [*ROUNDING, "--dry-run", "--json"]
    run = ranked_runs.RankedRun(2, exact.folder, results / "out", *how)
    run.end_well()
    text = run.text()
    half, whole = json.loads(text[text.index("{"):]), program.run("oneshot", exact.folder, "--output", results / "out", *how).json()
    read = [sum(each["read_bytes"] for each in plan["subgraphs"] if each["name"].startswith("model.layers")) for plan in (half, whole)]
    assert 0.3 * read[1] < read[0] < 0.7 * read[1]


@pytest.mark.parametrize("options", [
    ["--num-calibration-samples", "1"], ["--num-calibration-samples", "5", "--shuffle", "--seed", "3"], [],
    ["--concatenate", "--max-seq-length", "48"], ["--dataset-split", "train[2:9]"], ["--max-seq-length", "20"],
], ids=" ".join)
def test_choice_of_samples(options, exact, alone, results):
    """Four ranks read together what one reads, even where there is less than one sample for each."""
    how = [*EXACT, "--group-size", "64", "--dataset", exact.dataset, *options]
    wanted = tiny_models.tensors(alone(*how))
    assert differing(ranked_runs.run(4, exact.folder, results / "out", *how), wanted) == []


def test_text(exact, results, tmp_path):
    """Every rank tokenizes its part; rows without a token are made good for."""
    model = exact.with_settings(tmp_path / "model")
    save_tokenizer(model)
    words = [" ".join(f"w{token}" for token in sample) for sample in exact.samples]
    rows = [{"text": text} for text in ["", *words[:4], "", "", *words[4:]]]
    (tmp_path / "text.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, options in {"some": ["--num-calibration-samples", "7"], "joined": ["--concatenate", "--max-seq-length", "50"]}.items():
        how = [*EXACT, "--group-size", "64", "--dataset", tmp_path / "text.jsonl", *options]
        wanted = tiny_models.tensors(program.oneshot(model, results / f"{name}-alone", *how, "--threads", "1"))
        assert differing(ranked_runs.run(3, model, results / name, *how), wanted) == []


def test_own_slices(exact, expected, results):
    """Ranks that name different slices of a split each read their own."""
    last = len(exact.samples)
    slices = ["train[:7]", f"train[7:{last}]"]
    out = ranked_runs.run(2, exact.folder, results / "out", *exact.solving, own=lambda rank: ["--dataset-split", slices[rank]])
    assert differing(out, expected) == []


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory):
    """A model with activations of every size, its data, and what one process makes of it."""
    parent = tmp_path_factory.mktemp("ordinary")
    model = tiny_models.save(parent / "model", dtype=torch.bfloat16, hidden_size=256, intermediate_size=384,
                             num_hidden_layers=3, max_position_embeddings=256)
    data = program.write_token_file(parent / "tokens.safetensors", tiny_models.random_samples([256] * 10 + [40, 30, 200], seed=9))
    how = ["--group-size", "64", "--dataset", data]
    program.oneshot(model, parent / "out", *how, "--threads", "1")
    return model, how, data, parent / "out"


def divergence(folder, model, data):
    return program.run("eval", folder, "--dataset", data, "--reference", model, "--threads", "1").json()["kl_divergence"]


def test_error_propagation(ordinary, results):
    """The original model's inputs are added up like all others; the model is better for it, on any number of ranks, which divide the
    rows of the head, too."""
    model, how, data, plain = ordinary
    best = [*how, "--quality", "max"]
    alone = program.oneshot(model, results / "alone", *best, "--threads", "1")
    found = ranked_runs.run(3, model, results / "ranks", *best)
    assert equal_share(found, tiny_models.tensors(alone), FIRST_GROUP) >= 0.99
    heads = [tiny_models.tensors(folder)["lm_head.weight"].double() for folder in (alone, found)]
    assert (heads[0] - heads[1]).norm() < 0.1 * heads[0].norm()  # later layers' codes differ, and with them what it makes up for
    divergences = [divergence(folder, model, data) for folder in (plain, alone, found)]
    assert abs(divergences[2] / divergences[1] - 1) < 0.05
    assert divergences[1] < 0.9 * divergences[0]


@pytest.mark.parametrize("ranks", nightly_but([2, 3, 4, 8], 2))
def test_ordinary_model(ranks, ordinary, results):
    """Sums in another order move a last bit here and there: few codes differ, the model is as good."""
    model, how, data, wanted = ordinary
    out = ranked_runs.run(ranks, model, results / "out", *how)
    assert equal_share(out, tiny_models.tensors(wanted), FIRST_GROUP) >= 0.99
    assert divergence(out, model, data) == pytest.approx(divergence(wanted, model, data), rel=0.03)
    tiny_models.load(out)


@pytest.mark.nightly
def test_same_bytes_every_time(ordinary, results):
    model, how, _, _ = ordinary
    first = ranked_runs.run(3, model, results / "first", *how)
    again = ranked_runs.run(3, model, results / "again", *how)
    assert differing(again, tiny_models.tensors(first)) == []


def test_loads_as_one_checkpoint(ordinary, results, tmp_path):
    """transformers gives the logits that the program itself computes from the files of three ranks."""
    import transformers

    model, how, _, _ = ordinary
    out = ranked_runs.run(3, model, results / "out", *how)
    sample = tiny_models.random_samples([30], seed=1)[0]
    theirs = tiny_models.load(out, quantization_config=transformers.CompressedTensorsConfig(dequantize=True))
    with torch.no_grad():
        wanted = theirs(torch.tensor([sample])).logits[0].float().numpy()
    assert wanted.std() > 0.5
    assert numpy.abs(program.logits(out, [sample], tmp_path)[0] - wanted).max() < 2e-4
