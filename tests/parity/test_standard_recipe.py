"""--scheme nvfp4-fp8: the recipe of most published checkpoints, for dense models, experts, latent attention and images."""

import json

import pytest
import torch
from support import deep_model, program, tiny_mllama, tiny_models
from support.watched_runs import check_resumed, contents, differing

LENGTHS = [40, 17, 64, 33]
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
FAMILIES = {"Llama": {}, "Qwen3Moe": EXPERTS, "Phi3": {}, "DeepseekV3": {}}


def compress(model, folder, *options):
    samples = program.write_samples(folder / "samples.jsonl", tiny_models.random_samples(LENGTHS))
    return program.oneshot(model, folder / "out", "--scheme", "nvfp4-fp8", "--dataset", samples, *options)


def formats_of(tensors):
    """What each module is stored as."""
    fp4 = {name.removesuffix(".weight_packed") for name in tensors if name.endswith(".weight_packed")}
    fp8 = {name.removesuffix(".weight") for name, tensor in tensors.items() if tensor.dtype == torch.float8_e4m3fn
           and name.endswith(".weight")}
    return fp4, fp8


@pytest.mark.parametrize("family", FAMILIES)
def test_language_models(family, tmp_path):
    model = tiny_models.save(tmp_path / "model", family, **FAMILIES[family])
    output = compress(model, tmp_path, "--algorithm", "rtn")
    tensors, original = tiny_models.tensors(output), tiny_models.tensors(model)
    fp4, fp8 = formats_of(tensors)
    linears = {name.removesuffix(".weight") for name, tensor in original.items() if tensor.dim() == 2}
    feed_forward = {name for name in linears if name.endswith(("gate_proj", "up_proj", "down_proj"))}
    attention = {name for name in linears if ".self_attn." in name}
    assert (fp4, fp8) == (feed_forward, attention) and fp4 and fp8
    kept = linears - feed_forward - attention
    assert {"lm_head", "model.embed_tokens"} <= kept
    assert all(torch.equal(tensors[f"{name}.weight"], original[f"{name}.weight"]) for name in kept)
    assert {f"{name}.input_global_scale" for name in fp4} <= set(tensors)
    config = json.loads((output / "config.json").read_text())["quantization_config"]
    assert config["format"] == "mixed-precision"
    assert {group["format"] for group in config["config_groups"].values()} == {"nvfp4-pack-quantized", "float-quantized"}
    caches_heads = family != "DeepseekV3"
    assert (config["kv_cache_scheme"] is not None) == caches_heads
    assert {name for name in tensors if name.endswith(("k_scale", "v_scale"))} == {
        f"model.layers.{layer}.self_attn.{kind}_scale" for layer in range(2) for kind in "kv" if caches_heads}


def test_solved_and_read_again(tmp_path):
    """By GPTQ; the recipe.yaml that it writes gives the same checkpoint."""
    model = tiny_models.save(tmp_path / "model", dtype=torch.bfloat16)
    output = compress(model, tmp_path)
    written = contents(output)
    outcome = program.run("oneshot", model, "--output", tmp_path / "again", "--recipe", output / "recipe.yaml", "--dataset",
                          tmp_path / "samples.jsonl")
    again = tmp_path / "again"
    assert "matches no module" not in outcome.errors
    assert [name for name in differing(again, written) if not name.endswith((".md", ".layerpress-run.json"))] == []
    loaded, plain = tiny_models.load(output, torch.bfloat16), tiny_models.load(model, torch.bfloat16)
    sample = torch.tensor([tiny_models.random_samples([40], seed=9)[0]])
    with torch.no_grad():
        error = (loaded(sample).logits - plain(sample).logits).float().std()
        assert 0 < error < 0.8 * plain(sample).logits.float().std()


@pytest.mark.parametrize("options", [[], ["--sequential-offload-device", "disk"], ["--pipeline", "basic"]],
                         ids=["memory", "disk", "basic"])
def test_killed_and_resumed(options, tmp_path):
    """Scales of values are among what a resumed run finds, or measures again."""
    model = deep_model.save(tmp_path)
    arguments = ["--scheme", "nvfp4-fp8", "--dataset", tmp_path / "tokens.safetensors", "--threads", "1", *options]
    check_resumed(model, tmp_path, *arguments)


def test_images(tmp_path):
    """Cross attention's keys and values are those of images; the vision encoder stays as it is."""
    model = tiny_mllama.save(tmp_path / "model")
    samples = [tiny_mllama.Sample(40, [1]), tiny_mllama.Sample(33, [5, 2], [3, 20]), tiny_mllama.Sample(21)]
    tokens = tiny_mllama.write_token_file(tmp_path / "tokens.safetensors", samples)
    output = program.oneshot(model, tmp_path / "out", "--scheme", "nvfp4-fp8", "--algorithm", "rtn", "--dataset", tokens,
                             "--ignore", "re:.*lm_head")
    tensors = tiny_models.tensors(output)
    fp4, fp8 = formats_of(tensors)
    assert not any("vision" in name or "projector" in name for name in fp4 | fp8)
    assert any("cross_attn" in name for name in fp8) and all(".mlp." in name for name in fp4)
    scales = {name for name in tensors if name.endswith(("k_scale", "v_scale"))}
    assert {name.split(".")[-2] for name in scales} == {"self_attn", "cross_attn"} and not any("vision" in name for name in scales)
    assert all(tensors[name].item() > 0 for name in scales)


@pytest.mark.parametrize(("options", "fragment"), [
    (["--group-size", "32"], "fixes its group sizes"), (["--targets", "re:.*mlp.*"], "--ignore")])
def test_what_does_not_go_with_it(options, fragment, tmp_path):
    model = tiny_models.save(tmp_path / "model")
    program.fails("oneshot", model, "--output", tmp_path / "out", "--scheme", "nvfp4-fp8", *options, code=2, fragments=[fragment])
