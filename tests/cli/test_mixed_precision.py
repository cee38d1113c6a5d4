"""`oneshot --target-bits` and `--target-size`: schemes chosen by measurements."""

import itertools
import json

import numpy
import pytest
import torch
from support import deep_model, program, tiny_checkpoints, tiny_mllama, tiny_models
from support.watched_runs import contents, differing, killed

SCHEMES = ["W4A16", "W8A16", "none"]
CHOICE = ["--schemes", ",".join(SCHEMES), "--group-size", "32"]
LAYER = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]


def choose(model, out, samples, *arguments):
    """The summary of a run."""
    summary = out.parent / "summary.json"
    program.oneshot(model, out, *CHOICE, "--dataset", samples, "--summary", summary, *arguments)
    return json.loads(summary.read_text())


@pytest.fixture(scope="module")
def made(model, samples, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixed")
    return folder / "out", choose(model, folder / "out", samples, "--target-bits", "7", "--dtype", "fp32")


def scheme_of(decision):
    return {target: unit["scheme"] for unit in decision["units"] for target in unit["targets"]}


def test_modules_are_stored_as_chosen(model, made):
    out, summary = made
    decision = summary["mixed_precision"]
    assert len([own for own in decision["schemes"] if own["modules"]]) > 1
    stored, original = tiny_models.tensors(out), tiny_models.tensors(model)
    bits = weights = 0
    for module, scheme in scheme_of(decision).items():
        own = {name: tensor for name, tensor in stored.items() if name.startswith(module + ".")}
        assert (f"{module}.weight" in own) == (scheme == "none")
        if scheme != "none":
            packed = own[f"{module}.weight_packed"].shape[1] * 32 // original[f"{module}.weight"].shape[1]
            assert packed == int(scheme[1])
        weights += original[f"{module}.weight"].numel()
        bits += 8 * sum(tensor.nbytes for tensor in own.values())
    assert len(scheme_of(decision)) == 3 * len(LAYER)
    assert decision["bits"] == pytest.approx(bits / weights) and decision["bits"] <= 7
    assert [module["module"] for module in summary["modules"]] == [name for name, own in scheme_of(decision).items() if own != "none"]


def recipe(folder, *others, **arguments):
    modifiers = {"MixedPrecisionModifier": {"schemes": SCHEMES, "group_size": 32, **arguments}, **dict(others)}
    (folder / "recipe.json").write_text(json.dumps({"a_stage": {"a_modifiers": modifiers}}))
    return ["--recipe", folder / "recipe.json"]


def test_a_recipe_says_the_same(model, made, samples, results, tmp_path):
    out = program.oneshot(model, results / "out", *recipe(tmp_path, target_bits=7), "--dataset", samples, "--dtype", "fp32")
    assert differing(out, contents(made[0])) == []


@pytest.mark.parametrize("arguments, others, options, fragments", [
    ({"target_bits": 7}, [("GPTQModifier", {"scheme": "W4A16"})], [], ["leave out the other modifiers"]),
    ({"target_bits": 7, "bits": 4}, [], [], ["unknown argument 'bits'"]),
    ({"target_bits": "few"}, [], [], ["target_bits"]),
    ({"target_bits": 7, "schemes": 5}, [], [], ["schemes must be a word or a list of words"]),
    ({}, [], [], ["MixedPrecisionModifier: schemes requires target_bits or target_size"]),
    ({"target_bits": 4}, [], [], ["MixedPrecisionModifier: target_bits: 4 is below the 4.5", "the smallest of schemes"]),
    ({"target_bits": 7}, [], ["--target-bits", "5", "--schemes", "W4A16"], ["--schemes and --recipe"]),
])
def test_refused_recipes(arguments, others, options, fragments, model, samples, results, tmp_path):
    program.fails("oneshot", model, "--output", results / "out", *recipe(tmp_path, *others, **arguments), *options, "--dataset", samples,
                  code=None, fragments=fragments)


def test_fused_linears_have_one_scheme(made):
    chosen = scheme_of(made[1]["mixed_precision"])
    for layer in range(3):
        assert len({chosen[f"model.layers.{layer}.self_attn.{name}_proj"] for name in "qkv"}) == 1
        assert len({chosen[f"model.layers.{layer}.mlp.{name}_proj"] for name in ("gate", "up")}) == 1


def bits_of(decision, unit, scheme):
    """The unit's, which is the scheme's everywhere: all columns are multiples of the group size."""
    return next(own["bits"] for own in decision["uniform"] if own["scheme"] == scheme) * unit["weights"]


def test_no_other_choice_is_better(made):
    decision = made[1]["mixed_precision"]
    units = decision["units"]
    limit = 7 * sum(unit["weights"] for unit in units) * (1 + 1e-9)
    sizes = [[bits_of(decision, unit, scheme) for scheme in SCHEMES] for unit in units]
    losses = [[unit["left_by_gptq"] * unit["predicted_kl"][scheme] for scheme in SCHEMES] for unit in units]
    assert all(0 < unit["left_by_gptq"] < 1 for unit in units)
    halves = []  # the bits and the losses of all choices for the first units, and for the others
    for half in (range(6), range(6, len(units))):
        bits, loss = numpy.zeros(1), numpy.zeros(1)
        for unit in half:
            bits = numpy.add.outer(bits, sizes[unit]).ravel()
            loss = numpy.add.outer(loss, losses[unit]).ravel()
        halves.append((bits, loss))
    best = float("inf")
    for own_bits, own_loss in zip(*halves[0]):
        fits = halves[1][0] <= limit - own_bits
        if fits.any():
            best = min(best, own_loss + halves[1][1][fits].min())
    chosen = [SCHEMES.index(unit["scheme"]) for unit in units]
    assert sum(own[place] for own, place in zip(losses, chosen)) == pytest.approx(best, rel=1e-9)
    assert decision["predicted_kl"] == pytest.approx(sum(unit["predicted_kl"][unit["scheme"]] for unit in units), rel=1e-9)


def test_predictions_are_measured(model, samples, made, results):
    """One unit alone in the scheme whose divergences are measured gives that divergence; other schemes follow by output errors."""
    decision = made[1]["mixed_precision"]
    assert decision["disturbed_by"] == "W4A16"
    for unit in decision["units"][1], decision["units"][-2]:
        program.oneshot(model, results / "one", "--algorithm", "rtn", "--scheme", "W4A16", "--group-size", "32", "--targets",
                        ",".join(unit["targets"]), "--overwrite")
        measured = program.run("eval", results / "one", "--reference", model, "--dataset", samples, "--dtype", "fp32").json()
        assert unit["predicted_kl"]["W4A16"] == pytest.approx(measured["kl_divergence"], rel=0.05)
        assert unit["predicted_kl"]["W8A16"] < unit["predicted_kl"]["W4A16"] / 50
        assert unit["predicted_kl"]["none"] == 0


def test_whole_models_are_measured(model, samples, results):
    """Those that rounding to the choice, and to the schemes beside it alone, gives."""
    decision = choose(model, results / "chosen", samples, "--target-bits", "6", "--algorithm", "rtn")["mixed_precision"]
    uniform = {own["scheme"]: own.get("measured_kl") for own in decision["uniform"]}
    assert {scheme for scheme, measured in uniform.items() if measured is not None} == {"W4A16", "W8A16"}

    def divergence(result):
        return program.run("eval", result, "--reference", model, "--dataset", samples, "--dtype", "fp32").json()["kl_divergence"]

    assert decision["measured_kl"] == pytest.approx(divergence(results / "chosen"), rel=0.05)
    program.oneshot(model, results / "alone", "--algorithm", "rtn", "--scheme", "W4A16", "--group-size", "32")
    assert uniform["W4A16"] == pytest.approx(divergence(results / "alone"), rel=0.05)
    assert uniform["W8A16"] < decision["measured_kl"] < uniform["W4A16"]
    card = (results / "chosen" / "README.md").read_text()
    assert "measured, rounded to nearest: " in card and "W4A16 alone at 4.5" in card


def test_short_samples_are_compared(model, results, tmp_path):
    """A first sample of one token, and no other that is long."""
    rows = program.write_samples(tmp_path / "rows.jsonl", [[1], *([5 + row, 7, 9, 11, 13, 15, 17, 19] for row in range(30))])
    outcome = program.run("oneshot", model, "--output", results / "out", *CHOICE, "--dataset", rows, "--target-bits", "7")
    assert "on 241 tokens" in outcome.errors, outcome.errors


def test_only_tokens_that_count_are_compared(model, results, tmp_path):
    """Earlier tokens do not see later ones, so masking those is cutting them off."""
    samples = [list(map(int, sample)) for sample in tiny_models.random_samples([40, 64, 33, 50])]

    def predictions(name, rows):
        file = tmp_path / f"{name}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        decision = choose(model, results / name, file, "--target-bits", "7", "--dtype", "fp32", "--use-loss-mask")["mixed_precision"]
        return [kl for unit in decision["units"] for kl in unit["predicted_kl"].values()] + [decision["measured_kl"]]

    masked = predictions("masked", [{"input_ids": own, "loss_mask": [int(i < 20) for i in range(len(own))]} for own in samples])
    cut = predictions("cut", [{"input_ids": own[:20], "loss_mask": [1] * 20} for own in samples])
    assert masked == pytest.approx(cut, rel=1e-4) and max(masked) > 0


@pytest.mark.parametrize("tied", [True, False])
def test_a_head_is_rounded_in_predictions(tied, samples, results):
    """A tied one alone, and not the embedding."""
    model = tiny_models.save(results.parent / "model", dtype=torch.bfloat16, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                             tie_word_embeddings=tied)
    schemes = ["--schemes", "W2A16,W8A16", "--group-size", "32", "--ignore", "nothing", "--algorithm", "rtn"]

    def divergence(*arguments):
        program.oneshot(model, results / "rounded", "--scheme", "W2A16", "--group-size", "32", "--ignore", "nothing", "--algorithm", "rtn",
                        "--overwrite", *arguments)
        return program.run("eval", results / "rounded", "--reference", model, "--dataset", samples, "--dtype", "fp32").json()["kl_divergence"]

    outcome = program.run("oneshot", model, "--output", results / "head", *schemes, "--targets", "lm_head", "--target-bits", "20", "--dataset",
                          samples, "--summary", results / "summary.json")
    decision = json.loads((results / "summary.json").read_text())["mixed_precision"]
    unit, = decision["units"]
    assert unit["scheme"] == "W8A16" and 0 < unit["predicted_kl"]["W8A16"] < unit["predicted_kl"]["W2A16"] / 50
    assert unit["predicted_kl"]["W2A16"] == pytest.approx(divergence("--targets", "lm_head"), rel=0.05)
    assert "do not change the predictions" not in outcome.errors
    program.oneshot(model, results / "all", *schemes, "--target-bits", "6", "--dataset", samples, "--summary", results / "summary.json")
    whole = json.loads((results / "summary.json").read_text())["mixed_precision"]["uniform"][0]
    assert (whole["scheme"], whole["measured_kl"]) == ("W2A16", pytest.approx(divergence(), rel=0.05))


VISION_CHOICE = ["--schemes", "W4A16,W8A16,none", "--group-size", "32", "--target-bits", "10", "--ignore",
                 "lm_head,re:.*vision.*,re:.*multi_modal.*"]


def test_cross_attention_is_measured_with_images(tmp_path, results):
    """Its loss is that of samples with images. Where none has any, it is a typical one, and a warning says so."""
    model = tiny_mllama.save(tmp_path / "model")
    samples = {"images": [tiny_mllama.Sample(20, (4,)), tiny_mllama.Sample(12), tiny_mllama.Sample(16, (2, 6))],
               "texts": [tiny_mllama.Sample(20), tiny_mllama.Sample(12)]}
    for kind, own in samples.items():
        data = tiny_mllama.write_token_file(tmp_path / f"{kind}.safetensors", own)
        outcome = program.run("oneshot", model, "--output", results / kind, *VISION_CHOICE, "--dataset", data, "--summary",
                              tmp_path / f"{kind}.json")
        units = json.loads((tmp_path / f"{kind}.json").read_text())["mixed_precision"]["units"]
        losses = {unit["targets"][0]: unit["predicted_kl"] for unit in units}
        crossing = [loss["W4A16"] for name, loss in losses.items() if ".layers.1." in name or ".layers.3." in name]
        assert len(crossing) >= 8 and all(loss > 0 for loss in crossing), losses
        assert ("do not change the predictions on the first samples" in outcome.errors) == (kind == "texts")


def test_no_static_scales_without_tokens(tmp_path, results):
    """Of candidates with static scales of inputs, linears that no token reaches get none."""
    model = tiny_mllama.save(tmp_path / "model")
    data = tiny_mllama.write_token_file(tmp_path / "texts.safetensors", [tiny_mllama.Sample(20), tiny_mllama.Sample(12)])
    common = [model, "--dataset", data, "--ignore", VISION_CHOICE[-1], "--target-bits"]
    summary = tmp_path / "summary.json"
    program.oneshot(*common[:1], results / "out", *common[1:], "9", "--schemes", "NVFP4,W8A16,none", "--group-size", "32", "--summary", summary)
    units = json.loads(summary.read_text())["mixed_precision"]["units"]
    crossing = [unit["scheme"] for unit in units if ".layers.1." in unit["targets"][0] or ".layers.3." in unit["targets"][0]]
    assert crossing and "NVFP4" not in crossing and "NVFP4" in {unit["scheme"] for unit in units}
    program.fails("oneshot", *common[:1], "--output", results / "none", *common[1:], "5", "--schemes", "NVFP4", code=None,
                  fragments=["[mixed_precision] no token reaches", "static scales of its inputs are unknown", "such as none"])


def test_what_decided_is_not_called_useless(model, samples, results):
    """Data that chose schemes; groups whose modules the source has in their scheme."""
    outcome = program.run("oneshot", model, "--output", results / "rtn", *CHOICE, "--dataset", samples, "--algorithm", "rtn", "--target-bits", "6")
    assert "has no effect" not in outcome.errors
    program.oneshot(model, results / "fp8", "--algorithm", "rtn", "--scheme", "FP8_DYNAMIC")
    outcome = program.run("oneshot", results / "fp8", "--output", results / "out", "--dataset", samples, "--algorithm", "rtn", "--target-bits", "6",
                          "--schemes", "NVFP4,FP8_DYNAMIC,none")
    assert "compresses nothing" not in outcome.errors and "already in the requested scheme" in outcome.errors


def test_curve_falls(made):
    decision = made[1]["mixed_precision"]
    points = [(point["bits"], point["predicted_kl"]) for point in decision["curve"]]
    for (bits, loss), (more_bits, less_loss) in itertools.pairwise(points):
        assert more_bits > bits and less_loss < loss
    uniform = {own["scheme"]: (own["bits"], own["predicted_kl"]) for own in decision["uniform"]}
    assert points[0] == pytest.approx(uniform["W4A16"]) and points[-1] == pytest.approx(uniform["none"])


def test_what_is_printed(model, samples, results):
    outcome = program.run("oneshot", model, "--output", results / "out", *CHOICE, "--dataset", samples, "--target-bits", "4.6")
    text = " ".join(outcome.output.split())
    assert "W4A16" in text and "bits per weight; predicted KL divergence" in text and "predicted for other bits: 4." in text
    assert "measured, rounded to nearest: this choice " in text and "W8A16 alone (8." in text
    assert "schemes chosen by | measurements: 4." in (results / "out" / "README.md").read_text()
    assert "layerpress oneshot" in (results / "out" / "README.md").read_text()


@pytest.mark.parametrize("algorithm", ["gptq", "rtn"])
def test_size_of_the_result(algorithm, model, samples, results):
    whole = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    limit = int(0.7 * whole)
    choose(model, results / "out", samples, "--target-size", f"{limit}B", "--algorithm", algorithm)
    size = sum(file.stat().st_size for file in (results / "out").glob("*.safetensors"))
    assert 0.9 * limit < size <= limit


def test_experts_have_one_scheme(samples, results):
    model = tiny_models.save(results.parent / "experts", "Qwen3Moe", dtype=torch.bfloat16, num_hidden_layers=2, num_experts=4,
                             num_experts_per_tok=2, moe_intermediate_size=32, decoder_sparse_step=1)
    decision = choose(model, results / "out", samples, "--target-bits", "6.5")["mixed_precision"]
    experts = [unit for unit in decision["units"] if "experts" in unit["targets"][0]]
    assert [unit["modules"] for unit in experts] == [12, 12]
    assert experts[1]["targets"][0] == r"re:^model\.layers\.1\.mlp\.experts\.\d+\.gate_proj$"
    stored = tiny_models.tensors(results / "out")
    for layer, unit in enumerate(experts):
        widths = {tensor.shape[1] for name, tensor in stored.items()
                  if name.startswith(f"model.layers.{layer}.mlp.experts.") and name.endswith("up_proj.weight_packed")}
        plain = [name for name in stored if name.startswith(f"model.layers.{layer}.mlp.experts.") and name.endswith(".weight")]
        assert (len(widths), len(plain)) == ((0, 12) if unit["scheme"] == "none" else (1, 0))
    assert all(unit["predicted_kl"]["W4A16"] > 0 for unit in experts)


def test_types_of_a_gguf(samples, results):
    import gguf

    tiny_checkpoints.save(results.parent / "model", "byte_level_split")
    model = tiny_models.save(results.parent / "model", "Llama", dtype=torch.bfloat16, vocab_size=768, hidden_size=256,
                             intermediate_size=512, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2)
    program.oneshot(model, results / "out.gguf", "--target-bits", "5.2", "--schemes", "Q4_K,Q6_K,Q8_0,none", "--dataset", samples,
                    "--summary", results / "summary.json")
    decision = json.loads((results / "summary.json").read_text())["mixed_precision"]
    types = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(results / "out.gguf").tensors}
    names = {"self_attn.q_proj": "attn_q", "self_attn.v_proj": "attn_v", "mlp.down_proj": "ffn_down"}
    chosen = scheme_of(decision)
    assert len(decision["units"]) == 2 * len(LAYER)  # llama.cpp fuses none
    for layer in range(2):
        for module, tensor in names.items():
            expected = chosen[f"model.layers.{layer}.{module}"]
            assert types[f"blk.{layer}.{tensor}.weight"] == ("BF16" if expected == "none" else expected)
    assert len(set(chosen.values())) > 1 and decision["bits"] <= 5.2


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("schemes, vocabulary, limit", [("Q4_K,Q6_K", "Q6_K", 1_300_000), ("Q8_0,none", "Q8_0", 2_100_000)])
def test_vocabulary_of_a_gguf(tied, schemes, vocabulary, limit, samples, results):
    import gguf

    tiny_checkpoints.save(results.parent / "model", "byte_level_split")
    model = tiny_models.save(results.parent / "model", "Llama", dtype=torch.bfloat16, vocab_size=768, hidden_size=256,
                             intermediate_size=512, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2,
                             tie_word_embeddings=tied)
    arguments = ["--schemes", schemes, "--dataset", samples, "--summary", results / "summary.json"]
    outcome = program.run("oneshot", model, "--output", results / "out.gguf", *arguments, "--target-size", f"{limit}B")
    types = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(results / "out.gguf").tensors}
    assert types["token_embd.weight"] == vocabulary and types.get("output.weight") == (None if tied else vocabulary)
    assert f"the vocabulary in {vocabulary}" in " ".join(outcome.output.split())
    decision = json.loads((results / "summary.json").read_text())["mixed_precision"]
    assert decision["vocabulary"] == {"scheme": vocabulary, "modules": ["model.embed_tokens"] + ([] if tied else ["lm_head"])}
    assert 0.8 * limit < (results / "out.gguf").stat().st_size <= limit
    program.oneshot(model, results / "out.gguf", *arguments, "--target-bits", "9", "--ignore", "lm_head", "--overwrite")
    types = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(results / "out.gguf").tensors}
    assert types["token_embd.weight"] == "BF16" and types.get("output.weight") == (None if tied else "BF16")


def test_types_that_do_not_fit_are_answered_with_some_that_do(samples, results):
    tiny_checkpoints.save(results.parent / "model", "byte_level_split")
    model = tiny_models.save(results.parent / "model", "Llama", vocab_size=768, hidden_size=128, intermediate_size=256, num_hidden_layers=1)
    program.fails("oneshot", model, "--output", results / "out.gguf", "--target-bits", "5.2", "--schemes", "Q4_K,Q5_K,Q6_K", "--dataset",
                  samples, fragments=["do not divide 128 columns", "use --schemes Q5_0,Q5_1,Q8_0, which fit"])


def test_time_counts_the_measurement(made):
    summary = made[1]
    phases = sum(phase["seconds"] for phase in summary["phases"].values())
    assert summary["seconds"] > summary["mixed_precision"]["seconds"] + 0.5 * phases


@pytest.mark.parametrize("arguments", [["--target-bits", "4"], ["--target-bits", "40"], ["--target-size", "1KB"]])
def test_useless_limits_are_refused_before_measuring(arguments, model, samples, refused):
    outcome = refused(model, *CHOICE, "--dataset", samples, *arguments, fragments=["target"], code=2)
    assert "linears in" not in outcome.errors


def test_resumed_run_keeps_the_choice(tmp_path):
    """It is not measured again, and another limit is refused."""
    model = deep_model.save(tmp_path / "long", layers=6, samples=8)
    arguments = ["--schemes", "W4A16,W8A16", "--target-bits", "6", *deep_model.gptq(model)]
    expected = contents(program.oneshot(model, tmp_path / "expected" / "out", *arguments))
    out = tmp_path / "results" / "out"
    killed(model, out, *arguments, subgraphs=2)
    other = [*arguments[:3], "6.5", *arguments[4:]]
    program.fails("oneshot", model, "--output", out, *other, "--resume", fragments=["--target-bits was 6.0 and is 6.5", "--overwrite"], code=2)
    outcome = program.run("oneshot", model, "--output", out, *arguments, "--resume")
    assert "the earlier run's choice" in outcome.errors
    assert differing(out, expected) == []


@pytest.mark.parametrize("options, fragment", [
    (["--pipeline", "basic", "--quality", "best"], "requires --pipeline sequential"), (["--observer", "gptq", "--algorithm", "rtn"], "gptq")])
def test_what_the_run_refuses_is_refused_before_measuring(options, fragment, model, samples, results):
    outcome = program.fails("oneshot", model, "--output", results / "out", *CHOICE, "--dataset", samples, "--target-bits", "5", *options,
                            fragments=[fragment], code=None)
    assert "[mixed_precision]" not in outcome.errors and "plan:" not in outcome.errors


def test_existing_output_is_refused_before_measuring(model, samples, results):
    (results / "out").mkdir()
    (results / "out" / "file").write_text("x")
    outcome = program.fails("oneshot", model, "--output", results / "out", *CHOICE, "--dataset", samples, "--target-bits", "5",
                            fragments=["the directory is not empty", "--overwrite"], code=2)
    assert "linears in" not in outcome.errors


@pytest.mark.parametrize("arguments, fragments", [
    (["--target-bits", "4"], ["--target-bits: 4 is below the 4.5", "smallest of --schemes"]),
    (["--target-bits", "40"], ["--target-bits: 40 leaves room", "leave out none"]),
    (["--target-bits", "-1"], ["--target-bits: -1"]),
    (["--target-bits", "0"], ["--target-bits: 0 is no number of bits"]),
    (["--target-bits", "5", "--schemes", "W8A16,UNQUANTIZED"], ["--schemes: UNQUANTIZED leaves weights unquantized; write none"]),
    (["--target-bits", "nan"], ["--target-bits: nan"]),
    (["--target-size", "1KB"], ["--target-size: 1KB is below the"]),
    (["--target-size", "many"], ["--target-size", "many"]),
    (["--target-size", "1GB", "--target-bits", "5"], ["--target-bits and --target-size", "one of them"]),
    ([], ["--schemes requires --target-bits or --target-size"]),
    (["--target-bits", "5", "--recipe", "recipe.yaml"], ["--schemes and --recipe"]),
    (["--target-bits", "5", "--scheme", "W4A16"], ["--schemes and --scheme"]),
    (["--target-bits", "5", "--schemes", "W4A61"], ["--schemes", "unknown scheme 'W4A61'", "none leaves a linear as it is"]),
    (["--target-bits", "5", "--schemes", "W4A16,W4A16"], ["W4A16 is named twice"]),
    (["--target-bits", "5", "--schemes", "none"], ["none alone compresses nothing"]),
    (["--target-bits", "5", "--schemes", "Q4_K"], ["--schemes", "Q4_K"]),
    (["--target-bits", "5", "--algorithm", "awq"], ["--algorithm", "awq"]),
])
def test_refusals(arguments, fragments, model, samples, refused):
    schemes = [] if "--schemes" in arguments else CHOICE
    refused(model, *schemes, "--dataset", samples, *arguments, fragments=fragments, code=2)


def test_options_need_each_other(model, samples, refused):
    refused(model, "--target-bits", "5", "--dataset", samples, fragments=["--target-bits", "add --schemes"], code=2)
    refused(model, *CHOICE, "--target-bits", "5", fragments=["--schemes", "add --dataset"], code=2)
    program.fails("oneshot", model, "--output", "x.gguf", "--target-bits", "5", "--schemes", "NVFP5", "--dataset", samples,
                  fragments=["--schemes: NVFP5", "llama.cpp"], code=2)


def test_charts_say_what_came_before_them(made):
    from layerpress_report.page import page

    assert page(made[1], None, "").count("The measurement that chose the schemes came before.") == 2
    assert "came before" not in page({**made[1], "mixed_precision": None}, None, "")
