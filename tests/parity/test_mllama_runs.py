"""Llama-3.2-Vision compressed with images: which tokens and images count, what readers get, cuts, ranks, resume, evaluation."""

import json
import math

import numpy
import pytest
import torch
import transformers
from compressed_tensors.utils import match_named_modules
from support import program, ranked_runs, reference, tiny_mllama, tiny_models, tiny_vision
from support.tiny_mllama import RATIOS, Sample
from support.watched_runs import WatchedRun, contents, differing, finished_subgraphs

USUAL = ["--ignore", "re:.*lm_head", "re:.*multi_modal_projector.*", "re:.*vision_model.*"]
GPTQ = ["--group-size", "16", "--threads", "1"]
PATCHES = (tiny_mllama.IMAGE_SIZE // tiny_mllama.VISION["patch_size"]) ** 2 + 1
# Samples with and without images, with one and several, whose tiles are filled or not.
MIXED = [Sample(40, [1]), Sample(33), Sample(64, [5, 2], [3, 20]), Sample(50), Sample(64, [8, 1, 3]), Sample(21, [6], [9]),
         Sample(30)]
QUESTIONS = [Sample(12, [5], [2], seed=7), Sample(9, seed=7), Sample(14, [1, 7], [0, 6], seed=7)]
CROSS = "language_model.model.layers.1.cross_attn."


def tiles(samples):
    return sum(RATIOS[ratio] for sample in samples for ratio in sample.ratios)


def tokens_of(samples, illustrated_only=False):
    return sum(len(sample.ids) for sample in samples if sample.ratios or not illustrated_only)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """In fp32: transformers leaves the tensors of a compressed checkpoint whose names it changes as they are stored."""
    return tiny_mllama.save(tmp_path_factory.mktemp("mllama") / "model")


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    return tiny_mllama.write_token_file(tmp_path_factory.mktemp("tokens") / "tokens.safetensors", MIXED)


@pytest.fixture(scope="module")
def usual(model, tokens, tmp_path_factory):
    """The usual run, as folder and summary."""
    return compress(model, tmp_path_factory.mktemp("usual") / "out", tokens, *USUAL)


def compress(model, out, tokens, *options):
    summary = out.with_name(f"{out.name}.json")
    program.oneshot(model, out, "--dataset", tokens, "--summary", summary, *GPTQ, *options)
    return out, json.loads(summary.read_text())


def reports(summary):
    return {module["module"]: module for module in summary["modules"]}


def equal_tensors(first, second):
    one, other = tiny_models.tensors(first), tiny_models.tensors(second)
    assert one.keys() == other.keys()
    return [name for name in one if not torch.equal(one[name], other[name])] == []


def load(folder):
    """transformers' model of dequantized weights."""
    loaded, information = transformers.MllamaForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True,
        quantization_config=transformers.CompressedTensorsConfig(dequantize=True))
    assert not any(information[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), information
    return loaded.eval()


@torch.no_grad()
def check_logits(folder, tmp_path):
    """The program and transformers read the same weights, and the model still does what the original does."""
    loaded = load(folder)
    ours = tiny_mllama.our_logits(folder, QUESTIONS, tmp_path)
    theirs = [loaded(**question.model_inputs(), use_cache=False).logits[0].numpy() for question in QUESTIONS]
    for mine, wanted in zip(ours, theirs):
        assert wanted.std() > 0.5 and numpy.abs(mine - wanted).max() < 2e-4


def resolved_modules(folder):
    """What transformers' modules are compressed, by compressed-tensors' own matching."""
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    with torch.device("meta"):
        empty = transformers.MllamaForConditionalGeneration(transformers.AutoConfig.from_pretrained(folder))
    (group,) = config["config_groups"].values()
    return {name for name, _ in match_named_modules(empty, group["targets"], config["ignore"])}


# ---- what is compressed, and what readers get


def test_which_modules_readers_find_compressed(usual):
    folder, summary = usual
    own = {name.replace("language_model.model.", "model.language_model.") for name in reports(summary)}
    assert own == resolved_modules(folder) and len(own) == 5 * 7
    assert all("vision" not in name and "projector" not in name and "lm_head" not in name for name in own)


def test_readers_compute_what_we_compute(usual, tmp_path):
    check_logits(usual[0], tmp_path)


@torch.no_grad()
def test_result_generates(tokens, tmp_path):
    """In bf16, and as users load it: from the compressed weights."""
    plain = tiny_mllama.save(tmp_path / "model", torch.bfloat16)
    out, _ = compress(plain, tmp_path / "out", tokens, *USUAL)
    loaded = transformers.MllamaForConditionalGeneration.from_pretrained(out)
    inputs = QUESTIONS[0].model_inputs()
    theirs = loaded(**inputs, use_cache=False).logits[0].float().numpy()
    ours = tiny_mllama.our_logits(out, QUESTIONS, tmp_path, "bfloat16")[0]
    assert numpy.abs(ours - theirs).mean() < 0.05 * theirs.std()
    written = loaded.generate(**inputs, attention_mask=torch.ones_like(inputs["input_ids"]), max_new_tokens=5,
                              min_new_tokens=5, do_sample=False)
    assert written.shape == (1, 17) and (written[:, 12:] < tiny_mllama.VOCABULARY).all()


def test_ignored_weights_are_as_they_were(model, usual):
    before, after = tiny_models.tensors(model), tiny_models.tensors(usual[0])
    kept = [name for name in before if name.startswith(("vision_model", "multi_modal", "language_model.lm_head"))]
    assert len(kept) > 60 and all(torch.equal(before[name], after[name]) for name in kept)


@pytest.mark.parametrize("ignore", [
    ["lm_head", "model.multi_modal_projector", "re:model.vision_model"],  # as transformers names them
    ["language_model.lm_head", "multi_modal_projector", "re:vision_model"],  # as the checkpoint does
], ids=["modules", "tensors"])
def test_either_name_ignores(ignore, model, tokens, usual, tmp_path):
    assert equal_tensors(usual[0], compress(model, tmp_path / "out", tokens, "--ignore", *ignore)[0])


@pytest.mark.parametrize("target", [
    "re:model.language_model.layers.1.cross_attn", "re:language_model.model.layers.1.cross_attn",
    f"{CROSS}o_proj", "model.language_model.layers.1.cross_attn.o_proj"])
def test_either_name_is_a_target(target, model, tmp_path):
    """Whatever spelling the recipe has, readers find just these modules."""
    quick = ["--algorithm", "rtn", "--group-size", "16", "--targets", target]
    wanted = ["q", "k", "v", "o"] if target.startswith("re:") else ["o"]
    out = program.oneshot(model, tmp_path / "out", *quick)
    assert resolved_modules(out) == {f"model.language_model.layers.1.cross_attn.{name}_proj" for name in wanted}
    load(out)


def test_tables_of_the_vision_tower_are_not_taken_for_compressed(model, tmp_path):
    """They are embeddings in transformers, but stay as they are."""
    out = program.oneshot(model, tmp_path / "out", "--algorithm", "rtn", "--scheme", "W8A16", "--group-size", "16", "--targets", "Embedding")
    assert resolved_modules(out) == {"model.language_model.embed_tokens"}
    ignore = json.loads((out / "config.json").read_text())["quantization_config"]["ignore"]
    for name in ("gated_positional_embedding.tile_embedding", "pre_tile_positional_embedding.embedding"):
        assert {f"vision_model.{name}", f"model.vision_model.{name}"} <= set(ignore)
    before, after = tiny_models.tensors(model), tiny_models.tensors(out)
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items() if "vision" in name)


def test_vision_tower_too(model, tokens, tmp_path):
    """By default only the head is left out."""
    out, summary = compress(model, tmp_path / "out", tokens)
    found = reports(summary)
    assert len(found) == 5 * 7 + 5 * 6 + 1 == len(resolved_modules(out))
    assert "language_model.lm_head" not in found and "multi_modal_projector" in found
    padded_rows = sum(len(sample.ratios) for sample in MIXED) * tiny_mllama.TILES * (-(-PATCHES // 8) * 8)
    encoder = [found[name] for name in found if name.startswith("vision_model")]
    assert len(encoder) == 30 and all(module["tokens"] == padded_rows and not module["fallback"] for module in encoder)
    assert found["multi_modal_projector"]["tokens"] == tiles(MIXED) * PATCHES
    check_logits(out, tmp_path)
    again, _ = compress(model, tmp_path / "again", tokens, "--sequential-targets", "MllamaSelfAttentionDecoderLayer")
    assert equal_tensors(out, again)


def divergence(folder, model, samples, tmp_path):
    data = tiny_mllama.write_token_file(tmp_path / "evaluation.safetensors", samples)
    return program.run("eval", folder, "--reference", model, "--dataset", data).json()["kl_divergence"]


def test_original_model_beside_it(model, tmp_path):
    """The vision tower and the images' way into the text run in both models, and both are aimed at the original's outputs."""
    samples = [Sample(48, [1 + i % len(RATIOS)] if i % 3 else [], seed=20 + i) for i in range(40)]
    data = tiny_mllama.write_token_file(tmp_path / "calibration.safetensors", samples)
    best, summary = compress(model, tmp_path / "best", data, "--quality", "best")
    balanced, _ = compress(model, tmp_path / "balanced", data)
    assert not any(module["fallback"] for module in summary["modules"])
    found = {folder.name: divergence(folder, model, samples, tmp_path) for folder in (best, balanced)}
    assert found["best"] < 0.8 * found["balanced"], found
    check_logits(best, tmp_path)


# ---- calibration


def test_cuts_do_not_matter(model, tokens, usual, tmp_path):
    """Each group is compressed on what the compressed groups before it give, and all of them come before it in either cut:
    not even a bit differs. k and v of a cross-attention layer read the vision states, which no compressed linear changes."""
    for targets in (["MllamaSelfAttentionDecoderLayer"], ["Linear"]):
        out, summary = compress(model, tmp_path / targets[0], tokens, *USUAL, "--sequential-targets", *targets)
        assert equal_tensors(usual[0], out)


def test_what_counts(usual):
    """All tokens in self-attention layers, those of samples with images in the others, and of images what they fill."""
    found = reports(usual[1])
    counted = lambda name: found[f"language_model.model.layers.{name}_proj"]["tokens"]
    for name in ("0.self_attn.q", "0.mlp.down", "2.self_attn.o", "4.mlp.gate"):
        assert counted(name) == tokens_of(MIXED)
    for name in ("1.cross_attn.q", "1.cross_attn.o", "3.mlp.up", "3.mlp.down"):
        assert counted(name) == tokens_of(MIXED, illustrated_only=True) < tokens_of(MIXED)
    for name in ("1.cross_attn.k", "1.cross_attn.v", "3.cross_attn.k"):
        assert counted(name) == tiles(MIXED) * PATCHES
    assert tiles(MIXED) < tiny_mllama.TILES * sum(len(sample.ratios) for sample in MIXED)
    assert not any(module["fallback"] for module in found.values())


@torch.no_grad()
def vision_states(model, samples):
    """What transformers' cross-attention layers read of the tiles that images fill."""
    states, loaded = [], tiny_mllama.load(model)
    keep = lambda module, inputs, output: states.append(output.reshape(-1, PATCHES, output.shape[-1]))
    loaded.model.multi_modal_projector.register_forward_hook(keep)
    for sample in samples:
        if not sample.ratios:
            continue
        loaded(**sample.model_inputs(), use_cache=False)
        filled = sample.model_inputs()["aspect_ratio_mask"].flatten().bool()
        states[-1] = states[-1][filled].flatten(0, 1)
    return torch.cat(states).double()


def test_keys_and_values_are_solved_for_the_images(model, usual):
    """The reported error is the one that k and v have on transformers' vision states."""
    folder, summary = usual
    states, tensors = vision_states(model, MIXED), tiny_models.tensors(folder)
    (scheme,) = json.loads((folder / "config.json").read_text())["quantization_config"]["config_groups"].values()
    damping = 0.01 * states.square().sum(0).mean().item() / len(states)  # part of what GPTQ minimizes
    errors, rounding_errors = [], []
    for name in ("k_proj", "v_proj"):
        weight = tiny_models.tensors(model)[f"{CROSS}{name}.weight"]
        stored = reference.Stored(tensors, CROSS + name, scheme)
        moved = lambda other: weight.double() - torch.from_numpy(other).double()
        error_of = lambda delta: ((delta @ states.T).square().mean() + damping * delta.square().sum(1).mean()).item()
        errors.append(error_of(moved(stored.weight())))
        codes = reference.round_to_nearest(reference.as_float(weight), stored)
        rounding_errors.append(error_of(moved((codes * stored.scale).astype(numpy.float32))))
    # One number for both, whose rows are solved as one stack.
    for name in ("k_proj", "v_proj"):
        assert reports(summary)[CROSS + name]["output_error"] == pytest.approx(numpy.mean(errors), rel=1e-3)
    assert numpy.mean(errors) < 0.8 * numpy.mean(rounding_errors)


def test_without_images(model, tmp_path):
    """Cross-attention layers that no token passes are rounded to nearest, and it is said."""
    rows = [sample.ids for sample in MIXED]
    dataset = program.write_samples(tmp_path / "samples.jsonl", rows)
    out, summary = compress(model, tmp_path / "out", dataset, *USUAL)
    found, tensors = reports(summary), tiny_models.tensors(out)
    (scheme,) = json.loads((out / "config.json").read_text())["quantization_config"]["config_groups"].values()
    crossing = [name for name in found if ".layers.1." in name or ".layers.3." in name]
    assert len(crossing) == 14
    for name in found:
        if name not in crossing:
            assert found[name]["tokens"] == tokens_of(MIXED) and not found[name]["fallback"]
            continue
        assert found[name]["tokens"] == 0 and "no tokens" in found[name]["fallback"]
        weight = reference.as_float(tiny_models.tensors(model)[name + ".weight"])
        stored = reference.Stored(tensors, name, scheme)
        assert numpy.array_equal(reference.round_to_nearest(weight, stored), stored.codes)
    check_logits(out, tmp_path)


def test_batches_do_not_matter(model, tokens, usual, tmp_path):
    """An image's rows limit a batch as tokens do: here every sample is one."""
    out, summary = compress(model, tmp_path / "out", tokens, *USUAL, "--batch-tokens", "64")
    assert {name: module["tokens"] for name, module in reports(summary).items()} == {
        name: module["tokens"] for name, module in reports(usual[1]).items()}
    name = "language_model.model.layers.0.self_attn.q_proj.weight_packed"
    first, again = (reference.unpack(tiny_models.tensors(folder)[name].numpy(), 4, 64) for folder in (usual[0], out))
    assert (first == again).mean() > 0.99


def test_basic_pipeline(model, tokens, usual, tmp_path):
    """The same rows count; the first group's inputs are the same, too."""
    out, summary = compress(model, tmp_path / "out", tokens, *USUAL, "--pipeline", "basic")
    assert all(module["tokens"] == reports(usual[1])[name]["tokens"] for name, module in reports(summary).items())
    for name in ("language_model.model.layers.0.self_attn.q_proj", CROSS + "k_proj"):
        packed = name + ".weight_packed"
        assert torch.equal(tiny_models.tensors(out)[packed], tiny_models.tensors(usual[0])[packed])


# ---- ranks and resume


@pytest.mark.parametrize("samples", [MIXED, [Sample(40, [5], [3]), Sample(41), Sample(42), Sample(43)]],
                         ids=["images on both ranks", "images on one rank"])
def test_two_ranks(samples, model, tmp_path):
    tokens = tiny_mllama.write_token_file(tmp_path / "tokens.safetensors", samples)
    alone, summary = compress(model, tmp_path / "alone", tokens, *USUAL)
    own = tmp_path / "ranks.json"
    ranked = ranked_runs.run(2, model, tmp_path / "ranked", "--dataset", tokens, *GPTQ, *USUAL, "--summary", own)
    counts = lambda of: {name: module["tokens"] for name, module in reports(of).items()}
    assert counts(json.loads(own.read_text())) == counts(summary)
    one, two = tiny_models.tensors(alone), tiny_models.tensors(ranked)
    assert one.keys() == two.keys()
    for module in ("language_model.model.layers.0.self_attn.q_proj", CROSS + "k_proj"):
        codes = [reference.unpack(tensors[module + ".weight_packed"].numpy(), 4, 64) for tensors in (one, two)]
        assert (codes[0] == codes[1]).mean() > 0.99


def test_killed_and_resumed(model, tmp_path):
    """The vision states come from the scratch file, and the result is that of an undisturbed run."""
    samples = [Sample(60, [1 + i % 8], seed=i) for i in range(60)]
    tokens = tiny_mllama.write_token_file(tmp_path / "tokens.safetensors", samples)
    options = ["--dataset", tokens, *GPTQ, *USUAL, "--sequential-offload-device", "disk"]
    undisturbed = program.oneshot(model, tmp_path / "undisturbed", *options)
    out = tmp_path / "out"
    assert WatchedRun(model, out, *options).wait_for_subgraphs(8).kill() and not out.exists()
    assert finished_subgraphs(out) >= 8  # embedding and vision layers are behind, cross-attention layers ahead
    resumed = program.run("oneshot", model, "--output", out, *options, "--resume", "--summary", tmp_path / "summary.json")
    assert json.loads((tmp_path / "summary.json").read_text())["resumed_subgraphs"] >= 8
    assert "are still there" in resumed.errors
    assert differing(out, contents(undisturbed)) == []


def test_other_images_are_another_run(model, tmp_path):
    samples = [Sample(60, [1 + i % 8], seed=i) for i in range(60)]
    tokens = tiny_mllama.write_token_file(tmp_path / "tokens.safetensors", samples)
    options = ["--dataset", tokens, *GPTQ, *USUAL]
    assert WatchedRun(model, tmp_path / "out", *options).wait_for_subgraphs(3).kill()
    samples[7].pixels[0][0, 0, 3, 3] += 1
    tiny_mllama.write_token_file(tokens, samples)
    program.fails("oneshot", model, "--output", tmp_path / "out", *options, "--resume", fragments=["images", "--overwrite"],
                  code=2)


# ---- plans


def test_dry_run(model, tokens, usual, tmp_path):
    """The plan knows the images, and is the run's own."""
    planned = program.run("oneshot", model, "--output", tmp_path / "out", "--dataset", tokens, *GPTQ, *USUAL, "--dry-run",
                          "--json").json()
    assert planned["peak_bytes"] == pytest.approx(usual[1]["plan"]["peak_bytes"], rel=0.05)
    assert not (tmp_path / "out").exists()
    forward = lambda plan: {subgraph["name"]: subgraph["flops"].get("forward", 0) for subgraph in plan["subgraphs"]}
    text = forward(program.run("inspect", model, "--plan", "--json", "--num-calibration-samples", "7", "--max-seq-length",
                               "40", "--group-size", "16").json())
    images = forward(planned)
    assert images.keys() == text.keys()
    for name in ("vision_model.transformer.layers.0", "language_model.model.layers.3"):
        assert images[name] > 0 == text[name], "of samples without images only self-attention layers compute anything"
    assert text["language_model.model.layers.2"] > 0


# ---- evaluation


def expected_perplexity(folder, samples):
    losses = []
    for sample, logits in zip(samples, tiny_mllama.their_logits(folder, samples)):
        logs = torch.log_softmax(torch.from_numpy(logits).double(), -1)
        losses += [-logs[i, token].item() for i, token in enumerate(sample.ids[1:]) if token < tiny_mllama.VOCABULARY]
    return math.exp(sum(losses) / len(losses)), len(losses)


@pytest.mark.parametrize("images", [True, False], ids=["images", "text"])
def test_evaluation(images, model, usual, tmp_path):
    """Tokens that no head predicts do not count."""
    samples = MIXED if images else [Sample(len(sample.ids)) for sample in MIXED]
    if images:
        samples[0].ids[5] = tiny_mllama.VOCABULARY
    tokens = tiny_mllama.write_token_file(tmp_path / "tokens.safetensors", samples)
    ours = program.run("eval", model, "--dataset", tokens, "--dtype", "float32").json()
    perplexity, count = expected_perplexity(model, samples)
    assert ours["tokens"] == count < tokens_of(samples) and ours["perplexity"] == pytest.approx(perplexity, rel=1e-4)
    compared = program.run("eval", usual[0], "--reference", model, "--dataset", tokens).json()
    assert 0 < compared["kl_divergence"] < 1 and compared["tokens"] == count


# ---- bad input


@pytest.mark.parametrize("change, fragments", [
    (lambda c: c["text_config"].update(cross_attention_layers=[1]), ["layers.3.self_attn.q_proj.weight", "missing"]),
    (lambda c: c["text_config"].update(num_attention_heads=8, num_key_value_heads=4),
     ["layers.1.cross_attn.q_norm.weight", "[16]", "[8]"]),
    (lambda c: c["vision_config"].update(patch_size=14), ["vision_model.patch_embedding", "[32, 3, 7, 7]", "[32, 3, 14, 14]"]),
])
def test_config_that_contradicts_the_tensors(change, fragments, tokens, tmp_path):
    folder = tiny_mllama.save(tmp_path / "model", torch.bfloat16)
    tiny_models.rewrite_config(folder, change)
    program.fails("oneshot", folder, "--output", tmp_path / "out", "--dataset", tokens, *GPTQ, fragments=fragments)
    assert not (tmp_path / "out").exists()


def test_from_image_files(model, tmp_path):
    """`oneshot` prepares by itself; an image that cannot be read is named with its sample."""
    pytest.importorskip("PIL", reason="images need the package pillow")
    folder = tiny_vision.save_vision(tiny_mllama.save(tmp_path / "model"))
    tiny_vision.save_image(tmp_path / "wide.png", 90, 25)
    rows = [{"text": f"<|image|> w{i} w{i + 1} w{i + 2}", "images": ["wide.png"]} for i in range(1, 6)] + [{"text": "w7 w8 w9"}]
    dataset = tmp_path / "rows.jsonl"
    dataset.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out, summary = compress(folder, tmp_path / "out", dataset, *USUAL)
    assert reports(summary)[CROSS + "q_proj"]["tokens"] == 5 * 6  # three words, the image, and two tokens with which the processor begins
    check_logits(out, tmp_path)
    (tmp_path / "torn.png").write_bytes((tmp_path / "wide.png").read_bytes()[:60])
    rows[2]["images"] = ["torn.png"]
    dataset.write_text("".join(json.dumps(row) + "\n" for row in rows))
    program.fails("oneshot", folder, "--output", tmp_path / "torn", "--dataset", dataset, *GPTQ, *USUAL,
                  fragments=["torn.png", "3"])
