"""--help, --version, inspect, and where models are found."""

import json
import os

import program
import pytest
import tiny_models

COMMANDS = ["oneshot", "eval", "inspect", "prepare"]


def test_version():
    assert program.run("--version").output.split()[0] == "layerpress"


@pytest.mark.parametrize("command", [[], *([command] for command in COMMANDS)])
def test_help(command):
    outcome = program.run(*command, "--help")
    assert "Usage: layerpress" in outcome.output and outcome.errors == ""
    assert all(name in outcome.output for name in (COMMANDS if not command else ["MODEL", "--log-level"]))


@pytest.mark.parametrize("arguments, fragments", [
    ([], ["--help"]), (["compress"], ["--help"]), (["oneshot"], ["MODEL"]), (["oneshot", "m"], ["--output"]),
    (["oneshot", "m", "--output", "o", "--bits", "4"], ["--bits"]), (["eval", "m"], ["--dataset"]),
    (["oneshot", "m", "--output", "o", "--threads", "many"], ["--threads"]), (["inspect", "m", "--log-level", "loud"], ["loud"]),
])
def test_usage(arguments, fragments):
    assert program.fails(*arguments, fragments=fragments, code=2).output == ""


def test_runs_from_any_folder_without_an_environment(model, tmp_path):
    outcome = program.run("inspect", model, "--json", cwd=tmp_path, env={"HOME": str(tmp_path)})
    assert outcome.json()["architecture"] == "LlamaForCausalLM"


def test_inspect_json(model):
    description = program.run("inspect", model, "--json").json()
    tensors = tiny_models.tensors(model)
    assert description["parameters"] == sum(tensor.numel() for tensor in tensors.values())
    assert description["bytes"] == 2 * description["parameters"]
    assert description["quantization"] is None
    subgraphs = description["subgraphs"]
    layers = [subgraph for subgraph in subgraphs if subgraph["name"].startswith("model.layers.")]
    assert len(layers) == 3
    assert sum(subgraph["parameters"] for subgraph in subgraphs) == description["parameters"]
    prefix = layers[1]["name"] + "."
    groups = [([name.removeprefix(prefix) for name in group["modules"]], group["in_features"], group["out_features"])
              for group in layers[1]["linear_groups"]]
    assert groups == [
        (["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"], 64, [64, 32, 32]),
        (["self_attn.o_proj"], 64, [64]),
        (["mlp.gate_proj", "mlp.up_proj"], 64, [128, 128]),
        (["mlp.down_proj"], 128, [64]),
    ]


def test_inspect_text(model):
    text = program.run("inspect", model).output
    assert "LlamaForCausalLM" in text and "model.layers.2" in text
    assert "self_attn.q_proj, self_attn.k_proj, self_attn.v_proj" in text


def test_inspect_other_cuts(model):
    count = lambda *targets: len(program.run("inspect", model, "--json", "--sequential-targets", *targets).json()["subgraphs"])
    assert count("Linear") > count("LlamaDecoderLayer") > count("model.layers.1")
    program.fails("inspect", model, "--sequential-targets", "NoSuchLayer", fragments=["NoSuchLayer"], code=2)


def test_inspect_compressed(model, results, rounding):
    out = program.oneshot(model, results / "out", *rounding)
    description = program.run("inspect", out, "--json").json()
    assert description["quantization"] == "pack-quantized"
    assert description["parameters"] == program.run("inspect", model, "--json").json()["parameters"]
    assert description["bytes"] == sum(t.numel() * t.element_size() for t in tiny_models.tensors(out).values())


class Cache:
    """A cache as huggingface_hub lays it out: blobs, snapshots of links to them, refs."""

    def __init__(self, hub, identifier, model, commit="0123456789abcdef0123456789abcdef01234567", ref="main"):
        folder = hub / ("models--" + identifier.replace("/", "--"))
        snapshot = folder / "snapshots" / commit
        snapshot.mkdir(parents=True)
        (folder / "blobs").mkdir(exist_ok=True)
        for number, file in enumerate(sorted(model.iterdir())):
            blob = folder / "blobs" / f"{commit[:6]}{number}"
            blob.write_bytes(file.read_bytes())
            (snapshot / file.name).symlink_to(os.path.relpath(blob, snapshot))
        if ref:
            (folder / "refs").mkdir(exist_ok=True)
            (folder / "refs" / ref).write_text(commit)
        self.snapshot = snapshot


def environment(tmp_path, **variables):
    return {"HOME": str(tmp_path / "home"), "PATH": os.environ["PATH"], **{k: str(v) for k, v in variables.items()}}


def test_hub_cache(model, tmp_path):
    cache = Cache(tmp_path / "hub", "some-org/Some.Model-1B", model)
    for variables in ({"HF_HUB_CACHE": tmp_path / "hub"}, {"HF_HOME": tmp_path}):
        description = program.run("inspect", "some-org/Some.Model-1B", "--json", env=environment(tmp_path, **variables)).json()
        assert description["model"] == str(cache.snapshot)


def test_hub_cache_at_home(model, tmp_path):
    Cache(tmp_path / "home" / ".cache" / "huggingface" / "hub", "org/name", model)
    assert program.run("inspect", "org/name", env=environment(tmp_path)).output


def test_hub_cache_revision(model, broken, tmp_path):
    Cache(tmp_path / "hub", "org/name", model)
    tiny_models.rewrite_config(broken, lambda config: config.update(architectures=["OtherForCausalLM"]))
    Cache(tmp_path / "hub", "org/name", broken, commit="f" * 40, ref="next")
    variables = environment(tmp_path, HF_HUB_CACHE=tmp_path / "hub")
    program.run("inspect", "org/name", env=variables)
    program.fails("inspect", "org/name@next", env=variables, fragments=["OtherForCausalLM"])


def test_model_that_is_not_downloaded(tmp_path):
    variables = environment(tmp_path, HF_HUB_CACHE=tmp_path / "hub")
    program.fails("inspect", "org/name", env=variables, fragments=["org/name", "hf download org/name"])
    program.fails("inspect", "org/name@v2", env=variables, fragments=["hf download org/name --revision v2"])
    (tmp_path / "hub" / "models--org--name" / "refs").mkdir(parents=True)
    (tmp_path / "hub" / "models--org--name" / "refs" / "main").write_text("0" * 40)
    program.fails("inspect", "org/name", env=variables, fragments=["hf download org/name"])


def test_output_from_the_cache_is_files(model, results, tmp_path, rounding):
    """Links of the cache become files: the result does not depend on the cache."""
    Cache(tmp_path / "hub", "org/name", model)
    variables = environment(tmp_path, HF_HUB_CACHE=tmp_path / "hub")
    out = program.oneshot("org/name", results / "out", *rounding, env=variables)
    assert (out / "tokenizer.json").read_bytes() == (model / "tokenizer.json").read_bytes()
    assert not any(file.is_symlink() for file in out.iterdir())
    assert json.loads((out / "config.json").read_text())["quantization_config"]["quant_method"] == "compressed-tensors"
