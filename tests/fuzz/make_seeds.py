"""Writes the inputs that libFuzzer starts from into a folder of a target each, from small models and runs of the program.

    python tests/fuzz/make_seeds.py FOLDER        (the program, print_gguf and the test environment are built)

tests/fuzz/corpus was made of them by `scripts/fuzz --minutes` and `scripts/fuzz --merge`.
"""

import json
import re
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY / folder) for folder in ("tests", "tests/cli", "benchmarks/memory_cases", "benchmarks/distributed")]

import numpy  # noqa: E402
import torch  # noqa: E402
from safetensors.numpy import save_file  # noqa: E402
from support import (  # noqa: E402
    compressed_cases,
    deep_model,
    gguf_models,
    program,
    quantized_sources,
    tiny_checkpoints,
    tiny_mllama,
    tiny_models,
)
from support.watched_runs import JOURNAL, killed, unfinished  # noqa: E402

SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
         "vocab_size": tiny_models.VOCABULARY}
WIDE = {**SMALL, "hidden_size": 128, "intermediate_size": 128}  # groups of 128 divide it
SCHEMES = ["W4A16", "W8A16", "W8A8", "W4A16_ASYM", "FP8", "FP8_BLOCK", "NVFP4", "MXFP4", "W4AFP8", "MXFP8"]


class Seeds:
    def __init__(self, folder):
        self.folder = folder
        self.count = 0

    def add(self, target, content):
        content = content if isinstance(content, bytes) else content.encode()
        path = self.folder / target / f"{self.count:04}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        self.count += 1


def compact(value):
    return json.dumps(value, separators=(",", ":"))


def two_parts(path):
    """A safetensors file as the targets take it: the header's line, and the data."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    return data[8:8 + size].strip() + b"\n" + data[8 + size:]


def described(config, header, content):
    """A quantized checkpoint without most of its bytes: what one layer's modules have."""
    tensors = {}
    for name, spec in header.items():
        if name == "__metadata__" or not re.search(r"layers\.0\.(self_attn\.[qk]_proj|mlp\.down_proj)\.", name):
            continue
        tensors[name] = [spec["dtype"], spec["shape"]]
        if spec["dtype"] == "I64":
            tensors[name].append(content[name].flatten().tolist())
    keys = ("quantization_config", "compression_config", "model_type", "architectures")
    return compact({"config": {key: config[key] for key in keys if key in config}, "tensors": tensors})


def add_quantized(seeds, folder):
    config = json.loads((folder / "config.json").read_text())
    raw = (folder / "model.safetensors").read_bytes()
    header = json.loads(raw[8:8 + struct.unpack("<Q", raw[:8])[0]])
    seeds.add("quantization_config", described(config, header, tiny_models.tensors(folder)))


def quantized(seeds, work):
    model = tiny_models.save(work / "model", dtype=torch.bfloat16, **WIDE)
    rows = program.write_samples(work / "rows.jsonl", tiny_models.random_samples([20, 30]))
    for scheme in SCHEMES:
        add_quantized(seeds, program.oneshot(model, work / scheme, "--scheme", scheme, "--algorithm", "rtn", "--dataset", rows))
    for number, name in enumerate(quantized_sources.FORMATS):
        made = work / f"source{number}"
        made.mkdir()
        add_quantized(seeds, quantized_sources.QuantizedSource(made, name, **WIDE).folder)


def configs(seeds, work):
    for number, (family, settings) in enumerate(gguf_models.MODELS.values()):
        folder = tiny_models.save(work / f"model{number}", family, **settings)
        seeds.add("model_config", compact(json.loads((folder / "config.json").read_text())))
        if number < 8 or family in ("Gemma3", "DeepseekV3", "GptOss", "Qwen3_5", "Qwen3_5Moe"):
            gguf = gguf_models.write(tiny_models.save(work / f"small{number}", family, **small(family, settings)), work / "a.gguf")
            seeds.add("gguf_model", gguf.read_bytes())
    folder = tiny_mllama.save(work / "mllama")
    seeds.add("model_config", compact(json.loads((folder / "config.json").read_text())))


def small(family, settings):
    needs = {} if family.startswith("Deepseek") else {"num_key_value_heads": 1, "num_attention_heads": 2}
    return {**settings, "hidden_size": 16, "intermediate_size": 16, **needs,
            "num_hidden_layers": max(1, min(2, settings.get("num_hidden_layers", 1))) if "layer_types" not in settings else 2}


def ggufs(seeds, work):
    """With a tokenizer and in blocks."""
    model = tiny_models.save(work / "model", dtype=torch.bfloat16, **{**SMALL, "vocab_size": 600})
    tiny_checkpoints.byte_level().save(str(model / "tokenizer.json"))
    rows = program.write_samples(work / "rows.jsonl", tiny_models.random_samples([20, 30]))
    for scheme in ("Q8_0", "Q4_0", "Q5_1", "IQ4_NL"):
        importance = work / f"{scheme}.imatrix.gguf"
        file = program.oneshot(model, work / f"{scheme}.gguf", "--scheme", scheme, "--dataset", rows, "--imatrix", importance)
        seeds.add("gguf_model", file.read_bytes())
    seeds.add("importance_file", importance.read_bytes())


def graphs(seeds, work):
    from test_hostile_graphs import GRAPH

    seeds.add("graph_file", compact(GRAPH))
    for family, more in {"Llama": {}, "Qwen3Moe": {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}}.items():
        model = tiny_models.save(work / family, family, **{**SMALL, **more})
        request = {"model": str(model), "dtype": "float32", "cache": str(work / "graphs")}
        helper = program.REPOSITORY / "python" / "export_graph.py"
        done = subprocess.run([sys.executable, "-s", helper], input=json.dumps(request), capture_output=True, text=True, check=True)
        folder = Path(json.loads(done.stdout.splitlines()[-1])["graph"])
        seeds.add("graph_file", compact(json.loads((folder / "graph.json").read_text())))


def recipes(seeds, work):
    found = [*document_recipes(program.REPOSITORY / "docs"), *(compact(case) for case in recipe_objects())]
    for text in found:
        seeds.add("recipe_yaml", text)
    for case in recipe_objects():
        seeds.add("recipe_json", compact(case))


def document_recipes(folder):
    """The recipes of the documents."""
    for page in sorted(folder.rglob("*.md")):
        for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.S):
            if "_stage:" in block:
                yield block


def recipe_objects():
    stage = lambda modifiers: {"quant_stage": {"quant_modifiers": modifiers}}
    yield compressed_cases.FOUR_SCHEMES
    yield stage({"SmoothQuantModifier": {"smoothing_strength": 0.8}, "GPTQModifier": {"scheme": "W8A8", "ignore": ["lm_head"]}})
    yield stage({"AWQModifier": {"n_grid": 4, "duo_scaling": "both", "mappings": [["re:.*input_layernorm", ["re:.*q_proj"]]]}})
    yield stage({"SparseGPTModifier": {"sparsity": 0.5, "mask_structure": "2:4"}, "WandaPruningModifier": {"sparsity": 0.3}})
    yield stage({"SpinQuantModifier": {"rotations": ["R1", "R2"], "transform_type": "hadamard"}})
    yield stage({"REAPPruningModifier": {"sparsity": 0.5}, "MagnitudePruningModifier": {"final_sparsity": 0.5, "targets": "__ALL_PRUNABLE__"}})
    yield stage({"AutoRoundModifier": {"scheme": "W4A16", "iters": 5}})
    yield stage({"GPTQModifier": {"scheme": {"W4A16": ["re:.*mlp.*"], "FP8": ["Linear"]}, "block_size": 128, "actorder": "static"}})
    yield stage({"QuantizationModifier": {"scheme": "Q4_K_M"}})


def datasets(seeds, work):
    rows = [{"input_ids": [1, 2, 3], "loss_mask": [0, 1, True]}, {"input_ids": [7]}, {"text": "a"}]
    seeds.add("dataset_rows", "\n".join(map(compact, rows)))
    seeds.add("dataset_rows", "\xef\xbb\xbf\n" + compact(rows))
    seeds.add("token_file", two_parts(program.write_token_file(work / "tokens.safetensors", [[1, 2, 3], [4]])))
    images = [tiny_mllama.Sample(5, images=(1,)), tiny_mllama.Sample(3)]
    seeds.add("token_file", two_parts(tiny_mllama.write_token_file(work / "images.safetensors", images)))
    ids = numpy.arange(6, dtype=numpy.int64)
    tensors = {"input_ids": ids, "sample_offsets": ids[[0, 4, 5]] + [0, 0, 1], "loss_mask": (ids % 2).astype(numpy.uint8),
               "embedding_offsets": ids[[0, 2, 2]], "embedding_places": ids[1:3], "positions": numpy.stack([ids, ids, ids]),
               "attention_groups": numpy.array([-1, 0, 0, -1, -1, -1]), "embeddings.0": numpy.ones((2, 4), numpy.float32),
               "added_embeddings.0": numpy.ones((2, 3, 4), numpy.float32)}
    save_file(tensors, work / "given.safetensors", {"format": "layerpress.calibration.v3"})
    seeds.add("token_file", two_parts(work / "given.safetensors"))


def files(seeds, work):
    tensors = {"a": torch.ones(2, 3), "b": torch.zeros(4, dtype=torch.bfloat16), "c": torch.zeros(0, 5), "d": torch.tensor(3)}
    tiny_models.rewrite_tensors(work, tensors)
    seeds.add("safetensors_file", two_parts(work / "model.safetensors"))
    seeds.add("safetensors_file", (work / "model.safetensors").read_bytes())
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    seeds.add("checkpoint_index", compact({"metadata": {"total_size": 4}, "weight_map": shards}))
    seeds.add("checkpoint_index", compact({"weight_map": {**shards, "c": "other/model-00001-of-00001.safetensors"}}))
    for model in ("org/name", "org/name@main", "org/name@abc123", "org/name@../secret", "name"):
        seeds.add("hub_cache", f"{model}\nabc123\n")
    seeds.add("hub_answers", '{"done": 5, "total": 10}\nerror: [hub] no\n{"files": 3, "bytes": 100, "address": "x"}\n')
    for pattern in (r"re:.*layers\.(\d+)\.mlp\.(gate|up)_proj$", r"re:(a+)+b", "re:(?i)Model[^.]*", "lm_head", r"re:^(?!.*lm_head).*$"):
        seeds.add("name_patterns", f"{pattern}\nmodel.layers.10.mlp.up_proj\nlm_head\naaaaaaaaaaaaaaaaaaaaaa\n")


def tokenizers(seeds, work):
    kinds = [tiny_checkpoints.byte_level, tiny_checkpoints.byte_level_split, tiny_checkpoints.byte_level_bos, tiny_checkpoints.metaspace_bpe]
    for make in kinds:
        document = json.loads(make().to_str())
        tokens = {token: number for token, number in document["model"]["vocab"].items() if number < 300}
        document["model"]["vocab"] = tokens
        document["model"]["merges"] = document["model"]["merges"][:20]
        document["added_tokens"] = [token for token in document["added_tokens"] if token["id"] < 300]
        seeds.add("tokenizer_folder", compact({"tokenizer": document, "config": {"bos_token": "<s>", "add_bos_token": True}}))
    piece = lambda text, score, kind: field(1, field(1, text.encode()) + b"\x15" + struct.pack("<f", score) + bytes([3 << 3, kind]))
    pieces = piece("<unk>", 0, 2) + piece("<s>", 0, 3) + piece("<0x0A>", 0, 6) + piece("▁a", -1.5, 1) + piece("▁▁", -2, 4)
    seeds.add("tokenizer_folder", pieces + field(2, bytes([3 << 3, 2])) + field(3, bytes([3 << 3, 0, 4 << 3, 0])))


def field(number, content):
    """Of Protocol Buffers."""
    return bytes([number << 3 | 2, len(content)]) + content


def journals(seeds, work):
    model = deep_model.save(work, layers=4)
    killed(model, work / "out", *deep_model.gptq(model), subgraphs=2)
    lines = (unfinished(work / "out") / JOURNAL).read_text().splitlines()
    records = [json.loads(line) for line in lines]
    for record in records:
        for key in ("tensors", "modules"):
            if key in record:
                record[key] = dict(list(record[key].items())[:2]) if key == "tensors" else record[key][:2]
        record.pop("checksum")
        record.pop("options", None)
        record.pop("recipe", None)
    text = "\n".join(map(compact, records))
    seeds.add("run_folder", text + "\n")
    for rank, record in enumerate(records[1:]):
        record["sets"] = [rank % 2]
    seeds.add("run_folder", compact({**records[0], "shard_sets": 2}) + "\n" + text + "\n\n" + text + "\n")


def main(folder):
    seeds = Seeds(folder)
    for make in (files, datasets, tokenizers, recipes, journals, configs, quantized, ggufs, graphs):
        with tempfile.TemporaryDirectory() as work:
            make(seeds, Path(work))
    print(f"{seeds.count} inputs")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
