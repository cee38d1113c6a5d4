"""gpt-oss: experts that transformers has in stacked tensors only are compressed one by one, as engines read them."""

import json

import numpy
import pytest
import torch
from safetensors.torch import save_file
from support import any_model, program, quantized_sources, reference, reloading, tiny_models
from support.quantized_sources import equal_bytes

SAMPLES = tiny_models.random_samples([19, 30, 2], 256, seed=5)
EXPERTS, LAYERS, PARTS = 8, 2, ("gate_proj", "up_proj", "down_proj")
ATTENTION = ["--targets", "re:.*self_attn.*_proj", "--group-size", "32"]


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A checkpoint with mxfp4 experts and one with their values, as bf16."""
    folder = tmp_path_factory.mktemp("gpt-oss")
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    quantized, values = quantized_sources.save_gpt_oss(folder)
    rows = tiny_models.random_samples([40, 64, 33, 64, 50, 64], 256)
    yield {"mxfp4": quantized, "bf16": values, "dataset": program.write_samples(folder / "samples.jsonl", rows)}
    patch.undo()


def compress(sources, source, out, *options):
    summary = out.with_name(out.name + "-summary.json")
    program.run("oneshot", sources[source], "--output", out, "--dataset", sources["dataset"], "--summary", summary,
                "--ignore", "lm_head", *options)
    found = json.loads(summary.read_text())["source_tensors"]
    assert found["copied_names"] == [] and found["dropped"] == []
    assert found["read"] == len(tiny_models.tensors(sources[source]))
    return tiny_models.tensors(out)


def opened_by_transformers(output, folder):
    """The compressed checkpoint's values, rounded once, in the form that transformers loads."""
    config, tensors, plain = json.loads((output / "config.json").read_text()), tiny_models.tensors(output), folder / "plain"
    scheme = config.pop("quantization_config")["config_groups"]["group_0"]
    for module in [name.removesuffix(".weight_packed") for name in tensors if name.endswith(".weight_packed")]:
        tensors[module + ".weight"] = torch.from_numpy(reference.Stored(tensors, module, scheme).weight())
    kept = {name: tensor.float() for name, tensor in tensors.items() if ".weight_" not in name and not name.endswith("_global_scale")}
    plain.mkdir()
    (plain / "config.json").write_text(json.dumps(config))
    save_file(reloading.stacked_experts(kept, "gpt_oss"), plain / "model.safetensors", {"format": "pt"})
    return plain


@pytest.mark.parametrize("source, options", [
    ("bf16", ["--group-size", "32"]),
    pytest.param("mxfp4", ["--group-size", "32", "--no-moe-calibrate-all-experts"], marks=pytest.mark.nightly),
    pytest.param("bf16", ["--scheme", "NVFP4A16"], marks=pytest.mark.nightly),
    pytest.param("bf16", ["--scheme", "NVFP4", "--algorithm", "rtn"], marks=pytest.mark.nightly),
])
def test_compressed(source, options, sources, tmp_path):
    tensors = compress(sources, source, tmp_path / "out", *options)
    linears = {name.removesuffix(".weight_packed") for name in tensors if name.endswith(".weight_packed")}
    wanted = {f"model.layers.{layer}.mlp.experts.{e}.{part}" for layer in range(LAYERS) for e in range(EXPERTS) for part in PARTS}
    assert {name for name in linears if "experts" in name} == wanted and len(linears) == len(wanted) + 4 * LAYERS
    values = tiny_models.tensors(sources["bf16"])
    single = {name: tensor for name, tensor in tensors.items() if name.endswith(".bias")}
    biases = {name: tensor for name, tensor in reloading.stacked_experts(single, "gpt_oss").items() if name.endswith("proj_bias")}
    assert len(biases) == 2 * LAYERS and all(torch.equal(tensor, values[name]) for name, tensor in biases.items())
    plain = opened_by_transformers(tmp_path / "out", tmp_path)
    theirs = any_model.logits(plain, SAMPLES)
    for mine, other in zip(program.logits(tmp_path / "out", SAMPLES, tmp_path, options=["--export"]), theirs, strict=True):
        assert other.std() > 0.1
        assert numpy.abs(mine - other).max() < 1e-4 * numpy.abs(other).max()
    own, nothing = reloading.divergence([torch.from_numpy(each) for each in theirs], any_model.logits(sources["bf16"], SAMPLES))
    assert 0 < own < 0.2 * nothing


@pytest.mark.nightly
def test_mxfp4_to_nvfp4(sources, tmp_path):
    """Exact where the exponents fit, which these do."""
    tensors = compress(sources, "mxfp4", tmp_path / "out", "--scheme", "NVFP4A16", "--algorithm", "rtn", "--targets", "re:.*experts.*")
    values = tiny_models.tensors(sources["bf16"])
    made = tiny_models.tensors(reloading.decoded(tmp_path / "out", tmp_path / "decoded"))
    names = [name for name in made if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]
    assert len(names) == 2 * LAYERS and all(torch.equal(made[name], values[name].float()) for name in names)
    assert any(name.endswith("weight_global_scale") for name in tensors)


@pytest.mark.nightly
def test_left_as_they_are(sources, tmp_path):
    """Stacked as they were, or with the codes that they had."""
    source = tiny_models.tensors(sources["bf16"])
    for kind, options in (("bf16", []), ("mxfp4", ["--dtype", "bfloat16"])):
        tensors = compress(sources, kind, tmp_path / kind, *ATTENTION, *options)
        names = {name for name in tensors if "experts" in name}
        assert names == {name for name in source if "experts" in name}
        assert all(equal_bytes(tensors[name], source[name]) for name in names)
    tensors, source = compress(sources, "mxfp4", tmp_path / "kept", *ATTENTION), tiny_models.tensors(sources["mxfp4"])
    for layer in range(LAYERS):
        for e in range(EXPERTS):
            prefix = f"model.layers.{layer}.mlp.experts."
            for part, stored, rows in (("gate_proj", "gate_up_proj", slice(0, None, 2)), ("up_proj", "gate_up_proj", slice(1, None, 2)),
                                       ("down_proj", "down_proj", slice(None))):
                packed, scales = (tensors[f"{prefix}{e}.{part}.weight_{kind}"] for kind in ("packed", "scale"))
                assert torch.equal(packed, source[f"{prefix}{stored}_blocks"][e][rows].flatten(1))
                assert torch.equal(scales, source[f"{prefix}{stored}_scales"][e][rows])


@pytest.mark.nightly
def test_some_layers(sources, tmp_path):
    tensors = compress(sources, "bf16", tmp_path / "out", "--group-size", "32", "--ignore", "re:.*layers.1.*")
    names = {name.split("mlp.")[1].split(".")[1] for name in tensors if "layers.1.mlp.experts" in name}
    assert names == {"gate_up_proj", "gate_up_proj_bias", "down_proj", "down_proj_bias"}
    assert "model.layers.0.mlp.experts.7.up_proj.weight_packed" in tensors
    ours, theirs = program.logits(tmp_path / "out", SAMPLES, tmp_path, options=["--export"]), any_model.logits(sources["bf16"], SAMPLES)
    own, nothing = reloading.divergence([torch.from_numpy(each) for each in ours], theirs)
    assert 0 < own < 0.2 * nothing


@pytest.mark.nightly
def test_wrong_shapes(sources, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text((sources["bf16"] / "config.json").read_text())
    tensors, name = tiny_models.tensors(sources["bf16"]), "model.layers.0.mlp.experts.gate_up_proj_bias"
    save_file({**tensors, name: tensors[name][:, :60].contiguous()}, folder / "model.safetensors", {"format": "pt"})
    program.fails("oneshot", folder, "--output", tmp_path / "out", *ATTENTION, "--algorithm", "rtn", fragments=[name, "[8, 60]", "[8, 64]"])


def test_smoothing_leaves_stacked_experts(sources, tmp_path):
    """Usual mappings leave experts alone. Where others would change them without quantizing them, no reader would find their weights."""
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps({"a_stage": {"a_modifiers": {"SmoothQuantModifier": {"smoothing_strength": 0.7}}}}))
    out = program.oneshot(sources["bf16"], tmp_path / "out", "--recipe", recipe, "--dataset", sources["dataset"])
    assert tiny_models.tensors(out).keys() == tiny_models.tensors(sources["bf16"]).keys()
    for mine, other in zip(any_model.logits(out, SAMPLES), any_model.logits(sources["bf16"], SAMPLES), strict=True):
        assert numpy.abs(mine - other).mean() < 0.02 * other.std()  # scaled weights are rounded to bf16 once more
    mappings = [[["re:.*gate_proj", "re:.*up_proj"], "re:.*post_attention_layernorm"]]
    recipe.write_text(json.dumps({"a_stage": {"a_modifiers": {"SmoothQuantModifier": {"mappings": mappings}}}}))
    program.fails("oneshot", sources["bf16"], "--output", tmp_path / "refused", "--recipe", recipe, "--dataset", sources["dataset"],
                  fragments=["SmoothQuantModifier changes model.layers.0.mlp.experts.0.", "part of a larger tensor", "quantize it, too"])
