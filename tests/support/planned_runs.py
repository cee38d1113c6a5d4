"""Plans of runs, runs to compare with their plans, and models whose working sets are far larger than the program's own memory."""

import json
from pathlib import Path

from llama_checkpoint import LlamaShape, make_checkpoint, write_token_file

from support import program
from support.watched_runs import WatchedRun

VOCABULARY = 1000
# Few tokens on the first make Gram matrices the largest; many tokens on the second, activations.
SHAPES = {
    "broad": {"num_hidden_layers": 2, "hidden_size": 1024, "intermediate_size": 6144},
    "slim": {"num_hidden_layers": 3, "hidden_size": 1024, "intermediate_size": 1536},
    "even": {"num_hidden_layers": 2, "hidden_size": 1536, "intermediate_size": 4096},
    "narrow": {"num_hidden_layers": 2, "hidden_size": 512, "intermediate_size": 1024},
    "many words": {"num_hidden_layers": 1, "hidden_size": 1024, "intermediate_size": 1024, "vocab_size": 40_000},
}
MIB = 1 << 20


def make_model(folder, shape):
    """A model of a shape; "SHAPE in fp8" is stored in blocks of 128 x 128."""
    plain, _, form = shape.partition(" in ")
    if form:
        return in_fp8_blocks(make_model(folder, plain), Path(folder) / shape)
    heads = {"num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": VOCABULARY}
    return make_checkpoint(Path(folder) / shape, LlamaShape(**{**heads, **SHAPES[shape]}), block_elements=1 << 22)


def in_fp8_blocks(model, folder):
    """A copy of a checkpoint whose linears are quantized to fp8 as DeepSeek V3's are."""
    import shutil

    from safetensors.torch import load_file, save_file

    from support import quantized_sources, tiny_models

    if folder.exists():
        return folder
    shutil.copytree(model, folder)
    tensors = load_file(model / "model.safetensors")
    for name in quantized_sources.linears(tensors):
        parts, _ = quantized_sources.fp8_block(name, tensors.pop(name), (128, 128))
        tensors |= {f"{name.removesuffix('weight')}{part}": tensor for part, tensor in parts.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    tiny_models.rewrite_config(folder, lambda config: config.update(quantization_config={
        "quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}))
    return folder


def data(folder, samples, length):
    """Options for random tokens."""
    path = Path(folder) / f"tokens-{samples}x{length}.safetensors"
    if not path.exists():
        write_token_file(path, samples, length, VOCABULARY)
    return ["--dataset", path]


def plan(model, out, *arguments):
    """The plan of a run into `out`, as JSON."""
    return program.run("oneshot", model, "--output", out, *arguments, "--dry-run", "--json").json()


class Measured:
    """The memory and time of a run, measured from outside and by itself."""

    def __init__(self, model, out, *arguments):
        summary = Path(out).parent.with_name(f"{Path(out).parent.name}-summary.json")
        run = WatchedRun(model, out, *arguments, "--summary", summary, "--log-level", "warning").watch_memory()
        outcome = run.end()
        assert outcome.code == 0, outcome.errors
        self.peak_bytes = run.memory.anonymous_bytes
        self.summary = json.loads(summary.read_text())
        self.plan = self.summary["plan"]
