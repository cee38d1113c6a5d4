"""The type of every tensor in every mixture, against what llama-quantize chooses."""

import json

import gguf
import numpy as np
import pytest
from support import block_models, gguf_facts, gguf_files, llama, program

MIXTURES = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_K_S",
            "Q4_K_M", "Q5_K_S", "Q5_K_M", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4_MOE")
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 256}
# hidden size, intermediate size, layers, heads, key-value heads, what else the config has
MODELS = {
    "two layers": ("llama", 256, 512, 2, 8, 8, {}),
    "shared heads, untied": ("llama", 512, 768, 16, 8, 2, {"tie_word_embeddings": False}),
    "one key-value head": ("llama", 256, 512, 22, 8, 1, {"tie_word_embeddings": False}),
    "forty layers, tied": ("llama", 256, 256, 40, 4, 4, {"tie_word_embeddings": True}),
    "eighty layers": ("llama", 256, 256, 80, 8, 2, {}),
    "eighty layers, own heads": ("llama", 256, 256, 80, 8, 8, {}),
    "no multiples of 256": ("llama", 576, 1536, 30, 9, 3, {"tie_word_embeddings": True}),
    "no multiples of 32": ("llama", 80, 144, 9, 5, 5, {}),
    "qwen2": ("qwen2", 896, 4864, 24, 14, 2, {"tie_word_embeddings": True}),
    "qwen2 of 80 layers": ("qwen2", 256, 512, 80, 8, 8, {}),
    "eight experts": ("mixtral", 256, 512, 32, 8, 2, {"num_local_experts": 8, "num_experts_per_tok": 2}),
    "sixteen experts": ("qwen3_moe", 256, 512, 24, 8, 2, {"num_experts": 16, "norm_topk_prob": True, **EXPERTS}),
    "shared expert": ("qwen2_moe", 256, 512, 12, 8, 8, {"num_experts": 8, "shared_expert_intermediate_size": 320, **EXPERTS}),
    "fused q, k, v": ("phi3", 256, 512, 32, 8, 8, {}),
}
QUICK = ("two layers", "eight experts")


def write_config(folder, model):
    kind, hidden, intermediate, layers, heads, kv_heads, more = MODELS[model]
    config = {"model_type": kind, "hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": layers,
              "num_attention_heads": heads, "num_key_value_heads": kv_heads, "vocab_size": 128, "tie_word_embeddings": False, **more}
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return path, config


def shapes_of(config):
    """Names with columns and matrices; all have two rows but vectors, because rows do not matter."""
    hidden, width = config["hidden_size"], config["intermediate_size"]
    experts = config.get("num_experts", config.get("num_local_experts", 0))
    shapes = {"token_embd.weight": (hidden, 2, 1), "output_norm.weight": (hidden, 1, 1)}
    if not config["tie_word_embeddings"]:
        shapes["output.weight"] = (hidden, 2, 1)
    attention = ("attn_qkv",) if config["model_type"] == "phi3" else ("attn_q", "attn_k", "attn_v")
    for layer in range(config["num_hidden_layers"]):
        block = f"blk.{layer}."
        shapes |= {block + name + ".weight": (hidden, 2, 1) for name in (*attention, "attn_output")}
        shapes |= {block + name + ".weight": (hidden, 1, 1) for name in ("attn_norm", "ffn_norm")}
        shapes |= {block + "attn_q.bias": (hidden, 1, 1)}
        if experts:
            inner = config.get("moe_intermediate_size", width)
            shapes |= {block + "ffn_gate_inp.weight": (hidden, experts, 1)}
            shapes |= {block + f"ffn_{part}_exps.weight": (inner if part == "down" else hidden, 2, experts) for part in ("gate", "up", "down")}
        if shared := config.get("shared_expert_intermediate_size"):
            shapes |= {block + f"ffn_{part}_shexp.weight": (shared if part == "down" else hidden, 2, 1) for part in ("gate", "up", "down")}
        if not experts:
            shapes |= {block + f"ffn_{part}.weight": (width if part == "down" else hidden, 2, 1) for part in ("gate", "up", "down")}
    return shapes


def chosen(mixture, config_file, shapes, importance):
    lines = "".join(f"{name} {' '.join(map(str, shape))}\n" for name, shape in shapes.items())
    return gguf_facts.said("types", mixture, config_file, "importance" if importance else "none", text=lines)


@pytest.mark.parametrize("model", QUICK)
def test_vectors_norms_and_routers_stay_floats(model, tmp_path):
    path, config = write_config(tmp_path, model)
    for mixture in MIXTURES:
        types = chosen(mixture, path, shapes_of(config), importance=False)["types"]
        for name in types:
            if "_norm" in name or "ffn_gate_inp" in name or name.endswith(".bias"):
                assert types[name] == "F32"
            elif mixture not in ("F32", "MXFP4_MOE"):
                assert types[name] != "F32"


@llama.needs_llama
@pytest.mark.nightly
@pytest.mark.parametrize("model", MODELS)
def test_types_are_those_of_llama_quantize(model, tmp_path):
    path, config = write_config(tmp_path, model)
    shapes = shapes_of(config)
    found = gguf_facts.architecture(path, [])
    random = np.random.default_rng(0)
    # A row more in vectors would make them matrices; stacks have their experts first.
    tensors = [(name, random.standard_normal(tuple(size for size in (matrices, rows, columns) if size > 1)).astype(np.float32))
               for name, (columns, rows, matrices) in shapes.items()]
    source = gguf_files.write(tmp_path / "source.gguf", found["name"], found["metadata"], tensors)
    jobs, expected = [], []
    for mixture in MIXTURES:
        for importance in (False, True) if mixture in ("Q4_0", "Q5_0", "IQ4_NL", "IQ4_XS", "Q4_K_M") else (False,):
            said = chosen(mixture, path, shapes, importance)
            sizes = {name: columns * matrices for name, (columns, rows, matrices) in shapes.items() if rows > 1}
            jobs.append({"source": str(source), "target": str(tmp_path / f"{len(jobs)}.gguf"), "file_type": said["file_type"],
                         "importance": sizes if importance else {}})
            expected.append((mixture, importance, said["types"]))
    llama.quantize(jobs, tmp_path)
    for job, (mixture, importance, types) in zip(jobs, expected, strict=True):
        written = gguf_files.tensor_types(job["target"])
        different = {name: (types[name], written[name]) for name in types if types[name] != written[name]}
        assert not different, (mixture, importance, different)


EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 256, "shared_expert_intermediate_size": 256}


@llama.needs_llama
@pytest.mark.nightly
@pytest.mark.parametrize("family, settings", [
    ("Qwen3Next", {"linear_num_value_heads": 4, "norm_topk_prob": True, **EXPERTS}),
    ("Qwen3_5", {"linear_num_value_heads": 2}),  # more of them change places, in smaller blocks
    ("Qwen3_5Moe", {"linear_num_value_heads": 2, **EXPERTS}),
])
def test_whole_files_are_those_of_llama_quantize(family, settings, tmp_path):
    """Of models with a delta rule in most layers, whose tensors no table above has."""
    model = block_models.save(tmp_path / "model", family, num_hidden_layers=4, head_dim=64, linear_num_key_heads=2,
                              linear_key_head_dim=64, linear_value_head_dim=64, **settings)
    source = program.oneshot(model, tmp_path / "source.gguf", "--scheme", "F32", "--algorithm", "rtn")
    files = {"Q4_0": 2, "Q2_K": 10, "Q3_K_M": 12, "Q4_K_M": 15, "Q5_K_M": 17, "IQ4_XS": 30}
    llama.quantize([{"source": str(source), "target": str(tmp_path / f"{name}-llama.gguf"), "file_type": number, "importance": {}}
                    for name, number in files.items()], tmp_path)
    for name in files:
        ours = program.oneshot(model, tmp_path / f"{name}.gguf", "--scheme", name, "--algorithm", "rtn")
        found, wanted = ({tensor.name: (tensor.tensor_type, tensor.data.tobytes()) for tensor in gguf.GGUFReader(file).tensors}
                         for file in (ours, tmp_path / f"{name}-llama.gguf"))
        assert found == wanted, name
