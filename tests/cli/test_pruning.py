"""Pruned models: dense ones that transformers loads, and pruned ones in codes whose zeros are exact."""

import json

import pytest
import torch
from support import deep_model, program, tiny_mllama, tiny_models
from support.watched_runs import killed

TWO_OF_FOUR = {"sparsity": 0.5, "mask_structure": "2:4", "ignore": ["re:.*lm_head"]}


def recipe(folder, *modifiers):
    """A recipe of (type, arguments) in order."""
    path = folder / "recipe.yaml"
    path.write_text(json.dumps({"prune_stage": {f"m{i}_modifiers": {kind: arguments} for i, (kind, arguments) in enumerate(modifiers)}}))
    return path


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return tiny_models.save(tmp_path_factory.mktemp("source") / "model")


def is_two_of_four(weight):
    return bool((weight.reshape(-1, 4).eq(0).sum(1) == 2).all())


def linears(tensors):
    return [name for name in tensors if name.endswith("_proj.weight")]


@pytest.mark.parametrize("kind", ["SparseGPTModifier", "WandaPruningModifier"])
def test_dense(kind, source, samples, results, tmp_path):
    summary = tmp_path / "summary.json"
    out = program.oneshot(source, results / "out", "--recipe", recipe(tmp_path, (kind, TWO_OF_FOUR)), "--dataset", samples,
                          "--summary", summary)
    assert "quantization_config" not in json.loads((out / "config.json").read_text())
    found, original = tiny_models.tensors(out), tiny_models.tensors(source)
    assert found.keys() == original.keys()
    assert len(linears(found)) == 14
    for name, tensor in found.items():
        assert tensor.dtype == original[name].dtype
        assert is_two_of_four(tensor) if name in linears(found) else torch.equal(tensor, original[name]), name
        if kind.startswith("Wanda"):
            assert torch.equal(tensor, torch.where(tensor == 0, 0, original[name]))
    texts = tiny_models.random_samples([9, 20], seed=4)
    for ours, theirs in zip(program.logits(out, texts, tmp_path), tiny_models.logits(out, texts)):
        assert abs(ours - theirs).max() < 2e-4
    modules = {module["module"]: module for module in json.loads(summary.read_text())["modules"]}
    assert {module["scheme"] for module in modules.values()} == {"2:4 sparse"}
    assert all(0.1 < module["weight_error"] < 1 for module in modules.values())
    assert all((module["output_error"] is not None) == kind.startswith("Sparse") for module in modules.values())


def test_two_passes_prune_by_the_inputs_of_unpruned_layers(source, samples, results, tmp_path):
    """Wanda's masks as LLM Compressor finds them: each layer by what it computes before it is pruned, behind pruned layers."""
    out = program.oneshot(source, results / "out", "--recipe", recipe(tmp_path, ("WandaPruningModifier", TWO_OF_FOUR)), "--dataset", samples,
                          "--dtype", "float32", "--pipeline", "two_pass")
    model, found = tiny_models.load(source).double(), tiny_models.tensors(out)
    for index, layer in enumerate(model.model.layers):
        squares = {}

        def add(module, inputs, output, squares=squares):
            squares[module] = squares.get(module, 0) + inputs[0].flatten(0, -2).square().sum(0)

        own = {name: module for name, module in layer.named_modules() if isinstance(module, torch.nn.Linear)}
        hooks = [module.register_forward_hook(add) for module in own.values()]
        with torch.no_grad():
            for row in map(json.loads, samples.read_text().splitlines()):
                model(torch.tensor([row["input_ids"]]))
        for hook in hooks:
            hook.remove()
        for name, module in own.items():
            scores = (module.weight.detach().abs() * squares[module].sqrt()).reshape(-1, 4)
            smallest = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, scores.topk(2, largest=False).indices, True)
            pruned = found[f"model.layers.{index}.{name}.weight"].reshape(-1, 4) == 0
            assert torch.equal(pruned, smallest), (index, name)
            module.weight.data.masked_fill_(smallest.reshape(module.weight.shape), 0)


@pytest.mark.parametrize("kind", ["SparseGPTModifier", "WandaPruningModifier"])
def test_best_quality_moves_before_it_prunes(kind, source, samples, results, tmp_path):
    """The same linears that are pruned; the result's recipe says so."""
    own = {**TWO_OF_FOUR, "targets": ["re:.*_proj$"], "ignore": ["re:.*layers.0.*"]}
    quick = program.oneshot(source, results / "quick", "--recipe", recipe(tmp_path, (kind, own)), "--dataset", samples)
    out = program.oneshot(source, results / "out", "--recipe", recipe(tmp_path, (kind, own)), "--dataset", samples, "--quality", "best")
    found, without = tiny_models.tensors(out), tiny_models.tensors(quick)
    moved = {name for name in found if not torch.equal(found[name], without[name])}
    assert {"model.layers.1.self_attn.o_proj.weight", "model.layers.1.mlp.down_proj.weight"} <= moved
    assert all("layers.1." in name and name in linears(found) and is_two_of_four(found[name]) for name in moved)
    again = program.oneshot(source, results / "again", "--recipe", out / "recipe.yaml", "--dataset", samples)
    assert all(torch.equal(tensor, found[name]) for name, tensor in tiny_models.tensors(again).items())
    assert "ErrorPropagationModifier" in (out / "recipe.yaml").read_text()


@pytest.mark.parametrize("kind, encoding", [
    ("SparseGPTModifier", ("GPTQModifier", {"scheme": "W8A8", "ignore": ["lm_head"]})),
    ("WandaPruningModifier", ("QuantizationModifier", {"scheme": "FP8_DYNAMIC", "ignore": ["lm_head"]})),
], ids=["gptq", "fp8"])
def test_in_codes(kind, encoding, source, samples, results, tmp_path):
    out = program.oneshot(source, results / "out", "--recipe", recipe(tmp_path, (kind, TWO_OF_FOUR), encoding), "--dataset", samples)
    found = tiny_models.tensors(out)
    assert len(linears(found)) == 14
    for name in linears(found):
        assert found[name].element_size() == 1
        zeros = found[name].float().reshape(-1, 4).eq(0).sum(1)
        assert bool((zeros >= 2).all()) and zeros.float().mean() < 3, name
    config = json.loads((out / "config.json").read_text())["quantization_config"]
    assert config["ignore"] == ["lm_head"] and not config.get("sparsity_config")


def test_two_passes_refuse_error_propagation(source, samples, results):
    program.fails("oneshot", source, "--output", results / "out", "--dataset", samples, "--group-size", "32", "--quality", "best",
                  "--pipeline", "two_pass", code=2, fragments=["--pipeline two_pass: error propagation requires --pipeline sequential"])


def test_error_propagation_comes_first(source, samples, results, tmp_path):
    """Weights are moved before they are pruned: zeros stay, and the weights behind the first layer's are others."""
    found = {}
    for propagates in (False, True):
        gptq = ("GPTQModifier", {"scheme": "W8A8", "ignore": ["lm_head"], "error_propagation": propagates})
        out = program.oneshot(source, results / str(propagates), "--recipe", recipe(tmp_path, ("SparseGPTModifier", TWO_OF_FOUR), gptq),
                              "--dataset", samples)
        found[propagates] = tiny_models.tensors(out)
    moved = {name for name in linears(found[True]) if not torch.equal(found[True][name], found[False][name])}
    assert "model.layers.1.mlp.down_proj.weight" in moved and "model.layers.0.self_attn.q_proj.weight" not in moved
    for name in linears(found[True]):
        assert bool((found[True][name].reshape(-1, 4).eq(0).sum(1) >= 2).all()), name
    keeping = ("SparseGPTModifier", {**TWO_OF_FOUR, "preserve_sparsity_mask": True})
    for kept in (("ConstantPruningModifier", {"targets": ["re:.*_proj$"]}), keeping):
        program.fails("oneshot", source, "--output", results / "out", "--recipe", recipe(tmp_path, kept, gptq), "--dataset", samples,
                      fragments=[kept[0], "would fill them before"])
        moving = ("ErrorPropagationModifier", {"targets": ["Linear"]})
        program.fails("oneshot", source, "--output", results / "out", "--recipe", recipe(tmp_path, moving, kept), "--dataset", samples,
                      fragments=[kept[0], "ErrorPropagationModifier would fill them before"])
        turned = ("SpinQuantModifier", {"rotations": ["R2"]})
        program.fails("oneshot", source, "--output", results / "out", "--recipe", recipe(tmp_path, turned, kept), "--dataset", samples,
                      fragments=["_proj", kept[0], "SpinQuantModifier fills them before"])


def test_some_linears_stay_dense(source, samples, results, tmp_path):
    """The readers' ignore list names what is pruned and not quantized."""
    quantized = ("QuantizationModifier", {"scheme": "FP8_DYNAMIC", "targets": ["re:.*mlp.*_proj$"]})
    out = program.oneshot(source, results / "out", "--recipe", recipe(tmp_path, ("WandaPruningModifier", TWO_OF_FOUR), quantized),
                          "--dataset", samples)
    found = tiny_models.tensors(out)
    for name in linears(found):
        assert ("mlp" in name) == (found[name].dtype == torch.float8_e4m3fn)
        assert bool((found[name].float().reshape(-1, 4).eq(0).sum(1) >= 2).all())
    texts = tiny_models.random_samples([12], seed=4)
    import transformers
    model = tiny_models.load(out, quantization_config=transformers.CompressedTensorsConfig(dequantize=True))
    for module in model.modules():
        if getattr(module, "quantization_scheme", None) is not None:
            module.quantization_enabled = False
    with torch.no_grad():
        theirs = model(torch.tensor([list(texts[0])])).logits[0].float().numpy()
    assert abs(program.logits(out, texts, tmp_path)[0] - theirs).max() < 2e-4


def test_a_tied_head_gets_weights_of_its_own(samples, results, tmp_path):
    model = tiny_models.save(tmp_path / "tied", tie_word_embeddings=True)
    pruned = recipe(tmp_path, ("WandaPruningModifier", {"sparsity": 0.5, "targets": ["lm_head"]}))
    out = program.oneshot(model, results / "out", "--recipe", pruned, "--dataset", samples)
    found, original = tiny_models.tensors(out), tiny_models.tensors(model)
    assert json.loads((out / "config.json").read_text())["tie_word_embeddings"] is False
    assert torch.equal(found["model.embed_tokens.weight"], original["model.embed_tokens.weight"])
    assert found["lm_head.weight"].eq(0).float().mean() == pytest.approx(0.5)
    texts = tiny_models.random_samples([9], seed=4)
    assert abs(program.logits(out, texts, tmp_path)[0] - tiny_models.logits(out, texts)[0]).max() < 2e-4


OWL = {"sparsity": 0.5, "sparsity_profile": "owl", "owl_m": 3, "owl_lmbda": 0.1, "ignore": ["re:.*lm_head"]}


def owl_sparsities(folder, samples):
    """By the definition: shares of outliers among |w| times the mean norms of input channels, on the original model, in fp64."""
    model = tiny_models.load(folder).double()
    norms, shares = {}, {}
    linears = {name: module for name, module in model.named_modules() if isinstance(module, torch.nn.Linear) and "layers." in name}

    def add(module, inputs):
        norms[module] = norms.get(module, 0) + inputs[0].reshape(-1, inputs[0].shape[-1]).square().sum(0).sqrt()

    for module in linears.values():
        module.register_forward_pre_hook(add)
    with torch.no_grad():
        for sample in samples:
            model(torch.tensor([list(sample)]))
    for layer in {name.split(".")[2] for name in linears}:
        products = torch.cat([(module.weight.abs() * norms[module]).flatten() for name, module in linears.items()
                              if name.split(".")[2] == layer])
        shares[f"model.layers.{layer}"] = (products > OWL["owl_m"] * products.mean()).double().mean().item()
    low, high, mean = min(shares.values()), max(shares.values()), sum(shares.values()) / len(shares)
    return {layer: OWL["sparsity"] - 2 * OWL["owl_lmbda"] * (share - mean) / (high - low) for layer, share in shares.items()}


def test_layers_have_the_sparsity_of_their_outliers(results, tmp_path):
    source = tiny_models.save(tmp_path / "model", num_hidden_layers=3)
    texts = tiny_models.random_samples([40, 7, 23], seed=2)
    data = program.write_samples(tmp_path / "samples.jsonl", texts)
    out = program.oneshot(source, results / "out", "--recipe", recipe(tmp_path, ("WandaPruningModifier", OWL)), "--dataset", data)
    expected, found = owl_sparsities(source, texts), tiny_models.tensors(out)
    assert max(expected.values()) - min(expected.values()) == pytest.approx(0.2)
    for name in linears(found):
        weight = found[name]
        layer = next(layer for layer in expected if name.startswith(layer + "."))
        zeros = weight.eq(0).sum(1)
        assert torch.all(zeros == zeros[0]) and abs(zeros[0] - expected[layer] * weight.shape[1]) <= 1.01, name
    chosen = (out / "recipe.yaml").read_text()
    assert "layer_sparsities:" in chosen and "measured_on:" in chosen
    again = program.oneshot(source, results / "again", "--recipe", out / "recipe.yaml", "--dataset", data)
    assert all(torch.equal(found[name], tensor) for name, tensor in tiny_models.tensors(again).items())


@pytest.mark.parametrize("kind", ["images", "texts"])
def test_layers_that_some_samples_do_not_reach(kind, results, tmp_path):
    """Cross attention gets no tokens of samples without images. Those linears do not count as outliers."""
    model = tiny_mllama.save(tmp_path / "model")
    samples = [tiny_mllama.Sample(20, (4,) if kind == "images" else ()), tiny_mllama.Sample(12)]
    data = tiny_mllama.write_token_file(tmp_path / "samples.safetensors", samples)
    out = program.oneshot(model, results / "out", "--recipe", recipe(tmp_path, ("WandaPruningModifier", OWL)), "--dataset", data)
    lines = [line for line in (out / "recipe.yaml").read_text().splitlines() if ".layers." in line or "transformer" in line]
    found = [float(line.rpartition(":")[2]) for line in lines]
    assert len(found) > 5 and max(found) - min(found) == pytest.approx(0.2, abs=1e-5)


def test_only_pruned_layers_count(source, samples, results, tmp_path):
    own = {**OWL, "targets": ["re:.*layers.0.*q_proj"]}
    out = program.oneshot(source, results / "out", "--recipe", recipe(tmp_path, ("WandaPruningModifier", own)), "--dataset", samples)
    assert tiny_models.tensors(out)["model.layers.0.self_attn.q_proj.weight"].eq(0).float().mean() == pytest.approx(0.5)


@pytest.mark.parametrize("pruning", [("SparseGPTModifier", TWO_OF_FOUR), ("WandaPruningModifier", OWL)], ids=["2:4", "owl"])
def test_resumed(pruning, results, tmp_path):
    model = deep_model.save(tmp_path / "deep")
    pruned = recipe(tmp_path, pruning)
    how = ["--recipe", pruned, "--dataset", model.with_name("tokens.safetensors"), "--threads", "1"]
    whole = tiny_models.tensors(program.oneshot(model, results / "whole", *how))
    killed(model, results / "out", *how)
    program.oneshot(model, results / "out", *how, "--resume")
    found = tiny_models.tensors(results / "out")
    assert found.keys() == whole.keys() and all(torch.equal(found[name], whole[name]) for name in whole)


@pytest.mark.parametrize("modifiers, fragments", [
    ([("GPTQModifier", {"scheme": "W8A8", "ignore": ["lm_head"]}), ("SparseGPTModifier", TWO_OF_FOUR)],
     ["SparseGPTModifier edits model.layers.0.mlp.down_proj", "GPTQModifier has quantized before"]),
    ([("WandaPruningModifier", {"sparsity": 0.5, "targets": ["re:.*nothing"]})], ["WandaPruningModifier", "match no linear"]),
    ([("WandaPruningModifier", {"mask_structure": "5:7", "sparsity": None})], ["5:7", "model.layers.0"]),
    ([("SparseGPTModifier", TWO_OF_FOUR), ("SmoothQuantModifier", {})], ["SmoothQuantModifier", "SparseGPTModifier has edited before"]),
    ([("WandaPruningModifier", {**TWO_OF_FOUR, "ignore": ["re:.*k_proj"]}),
      ("QuantizationModifier", {"scheme": "FP8_DYNAMIC", "ignore": ["re:.*q_proj"]})], ["q_proj", "fuse them"]),
])
def test_refusals(modifiers, fragments, source, samples, results, tmp_path):
    program.fails("oneshot", source, "--output", results / "out", "--recipe", recipe(tmp_path, *modifiers), "--dataset", samples,
                  fragments=fragments)


def test_data_free_is_refused(source, results, tmp_path):
    program.fails("oneshot", source, "--output", results / "out", "--recipe", recipe(tmp_path, ("SparseGPTModifier", TWO_OF_FOUR)),
                  "--pipeline", "datafree", fragments=["--pipeline datafree: calibration data is needed by SparseGPTModifier"], code=2)


def test_magnitudes_need_no_data(source, samples, results, tmp_path):
    """Pruned at once, and the zeros of a sparse source kept by what follows."""
    prune = ("MagnitudePruningModifier", {"targets": ["re:.*_proj$"], "init_sparsity": 0.1, "final_sparsity": 0.6})
    pruned = program.oneshot(source, results / "pruned", "--recipe", recipe(tmp_path, prune))
    before, found = tiny_models.tensors(source), tiny_models.tensors(pruned)
    for name in linears(found):
        count = int(0.6 * before[name].numel())
        last = before[name].abs().flatten().float().sort().values[count - 1]
        assert torch.equal(found[name], torch.where(before[name].abs().float() > last, before[name], 0)), name
    keep = ("ConstantPruningModifier", {"targets": ["re:.*_proj$"]})
    again = ("SparseGPTModifier", {"targets": ["re:.*_proj$"], "sparsity": 0.7})
    twice = program.oneshot(pruned, tmp_path / "twice", "--recipe", recipe(tmp_path, keep, again), "--dataset", samples)
    more = tiny_models.tensors(twice)
    for name in linears(more):
        assert bool(more[name][found[name] == 0].eq(0).all()) and 0.69 < more[name].eq(0).float().mean() < 0.72, name


def test_autoround_says_what_it_is(source, samples, tmp_path):
    arguments = {"scheme": "W8A8", "ignore": ["lm_head"], "iters": 10}
    outcome = program.run("oneshot", source, "--output", tmp_path / "out", "--recipe",
                          recipe(tmp_path, ("AutoRoundModifier", arguments)), "--dataset", samples)
    lines = outcome.errors.splitlines()
    assert sum("AutoRoundModifier is run as GPTQModifier with --quality 'best'" in line for line in lines) == 1, lines
    assert sum("the recipe's iters has no effect here" in line for line in lines) == 1, lines
    best = program.oneshot(source, tmp_path / "best", "--scheme", "W8A8", "--quality", "best", "--dataset", samples)
    assert (best / "model.safetensors").read_bytes() == (tmp_path / "out" / "model.safetensors").read_bytes()
    routed = program.run("oneshot", source, "--output", tmp_path / "routed", "--recipe", recipe(tmp_path, ("AutoRoundModifier", arguments)),
                         "--dataset", samples, "--no-moe-calibrate-all-experts")
    assert "without error_propagation" in routed.errors
    plain = program.oneshot(source, tmp_path / "plain", "--scheme", "W8A8", "--observer", "gptq", "--dataset", samples)
    assert (plain / "model.safetensors").read_bytes() == (tmp_path / "routed" / "model.safetensors").read_bytes()


@pytest.mark.parametrize("targets, pruned", [
    (["Linear"], set()), (["re:.*mlp.*"], set()), (["Qwen2MoeDecoderLayer"], set()),
    (["Linear", "model.layers.1.mlp.gate"], {"model.layers.1.mlp.gate"}),
], ids=["class", "pattern", "layers", "name"])
def test_routers_and_gates_stay(targets, pruned, samples, results, tmp_path):
    """As LLM Compressor leaves routers, which are no Linear of transformers."""
    source = tiny_models.save(tmp_path / "source", "Qwen2Moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
                              shared_expert_intermediate_size=32, decoder_sparse_step=1)
    arguments = {"sparsity": 0.5, "targets": targets, "ignore": ["re:.*lm_head"]}
    out = program.oneshot(source, results / "out", "--recipe", recipe(tmp_path, ("WandaPruningModifier", arguments)), "--dataset", samples)
    zeros = {name.removesuffix(".weight"): float((tensor == 0).float().mean()) for name, tensor in tiny_models.tensors(out).items()}
    weighing = [name for name in zeros if name.endswith((".gate", ".shared_expert_gate"))]
    assert len(weighing) == 4 and {name for name in weighing if zeros[name] > 0} == pruned
    assert zeros["model.layers.0.mlp.experts.1.down_proj"] == 0.5
