"""Checkpoints that cannot be compressed: one line that says what, where and what to do, and nothing left behind."""

import json
import shutil
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import program, tiny_models

WEIGHTS = "model.safetensors"


def header_of(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:8 + size]), data[8 + size:]


def write(path, header, data, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)


def respecify(folder, change):
    """Rewrites the header: `change` gets it and the number of data bytes."""
    header, data = header_of(folder / WEIGHTS)
    change(header, len(data))
    write(folder / WEIGHTS, header, data)


def set_field(name, field, value):
    return lambda header, size: header[name].__setitem__(field, value)


Q, K = "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight"


def overlap(header, size):
    begin = header[Q]["data_offsets"][0]
    count = header[K]["data_offsets"][1] - header[K]["data_offsets"][0]
    header[K]["data_offsets"] = [begin, begin + count]


def beyond(header, size):
    last = max((name for name in header if name != "__metadata__"), key=lambda name: header[name]["data_offsets"][1])
    header[last]["data_offsets"][1] += 64
    header[last]["shape"] = [(header[last]["data_offsets"][1] - header[last]["data_offsets"][0]) // 2]


@pytest.mark.parametrize("change, fragments", [
    (overlap, ["model.layers.0.self_attn"]),
    (beyond, ["byte"]),
    (set_field(Q, "data_offsets", [0, 10]), [Q]),
    (set_field(Q, "data_offsets", [100, 10]), [Q]),
    (set_field(Q, "data_offsets", [-8, 8184]), [Q]),
    (set_field(Q, "data_offsets", [2**63, 2**64 - 1]), [Q]),
    (set_field(Q, "data_offsets", "0"), [Q]),
    (set_field(Q, "dtype", "Q4_K"), [Q, "Q4_K"]),
    (set_field(Q, "shape", [64, -64]), [Q]),
    (set_field(Q, "shape", [2**62, 2**62]), [Q]),
    (set_field(Q, "shape", [32, 64]), [Q]),
    (set_field(Q, "shape", [64.5, 64]), [Q]),
    (lambda header, size: header.__setitem__(Q, 3), [Q]),
])
def test_header_that_contradicts_itself(change, fragments, broken, refused, rounding):
    respecify(broken, change)
    refused(broken, *rounding, fragments=[WEIGHTS, *fragments])


@pytest.mark.parametrize("length", [0, 10**6, 2**40, 2**63, 2**64 - 1])
def test_header_length(length, broken, refused, rounding):
    header, data = header_of(broken / WEIGHTS)
    write(broken / WEIGHTS, header, data, length)
    refused(broken, *rounding, fragments=[WEIGHTS, "header"])


@pytest.mark.parametrize("content", [b"", b"\x08", b"\0" * 8, struct.pack("<Q", 2) + b"[]", struct.pack("<Q", 5) + b'{"a":',
                                     struct.pack("<Q", 100_000) + b"[" * 100_000, struct.pack("<Q", 3) + b'"\xff"'])
def test_no_header(content, broken, refused, rounding):
    (broken / WEIGHTS).write_bytes(content)
    refused(broken, *rounding, fragments=[WEIGHTS])


@pytest.mark.parametrize("kept", [0.1, 0.6, 0.999])
def test_truncated(kept, broken, refused, rounding):
    data = (broken / WEIGHTS).read_bytes()
    (broken / WEIGHTS).write_bytes(data[:int(len(data) * kept)])
    refused(broken, *rounding, fragments=[WEIGHTS])


@pytest.fixture
def sharded(broken):
    """The model in several files."""
    tensors = load_file(broken / WEIGHTS)
    names = sorted(tensors)
    half = len(names) // 2
    parts = {"model-00001-of-00002.safetensors": names[:half], "model-00002-of-00002.safetensors": names[half:]}
    for file, members in parts.items():
        save_file({name: tensors[name] for name in members}, broken / file, {"format": "pt"})
    (broken / WEIGHTS).unlink()
    write_index(broken, {name: file for file, members in parts.items() for name in members})
    return broken


def write_index(folder, weight_map):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def read_index(folder):
    return json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]


def test_missing_shard(sharded, refused, rounding):
    (sharded / "model-00002-of-00002.safetensors").unlink()
    refused(sharded, *rounding, fragments=["model-00002-of-00002.safetensors", "download"])


def test_truncated_shard(sharded, refused, rounding):
    path = sharded / "model-00002-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    refused(sharded, *rounding, fragments=[path.name])


@pytest.mark.parametrize("place", ["../broken/model-00001-of-00002.safetensors", "/etc/passwd", "sub/model.safetensors", "..",
                                   ".", "", "config.json", "a\0b.safetensors", 7, None])
def test_index_that_leaves_the_folder(place, sharded, refused, rounding):
    write_index(sharded, {**read_index(sharded), Q: place})
    refused(sharded, *rounding, fragments=["model.safetensors.index.json", Q])


def test_links_are_followed(sharded, results, rounding):
    elsewhere = sharded.parent / "blobs"
    elsewhere.mkdir()
    for shard in sharded.glob("*.safetensors"):
        shutil.move(shard, elsewhere / shard.name)
        shard.symlink_to(elsewhere / shard.name)
    assert program.oneshot(sharded, results / "out", *rounding)


@pytest.mark.parametrize("content, fragment", [
    ("", "JSON"), ("{", "JSON"), ("[]", "weight_map"), ('{"weight_map": {}}', "weight_map"), ('{"weight_map": 3}', "weight_map"),
])
def test_index_that_is_none(content, fragment, sharded, refused, rounding):
    (sharded / "model.safetensors.index.json").write_text(content)
    refused(sharded, *rounding, fragments=["model.safetensors.index.json", fragment])


def test_index_and_shard_disagree(sharded, refused, rounding):
    weight_map = read_index(sharded)
    write_index(sharded, {**weight_map, Q: next(f for f in weight_map.values() if f != weight_map[Q])})
    refused(sharded, *rounding, fragments=[Q])


def test_tensor_in_two_shards(sharded, refused, rounding):
    tensors = {name: tensor for path in sharded.glob("*.safetensors") for name, tensor in load_file(path).items()}
    file = next(f for f in read_index(sharded).values() if f != read_index(sharded)[Q])
    save_file({**load_file(sharded / file), Q: tensors[Q]}, sharded / file)
    refused(sharded, *rounding, fragments=[Q])


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b'{"hidden_size": 64', b'{"a": 1e999}', b"[" * 100_000])
def test_config_that_is_no_json(content, broken, refused, rounding):
    (broken / "config.json").write_bytes(content)
    refused(broken, *rounding, fragments=["config.json"])


@pytest.mark.parametrize("key, value, fragment", [
    ("hidden_size", 128, "shape"), ("num_attention_heads", 8, "shape"), ("num_hidden_layers", 4, "model.layers.3"),
    ("vocab_size", 95, "embed_tokens"), ("attention_bias", True, "q_proj.bias"), ("head_dim", 32, "shape"),
    ("num_key_value_heads", 3, "3"), ("hidden_size", "64", "hidden_size"), ("hidden_size", -64, "hidden_size"),
    ("hidden_size", 10**30, "hidden_size"), ("hidden_size", None, "hidden_size"), ("num_attention_heads", 0, "num_attention_heads"),
    ("partial_rotary_factor", 0.5, "--model-graph export"), ("rope_parameters", {"rope_type": "spiral"}, "spiral"), ("rope_parameters", 3, "rope"),
    ("rope_parameters", {"rope_type": "linear", "rope_theta": 1e4, "factor": 0.0}, "'linear' are out of range"),
    ("rope_parameters", {"rope_type": "linear", "rope_theta": 1e4, "factor": -2.0}, "'linear' are out of range"),
    ("rope_parameters", {"rope_type": "dynamic", "rope_theta": 1e4, "factor": -2.0}, "'dynamic' are out of range"),
    ("rope_parameters", {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "attention_factor": 0.0}, "'yarn' are out of range"),
    ("rms_norm_eps", -1.0, "rms_norm_eps -1"), ("architectures", 3, "architectures"), ("layer_types", 3, None),
])
def test_config_that_contradicts_the_weights(key, value, fragment, broken, refused, rounding):
    tiny_models.rewrite_config(broken, lambda config: config.__setitem__(key, value))
    if fragment is None:  # a key that this architecture does not read
        program.run("inspect", broken)
    else:
        refused(broken, *rounding, fragments=[fragment])


def test_unknown_architecture(broken, refused, rounding):
    tiny_models.rewrite_config(broken, lambda config: config.update(architectures=["LamaForCausalLM"]))
    refused(broken, *rounding, fragments=["LamaForCausalLM", "nearest: LlamaForCausalLM", "Qwen3ForCausalLM"])
    tiny_models.rewrite_config(broken, lambda config: config.update(architectures=None, model_type="bert"))
    refused(broken, *rounding, fragments=["bert", "llama"])


@pytest.mark.parametrize("names, fragments", [
    ({"architectures": None, "model_type": "lama"}, ["model_type 'lama'", "nearest: llama"]),
    pytest.param({"architectures": [], "model_type": "qwen3_vl"}, ["model_type 'qwen3_vl'", "supported: llama"], marks=pytest.mark.nightly),
    ({"architectures": None, "model_type": "LLAMA"}, ["model_type 'LLAMA'", "nearest: llama"]),
    ({"architectures": ["llamaforcausallm"]}, ["'llamaforcausallm'", "nearest: LlamaForCausalLM"]),
    ({"architectures": ["Qwen3MoEForCausalLM"]}, ["'Qwen3MoEForCausalLM'", "nearest: Qwen3MoeForCausalLM"]),
    ({"architectures": None, "model_type": None}, ["'architectures'", "'model_type'", "llama"]),
    ({"architectures": None, "model_type": 3}, ["model_type"]),
])
def test_architecture_by_another_name(names, fragments, broken, refused, rounding):
    """A name that is nearly known is not taken for the known one."""
    tiny_models.rewrite_config(broken, lambda config: config.update(names))
    refused(broken, *rounding, fragments=fragments)


def test_architecture_by_model_type_alone(broken):
    tiny_models.rewrite_config(broken, lambda config: config.pop("architectures"))
    assert program.run("inspect", broken, "--json").json()["architecture"] == "llama"


def test_missing_tensor(broken, refused, rounding):
    tensors = load_file(broken / WEIGHTS)
    del tensors[Q]
    save_file(tensors, broken / WEIGHTS)
    refused(broken, *rounding, fragments=[Q, "missing"])


def test_weights_of_integers(broken, refused, rounding):
    tensors = load_file(broken / WEIGHTS)
    tensors[Q] = tensors[Q].to(torch.int8)
    save_file(tensors, broken / WEIGHTS)
    refused(broken, *rounding, fragments=[Q, "I8"])


@pytest.mark.parametrize("method", ["gptq", "awq", "fp8", "mxfp4", "modelopt"])
def test_quantized_in_name_only(method, broken, refused, rounding):
    tiny_models.rewrite_config(broken, lambda config: config.update(quantization_config={"quant_method": method, "bits": 4}))
    refused(broken, *rounding, fragments=["quantiz"])


@pytest.mark.parametrize("name, advice", [("pytorch_model.bin", "safetensors"), ("consolidated.00.pth", "safetensors"),
                                          ("model.gguf", "name that file: ")])
def test_other_containers(name, advice, broken, refused, rounding):
    (broken / WEIGHTS).rename(broken / name)
    refused(broken, *rounding, fragments=[name, advice])


def test_no_weights(broken, refused, rounding):
    (broken / WEIGHTS).unlink()
    refused(broken, *rounding, fragments=["no weights"])
    (broken / "config.json").unlink()
    refused(broken, *rounding, fragments=["config.json"])


@pytest.mark.parametrize("name", ["/no/such/folder", "no such folder", "../nowhere", "", "a/b/c", "config.json"])
def test_no_model(name, refused, rounding, model):
    refused(model / name if name == "config.json" else name, *rounding, fragments=["["])


def spoil(folder, name, value, place=(0, 0)):
    tensors = load_file(folder / WEIGHTS)
    tensors[name][place if tensors[name].dim() == 2 else place[0]] = value
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("algorithm", ["rounding", "solving"])
def test_weights_that_are_not_numbers(value, algorithm, broken, refused, request):
    spoil(broken, "model.layers.1.mlp.up_proj.weight", value, (17, 5))
    refused(broken, *request.getfixturevalue(algorithm), fragments=["model.layers.1.mlp.up_proj.weight", "NaN or infinite"])


@pytest.mark.parametrize("name, finished", [("model.embed_tokens.weight", []), ("model.layers.1.input_layernorm.weight", [".out.unfinished"])])
def test_other_weights_that_are_not_numbers(name, finished, broken, results, solving):
    """They reach the statistics of every layer after them. Layers before them stay, as after every error, for --resume."""
    tensors = load_file(broken / WEIGHTS)
    tensors[name].fill_(float("nan"))
    save_file(tensors, broken / WEIGHTS, {"format": "pt"})
    program.fails("oneshot", broken, "--output", results / "out", *solving, fragments=["NaN"])
    assert [path.name for path in results.iterdir()] == finished


def test_scales_that_would_be_infinite(broken, refused):
    """The range from the least to the greatest weight has no number in bf16."""
    tensors = load_file(broken / WEIGHTS)
    tensors[Q][3, :2] = torch.tensor([3e38, -3e38])
    save_file(tensors, broken / WEIGHTS, {"format": "pt"})
    refused(broken, "--algorithm", "rtn", "--scheme", "W4A16_ASYM", "--group-size", "32", fragments=["scale", Q[:-7]])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", [0.0, 6e-8, 1e-38])
def test_weights_of_nearly_nothing(dtype, size, broken, results):
    """A scale is never zero, and what it gives is finite."""
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(broken / WEIGHTS).items()}
    tensors[Q].fill_(size)
    save_file(tensors, broken / WEIGHTS, {"format": "pt"})
    out = program.oneshot(broken, results / "out", "--algorithm", "rtn", "--group-size", "32", "--observer", "minmax")
    scale = tiny_models.tensors(out)[Q + "_scale"].float()
    assert torch.isfinite(scale).all() and (scale > 0).all()
