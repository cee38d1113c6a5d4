"""Every tensor of the source is read, copied with its name in the ignore list, or dropped for a reason that is given."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import program, tiny_models

EXTRA = {
    "mtp.fc.weight": (64, 128),
    "mtp.layers.0.self_attn.q_proj.weight": (64, 64),
    "mtp.layers.0.mlp.experts.gate_up_proj": (4, 64, 64),
    "mtp.norm.weight": (64,),
    "model.layers.2.eh_proj.weight": (64, 128),
    "model.layers.2.mlp.up_proj.weight": (96, 64),
    "model.layers.0.mlp.extra_proj.weight": (32, 64),
    "model.layers.1.mlp.extra_proj.weight": (32, 64),
    "model.layers.0.self_attn.rotary_emb.inv_freq": (8,),
    "model.visual.blocks.0.attn.qkv.weight": (48, 16),
    "model.visual.patch_embed.proj.weight": (16, 3, 2, 2),
}
ROUNDING = ["--algorithm", "rtn", "--group-size", "32"]


def add_tensors(model, tensors):
    path = model / "model.safetensors"
    save_file({**load_file(path), **tensors}, path, metadata={"format": "pt"})


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tiny_models.save(tmp_path_factory.mktemp("unread") / "model", dtype=torch.bfloat16)
    torch.manual_seed(1)
    add_tensors(folder, {name: torch.randn(shape, dtype=torch.bfloat16) for name, shape in EXTRA.items()})
    return folder


def compress(model, folder, *options):
    """The outcome, the ignore list and the summary."""
    summary = folder.with_name(folder.name + "-summary.json")
    outcome = program.run("oneshot", model, "--output", folder, "--summary", summary, "--log-level", "info", *options)
    config = json.loads((folder / "config.json").read_text())
    return outcome, config["quantization_config"]["ignore"], json.loads(summary.read_text())["source_tensors"]


@pytest.mark.parametrize("targets, ignored", {
    "Linear": ["lm_head", r"re:^model\.layers\.\d+\.mlp\.extra_proj$", r"re:^model\.layers\.2\..*", r"re:^(model\.)?visual\..*",
               "re:^mtp.*"],
    "re:.*[qkv]_proj$": ["re:^mtp.*"],
    "re:model.*(gate|up)_proj$": [r"re:^model\.layers\.2\..*"],
    "model.layers.0.mlp.down_proj": [],
}.items())
def test_copied_tensors_are_ignored(model, tmp_path, targets, ignored):
    outcome, ignore, source = compress(model, tmp_path / "out", *ROUNDING, "--targets", targets)
    visited = {name.removesuffix(".weight") for name in tiny_models.tensors(model) if name not in EXTRA}
    assert sorted(set(ignore) - visited | {"lm_head"} & set(ignored)) == sorted(ignored)
    written, original = tiny_models.tensors(tmp_path / "out"), tiny_models.tensors(model)
    assert all(torch.equal(written[name], original[name]) for name in EXTRA)
    assert source == {"read": len(original) - len(EXTRA), "copied": len(EXTRA), "copied_names": sorted(EXTRA), "dropped": []}
    assert "mtp (4 tensors), model.layers.2 (2 tensors), model.visual (2 tensors)" in outcome.errors


def test_readers_open_the_result(model, tmp_path):
    """transformers leaves the extra tensors aside, and the program opens its own result."""
    compress(model, tmp_path / "out", *ROUNDING)
    tiny_models.load(tmp_path / "out")
    assert program.run("inspect", tmp_path / "out").output


@pytest.mark.parametrize("options", [
    [*ROUNDING, "--ignore", ""], [*ROUNDING, "--targets", "Embedding"],
    ["--algorithm", "rtn", "--ignore", ",", "--scheme", "FP8_DYNAMIC"],
], ids=" ".join)
def test_a_tied_head_that_is_stored_too(tmp_path, options):
    """Its own weight must not stay beside its compressed one, or the embedding's."""
    tied = tiny_models.save(tmp_path / "tied", dtype=torch.bfloat16, tie_word_embeddings=True)
    plain, _, source = compress(tied, tmp_path / "plain", *options)
    assert source["dropped"] == []
    add_tensors(tied, {"lm_head.weight": load_file(tied / "model.safetensors")["model.embed_tokens.weight"].clone()})
    _, _, source = compress(tied, tmp_path / "out", *options)
    assert [tensor["name"] for tensor in source["dropped"]] == ["lm_head.weight"]
    assert "model.embed_tokens.weight" in source["dropped"][0]["reason"] and source["copied"] == 0
    written, expected = tiny_models.tensors(tmp_path / "out"), tiny_models.tensors(tmp_path / "plain")
    assert written.keys() == expected.keys() and all(torch.equal(written[name], expected[name]) for name in expected)


@pytest.mark.parametrize("options", [
    [*ROUNDING, "--ignore", ""], ROUNDING,
    pytest.param([*ROUNDING, "--ignore", "", "--model-graph", "export"], marks=pytest.mark.nightly),
], ids=["head quantized", "head left", "exported"])
def test_a_head_that_differs_from_the_embedding(options, tmp_path):
    """A fine-tune of the head alone, whose config.json still ties it. transformers computes with the head that is stored."""
    tied = tiny_models.save(tmp_path / "tied", dtype=torch.bfloat16, tie_word_embeddings=True)
    head = load_file(tied / "model.safetensors")["model.embed_tokens.weight"].flip(0).contiguous()
    add_tensors(tied, {"lm_head.weight": head})
    outcome, _, source = compress(tied, tmp_path / "out", *options)
    assert ": the head keeps its own weight" in outcome.errors and source["dropped"] == []
    assert json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"] is False
    assert program.run("verify", tmp_path / "out", "--source", tied).errors.count("warning") == 0
    samples = program.write_samples(tmp_path / "samples.jsonl", tiny_models.random_samples([30, 40], seed=3))
    graph = options[options.index("--model-graph"):] if "--model-graph" in options else []
    found = program.run("eval", tmp_path / "out", "--reference", tied, "--dataset", samples, *graph).json()
    with torch.no_grad():
        wanted, given = (tiny_models.load(folder) for folder in (tied, tmp_path / "out"))
        losses = []
        for sample in tiny_models.random_samples([30, 40], seed=3):
            ids = torch.tensor([[int(token) for token in sample]])
            reference, compressed = (model(ids).logits[0].float().log_softmax(-1) for model in (wanted, given))
            losses.append((reference.exp() * (reference - compressed)).sum(-1))
    assert found["kl_divergence"] == pytest.approx(torch.cat(losses).mean().item(), rel=0.2, abs=1e-3)
    assert found["kl_divergence"] < 0.3


def test_what_a_recipe_changes_beside_a_head_that_differs(tmp_path):
    """That the head keeps its own weight is no change by the recipe, which would forbid figures of inputs and fewer experts."""
    tied = tiny_models.save(tmp_path / "tied", "Qwen3Moe", tie_word_embeddings=True, moe_intermediate_size=64, num_experts=4,
                            num_experts_per_tok=2, decoder_sparse_step=1, mlp_only_layers=[], norm_topk_prob=True)
    add_tensors(tied, {"lm_head.weight": load_file(tied / "model.safetensors")["model.embed_tokens.weight"].flip(0).contiguous()})
    samples = program.write_samples(tmp_path / "samples.jsonl", tiny_models.random_samples([30, 40], seed=3))
    program.oneshot(tied, tmp_path / "out", "--dataset", samples, "--scheme", "W4A16", "--group-size", "32", "--imatrix",
                    tmp_path / "importance.gguf")
    assert (tmp_path / "importance.gguf").exists()
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(json.dumps({"a_stage": {"a_modifiers": {"REAPPruningModifier": {"sparsity": 0.5}}}}))
    halved = program.oneshot(tied, tmp_path / "halved", "--dataset", samples, "--recipe", recipe)
    assert tiny_models.tensors(halved)["model.layers.0.mlp.gate.weight"].shape[0] == 2
    assert torch.equal(tiny_models.tensors(halved)["lm_head.weight"], tiny_models.tensors(tied)["lm_head.weight"])


def test_exported_graphs_of_heads_that_differ(tmp_path, monkeypatch):
    """Two checkpoints of one config: the graph of one, in which head and embedding are equal, is not that of the other."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    samples = program.write_samples(tmp_path / "samples.jsonl", tiny_models.random_samples([30], seed=3))
    ids = torch.tensor([[int(token) for token in tiny_models.random_samples([30], seed=3)[0]]])
    for name, make in (("equal", torch.clone), ("own", lambda weight: weight.flip(0))):
        tied = tiny_models.save(tmp_path / name, tie_word_embeddings=True)
        add_tensors(tied, {"lm_head.weight": make(load_file(tied / "model.safetensors")["model.embed_tokens.weight"]).contiguous()})
        found = program.run("eval", tied, "--dataset", samples, "--model-graph", "export").json()
        with torch.no_grad():
            wanted = torch.exp(tiny_models.load(tied)(ids, labels=ids).loss).item()
        assert found["perplexity"] == pytest.approx(wanted, rel=1e-4)


def test_a_tied_head_that_stays(tmp_path):
    """It is copied like any tensor that is not read."""
    tied = tiny_models.save(tmp_path / "tied", dtype=torch.bfloat16, tie_word_embeddings=True)
    add_tensors(tied, {"lm_head.weight": load_file(tied / "model.safetensors")["model.embed_tokens.weight"].clone()})
    _, ignore, source = compress(tied, tmp_path / "out", *ROUNDING)
    assert source["copied_names"] == ["lm_head.weight"] and ignore == ["lm_head"]
    assert "lm_head.weight" in tiny_models.tensors(tmp_path / "out")
