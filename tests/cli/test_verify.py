"""`layerpress verify`: accepts what oneshot writes, and finds each of many planted faults."""

import json
import shutil
import struct

import gguf
import pytest
import torch
from support import block_models, exact_model, gguf_files, gguf_models, program, tiny_checkpoints, tiny_models

LAYER = "model.layers.0."
Q, K = LAYER + "self_attn.q_proj.", LAYER + "self_attn.k_proj."
GATE, UP, DOWN = LAYER + "mlp.gate_proj.", LAYER + "mlp.up_proj.", LAYER + "mlp.down_proj."
EXPERT = LAYER + "mlp.experts.{}.down_proj."
EXPERTS = {"moe_intermediate_size": 64, "num_experts": 4, "num_experts_per_tok": 2, "decoder_sparse_step": 1, "mlp_only_layers": []}
SCHEMES = {
    "int4": ["--scheme", "W4A16", "--group-size", "32"],
    "asym": ["--scheme", "W4A16_ASYM", "--group-size", "32"],
    "int8": ["--scheme", "W8A8"],
    "fp8": ["--scheme", "FP8"],
    "nvfp4": ["--scheme", "NVFP4"],
    "mxfp4": ["--scheme", "MXFP4"],
    "best": ["--scheme", "W4A16", "--group-size", "32", "--quality", "best"],
    "cache": ["--recipe", json.dumps({"a_stage": {"a_modifiers": {"QuantizationModifier": {"kv_cache_scheme": {
        "num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor", "dynamic": False}}}}})],
}
INT4 = {"ignore": ["lm_head"], "config_groups": {"a": {"targets": ["Linear"], "weights": {
    "num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}}}}
CHANGES = {
    "smoothed": {"SmoothQuantModifier": {"smoothing_strength": 0.8}, "GPTQModifier": {"scheme": "W8A8", "ignore": ["lm_head"]}},
    "equalized": {"LogarithmicEqualizationModifier": {}, "QuantizationModifier": INT4},
    "awq": {"AWQModifier": INT4},
    "autoround": {"AutoRoundModifier": INT4},
    "rotated": {"SpinQuantModifier": {"rotations": ["R1", "R2"]}, "GPTQModifier": INT4},
    "pruned": {"SparseGPTModifier": {"sparsity": 0.5, "mask_structure": "2:4", "ignore": ["lm_head"]}},
    "wanda": {"WandaPruningModifier": {"sparsity": 0.5, "ignore": ["lm_head"]}},
    "pruned int4": {"WandaPruningModifier": {"sparsity": 0.5, "ignore": ["lm_head"]}, "GPTQModifier": INT4},
    "pruned fp8": {"SparseGPTModifier": {"sparsity": 0.6, "ignore": ["lm_head"]},
                   "QuantizationModifier": {"scheme": "FP8_DYNAMIC", "ignore": ["lm_head"]}},
    "pruned int8": {"SmoothQuantModifier": {}, "WandaPruningModifier": {"sparsity": 0.7, "ignore": ["lm_head"]},
                    "GPTQModifier": {"scheme": "W8A8", "ignore": ["lm_head"]}},
    "half the experts": {"REAPPruningModifier": {"sparsity": 0.5}},
    "half the experts int4": {"REAPPruningModifier": {"sparsity": 0.5}, "GPTQModifier": INT4},
}
for name, modifiers in CHANGES.items():
    SCHEMES[name] = ["--recipe", json.dumps({"a_stage": {"a_modifiers": modifiers}})]
SCHEMES["rounded"] = [*SCHEMES["int4"], "--algorithm", "rtn"]
SCHEMES["pruned best"] = [*SCHEMES["pruned"], "--quality", "best"]


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    exact_model.save_tokenizer(tiny_models.save(folder / "dense", intermediate_size=128))
    return {"dense": folder / "dense",
            "experts": tiny_models.save(folder / "experts", "Qwen3Moe", **EXPERTS)}


@pytest.fixture(scope="module")
def made(sources, samples, tmp_path_factory):
    """The result of a scheme, made once."""
    folder, results = tmp_path_factory.mktemp("made"), {}

    def make(kind, scheme):
        if (kind, scheme) not in results:
            arguments = list(SCHEMES[scheme])
            if arguments[0] == "--recipe":
                (folder / "recipe.yaml").write_text(arguments[1])
                arguments[1] = folder / "recipe.yaml"
            results[kind, scheme] = program.oneshot(sources[kind], folder / f"{kind}-{scheme}", "--dataset", samples, *arguments)
        return results[kind, scheme]

    return make


def verified(model, *arguments, code=None):
    return program.run("verify", model, "--json", *arguments, code=code).json()


@pytest.mark.parametrize("kind, scheme", [*(("experts" if "experts" in scheme else "dense", scheme) for scheme in SCHEMES),
                                          ("experts", "int4"), ("experts", "nvfp4")])
def test_accepts_results(kind, scheme, made, sources):
    found = verified(made(kind, scheme), "--source", sources[kind], code=0)
    assert found["faults"] == [] and found["warnings"] == []
    if "experts" not in scheme:
        assert found["compared"] == len(tiny_models.tensors(sources[kind]))
    if scheme not in ("cache", "pruned", "pruned best", "wanda", "half the experts"):
        assert 0 < found["worst"][0]["error"] < (0.6 if "pruned" in scheme else 0.3)


def test_accepts_plain_models(sources):
    assert verified(sources["experts"], code=0)["faults"] == []


def change(name, function):
    def plant(folder):
        tensors = tiny_models.tensors(folder)
        tensors[name] = function(tensors[name].clone()).contiguous()
        tiny_models.rewrite_tensors(folder, tensors)
    return plant


def swap(first, second):
    def plant(folder):
        tensors = tiny_models.tensors(folder)
        for name in [name for name in tensors if name.startswith(first)]:
            other = second + name[len(first):]
            tensors[name], tensors[other] = tensors[other].clone(), tensors[name].clone()
        tiny_models.rewrite_tensors(folder, tensors)
    return plant


def drop(name):
    def plant(folder):
        tensors = tiny_models.tensors(folder)
        del tensors[name]
        tiny_models.rewrite_tensors(folder, tensors)
    return plant


def put(value, place=(0, 0)):
    def function(tensor):
        tensor.view(tensor.shape or (1,))[place[:max(tensor.dim(), 1)]] = value
        return tensor
    return function


def config(function):
    return lambda folder: tiny_models.rewrite_config(folder, lambda text: function(text["quantization_config"]))


def first_group(text):
    return text["config_groups"]["group_0"]


def truncate(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def damaged_header(folder):
    path = folder / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(struct.pack("<Q", 1 << 50) + data[8:])


def stale_index(folder):
    names = dict.fromkeys(tiny_models.tensors(folder), "model-00001-of-00002.safetensors")
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    names["model.layers.7.mlp.up_proj.weight"] = "model-00001-of-00002.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))


def index_beside(text):
    return lambda folder: (folder / "model.safetensors.index.json").write_text(text)


def permute_rows(tensor):
    order = torch.arange(tensor.shape[0])
    order[[3, 40]] = order[[40, 3]]
    return tensor[order]


def both(*plants):
    def plant(folder):
        for each in plants:
            each(folder)
    return plant


def quantized_embedding(folder):
    """As some tools leave it: FP8 codes and scales, which config.json does not name."""
    tensors, name = tiny_models.tensors(folder), "model.embed_tokens.weight"
    scale = tensors[name].abs().amax().reshape(1) / 448
    tensors[name], tensors[name + "_scale"] = (tensors[name] / scale).to(torch.float8_e4m3fn), scale
    tiny_models.rewrite_tensors(folder, tensors)


def plain_twin(folder):
    tensors = tiny_models.tensors(folder)
    tiny_models.rewrite_tensors(folder, {**tensors, Q + "weight": torch.zeros(64, 64)})


def tied_by_config(folder):
    tiny_models.rewrite_config(folder, lambda text: text.update(tie_word_embeddings=True))


# name: (kind of model, scheme, fault, whether the source is needed, the check that finds it)
def larger_scales(scale):
    """In every eighth row."""
    scale = scale.clone()
    scale[::8, 1] *= 2.3
    return scale


PLANTED = {
    "scale is NaN": ("dense", "int4", change(Q + "weight_scale", put(float("nan"))), False, "scale"),
    "scale is infinite": ("dense", "int4", change(Q + "weight_scale", put(float("inf"))), False, "scale"),
    "scale is negative": ("dense", "int8", change(Q + "weight_scale", put(-0.1)), False, "scale"),
    "scale is huge": ("dense", "int4", change(Q + "weight_scale", put(1e9)), False, "scale"),
    "scales are zero": ("dense", "int4", change(Q + "weight_scale", torch.zeros_like), False, "scale"),
    "exponent is NaN": ("dense", "mxfp4", change(Q + "weight_scale", put(255)), False, "scale"),
    "input scale is NaN": ("dense", "fp8", change(Q + "input_scale", put(float("nan"), (0,))), False, "scale"),
    "input scale is zero": ("dense", "fp8", change(Q + "input_scale", torch.zeros_like), False, "scale"),
    "global scale is infinite": ("dense", "nvfp4", change(Q + "weight_global_scale", put(float("inf"), (0,))), False, "scale"),
    "norm is NaN": ("dense", "int4", change("model.norm.weight", put(float("nan"), (3,))), False, "values"),
    "embedding is infinite": ("dense", "int4", change("model.embed_tokens.weight", put(float("inf"))), False, "values"),
    "codes saturate": ("dense", "int8", change(Q + "weight", lambda codes: torch.where(codes > 0, 127, -128).to(codes)), False,
                       "saturated"),
    "codes are constant": ("dense", "int8", change(Q + "weight", torch.ones_like), False, "constant"),
    "fp8 code is NaN": ("dense", "fp8", change(Q + "weight", lambda codes: put(127)(codes.view(torch.uint8)).view(codes.dtype)), False,
                        "codes"),
    "zero point is missing": ("dense", "asym", drop(Q + "weight_zero_point"), False, "files"),
    "scale is missing": ("dense", "int4", drop(Q + "weight_scale"), False, "files"),
    "input scale is missing": ("dense", "fp8", drop(Q + "input_scale"), False, "config"),
    "key scale is missing": ("dense", "cache", drop(LAYER + "self_attn.k_scale"), False, "config"),
    "norm is missing": ("dense", "int4", drop("model.norm.weight"), False, "files"),
    "file is cut": ("dense", "int4", truncate, False, "files"),
    "header is damaged": ("dense", "int4", damaged_header, False, "files"),
    "index is stale": ("dense", "int4", stale_index, False, "files"),
    "shape of codes": ("dense", "int8", change(DOWN + "weight", lambda codes: codes.t()), False, "files"),
    "stored shape": ("dense", "int4", change(Q + "weight_shape", lambda sizes: sizes * 2), False, "files"),
    "another number of bits": ("dense", "int8", config(lambda text: first_group(text)["weights"].update(num_bits=4)), False, None),
    "another group size": ("dense", "int4", config(lambda text: first_group(text)["weights"].update(group_size=64)), False, "files"),
    "module is ignored": ("dense", "int4", config(lambda text: text["ignore"].append(Q[:-1])), False, "files"),
    "lm_head is not ignored": ("dense", "int4", config(lambda text: text.update(ignore=[])), False, "config"),
    "embedding is quantized": ("dense", "fp8", quantized_embedding, False, "config"),
    "weight is stored twice": ("dense", "int4", plain_twin, False, "files"),
    "head is tied": ("dense", "int4", tied_by_config, False, "config"),
    "other weights beside them": ("dense", "int4", lambda folder: (folder / "consolidated.safetensors").write_bytes(b""), False, "files"),
    "index of other files": ("dense", "int4", index_beside('{"weight_map": {"model.norm.weight": "gone.safetensors"}}'), False, "files"),
    "tokenizer is cut": ("dense", "int4", lambda folder: (folder / "tokenizer.json").write_text("{"), False, "files"),
    "tokenizer is missing": ("dense", "int4", lambda folder: (folder / "tokenizer.json").unlink(), True, "files"),
    "no tokenizer, no source": ("dense", "int4", lambda folder: (folder / "tokenizer.json").unlink(), False, "files"),
    "more layers than described": ("dense", "int4", lambda folder: tiny_models.rewrite_config(
        folder, lambda text: text.update(num_hidden_layers=text["num_hidden_layers"] - 1)), False, "config"),
    "damaged index": ("dense", "int4", index_beside("{{"), False, "files"),
    "router is not ignored": ("experts", "int4", config(lambda text: text.update(ignore=["lm_head"])), False, "router"),
    "fused global scales": ("dense", "nvfp4", change(K + "weight_global_scale", lambda scale: scale * 2), False, "fused"),
    "scale is doubled": ("dense", "int4", change(Q + "weight_scale", lambda scale: put(2 * scale[5, 1], (5, 1))(scale)), True, "source"),
    "all scales are doubled": ("dense", "int8", change(Q + "weight_scale", lambda scale: scale * 2), True, "source"),
    "doubled scales and two other rows": ("dense", "int8", both(
        change(Q + "weight_scale", lambda scale: scale * 2), change(Q + "weight", lambda codes: permute_rows(codes))), True, "source"),
    "some scales of rounded weights": ("dense", "rounded", change(DOWN + "weight_scale", larger_scales), True, "source"),
    "all scales are halved": ("dense", "int4", change(Q + "weight_scale", lambda scale: scale / 2), True, "source"),
    "all scales are larger": ("dense", "int4", change(Q + "weight_scale", lambda scale: scale * 1.5), True, "source"),
    "scales of 8 bits are larger": ("dense", "int8", change(Q + "weight_scale", lambda scale: scale * 1.05), True, "source"),
    "scales of fp8 are smaller": ("dense", "fp8", change(Q + "weight_scale", lambda scale: scale / 1.05), True, "source"),
    "zero points of other rows": ("dense", "asym", change(Q + "weight_zero_point", lambda packed: packed.roll(1, 0)), True, "source"),
    "columns are permuted": ("dense", "int8", change(Q + "weight", lambda codes: permute_rows(codes.t()).t()), True, "source"),
    "norm of smoothed codes is shifted": ("dense", "smoothed", change("model.layers.0.input_layernorm.weight", lambda norm: norm.roll(1)),
                                          True, "source"),
    "another activation": ("dense", "int4", lambda folder: tiny_models.rewrite_config(folder, lambda text: text.update(hidden_act="gelu")), True,
                           "config"),
    "another rotary embedding": ("dense", "int4", lambda folder: tiny_models.rewrite_config(
        folder, lambda text: text["rope_parameters"].update(rope_type="linear", factor=4.0)), True, "config"),
    "another end of text": ("dense", "int4", lambda folder: tiny_models.rewrite_config(
        folder, lambda text: text.update(eos_token_id=77)), True, "config"),
    "scale is halved": ("dense", "fp8", change(Q + "weight_scale", lambda scale: scale / 2), True, "source"),
    "sign of the codes": ("dense", "int8", change(UP + "weight", lambda codes: -codes), True, "source"),
    "weight is transposed": ("dense", "int8", change(Q + "weight", lambda codes: codes.t()), True, "source"),
    "rows are permuted": ("dense", "int8", change(Q + "weight", permute_rows), True, "source"),
    "halves of nibbles": ("dense", "nvfp4", change(Q + "weight_packed", lambda packed: (packed >> 4) | (packed << 4)), True, "source"),
    "gate and up are swapped": ("dense", "int4", swap(GATE, UP), True, "source"),
    "experts are swapped": ("experts", "int4", swap(EXPERT.format(0), EXPERT.format(2)), True, "source"),
    "zero points are shifted": ("dense", "asym", change(Q + "weight_zero_point", lambda packed: packed ^ 0x44444444), True, "source"),
    "norm is changed": ("dense", "int4", change("model.norm.weight", lambda norm: norm * 1.01), True, "source"),
    "sign of smoothed codes": ("dense", "smoothed", change(UP + "weight", lambda codes: -codes), True, "source"),
    "rows of smoothed codes": ("dense", "smoothed", change(Q + "weight", permute_rows), True, "source"),
    "layers of smoothed weights": ("dense", "smoothed", swap("model.layers.0.mlp.", "model.layers.1.mlp."), True, "source"),
    "head beside pruned weights": ("dense", "pruned", change("lm_head.weight", torch.rand_like), True, "source"),
    "norms beside pruned weights": ("dense", "pruned", change("model.norm.weight", torch.zeros_like), True, "source"),
    "rows of pruned weights": ("dense", "pruned", change(Q + "weight", permute_rows), True, "source"),
    "pruned gate and up are swapped": ("dense", "pruned", swap(GATE, UP), True, "source"),
    "scale of pruned weights": ("dense", "pruned fp8", change(Q + "weight_scale", lambda scale: scale * 2), True, "source"),
    "scale of pruned integers": ("dense", "pruned int8", change(Q + "weight_scale", lambda scale: scale * 2), True, "source"),
    "weights that stay": ("dense", "wanda", change(Q + "weight", lambda weight: weight * 1.01), True, "source"),
    "head beside smoothed codes": ("dense", "smoothed", change("lm_head.weight", torch.rand_like), True, "source"),
    "norm of smoothed codes": ("dense", "smoothed", change("model.layers.0.input_layernorm.weight", torch.neg), True, "source"),
    "scale of smoothed codes": ("dense", "smoothed", change(Q + "weight_scale", lambda scale: scale * 2), True, "source"),
    "rows of rotated codes": ("dense", "rotated", change(Q + "weight_packed", permute_rows), True, "source"),
    "rotated embedding is scaled": ("dense", "rotated", change("model.embed_tokens.weight", lambda rows: rows * 1.1), True, "source"),
    "row of the rotated embedding": ("dense", "rotated", change("model.embed_tokens.weight", lambda rows: put(rows[3], (7,))(rows)), True,
                                     "source"),
    "rotated embedding is a little larger": ("dense", "rotated", change("model.embed_tokens.weight", lambda rows: rows * 1.008), True,
                                             "source"),
    "more positions in rope_scaling": ("dense", "int4", lambda folder: tiny_models.rewrite_config(
        folder, lambda text: text.update(rope_scaling={"rope_type": "linear", "factor": 2.0})), True, "config"),
    "experts that stay are swapped": ("experts", "half the experts", swap(EXPERT.format(0), EXPERT.format(1)), True, "source"),
    "layers are swapped": ("dense", "int4", swap("model.layers.0.mlp.", "model.layers.1.mlp."), True, "source"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_finds(name, made, sources, tmp_path):
    kind, scheme, plant, needs_source, check = PLANTED[name]
    folder = tmp_path / "model"
    shutil.copytree(made(kind, scheme), folder)
    plant(folder)
    arguments = ["--source", sources[kind]] if needs_source else []
    found = verified(folder, *arguments)
    every = [tuple(finding.values()) for finding in found["faults"]]
    assert len(every) == len(set(every))
    kinds = {finding["check"] for finding in found["faults"] + found["warnings"]}
    assert kinds if check is None else check in kinds, found


def test_larger_scales_where_nothing_but_rounding_is_allowed(made, sources, tmp_path):
    """GPTQ may move single groups far, so the same is a warning there."""
    for scheme, code in (("rounded", 1), ("int4", 0)):
        folder = shutil.copytree(made("dense", scheme), tmp_path / scheme)
        change(DOWN + "weight_scale", larger_scales)(folder)
        found = verified(folder, "--source", sources["dense"], code=code)
        assert "twice or half the size" in str(found["faults" if code else "warnings"])


def test_a_row_of_half_its_size(made, sources, tmp_path):
    """GPTQ does not move a row of 8 bits so far."""
    folder = shutil.copytree(made("dense", "int8"), tmp_path / "model")
    change(DOWN + "weight_scale", lambda scale: torch.cat([scale[:1] / 2, scale[1:]]))(folder)
    found = verified(folder, "--source", sources["dense"], code=1)
    assert "which rounding to 8 bits does not do" in str(found["faults"])


def test_norms_that_subtract_the_mean(tmp_path, results):
    """GPTQ puts its errors where the inputs are small: along a constant."""
    source = tiny_models.save(tmp_path / "source", "Cohere2", num_hidden_layers=2)
    data = program.write_token_file(tmp_path / "tokens.safetensors", tiny_models.random_samples([16, 24, 33, 48] * 3))
    for quality in ("balanced", "best"):
        out = program.oneshot(source, results / quality, "--scheme", "W4A16_ASYM", "--group-size", "32", "--dataset", data, "--quality", quality)
        assert verified(out, "--source", source, code=0)["faults"] == []


@pytest.mark.parametrize("factor", [-1, 0.1, 0.5, 2, 3, 10])
def test_scales_of_a_few_groups(factor, made, sources, tmp_path):
    """However far they are from the right ones; GPTQ may move single groups of 4 bits far."""
    folder = shutil.copytree(made("dense", "rounded"), tmp_path / "result")

    def spoil(scale):
        scale = scale.clone()
        scale[:2, 0] *= factor
        return scale

    change(DOWN + "weight_scale", spoil)(folder)
    assert [fault["where"] for fault in verified(folder, "--source", sources["dense"], code=1)["faults"]] == [(DOWN + "weight")[:-7]]


def test_a_small_scale_of_a_row(made, sources, tmp_path):
    folder = shutil.copytree(made("dense", "int8"), tmp_path / "result")

    def shrink(scale):
        scale = scale.clone()
        scale[3] *= 0.1
        return scale

    change(DOWN + "weight_scale", shrink)(folder)
    found = verified(folder, "--source", sources["dense"])
    assert (DOWN + "weight")[:-7] in str(found["warnings"] + found["faults"])


STRETCHED = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
             "original_max_position_embeddings": 16}


@pytest.mark.parametrize("left", [{"rope_parameters": {"rope_theta": 10000.0}},
                                  {"rope_parameters": None, "rope_theta": 10000.0, "rope_scaling": None}])
def test_lost_stretching_of_positions(left, tmp_path):
    source, out = tiny_models.save(tmp_path / "source", rope_parameters=STRETCHED, max_position_embeddings=128), tmp_path / "out"
    program.run("oneshot", source, "--output", out, "--scheme", "FP8_DYNAMIC", "--algorithm", "rtn")
    assert verified(out, "--source", source, code=0)["faults"] == []
    tiny_models.rewrite_config(out, lambda config: config.update(left))
    assert [fault["check"] for fault in verified(out, "--source", source, code=1)["faults"]] == ["config"]


def test_lost_stretching_of_a_gguf(tmp_path):
    source, file = tmp_path / "source", tmp_path / "model.gguf"
    tiny_checkpoints.save(source, "byte_level_split")
    tiny_models.save(source, vocab_size=768, intermediate_size=128, rope_parameters=STRETCHED, max_position_embeddings=128)
    program.run("oneshot", source, "--output", file, "--scheme", "Q8_0", "--algorithm", "rtn")
    assert verified(file, "--source", source, code=0)["faults"] == []
    reader = gguf.GGUFReader(file, "r+")
    next(tensor for tensor in reader.tensors if tensor.name == "rope_freqs.weight").data[:] = 1
    reader.data.flush()
    assert [fault["check"] for fault in verified(file, "--source", source, code=1)["faults"]] == ["config"]


def test_blocks_of_a_gguf(tmp_path):
    def save(folder, seed):
        tiny_checkpoints.save(folder, "byte_level_split")
        return tiny_models.save(folder, seed=seed, vocab_size=768, intermediate_size=128)

    source, other, file = save(tmp_path / "source", 0), save(tmp_path / "other", 1), tmp_path / "model.gguf"
    program.run("oneshot", source, "--output", file, "--scheme", "Q8_0", "--algorithm", "rtn")
    found = verified(file, "--source", source, code=0)
    assert found["faults"] == [] and 0 < found["worst"][0]["error"] < 0.02
    assert {fault["check"] for fault in verified(file, "--source", other, code=1)["faults"]} == {"source"}
    data = bytearray(file.read_bytes())
    with open(file, "wb") as out:  # the scale of the last block, a half in its first bytes
        data[-34:-32] = b"\xff\x7f"
        out.write(data)
    assert verified(file, code=1)["faults"] != []


def test_a_few_foreign_rows_hide_nothing(tmp_path):
    """Twice as large blocks of a k-quant look like other rows here and there."""
    source, file = tmp_path / "source", tmp_path / "model.gguf"
    tiny_checkpoints.save(source, "byte_level_split")
    tiny_models.save(source, vocab_size=768, hidden_size=256, intermediate_size=512)
    program.run("oneshot", source, "--output", file, "--scheme", "Q4_K_S", "--algorithm", "rtn")
    reader = gguf.GGUFReader(file, "r+")
    blocks = next(tensor for tensor in reader.tensors if tensor.name == "blk.1.ffn_up.weight").data.reshape(-1, 144)
    blocks[:, :2] = (blocks[:, :2].copy().view("<f2") * 2).view("uint8")
    reader.data.flush()
    found = verified(file, "--source", source, code=1)["faults"]
    assert [(fault["check"], fault["where"]) for fault in found] == [("source", "model.layers.1.mlp.up_proj")]


# key, what becomes of it, whether it is a fault by itself and beside the source
@pytest.mark.parametrize("key, change, alone, beside", [
    ("tokens", None, True, True), ("tokens", lambda tokens: tokens[:-5], True, True), ("token_type", lambda types: types[:-5], True, True),
    ("eos_token_id", lambda _: 1000000, True, True), ("pre", lambda _: "nonsense", False, False), ("pre", lambda _: "gpt-2", False, True)])
def test_the_vocabulary_of_a_gguf(key, change, alone, beside, tmp_path):
    source, file = tmp_path / "source", tmp_path / "model.gguf"
    tiny_checkpoints.save(source, "byte_level_split")
    tiny_models.save(source, vocab_size=768, intermediate_size=128)
    program.run("oneshot", source, "--output", file, "--scheme", "F16", "--algorithm", "rtn")
    name = f"tokenizer.ggml.{key}"
    gguf_files.with_tensors(tmp_path / "changed.gguf", file, {}, {name: change})
    for options, is_fault in (((), alone), (("--source", source), beside)):
        found = verified(tmp_path / "changed.gguf", *options, code=1 if is_fault else 0)
        assert (name in {fault["where"] for fault in found["faults"]}) == is_fault
        assert is_fault or change("") != "nonsense" or "nonsense" in str(found["warnings"])


def test_keys_of_a_gguf(tmp_path):
    source, file = tmp_path / "source", tmp_path / "model.gguf"
    tiny_checkpoints.save(source, "byte_level_split")
    tiny_models.save(source, vocab_size=768, intermediate_size=128)
    program.run("oneshot", source, "--output", file, "--scheme", "Q8_0", "--algorithm", "rtn")
    data = file.read_bytes()
    for key, value, faults in (("llama.rope.freq_base", struct.pack("<f", 500.0), True), ("llama.block_count", struct.pack("<I", 2), None),
                               ("llama.context_length", struct.pack("<I", 13), True),
                               ("tokenizer.ggml.eos_token_id", struct.pack("<I", 77), False)):
        place = data.index(key.encode()) + len(key) + 4
        changed = bytearray(data)
        changed[place:place + 4] = value
        file.write_bytes(changed)
        found = verified(file, "--source", source, code=1 if faults else 0)
        said = found["faults" if faults else "warnings"]
        assert said == [] if faults is None else [finding["where"] for finding in said] == [key], found


@pytest.mark.parametrize("modifiers", [
    {"SpinQuantModifier": {"rotations": ["R1", "R2"]}}, {"AWQModifier": {}}, {"SmoothQuantModifier": {}}, {"WandaPruningModifier": {"sparsity": 0.5}},
], ids=lambda modifiers: "".join(modifiers))
def test_a_gguf_says_how_its_weights_were_changed(modifiers, tmp_path, results):
    source = tmp_path / "source"
    tiny_checkpoints.save(source, "byte_level_split")
    tiny_models.save(source, vocab_size=768, intermediate_size=128)
    data = program.write_samples(tmp_path / "rows.jsonl", tiny_models.random_samples([40, 30], seed=3))
    if "WandaPruningModifier" not in modifiers:
        modifiers = {**modifiers, "GPTQModifier": {"scheme": "Q4_0", "ignore": ["lm_head"]}}
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(json.dumps({"s_stage": {f"m{i}_modifiers": {kind: own} for i, (kind, own) in enumerate(modifiers.items())}}))
    file = program.oneshot(source, results / "out.gguf", "--recipe", recipe, "--dataset", data)
    assert verified(file, "--source", source, code=0)["faults"] == []
    other = tiny_models.save(tmp_path / "other", seed=1, vocab_size=768, intermediate_size=128)
    assert verified(file, "--source", other)["faults"] != []


@pytest.mark.parametrize("scheme", ["W4A16", "W8A8", "FP8_DYNAMIC", "NVFP4A16", "W4A16_ASYM"])
def test_constant_weights_of_the_source(scheme, tmp_path, results):
    """Zeros are a warning; what looks wrong and is the source's is one with the source."""
    source = tiny_models.save(tmp_path / "source", intermediate_size=128)
    tensors = tiny_models.tensors(source)
    tensors[UP + "weight"].zero_()
    tensors[DOWN + "weight"].fill_(0.25)
    tiny_models.rewrite_tensors(source, tensors)
    sizes = ["--group-size", "32"] if scheme.startswith("W4") else []
    out = program.oneshot(source, results / "out", "--algorithm", "rtn", "--scheme", scheme, *sizes)
    found = verified(out, "--source", source, code=0)
    assert found["faults"] == []
    assert UP + "weight" not in {fault["where"] for fault in verified(out)["faults"]}


@pytest.mark.parametrize("scheme", ["MXFP4", "NVFP4"])
def test_groups_of_zeros(scheme, samples, tmp_path, results):
    """GPTQ leaves codes there that stand for almost nothing."""
    source = tiny_models.save(tmp_path / "source", intermediate_size=128)
    tensors = tiny_models.tensors(source)
    tensors[GATE + "weight"][:, :32] = 0
    tiny_models.rewrite_tensors(source, tensors)
    out = program.oneshot(source, results / "out", "--algorithm", "gptq", "--scheme", scheme, "--dataset", samples)
    assert verified(out, code=0)["faults"] == []


def test_weights_of_which_little_is_left(tmp_path, samples, results):
    """Groups of zeros were pruned, and the few elements that make up for the others need not resemble the original ones."""
    source = tiny_models.save(tmp_path / "model", "Llama", num_hidden_layers=2)
    recipe = tmp_path / "recipe.yaml"
    for name, first, second, options in (
            ("magnitude", {"MagnitudePruningModifier": {"final_sparsity": 0.97, "targets": ["re:.*_proj$"]}},
             {"QuantizationModifier": {"scheme": "NVFP4A16", "ignore": ["lm_head"]}}, ()),
            ("sparsegpt", {"SparseGPTModifier": {"sparsity": 0.9, "ignore": ["re:.*lm_head"]}}, {}, ("--dataset", samples)),
            ("best", {"SparseGPTModifier": {"sparsity": 0.8, "ignore": ["re:.*lm_head"]}}, {}, ("--dataset", samples, "--quality", "best"))):
        recipe.write_text(json.dumps({"a_stage": {"a_modifiers": first, **({"b_modifiers": second} if second else {})}}))
        out = program.oneshot(source, results / name, "--recipe", recipe, *options)
        for more in ((), ("--source", source)):
            found = program.run("verify", out, *more, "--json").json()
            assert found["faults"] == [], name
            assert "the source's values are the same" not in str(found["warnings"])


def test_weights_whose_squares_overflow(tmp_path, results):
    model = tiny_models.save(tmp_path / "model", dtype=torch.float32)
    tensors = tiny_models.tensors(model)
    tensors[DOWN + "weight"][0, 0] = 1e30
    tiny_models.rewrite_tensors(model, tensors)
    out = program.oneshot(model, results / "out", "--scheme", "FP8_DYNAMIC", "--algorithm", "rtn")
    found = verified(out, "--source", model, code=1)  # the row's scale is a fault
    assert any("squares overflow" in finding["what"] for finding in found["warnings"]), found
    assert all(worst["module"] != DOWN[:-1] and worst["error"] < 1 for worst in found["worst"])


def test_moved_weights_may_be_far_from_the_source(made, sources, tmp_path):
    """best moves weights, so that what would be a fault of rounding alone is a warning."""
    for scheme, kind in (("best", "warning"), ("int4", "fault")):
        folder = shutil.copytree(made("dense", scheme), tmp_path / scheme)
        change(Q + "weight_scale", lambda scale: scale * 1.63)(folder)
        output = program.run("verify", folder, "--source", sources["dense"], code=None).output
        assert f"{kind}: [source] {Q[:-1]}: differs from the source by 0.6" in output


def test_a_rotated_model_without_its_recipe(made, sources, tmp_path):
    folder = shutil.copytree(made("dense", "rotated"), tmp_path / "model")
    (folder / "recipe.yaml").unlink()
    found = verified(folder, "--source", sources["dense"], code=1)
    assert "if it was rotated" in str(found["warnings"])


def test_faults_are_said_and_counted(made, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(made("dense", "int4"), folder)
    PLANTED["scale is NaN"][2](folder)
    outcome = program.run("verify", folder, code=1)
    assert f"fault: [scale] {Q}weight_scale: holds NaN or infinity" in outcome.output
    assert "1 fault, 0 warnings" in outcome.output


def test_forms_that_nothing_here_reads_are_no_faults(tmp_path):
    """The checkpoint may be right: the command fails, and names the form."""
    folder = tiny_models.save(tmp_path / "model", "Llama")
    config = json.loads((folder / "config.json").read_text())
    group = {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32}}
    for form, said in (({"quant_method": "auto-round", "packing_format": "auto_round:fp8"}, "packing_format 'auto_round:fp8' is not supported"),
                       ({"quant_method": "compressed-tensors", "format": "float-quantized", "quantization_status": "compressed",
                         "config_groups": {"group_0": group}}, "8-bit floating point per group is not implemented")):
        (folder / "config.json").write_text(json.dumps({**config, "quantization_config": form}))
        outcome = program.fails("verify", folder, fragments=[said])
        assert outcome is None or "fault" not in outcome.output


def test_missing_model_is_no_fault(tmp_path):
    assert "no such folder" in program.run("verify", tmp_path / "nothing", code=1).error


@pytest.mark.parametrize("dtype, scheme", [(torch.float32, "F16"), (torch.float32, "BF16"), (torch.bfloat16, "F16")])
def test_values_of_a_narrower_type(dtype, scheme, tmp_path):
    source = block_models.save(tmp_path / "source", dtype=dtype)
    file = program.oneshot(source, tmp_path / "out.gguf", "--scheme", scheme)
    found = program.run("verify", file, "--source", source, "--json").json()
    assert found["faults"] == [] and found["warnings"] == []


def test_smallest_groups(sources, samples, results):
    """The least and the greatest weight of four are half of them."""
    out = program.oneshot(sources["dense"], results / "out", "--scheme", "W4A16_ASYM", "--group-size", "4", "--dataset", samples)
    assert program.run("verify", out, "--json").json()["faults"] == []


def test_numbers_of_the_config(made, sources, tmp_path):
    out = shutil.copytree(made("dense", "int4"), tmp_path / "out")
    tiny_models.rewrite_config(out, lambda config: config.update(rms_norm_eps=0.5))
    outcome = program.run("verify", out, "--source", sources["dense"], code=1)
    assert "rms_norm_eps" in outcome.output and "is 0.5, the source's is 1e-06" in outcome.output


@pytest.mark.parametrize("family, settings, changed, said", [
    ("Mistral", {"sliding_window": None}, {"sliding_window": 4}, "lets a token see the last 4, in the source all tokens before it"),
    ("Gemma3", {"layer_types": ["sliding_attention", "full_attention"]}, {"layer_types": ["full_attention", "sliding_attention"]},
     "turns positions by other angles"),
    ("SmolLM3", {"no_rope_layers": [1, 0]}, {"no_rope_layers": [1, 1]}, "turns positions 2 times, in the source 0 times"),
])
def test_attention_of_the_config(family, settings, changed, said, tmp_path):
    source = tiny_models.save(tmp_path / "source", family, **settings)
    out = program.oneshot(source, tmp_path / "out", "--scheme", "W8A16", "--group-size", "32", "--algorithm", "rtn")
    assert verified(out, "--source", source, code=0)["warnings"] == []
    tiny_models.rewrite_config(out, lambda config: config.update(changed))
    assert said in program.run("verify", out, "--source", source, code=1).output


@pytest.mark.parametrize("family, settings", [
    ("Mistral", {"sliding_window": 32}), ("Qwen2", {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 1})])
def test_a_file_whose_context_ends_at_the_window(family, settings, tmp_path):
    source = tiny_models.save(tmp_path / "source", family, **settings)
    file = gguf_models.write(source, tmp_path / "model.gguf")
    assert verified(file, "--source", source, code=0)["faults"] == []


def test_norms_rounded_as_one_and_more(tmp_path):
    """LLM Compressor adds one to Gemma's norms and subtracts it, in bfloat16."""
    source = tiny_models.save(tmp_path / "source", "Gemma2", dtype=torch.bfloat16)
    out = shutil.copytree(source, tmp_path / "out")
    change("model.layers.0.input_layernorm.weight", lambda weight: (weight + 1) - 1)(out)
    found = verified(out, "--source", source, code=0)
    assert found["faults"] == []
    assert [warning["where"] for warning in found["warnings"]] == ["model.layers.0.input_layernorm.weight"]


def test_a_parameter_named_like_a_scale(tmp_path):
    """Gemma 3n has one, and it may be negative."""
    source = tiny_models.save(tmp_path / "source", dtype=torch.bfloat16)
    tensors = tiny_models.tensors(source)
    tiny_models.rewrite_tensors(source, {**tensors, "model.layers.0.altup.correct_output_scale": torch.tensor([-0.2, 0.1])})
    assert verified(shutil.copytree(source, tmp_path / "out"), "--source", source, code=0)["faults"] == []
