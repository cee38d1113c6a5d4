"""--help, --version, inspect, and where models are found."""

import json
import os
import shutil
import xml.etree.ElementTree

import pytest
from support import program, tiny_models

COMMANDS = ["oneshot", "eval", "inspect", "prepare"]


def test_version():
    assert program.run("--version").output.split()[0] == "layerpress"


@pytest.mark.parametrize("command", [[], *([command] for command in COMMANDS)])
def test_help(command):
    outcome = program.run(*command, "--help")
    assert "Usage: layerpress" in outcome.output and outcome.errors == ""
    assert all(name in outcome.output for name in (COMMANDS if not command else ["MODEL", "--log-level"]))


@pytest.mark.parametrize("arguments, fragments", [
    ([], ["a command is required", "oneshot"]), (["compress"], ["'compress'", "choose from oneshot"]),
    (["oneshot"], ["MODEL"]), (["oneshot", "m"], ["--output"]),
    (["oneshot", "m", "--output", "o", "--bits", "4"], ["--bits"]), (["eval", "m"], ["--dataset"]),
    (["oneshot", "m", "--output", "o", "--threads", "many"], ["--threads"]), (["inspect", "m", "--log-level", "loud"], ["loud"]),
    (["inspect"], ["MODEL"]), (["inspect", "m", "--architectures"], ["--architectures", "MODEL"]),
    (["inspect", "m", "--quality", "best"], ["--quality", "--plan"]),
    (["inspect", "m", "--full"], ["--full", "--svg"]), (["inspect", "m", "--graph", "--dot", "d"], ["--graph", "--dot"]),
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
    lines = text.splitlines()
    assert "LlamaForCausalLM" in text and max(map(len, lines)) <= 100
    assert ["├─", "model.layers.0–2", "3", "×"] in [line.split()[:4] for line in lines]
    assert "│  ├─     64 → 64, 32, 32           self_attn: q_proj, k_proj, v_proj" in lines
    assert "└─ tail" in text and "   └─" in lines[-1] and lines[-1].endswith("lm_head")


def test_inspect_text_of_experts(tmp_path):
    """Modules that differ in their number stand once; what is not alike stands apart."""
    tiny_models.save(tmp_path, "Qwen3Moe", num_hidden_layers=4, num_experts=8, decoder_sparse_step=1, mlp_only_layers=[1])
    lines = program.run("inspect", tmp_path).output.splitlines()
    assert max(map(len, lines)) <= 100
    assert [line.split()[1] for line in lines if "parameters" in line and line[0] in "├└"] == [
        "head", "model.layers.0", "model.layers.1", "model.layers.2–3", "tail"]
    assert sum("mlp.experts.0–7: gate_proj, up_proj" in line for line in lines) == 2
    assert sum("→ 64, 8 groups" in line and "mlp.experts.0–7: down_proj" in line for line in lines) == 2


def test_inspect_other_cuts(model):
    count = lambda *targets: len(program.run("inspect", model, "--json", "--sequential-targets", *targets).json()["subgraphs"])
    assert count("Linear") > count("LlamaDecoderLayer") > count("model.layers.1")
    program.fails("inspect", model, "--sequential-targets", "NoSuchLayer", fragments=["NoSuchLayer"], code=2)


def test_list_of_architectures():
    families = {family["class"]: family for family in program.run("inspect", "--architectures", "--json").json()}
    assert families["LlamaForCausalLM"]["model_type"] == "llama"
    assert {"Qwen3MoeForCausalLM", "MllamaForConditionalGeneration"} <= families.keys()
    lines = program.run("inspect", "--architectures").output.splitlines()
    assert len(lines) == len(families)
    for line, family in zip(lines, families.values()):
        assert line.split() == [family["model_type"], family["class"], *family["special"].split()]


def drawn_text(path):
    """All words of an SVG picture."""
    root = xml.etree.ElementTree.parse(path).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    return [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]


needs_graphviz = pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")


@needs_graphviz
def test_picture(model, tmp_path):
    picture = tmp_path / "graph.svg"
    outcome = program.run("inspect", model, "--svg", picture)
    assert outcome.output.split(":")[0] == str(picture) and "5 subgraphs" in outcome.output
    words = drawn_text(picture)
    assert any("LlamaForCausalLM" in word for word in words)
    assert words.count("q_proj") == 1 and "model.layers.1\u20132" in "".join(words)
    assert words.count("[tokens, 64]") == 3 and "128 B per token" in words
    program.run("inspect", model, "--svg", picture, "--full")  # replaces it
    assert drawn_text(picture).count("q_proj") == 3
    assert list(tmp_path.iterdir()) == [picture]


@needs_graphviz
def test_picture_of_other_cuts(model, tmp_path):
    """Graphviz accepts what is written for every cut, folded or not."""
    for number, cut in enumerate((["Linear"], ["Linear", "--full"], ["model.layers.1"],
                                  ["LlamaDecoderLayer", "--sequential-targets-per-subgraph", "2"])):
        picture = tmp_path / f"{number}.svg"
        program.run("inspect", model, "--svg", picture, "--sequential-targets", *cut)
        assert any(word.startswith("attention") for word in drawn_text(picture))


def test_graph_without_graphviz(model, tmp_path):
    """The same in Graphviz's language needs no program; the picture says which one is missing."""
    nothing = environment(tmp_path, PATH=tmp_path)
    program.run("inspect", model, "--dot", tmp_path / "graph.dot", env=nothing)
    assert (tmp_path / "graph.dot").read_text().startswith("digraph")
    program.fails("inspect", model, "--svg", tmp_path / "graph.svg", env=nothing,
                  fragments=["Graphviz", "apt-get install graphviz", "--dot"])
    assert not (tmp_path / "graph.svg").exists()


@pytest.mark.parametrize("option", ["--svg", "--dot"])
def test_picture_that_cannot_be_written(option, model, tmp_path):
    (tmp_path / "taken").mkdir()
    for place, named in (("missing/graph", "missing"), ("taken", "taken")):
        if option == "--dot" or shutil.which("dot"):
            program.fails("inspect", model, option, tmp_path / place, code=2, fragments=[option, str(tmp_path / named)])
    assert [file.name for file in tmp_path.iterdir()] == ["taken"]


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
