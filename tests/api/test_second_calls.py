"""One oneshot() behind another, with a model in memory that has the first one's result."""

import json

import pytest
from safetensors.torch import load_file

CACHE = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}


def quantized(**arguments):
    from layerpress.modifiers.quantization import QuantizationModifier

    return QuantizationModifier(**arguments)


def compressed(model, recipe, samples, output=None):
    import layerpress

    data = {} if samples is None else {"dataset": [{"input_ids": sample} for sample in samples]}
    return layerpress.oneshot(model, recipe=recipe, progress=False, **data, **({} if output is None else {"output_dir": output}))


def mlp():
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "channel"}
    return quantized(config_groups={"group_0": {"targets": ["re:.*mlp.*"], "weights": weights}})


def attention(**weights):
    return quantized(scheme="FP8_DYNAMIC", targets=["re:.*self_attn.*_proj"], **weights)


@pytest.mark.parametrize("first, scales", [
    ({"scheme": "FP8_DYNAMIC", "targets": ["re:.*mlp.*"], "kv_cache_scheme": CACHE}, "kv"), ({"targets": ["Linear"], "kv_cache_scheme": CACHE}, "kv"),
    ({"config_groups": {"group_0": {"targets": ["LlamaAttention"], "input_activations": CACHE}}}, "qkv")])
def test_the_cache_stays_quantized(first, scales, loaded, samples, tmp_path):
    import layerpress

    compressed(loaded, quantized(**first), samples, tmp_path / "first")
    compressed(loaded, attention(), None, tmp_path / "second")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("first", "second"))
    names = [name for name in before if name.endswith(tuple(f"{kind}_scale" for kind in "qkv"))]
    assert len(names) == 3 * len(scales) and all(after[name].equal(before[name]) for name in names)
    config = json.loads((tmp_path / "second" / "config.json").read_text())["quantization_config"]
    assert config["kv_cache_scheme"]["num_bits"] == 8
    assert [group["targets"] for group in config["config_groups"].values()].count(["LlamaAttention"]) == len(scales) - 2
    assert not layerpress.verify(tmp_path / "second", source=tmp_path / "first")["faults"]


def test_a_cache_that_no_longer_fits_is_told(loaded, samples, tmp_path, caplog):
    from layerpress.modifiers import SmoothQuantModifier

    compressed(loaded, quantized(targets=["Linear"], kv_cache_scheme=CACHE), samples)
    compressed(loaded, [SmoothQuantModifier(), attention()], samples, tmp_path / "out")
    assert "the source's quantized cache of keys and values is not in the result (model.layers.0.self_attn, ...)" in caplog.text
    assert not any(name.endswith("k_scale") for name in load_file(tmp_path / "out" / "model.safetensors"))


def test_weights_that_become_plain_are_told(loaded, tmp_path, caplog):
    from layerpress.modifiers import MagnitudePruningModifier

    compressed(loaded, attention(), None)
    compressed(loaded, MagnitudePruningModifier(final_sparsity=0.5, targets=["re:.*_proj$"]), None, tmp_path / "out")
    assert "12 weights that stay uncompressed are written as bfloat16, not as they are stored" in caplog.text


@pytest.mark.parametrize("first", ["SmoothQuantModifier", "SpinQuantModifier"])
def test_verify_follows_both_recipes(first, model, loaded, samples, tmp_path):
    """Beside the original, and beside what the second call began with."""
    import layerpress.modifiers

    compressed(loaded, getattr(layerpress.modifiers, first)(), samples if first == "SmoothQuantModifier" else None, tmp_path / "first")
    compressed(loaded, quantized(scheme="W8A8", targets=["Linear"], ignore=["lm_head"]), None, tmp_path / "second")
    for source in (model, tmp_path / "first"):
        found = layerpress.verify(tmp_path / "second", source=source)
        assert not found["faults"] and not found["warnings"]
    own = layerpress.verify(tmp_path / "first", source=tmp_path / "first")
    assert not own["faults"]
    recipe = (tmp_path / "second" / "recipe.yaml").read_text()
    assert recipe.endswith("\n# The source was made by another recipe:\n" + "".join(
        f"# {line}\n" for line in (tmp_path / "first" / "recipe.yaml").read_text().splitlines()))


def test_the_card_names_the_model_and_all_weights(loaded, tmp_path):
    compressed(loaded, mlp(), None)
    compressed(loaded, attention(), None)
    loaded.save_pretrained(tmp_path / "saved")
    card = (tmp_path / "saved" / "README.md").read_text()
    assert "# model, compressed" in card and "| base model | model |" in card
    assert "| weights as the source stores them | 4-bit int, channel: 9 modules |" in card
    assert "The model that this command reads had been made by the recipe that stands in comments below." in card


def test_a_compressed_model_that_has_run(model, tmp_path):
    """compressed-tensors makes plain weights of packed ones at the first forward pass."""
    import torch
    from transformers import AutoModelForCausalLM

    import layerpress

    layerpress.oneshot(model, recipe=mlp(), output_dir=tmp_path / "first", progress=False)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "first", dtype="auto")
    compressed(loaded, attention(), None, tmp_path / "second")
    loaded.generate(torch.arange(3, 20)[None], max_new_tokens=2, do_sample=False)
    assert not hasattr(loaded.model.layers[0].mlp.up_proj, "weight_packed")
    loaded.save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved" / "model.safetensors").read_bytes() == (tmp_path / "second" / "model.safetensors").read_bytes()


def test_a_compressed_model_that_has_run_before(model, tmp_path, caplog):
    """Its weights are plain by then."""
    import torch
    from transformers import AutoModelForCausalLM

    import layerpress

    layerpress.oneshot(model, recipe=mlp(), output_dir=tmp_path / "first", progress=False)
    ran = AutoModelForCausalLM.from_pretrained(tmp_path / "first", dtype="auto")
    ran(torch.arange(3, 20)[None])
    compressed(ran, attention(), None, tmp_path / "second")
    assert caplog.text.count("what the recipe does not compress is stored plainly") == 1
    tensors = load_file(tmp_path / "second" / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(tensors[name], ran.state_dict()[name]) and f"{name}_scale" not in tensors
    assert "model.layers.0.self_attn.q_proj.weight_scale" in tensors


def test_changed_settings_between_the_calls(loaded, tmp_path):
    compressed(loaded, mlp(), None, tmp_path / "first")
    loaded.config.eos_token_id, loaded.generation_config.max_length = 7, 99
    compressed(loaded, attention(), None, tmp_path / "second")
    loaded.save_pretrained(tmp_path / "saved")
    for folder, wanted in (("first", False), ("second", True), ("saved", True)):
        config, generation = (json.loads((tmp_path / folder / f"{name}.json").read_text()) for name in ("config", "generation_config"))
        assert (config["eos_token_id"] == 7) == wanted and (generation.get("max_length") == 99) == wanted, folder
