"""What the program says where a user probably meant something else, and warnings about what has no effect."""

import json
import shutil
import subprocess

import pytest
import torch
from support import program, tiny_models


@pytest.mark.parametrize("arguments, message", [
    (["onshot", "model"], "unknown command 'onshot'; did you mean oneshot?"),
    (["train"], "unknown command 'train'; choose from oneshot, eval, inspect, prepare, verify"),
    ([], "a command is required; choose from oneshot, eval, inspect, prepare, verify"),
    (["--verion"], "unknown option --verion; did you mean --version?"),
    (["oneshot", "model", "--max-seq-lenght", "512"], "unknown option --max-seq-lenght; did you mean --max-seq-length?"),
    (["oneshot", "model", "--num-samples=4"], "unknown option --num-samples; did you mean --num-calibration-samples?"),
    (["oneshot", "model", "--group-size", "64", "--group-size", "32"], "--group-size is given more than once; give it once"),
    (["--no-progress", "verify", "model"], "--no-progress stands before the command; write it behind it"),
    (["oneshot", "model", "--group-size", "1e2"], "--group-size = 1e2 is no such number as this option takes; see --help"),
    (["oneshot", "model", "--frobnicate"], "unknown option --frobnicate; see --help"),
    (["inspect", "model", "--svgg", "x.svg"], "unknown option --svgg; did you mean --svg?"),
    (["prepare", "model", "other"], "unexpected argument 'other'; prepare takes one MODEL and options, see --help"),
])
def test_command_line(arguments, message):
    outcome = program.run(*arguments, code=2)
    assert outcome.errors == f"error: [options] {message}\n"


def test_output_that_cannot_be_printed(model):
    """Figures that are nowhere else are not lost without a word."""
    for command in (["inspect", model, "--json"], ["verify", model, "--json"], ["inspect", "--architectures"], ["oneshot", "--help"]):
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = subprocess.run([program.PROGRAM, *command], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        assert done.returncode == 1 and done.stderr.startswith("error: [cli.output] standard output cannot be written"), done.stderr
        with subprocess.Popen([program.PROGRAM, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as closed:
            closed.stdout.close()  # as `| head` does
            assert closed.wait() == 0 and closed.stderr.read() == ""


def test_missing_folder(model, tmp_path, monkeypatch):
    beside = tmp_path / "smollm2-135m"
    beside.symlink_to(model)
    for name in (tmp_path / "smolm2", f"{tmp_path}/smolm2/"):
        program.fails("inspect", name, fragments=["no such folder", "smolm2", "did you mean smollm2-135m?"])
    program.fails("inspect", tmp_path / "no/such/model", fragments=["no such folder", f"{tmp_path}/no/such does not exist either"])
    program.fails("inspect", tmp_path / "entirely-different", fragments=["no such folder", "or a model id"])
    program.fails("inspect", "org/smolm2", fragments=["'org/smolm2' is neither a directory nor in the local", "hf download"])
    monkeypatch.chdir(tmp_path)
    program.fails("inspect", f"../{tmp_path.name}/smolm2", fragments=["did you mean smollm2-135m?"])


@pytest.mark.parametrize("arguments, option", [
    (["inspect", "--svg"], "--svg"), (["inspect", "--dot"], "--dot"),
    (["oneshot", "--scheme", "W8A8", "--algorithm", "rtn", "--output", "out", "--summary"], "--summary"),
    (["prepare", "--dataset", "x.jsonl", "--output"], "--output")])
def test_missing_folder_of_a_file(model, tmp_path, arguments, option, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program.fails(arguments[0], model, *arguments[1:], tmp_path / "nope" / "x.svg", code=2,
                  fragments=[f"{option}: folder {tmp_path}/nope does not exist"])
    assert not any(tmp_path.iterdir())


def test_model_with_code_of_its_own(model, tmp_path):
    """What helps comes first, and alone."""
    own = shutil.copytree(model, tmp_path / "own")
    config = json.loads((own / "config.json").read_text())
    config |= {"model_type": "mine", "architectures": ["MineForCausalLM"], "auto_map": {"AutoModelForCausalLM": "mine.MineForCausalLM"}}
    (own / "config.json").write_text(json.dumps(config))
    outcome = program.fails("inspect", own, fragments=["auto_map", "read that code, and if you trust it pass --trust-remote-code"])
    assert "was tried" not in outcome.error


@pytest.mark.parametrize("scheme, message", [
    ("W4A16-sym", "W4A16 is symmetric, W4A16_ASYM asymmetric"), ("int4", "4-bit integer schemes: W4A16, W4A16_ASYM"),
    ("fp4", "4-bit floating-point schemes: NVFP4A16"), ("W4A61", "did you mean W4A16?"),
    ("Q4_KM", "did you mean Q4_K_M, a scheme of GGUF files?")])
def test_schemes(model, refused, samples, scheme, message):
    refused(model, "--dataset", samples, "--scheme", scheme, code=2,
            fragments=[f"[options] --scheme: unknown scheme '{scheme}'; {message}"])


def test_group_size(model, refused, samples):
    refused(model, "--dataset", samples, fragments=["W4A16 uses groups of 128, which do not divide 64 columns (18 linears",
                                                    "; add --group-size 64"])


def warnings(outcome):
    assert outcome.code == 0, outcome.errors
    return [line for line in outcome.errors.splitlines() if line.startswith("warning")]


def test_entries_that_match_nothing(model, results):
    outcome = program.run("oneshot", model, "--output", results / "out", "--algorithm", "rtn", "--scheme", "W8A8", "--ignore", "lm_heed")
    said = warnings(outcome)
    assert any("--ignore: lm_heed matches no module; did you mean lm_head?" in line for line in said), said
    assert any("--ignore replaces its default: lm_head is quantized, too" in line for line in said), said


def test_a_cache_is_not_all_that_a_recipe_of_weights_may_do(model, samples, refused, tmp_path):
    recipe = tmp_path / "recipe.json"
    cache = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
    group = {"targets": ["re:.*query_key_value$"], "weights": {"num_bits": 8, "strategy": "channel"}}
    arguments = {"config_groups": {"group_0": group}, "kv_cache_scheme": cache}
    recipe.write_text(json.dumps({"a_stage": {"a_modifiers": {"QuantizationModifier": arguments}}}))
    refused(model, "--recipe", recipe, "--dataset", samples, fragments=["nothing would be done", "match no module"])


def test_bias_that_the_architecture_does_not_have(tmp_path, results):
    source = tiny_models.save(tmp_path / "model")
    name = "model.layers.1.self_attn.o_proj.bias"
    tiny_models.rewrite_tensors(source, {**tiny_models.tensors(source), name: torch.ones(64)})
    outcome = program.run("oneshot", source, "--output", results / "out", "--algorithm", "rtn", "--scheme", "W8A8")
    assert any(name in line and "nothing is computed with it" in line for line in warnings(outcome)), outcome.errors


@pytest.mark.parametrize("modifier, entry, said", [
    ({"MagnitudePruningModifier": {"final_sparsity": 0.5, "targets": ["re:.*q_porj$", "re:.*k_proj"]}}, "targets",
     "re:.*q_porj$ matches no module"),
    ({"WandaPruningModifier": {"sparsity": 0.5, "ignore": ["lm_heed", "re:.*embed.*"]}}, "ignore",
     "lm_heed matches no module; did you mean lm_head?"),
    ({"SmoothQuantModifier": {"ignore": ["re:.*nothere"]}}, "ignore", "re:.*nothere matches no module"),
    ({"SmoothQuantModifier": {"mappings": [[["re:.*q_proj", "re:.*k_proj", "re:.*v_prooj"], "re:.*input_layernorm"]]}}, "mappings[0]",
     "re:.*v_prooj matches no module; no name has v_prooj; did you mean v_proj?"),
    ({"AWQModifier": {"mappings": [[["re:.*gate_proj", "re:.*up_porj"], "re:.*post_attention_layernorm"]]}}, "mappings[0]",
     "re:.*up_porj matches no module")])
def test_entries_of_other_modifiers_that_match_nothing(model, samples, results, tmp_path, modifier, entry, said):
    recipe = tmp_path / "recipe.json"
    quantizer = {"GPTQModifier": {"scheme": "W8A8", "ignore": ["lm_head"]}} if "AWQModifier" in modifier else {}
    recipe.write_text(json.dumps({"a_stage": {"a_modifiers": modifier}, "b_stage": {"b_modifiers": quantizer}} if quantizer
                                 else {"a_stage": {"a_modifiers": modifier}}))
    outcome = program.run("oneshot", model, "--output", results / "out", "--recipe", recipe, "--dataset", samples)
    assert "embed" not in outcome.errors  # pruning would leave it as it is
    unmatched = [line for line in warnings(outcome) if "matches no module" in line]
    assert len(unmatched) == 1 and f"{entry}: {said}" in unmatched[0], unmatched


def test_smooth_layer_that_matches_nothing(model, samples, results, refused, tmp_path):
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps({"a_stage": {"a_modifiers": {"SmoothQuantModifier": {"mappings": [[["re:.*q_proj"], "re:.*layernrm"]]}}}}))
    refused(model, "--recipe", recipe, "--dataset", samples, fragments=["mappings[0]: its smooth layer matches no module of the model"])


def test_long_samples(tmp_path, samples, results):
    model = tiny_models.save(tmp_path / "model", dtype=torch.bfloat16, hidden_size=64, max_position_embeddings=48)
    run = lambda out, *more: warnings(program.run("oneshot", model, "--output", results / out, "--group-size", "32",
                                                  "--dataset", samples, *more))
    assert any("samples have up to 64 tokens, but the model's max_position_embeddings is 48; add --max-seq-length 48" in line
               for line in run("long"))
    assert not any("max_position_embeddings" in line for line in run("short", "--max-seq-length", "48"))


def test_nothing_to_resume(model, results):
    arguments = ("oneshot", model, "--output", results / "out", "--algorithm", "rtn", "--scheme", "W8A8", "--resume")
    assert any("--resume: " in line and "has no unfinished run; starting from the beginning" in line
               for line in warnings(program.run(*arguments)))
    assert not any("--resume" in line for line in warnings(program.run(*arguments)))  # the result is complete


def test_routers_stay(tmp_path, results):
    model = tiny_models.save(tmp_path / "model", "Qwen2Moe", hidden_size=64, num_experts=4, num_experts_per_tok=2,
                             moe_intermediate_size=64, shared_expert_intermediate_size=64)
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps({"a_stage": {"a_modifiers": {"QuantizationModifier": {"scheme": "W8A8", "targets": ["re:.*mlp.*"]}}}}))
    out = results / "out"
    said = warnings(program.run("oneshot", model, "--output", out, "--recipe", recipe))
    assert any("routers and gates stay as they are (model.layers.0.mlp.gate, ...)" in line for line in said), said
    before, after = tiny_models.tensors(model), tiny_models.tensors(out)
    names = [name for name in before if name.endswith(("mlp.gate.weight", "mlp.shared_expert_gate.weight"))]
    assert names and all(torch.equal(before[name], after[name]) for name in names)
    ignored = json.loads((out / "config.json").read_text())["quantization_config"]["ignore"]
    assert {name.removesuffix(".weight") for name in names} <= set(ignored)
