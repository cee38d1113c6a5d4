"""`inspect --sensitivity`: what rounding to candidate schemes costs at the outputs of each linear."""

import json
import signal
import subprocess

import numpy
import pytest
import torch
from support import deep_model, planned_runs, program, reference, tiny_models
from support.selection import nightly_but

SCHEMES = ["NVFP4", "FP8_DYNAMIC", "W4A16", "W8A8"]
GROUPS = ["--group-size", "32"]
EXACT = ["--dtype", "fp32"]
# Modules that engines fuse with no other, so that a run can compress one of them alone.
SINGLE = [f"model.layers.{layer}.{name}" for layer in (0, 2) for name in ("self_attn.o_proj", "mlp.down_proj")]


def measure(model, *arguments, schemes=SCHEMES, **options):
    return program.run("inspect", model, "--sensitivity", "--schemes", ",".join(schemes), *GROUPS, *arguments, **options)


@pytest.fixture(scope="module")
def figures(model, samples):
    return measure(model, "--dataset", samples, *EXACT, "--json").json()


def errors_of(figures):
    return {module["module"]: {name: own["error"] for name, own in module["schemes"].items()} for module in figures["modules"]}


@pytest.fixture(scope="module")
def inputs(model, samples):
    """What the linears of the original model read, as transformers computes it: [tokens, features] in fp64."""
    original, read = tiny_models.load(model), {}
    for name, module in original.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(lambda _, given, __, name=name: read.setdefault(name, []).append(given[0][0].double().numpy()))
    with torch.no_grad():
        for line in samples.read_text().splitlines():
            original(torch.tensor([json.loads(line)["input_ids"]]))
    return {name: numpy.concatenate(parts) for name, parts in read.items()}


def rounded(model, out, scheme, *modules):
    """The weights that a run makes which rounds these modules alone, as compressed-tensors' description decodes them."""
    without_inputs = {"NVFP4": "NVFP4A16"}.get(scheme, scheme)  # whose scales need data
    program.oneshot(model, out, "--algorithm", "rtn", "--scheme", without_inputs, "--targets", ",".join(modules),
                    *(GROUPS if scheme == "W4A16" else []))
    [group] = json.loads((out / "config.json").read_text())["quantization_config"]["config_groups"].values()
    stored = tiny_models.tensors(out)
    # Engines compute with the weight in the model's dtype.
    return {module: torch.from_numpy(reference.Stored(stored, module, group).weight()).bfloat16().double().numpy() for module in modules}


def test_figures_are_those_of_runs_of_single_modules(model, figures, inputs, results):
    """tr(D H Dᵀ) / tr(W H Wᵀ) in fp64, with the weights that runs write; and so the order of modules and schemes."""
    found, weights = errors_of(figures), tiny_models.tensors(model)
    for scheme in SCHEMES:
        expected = {}
        for module, values in rounded(model, results / scheme, scheme, *SINGLE).items():
            weight = weights[f"{module}.weight"].double().numpy()
            expected[module] = ((inputs[module] @ (weight - values).T) ** 2).sum() / ((inputs[module] @ weight.T) ** 2).sum()
            assert found[module][scheme] == pytest.approx(expected[module], rel=1e-3), (module, scheme)
        assert sorted(SINGLE, key=expected.get) == sorted(SINGLE, key=lambda module: found[module][scheme])


def test_fused_linears_share_a_global_scale(model, figures, inputs, results):
    family = [f"model.layers.1.self_attn.{name}_proj" for name in "qkv"]
    weights = tiny_models.tensors(model)
    for module, values in rounded(model, results / "out", "NVFP4", *family).items():
        weight = weights[f"{module}.weight"].double().numpy()
        expected = ((inputs[module] @ (weight - values).T) ** 2).sum() / ((inputs[module] @ weight.T) ** 2).sum()
        assert errors_of(figures)[module]["NVFP4"] == pytest.approx(expected, rel=1e-3)


def test_gptq_stays_below_rounding(model, samples, figures, results):
    """GPTQ minimizes the very loss that the figure says of rounding."""
    for module in SINGLE:
        summary = results / "summary.json"
        program.oneshot(model, results / module, "--targets", module, *GROUPS, "--dataset", samples, *EXACT, "--summary", summary)
        [report] = json.loads(summary.read_text())["modules"]
        [own] = [own for own in figures["modules"] if own["module"] == module]
        share = report["output_error"] * report["tokens"] * own["rows"] / own["output_power"]
        assert 0.2 * own["schemes"]["W4A16"]["error"] < share < own["schemes"]["W4A16"]["error"]


def test_bits_are_those_of_the_files(model, figures, results):
    for scheme in SCHEMES:
        rounded(model, results / scheme, scheme, *SINGLE)
        stored = tiny_models.tensors(results / scheme)
        for module in figures["modules"]:
            if module["module"] not in SINGLE:
                continue
            own = sum(tensor.nbytes for name, tensor in stored.items() if name.startswith(module["module"] + "."))
            own += 4 if scheme == "NVFP4" else 0  # the inputs' global scale, which the run without data leaves out
            assert module["schemes"][scheme]["bits"] == pytest.approx(8 * own / module["rows"] / module["columns"])


def test_report(model, figures, inputs):
    linears = [name for name in inputs if name != "lm_head"]
    assert [module["module"] for module in figures["modules"]] == linears
    assert figures["order"] == SCHEMES and figures["samples"] == 8
    for module in figures["modules"]:
        assert module["tokens"] == figures["tokens"] == len(inputs["lm_head"])
    for scheme, total in figures["schemes"].items():
        errors = {name: own[scheme] for name, own in errors_of(figures).items()}
        assert total["mean_error"] == pytest.approx(sum(errors.values()) / len(errors))
        assert (total["greatest_in"], total["greatest_error"]) == max(errors.items(), key=lambda entry: entry[1])
        assert total["rounds_inputs"] == (scheme != "W4A16")
    assert figures["schemes"]["FP8_DYNAMIC"]["bits"] > 8 > figures["schemes"]["NVFP4"]["bits"] > 4.4


def test_table(model, samples, tmp_path):
    file = tmp_path / "figures.json"
    schemes = ["NVFP4", "FP8_DYNAMIC", "W4A16_ASYM", "MXFP4A16", "W8A8", "W4A16"]
    text = measure(model, "--dataset", samples, "--summary", file, schemes=schemes).output
    lines, figures = text.splitlines(), json.loads(file.read_text())
    assert max(map(len, lines)) <= 80
    heads = [line.split()[4:] for line in lines if line.startswith("output error in %")]
    assert sum(heads, []) == schemes and len(heads) == 2
    error = errors_of(figures)["model.layers.1.mlp.down_proj"]["NVFP4"]
    within = lines[lines.index("model.layers.1"):]
    assert [line.split()[1] for line in within if line.startswith("  mlp.down_proj")][0] == f"{100 * error:.3f}"
    totals = {line.split()[0]: line.split()[1:] for line in lines[[line.split()[:1] for line in lines].index(["scheme"]) + 1:]}
    for scheme in schemes:
        own = figures["schemes"][scheme]
        assert totals[scheme] == [f"{own['bits']:.3f}", f"{100 * own['mean_error']:.3f}", f"{100 * own['greatest_error']:.3f}",
                                  own["greatest_in"]]
    assert "the rounding of inputs is not counted" in " ".join(text.split())


def test_experts_share_a_line(samples, tmp_path):
    model = tiny_models.save(tmp_path / "experts", "Qwen3Moe", dtype=torch.bfloat16, num_hidden_layers=2, num_experts=8,
                             num_experts_per_tok=1, moe_intermediate_size=32, decoder_sparse_step=1)
    file = tmp_path / "figures.json"
    text = measure(model, "--dataset", samples, "--num-calibration-samples", "1", "--max-seq-length", "3", "--summary", file,
                   "--no-moe-calibrate-all-experts", "--min-tokens-per-expert", "1", schemes=["W4A16", "NVFP4"]).output
    modules = json.loads(file.read_text())["modules"]
    assert not any(module["module"].endswith("mlp.gate") for module in modules)  # routers stay out
    experts = [module for module in modules if "layers.1.mlp.experts" in module["module"] and "down_proj" in module["module"]]
    assert len(experts) == 8 and {module["tokens"] for module in experts} > {1}
    greatest = max(module["schemes"]["W4A16"]["error"] for module in experts)
    lines = text.splitlines()
    [line] = [line for line in lines[lines.index("model.layers.1"):] if line.startswith("  mlp.experts.*.down_proj x8")]
    assert line.split()[2] == f"{100 * greatest:.3f}"


@pytest.mark.parametrize("options", nightly_but(
    ["--pipeline basic", "--sequential-targets Linear", "--batch-tokens 100", "--sequential-offload-device disk"],
    "--pipeline basic", "--sequential-offload-device disk"))
def test_ways_of_the_walk(options, model, samples, figures, tmp_path):
    found = errors_of(measure(model, "--dataset", samples, *EXACT, *options.split(), "--json", "--offload-dir", tmp_path).json())
    for module, own in errors_of(figures).items():
        assert found[module] == pytest.approx(own, rel=1e-4)
    assert list(tmp_path.iterdir()) == []


def test_memory_stays_in_the_plan(tmp_path):
    model = planned_runs.make_model(tmp_path, "slim")
    command = [program.PROGRAM, "inspect", model, "--sensitivity", "--schemes", "W4A16,FP8_DYNAMIC", "--json", "--threads", "2",
               *planned_runs.data(tmp_path, 4, 256)]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120)
    figures = json.loads(done.stdout)
    assert figures["peak_anonymous_bytes"] <= 1.03 * figures["planned_bytes"]
    assert figures["peak_anonymous_bytes"] >= 0.85 * figures["planned_bytes"]


def test_targets_may_leave_out_fused_linears(model, samples, figures):
    found = errors_of(measure(model, "--dataset", samples, *EXACT, "--targets", "re:.*q_proj", "--json").json())
    assert list(found) == [f"model.layers.{layer}.self_attn.q_proj" for layer in range(3)]
    assert found["model.layers.0.self_attn.q_proj"]["FP8_DYNAMIC"] == errors_of(figures)["model.layers.0.self_attn.q_proj"]["FP8_DYNAMIC"]


def test_quantized_source(model, samples, results):
    """Its dequantized weights are measured: those of its own scheme are there already."""
    source = program.oneshot(model, results / "source", "--algorithm", "rtn", "--scheme", "W8A16", *GROUPS)
    outcome = measure(source, "--dataset", samples, "--json", schemes=["W8A16", "W4A16"])
    assert "the source is quantized" in outcome.errors
    for own in errors_of(outcome.json()).values():
        assert own["W8A16"] < 2e-4 and own["W4A16"] > 20 * own["W8A16"]


def test_interrupted_measurement_leaves_nothing(tmp_path):
    model = deep_model.save(tmp_path / "long", layers=10, samples=32)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = [program.PROGRAM, "inspect", model, "--sensitivity", "--schemes", "W4A16,NVFP4,MXFP4", "--offload-dir", scratch,
               "--log-level", "debug", *deep_model.gptq(model)]
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if "layers.2" in line:
            break
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=20)
    assert process.returncode == 130 and output == ""
    assert errors.splitlines()[-1] == "error: [run] stopped on request; a measuring run keeps nothing"
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("arguments, fragments, code", [
    ([], ["--sensitivity", "add --schemes"], 2),
    (["--schemes", "W4A16"], ["--sensitivity", "add --dataset"], 2),
    (["--schemes", "NVFP3", "--dataset", "SAMPLES"], ["--schemes", "unknown scheme 'NVFP3'", "NVFP4"], 2),
    (["--schemes", "NVFP4,Q5_0", "--dataset", "SAMPLES"], ["--schemes: Q5_0 is of GGUF files", "--output that ends in .gguf"], 2),
    (["--schemes", "W4A16,W4A16", "--dataset", "SAMPLES"], ["--schemes", "W4A16 is named twice"], 2),
    (["--schemes", "nvfp4-fp8", "--dataset", "SAMPLES"], ["--schemes", "nvfp4-fp8", "one by one"], 2),
    (["--schemes", "NVFP4,W4A16", "--dataset", "SAMPLES"], ["W4A16 uses groups of 128", "--group-size 64"], 1),
    (["--schemes", "NVFP4", "--group-size", "32", "--dataset", "SAMPLES"], ["--group-size", "no scheme"], 2),
    (["--schemes", "NVFP4", "--dataset", "SAMPLES", "--pipeline", "datafree"], ["--pipeline datafree", "calibration data"], 2),
    (["--schemes", "NVFP4", "--dataset", "SAMPLES", "--scheme", "W4A16"], ["--scheme requires --plan"], 2),
    (["--schemes", "NVFP4", "--dataset", "SAMPLES", "--imatrix", "x.gguf"], ["--imatrix requires --plan"], 2),
    (["--schemes", "NVFP4", "--dataset", "SAMPLES", "--plan"], ["--plan, --sensitivity", "exclude each other"], 2),
    (["--schemes", "NVFP4", "--dataset", "SAMPLES", "--targets", "Conv2d"], ["match no module"], 1),
    (["--schemes", "NVFP4", "--dataset", "SAMPLES", "--summary", "/nowhere/s.json"], ["--summary", "/nowhere"], 2),
])
def test_refusals(arguments, fragments, code, model, samples):
    given = [samples if word == "SAMPLES" else word for word in arguments]
    outcome = program.fails("inspect", model, "--sensitivity", *given, fragments=fragments, code=code)
    assert outcome.output == ""


def test_options_of_a_measurement_need_one(model):
    program.fails("inspect", model, "--schemes", "W4A16", fragments=["--schemes requires --sensitivity"], code=2)
    program.fails("inspect", model, "--dataset", "d", fragments=["--dataset requires --plan or --sensitivity"], code=2)
