"""Times the export and the import of mixtures of experts with two trillion parameters, and prints Markdown. No weight exists:
the checkpoints are config.json and holes.

    python benchmarks/imported_graphs/trace_mixture.py [--models kimi,qwen] [--layers N] [--work FOLDER]

Exit code 1 if the helper takes more than the limits. `benchmarks/imported` sets everything up first.
"""
import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "examples" / "demo")]

from measured_process import ProcessFailed, run_measured  # noqa: E402

MOST_SECONDS, MOST_BYTES = 120, 2_000_000_000
PROGRAM = Path(os.environ.get("LAYERPRESS_PROGRAM", ROOT / "build" / "layerpress"))
KIMI = {"vocab_size": 163840, "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 64, "num_key_value_heads": 64,
        "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 768, "n_shared_experts": 1,
        "num_experts_per_tok": 8, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "q_lora_rank": 1536,
        "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "max_position_embeddings": 131072}
QWEN = {"vocab_size": 248320, "hidden_size": 6144, "num_hidden_layers": 96, "num_attention_heads": 64, "num_key_value_heads": 2,
        "head_dim": 256, "moe_intermediate_size": 1152, "shared_expert_intermediate_size": 1152, "num_experts": 1024,
        "num_experts_per_tok": 10, "linear_num_value_heads": 64, "linear_num_key_heads": 16, "max_position_embeddings": 262144}
# name: (class of the configuration, class of the model, sizes, whether the checkpoint has a tensor for each expert)
MODELS = {"kimi": ("DeepseekV3Config", "DeepseekV3ForCausalLM", KIMI, True),
          "qwen": ("Qwen3_5MoeTextConfig", "Qwen3_5MoeForCausalLM", QWEN, False)}


def stored_shapes(tensors, apart):
    """The checkpoint's tensors of a model's: {name: shape}."""
    stored = {}
    for name, tensor in tensors.items():
        shape = tuple(tensor.shape)
        stacked = name.rpartition(".")[2] if apart and ".experts." in name and len(shape) == 3 else ""
        if not stacked:
            stored[name] = shape
        parts = {"gate_up_proj": ("gate_proj", "up_proj"), "": ()}.get(stacked, (stacked,))
        for expert in range(shape[0] if stacked else 0):
            for part in parts:
                stored[name.replace(stacked, f"{expert}.{part}.weight")] = (shape[1] // len(parts), shape[2])
    return stored


def make(name, folder, layers):
    """Writes the checkpoint and returns the number of its parameters."""
    import torch
    import transformers
    from hollow_checkpoints import write_hollow

    config_class, model_class, sizes, apart = MODELS[name]
    config = getattr(transformers, config_class)(**sizes | ({"num_hidden_layers": layers} if layers else {}))
    config.architectures = [model_class]
    folder.mkdir(parents=True)
    config.save_pretrained(folder)
    with torch.device("meta"):
        model = getattr(transformers, model_class)(config)
    write_hollow(folder / "model.safetensors", stored_shapes(model.state_dict(), apart))
    return sum(parameter.numel() for parameter in model.parameters())


def trace(name, work, layers):
    """The row of one model, and whether the helper keeps the limits."""
    parameters = make(name, work / name, layers)
    cache = work / f"{name}-cache"
    request = {"model": str(work / name), "dtype": "bfloat16", "cache": str(cache / "layerpress" / "graphs")}
    made = run_measured([sys.executable, "-s", str(ROOT / "python" / "export_graph.py")], text=json.dumps(request))
    imported = run_measured([str(PROGRAM), "inspect", str(work / name), "--model-graph", "export", "--dtype", "bfloat16", "--json"],
                            {"XDG_CACHE_HOME": str(cache)})
    nodes = sum(json.loads(imported.output)["graph"]["nodes"].values())
    kept = made.seconds <= MOST_SECONDS and made.peak_bytes <= MOST_BYTES
    print(f"| {name} | {parameters / 1e12:.2f} T | {made.seconds:.0f} | {made.cpu_seconds:.0f} | {made.peak_bytes / 1e9:.2f} | "
          f"{'yes' if kept else 'no'} | {imported.seconds:.0f} | {imported.cpu_seconds:.0f} | {imported.peak_bytes / 1e9:.2f} | "
          f"{nodes} |", flush=True)
    return kept


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--layers", type=int, default=0, help="fewer layers than the model has, for a quick check")
    parser.add_argument("--work", type=Path, help="a folder to keep the checkpoints in (must not have them)")
    options = parser.parse_args()
    print(f"| model | parameters | export: seconds | of processor | GB | within {MOST_SECONDS} s and {MOST_BYTES / 1e9:g} GB | "
          "import: seconds | of processor | GB | nodes |\n|---|---:|---:|---:|---:|---|---:|---:|---:|---:|", flush=True)
    with tempfile.TemporaryDirectory(dir=options.work) as work:
        kept = [trace(name, Path(work), options.layers) for name in options.models.split(",")]
    return 0 if all(kept) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ProcessFailed as error:
        sys.exit(str(error))
