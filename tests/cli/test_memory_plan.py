"""What a plan promises, and what the run then takes."""

import json
import re

import pytest
from support import deep_model, planned_runs, program
from support.planned_runs import MIB, Measured, plan
from support.selection import nightly_but
from support.watched_runs import contents, differing

TWO_THREADS = ["--threads", "2"]
SUBGRAPH_FIELDS = {"name", "mode", "weight_bytes", "onloaded_bytes", "activation_bytes", "activation_disk_bytes",
                   "statistics_bytes", "workspace_bytes", "peak_bytes", "flops", "read_bytes", "written_bytes", "seconds"}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Makes a model when it is first asked for."""
    folder = tmp_path_factory.mktemp("models")
    return lambda shape: planned_runs.make_model(folder, shape)


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    return deep_model.save(tmp_path_factory.mktemp("deep"))


@pytest.fixture(scope="module")
def solving(deep):
    return deep_model.gptq(deep)


# Shape, samples x tokens or None, options or a recipe.
CONFIGURATIONS = {
    "gram matrices": ("broad", (2, 256), []),
    "activations": ("slim", (48, 512), ["--sequential-offload-device", "cpu"]),
    "activations on disk": ("slim", (48, 512), ["--sequential-offload-device", "disk"]),
    "linear targets": ("even", (4, 256), ["--sequential-targets", "Linear"]),
    "one pass for all layers": ("even", (4, 256), ["--pipeline", "basic"]),
    "original model beside it": ("broad", (2, 256), ["--quality", "best"]),
    "original model's activations": ("slim", (48, 512), ["--quality", "best", "--sequential-offload-device", "cpu"]),
    "two passes": ("even", (4, 256), ["--pipeline", "two_pass"]),
    "activations in two passes": ("slim", (48, 512), ["--pipeline", "two_pass", "--sequential-offload-device", "cpu"]),
    "without data": ("broad", None, ["--algorithm", "rtn"]),
    "embeddings": ("many words", (4, 256), ["--targets", "Linear,Embedding", "--scheme", "W8A16"]),
    "embeddings without data": ("many words", None, ["--targets", "Embedding", "--algorithm", "rtn", "--scheme", "W8A16"]),
    "fp8 source": ("broad in fp8", (2, 256), []),
    "fp8 source, original model beside it": ("broad in fp8", (2, 256), ["--quality", "best"]),
    "fp8 source, one pass for all layers": ("even in fp8", (4, 256), ["--pipeline", "basic"]),
    "fp8 source without data": ("broad in fp8", None, ["--algorithm", "rtn"]),
    "fp8 source that is kept": ("even in fp8", (4, 256), ["--targets", "re:.*o_proj"]),
    "rotations": ("broad", (2, 256), {"SpinQuantModifier": {}, "GPTQModifier": {"scheme": "W4A16", "ignore": ["lm_head"]}}),
    "rotations without data": ("many words", None, {"SpinQuantModifier": {}}),
    "one long sample": ("narrow", (1, 30_000), ["--max-seq-length", "30000"]),
    "in fp32": ("even", (16, 256), ["--dtype", "float32", "--algorithm", "rtn", "--pipeline", "sequential"]),
}


def arguments_of(models, name):
    shape, tokens, options = CONFIGURATIONS[name]
    model = models(shape)
    if isinstance(options, dict):
        recipe = model.parent / "recipe.json"
        recipe.write_text(json.dumps({"quant_stage": {"quant_modifiers": options}}))
        options = ["--recipe", recipe]
    return model, [*(planned_runs.data(model.parent, *tokens) if tokens else []), *options, *TWO_THREADS]


def check(planned, measured):
    """Plan against reality, as seen from outside and by the program itself."""
    assert abs(planned["peak_bytes"] - measured.peak_bytes) <= 0.15 * measured.peak_bytes, (
        f"planned {planned['peak_bytes'] / MIB:.0f} MiB, measured {measured.peak_bytes / MIB:.0f} MiB")
    assert abs(measured.summary["peak_anonymous_bytes"] - measured.peak_bytes) <= 0.1 * measured.peak_bytes
    assert measured.peak_bytes <= 1.02 * planned["peak_bytes"]
    assert measured.plan["peak_bytes"] == pytest.approx(planned["peak_bytes"], rel=0.01)


@pytest.mark.parametrize("name", nightly_but(CONFIGURATIONS, "activations on disk"))
def test_plan_against_reality(name, models, results):
    model, arguments = arguments_of(models, name)
    planned = plan(model, results / "out", *arguments)
    assert planned["peak_bytes"] - planned["spare_bytes"] == max(subgraph["peak_bytes"] for subgraph in planned["subgraphs"])
    check(planned, Measured(model, results / "out", *arguments))


@pytest.fixture(scope="module")
def many_tokens(tmp_path_factory):
    import torch
    from support import tiny_models

    model = tiny_models.save(tmp_path_factory.mktemp("tokens") / "model", "Llama", dtype=torch.bfloat16, vocab_size=49152,
                             hidden_size=1024, intermediate_size=256, num_hidden_layers=2, num_attention_heads=16, num_key_value_heads=4)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (model / name).write_bytes((program.TEST_MODEL / name).read_bytes())
    return model


@pytest.mark.skipif(not program.TEST_MODEL.exists(), reason="needs the tokenizer of a real model; examples/demo/fetch_model.py fetches it")
@pytest.mark.parametrize("scheme", nightly_but(["F16", "Q4_K_M", "Q4_K_M without data"], "Q4_K_M without data"))
def test_plan_of_a_file(scheme, many_tokens, results):
    """A large embedding, which a GGUF has in blocks, and a tokenizer, whose texts are in the file."""
    scheme, *without = scheme.split(maxsplit=1)
    options = ["--algorithm", "rtn"] if without or scheme == "F16" else planned_runs.data(many_tokens.parent, 4, 256)
    arguments = [many_tokens, results / "out.gguf", *options, "--scheme", scheme, *TWO_THREADS]
    planned = plan(*arguments)
    check(planned, Measured(*arguments))
    measured = Measured(*arguments, "--overwrite", "--memory-budget", planned["smallest_budget_bytes"])
    assert measured.peak_bytes <= planned["smallest_budget_bytes"]


@pytest.mark.nightly
def test_quantized_source_needs_no_copy(models, results):
    """Beside what the same model in bf16 needs, there is at most one dequantized weight."""
    plain, quantized = (plan(models(shape), results / "out", *planned_runs.data(models("broad").parent, 2, 256), *TWO_THREADS)
                        for shape in ("broad", "broad in fp8"))
    largest = 2 * planned_runs.SHAPES["broad"]["hidden_size"] * planned_runs.SHAPES["broad"]["intermediate_size"]
    needed = [each["peak_bytes"] - each["spare_bytes"] for each in (plain, quantized)]
    assert needed[1] <= needed[0] + 1.1 * largest
    assert sum(each["read_bytes"] for each in quantized["subgraphs"]) < sum(each["read_bytes"] for each in plain["subgraphs"])


@pytest.mark.nightly
def test_recomputing_against_reality(models, results):
    """A budget that the inputs of all linear groups do not fit into, and no disk to put them on."""
    model, arguments = arguments_of(models, "activations")
    free = plan(model, results / "out", *arguments)
    budget = (free["smallest_budget_bytes"] + free["peak_bytes"]) // 2
    arguments += ["--memory-budget", f"{budget // MIB}MiB"]
    planned = plan(model, results / "out", *arguments)
    assert "recompute" in {subgraph["mode"] for subgraph in planned["subgraphs"]}
    assert planned["peak_bytes"] <= planned["budget_bytes"] < free["peak_bytes"]
    measured = Measured(model, results / "out", *arguments)
    check(planned, measured)
    assert measured.peak_bytes <= budget and measured.summary["spilled_bytes"] == 0


def experts(folder):
    import torch
    from support import tiny_models

    return tiny_models.save(folder / "experts", "Qwen3Moe", dtype=torch.bfloat16, num_hidden_layers=2, num_experts=64, num_experts_per_tok=4,
                            hidden_size=512, moe_intermediate_size=256, num_attention_heads=8, num_key_value_heads=2, decoder_sparse_step=1,
                            vocab_size=planned_runs.VOCABULARY)


CHOICE = ["--target-bits", "6", "--schemes", "W4A16,W8A16", "--group-size", "64", "--algorithm", "rtn", *TWO_THREADS]


LARGEST_STEP = {"slim": "output errors", "many words": "divergences", "experts": "divergences"}


@pytest.mark.parametrize("name", nightly_but(LARGEST_STEP, "many words"))
def test_plan_of_a_choice(name, models, results, tmp_path):
    """The measurement that chooses schemes takes more memory than the rounding after it: of many samples, of logits, of all experts in fp32."""
    model = experts(tmp_path) if name == "experts" else models(name)
    arguments = [*planned_runs.data(tmp_path, 48 if name == "slim" else 8, 512), *CHOICE]
    planned, largest = plan(model, results / "out", *arguments), LARGEST_STEP[name]
    steps = {step["name"]: step for step in planned["measurement"]}
    assert list(steps) == ["output errors", "divergences", "check"] and all(step["seconds"] > 0 for step in steps.values())
    assert planned["peak_bytes"] == steps[largest]["peak_bytes"] > max(own["peak_bytes"] for own in planned["subgraphs"])
    assert planned["estimated_seconds"] > sum(step["seconds"] for step in steps.values())
    assert f"{largest} (peak" in " ".join(program.run("oneshot", model, "--output", results / "out", *arguments, "--dry-run").output.split())
    measured = Measured(model, results / "out", *arguments)
    assert 0.85 * measured.peak_bytes <= planned["peak_bytes"] and measured.peak_bytes <= 1.02 * planned["peak_bytes"]
    assert abs(measured.summary["peak_anonymous_bytes"] - measured.peak_bytes) <= 0.1 * measured.peak_bytes
    assert measured.plan["peak_bytes"] == pytest.approx(planned["peak_bytes"], rel=0.05)
    smallest = planned["smallest_budget_bytes"] // MIB
    arguments += ["--overwrite", "--memory-budget"]
    assert Measured(model, results / "out", *arguments, f"{smallest}MiB").peak_bytes <= 1.01 * smallest * MIB
    program.fails("oneshot", model, "--output", results / "out", *arguments, f"{smallest - 4}MiB",
                  fragments=["error: [plan]", "measuring what the schemes cost needs at least", "raise --memory-budget"])


def test_plan_of_removed_experts(results, tmp_path):
    """Measuring what each expert contributes takes more memory than copying those that stay."""
    model, recipe = experts(tmp_path), tmp_path / "recipe.json"
    recipe.write_text(json.dumps({"a_stage": {"a_modifiers": {"REAPPruningModifier": {"sparsity": 0.5}}}}))
    arguments = [*planned_runs.data(tmp_path, 24, 512), "--recipe", recipe, *TWO_THREADS]
    planned = plan(model, results / "out", *arguments)
    assert [step["name"] for step in planned["measurement"]] == ["contributions of experts"]
    assert planned["peak_bytes"] == planned["measurement"][0]["peak_bytes"] > max(own["peak_bytes"] for own in planned["subgraphs"])
    measured = Measured(model, results / "out", *arguments)
    assert 0.8 * measured.peak_bytes <= planned["peak_bytes"] and measured.peak_bytes <= 1.02 * planned["peak_bytes"]
    assert measured.plan["peak_bytes"] == pytest.approx(planned["peak_bytes"], rel=0.02)
    smallest = planned["smallest_budget_bytes"] // MIB
    assert smallest * MIB < planned["peak_bytes"]
    arguments += ["--overwrite", "--memory-budget"]
    assert Measured(model, results / "out", *arguments, f"{smallest}MiB").peak_bytes <= 1.01 * smallest * MIB
    program.fails("oneshot", model, "--output", results / "out", *arguments, f"{smallest - 4}MiB",
                  fragments=["error: [plan]", "measuring what each expert contributes needs at least", "raise --memory-budget"])


def test_dry_run_writes_nothing(deep, solving, results):
    planned = plan(deep, results / "out", *solving)
    assert list(results.iterdir()) == []
    assert planned["tokens"] == 16 * 256 and planned["batches"] * planned["batch_tokens"] >= planned["tokens"]
    assert len(planned["subgraphs"]) == deep_model.SUBGRAPHS
    assert planned["smallest_budget_bytes"] <= planned["peak_bytes"] <= planned["budget_bytes"]
    seconds = sum(subgraph["seconds"] for subgraph in planned["subgraphs"])
    assert planned["estimated_seconds"] == pytest.approx(seconds, rel=0.2, abs=0.5)
    for subgraph in planned["subgraphs"]:
        assert SUBGRAPH_FIELDS <= subgraph.keys() and subgraph["mode"] in ("store", "recompute")
        assert subgraph["seconds"] >= 0 and subgraph["peak_bytes"] > 0
    layers = planned["subgraphs"][1:-1]
    assert all(layer["statistics_bytes"] > 0 and layer["weight_bytes"] > 0 and layer["flops"] for layer in layers)


def test_bytes_of_the_plan(deep, solving, results):
    """Weights read are those of the checkpoint, bytes written those of the output."""
    planned = plan(deep, results / "out", *solving)
    stored = (deep / "model.safetensors").stat().st_size
    assert sum(each["weight_bytes"] for each in planned["subgraphs"]) == pytest.approx(stored, rel=0.02)
    out = program.oneshot(deep, results / "out", *solving)
    written = (out / "model.safetensors").stat().st_size
    assert sum(each["written_bytes"] for each in planned["subgraphs"]) == pytest.approx(written, rel=0.02)


def test_plan_as_text(deep, solving, results):
    """Neighbours that need the same share a line."""
    output = program.run("oneshot", deep, "--output", results / "out", *solving, "--dry-run").output
    assert all(name in output for name in ("head", "model.layers.0", "tail", "4096 tokens"))
    assert list(results.iterdir()) == []


def test_dry_run_beside_a_complete_output(deep, solving, results):
    """It only looks, so what is there stays and does not hinder it."""
    out = program.oneshot(deep, results / "out", *solving)
    before = contents(out)
    plan(deep, out, *solving, "--overwrite")
    assert differing(out, before) == [] and list(results.iterdir()) == [out]


def test_json_needs_dry_run(deep, solving, refused):
    refused(deep, *solving, "--json", fragments=["--json", "--dry-run"], code=2)


def test_inspect_plan(deep, solving):
    options = ["--group-size", "32", "--num-calibration-samples", "16", "--max-seq-length", "256"]
    planned = program.run("inspect", deep, "--plan", "--json", *options).json()
    assert planned["tokens"] == 16 * 256 and len(planned["subgraphs"]) == deep_model.SUBGRAPHS
    smaller = program.run("inspect", deep, "--plan", "--json", *options, "--sequential-targets", "Linear").json()
    assert len(smaller["subgraphs"]) > 4 * deep_model.LAYERS
    assert "model.layers.0" in program.run("inspect", deep, "--plan", *options).output


def test_subgraphs_of_several_targets(deep, solving, results):
    planned = plan(deep, results / "out", *solving, "--sequential-targets-per-subgraph", "4")
    assert len(planned["subgraphs"]) == deep_model.SUBGRAPHS - deep_model.LAYERS + 2


def smallest_budget(message):
    """The budget that an error names, as the option takes it."""
    found = re.search(r"at least (\d+) (MiB|GiB)", message)
    assert found, message
    return found[1] + found[2], int(found[1]) * (MIB if found[2] == "MiB" else 1 << 30)


@pytest.mark.parametrize("name", nightly_but(["gram matrices", "activations", "linear targets", "without data"], "linear targets"))
def test_budget_that_is_too_small(name, models, results):
    """The error names one that is enough; the run stays within that one."""
    model, arguments = arguments_of(models, name)
    arguments = [argument for argument in arguments if argument not in ("--sequential-offload-device", "cpu")]
    outcome = program.fails("oneshot", model, "--output", results / "out", *arguments, "--memory-budget", "20MiB",
                            fragments=["error: [plan]", "at least"])
    assert list(results.iterdir()) == []
    text, count = smallest_budget(outcome.error)
    arguments += ["--memory-budget", text]
    planned = plan(model, results / "out", *arguments)
    assert planned["budget_bytes"] == count and planned["peak_bytes"] <= count
    measured = Measured(model, results / "out", *arguments)
    assert measured.peak_bytes <= count, f"{measured.peak_bytes / MIB:.0f} MiB of {text}"


def test_budget_just_below_the_smallest(deep, solving, results):
    smallest = plan(deep, results / "out", *solving)["smallest_budget_bytes"]
    program.fails("oneshot", deep, "--output", results / "out", *solving, "--memory-budget",
                  f"{smallest // MIB - 3}MiB", fragments=["error: [plan]", "at least"])
    assert list(results.iterdir()) == []
    program.oneshot(deep, results / "out", *solving, "--memory-budget", f"{-(-smallest // MIB)}MiB")


@pytest.mark.parametrize("options, fragments", [
    (["--memory-budget", "much"], ["much", "--memory-budget"]), (["--memory-budget", "-1GiB"], ["--memory-budget"]),
    (["--memory-budget", "0"], ["--memory-budget"]), (["--device-memory-budget", "x"], ["--device-memory-budget"]),
    (["--sequential-offload-device", "tape"], ["tape", "disk"]),
    (["--sequential-targets-per-subgraph", "0"], ["--sequential-targets-per-subgraph"]),
    (["--sequential-targets-per-subgraph", "-3"], ["--sequential-targets-per-subgraph"]),
])
def test_options(options, fragments, deep, solving, refused):
    refused(deep, *solving, *options, fragments=fragments, code=2)


def test_offload_folder_that_is_a_file(deep, solving, refused, tmp_path):
    (tmp_path / "file").write_text("mine")
    refused(deep, *solving, "--sequential-offload-device", "disk", "--offload-dir", tmp_path / "file",
            fragments=[str(tmp_path / "file")], code=2)
    assert (tmp_path / "file").read_text() == "mine"
