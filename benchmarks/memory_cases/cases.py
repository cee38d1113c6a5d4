"""The cases. Each runs the program and returns the rows of its table and the sentences below it."""
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from compare_outputs import differing_files, equal_code_share
from llama_checkpoint import LlamaShape, keep_first_layers, make_checkpoint, write_token_file
from setting import Run, Setting, compress, output_of, plan, report_progress, say, thread_options
from watched_process import run_watched

LINEAR_SAMPLES, LINEAR_TOKENS = 32, 512
ARITHMETIC = {"forward", "gram", "observe", "factorize", "solve", "dequantize", "quantize", "pack"}
FIRST_GROUP = [f"model.layers.0.self_attn.{name}_proj" for name in "qkv"]


@dataclass
class Result:
    runs: list[Run]
    notes: list[str]


def large_checkpoint(setting: Setting) -> Path:
    say(f"  the checkpoint of {setting.layers} layers with the shape of Llama-3-8B (made when it is not there)")
    return make_checkpoint(setting.scratch / f"llama-3-8b-shape-{setting.layers}", LlamaShape(setting.layers))


def weight_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def drop_cached_pages(folder: Path) -> None:
    """Drops the files from the page cache, so that every timed reader starts from the same state."""
    for path in folder.glob("*.safetensors"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def remove(setting: Setting, folder: Path) -> None:
    if not setting.keep:
        shutil.rmtree(folder, ignore_errors=True)


def large_gptq(setting: Setting) -> Result:
    model = large_checkpoint(setting)
    data = write_token_file(setting.scratch / "tokens-4x256.safetensors", 4, 256, LlamaShape().vocab_size)
    drop_cached_pages(model)
    run = compress(setting, "gptq-w4a16", model, ["--scheme", "W4A16", "--dataset", str(data)], "4GiB")
    remove(setting, output_of(setting, run.name))
    return Result([run], [f"{setting.layers} of 32 layers, 4 x 256 random tokens.", spent(run)])


def copy_checkpoint(setting: Setting, model: Path, name: str) -> Run:
    """`cp` of the checkpoint to the same disk, synced at the end like the program's output."""
    target = output_of(setting, name)
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(exist_ok=True)
    drop_cached_pages(model)
    say(f"  {name}: cp of {weight_bytes(model) / 1e9:.1f} GB")
    script = 'cp -r --reflink=never "$0" "$1" && sync "$1"/*'
    watched = run_watched(["sh", "-c", script, str(model), str(target)], setting.scratch / f"{name}.log", report_progress)
    say(f"  {name}: {watched.seconds:.1f} s")
    shutil.rmtree(target)
    return Run(name, watched, note=rate(model, watched.seconds))


def rate(model: Path, seconds: float) -> str:
    return f"{weight_bytes(model) / seconds / 1e6:.0f} MB/s"


def large_datafree(setting: Setting) -> Result:
    """Both programs read the checkpoint from the disk, not from the page cache. Copies before and after show how much the
    disk's speed varies."""
    model = large_checkpoint(setting)
    runs = [copy_checkpoint(setting, model, "cp-before")]
    for name, scheme, observer in (("fp8-minmax", "FP8_DYNAMIC", "minmax"), ("fp8-mse", "FP8_DYNAMIC", "mse"),
                                   ("w4a16-minmax", "W4A16", "minmax"), ("w4a16-mse", "W4A16", "mse"),
                                   ("nvfp4a16-minmax", "NVFP4A16", "minmax"), ("mxfp4-minmax", "MXFP4", "minmax")):
        drop_cached_pages(model)
        options = ["--algorithm", "rtn", "--scheme", scheme, "--observer", observer]
        runs.append(compress(setting, name, model, options, "1536MiB"))
        runs[-1].note = rate(model, runs[-1].watched.seconds)
        remove(setting, output_of(setting, name))
    runs.append(copy_checkpoint(setting, model, "cp-after"))
    copy_seconds = (runs[0].watched.seconds + runs[-1].watched.seconds) / 2
    for run in runs[1:-1]:
        moved = (weight_bytes(model) + run.summary["output_bytes"]) / (2 * weight_bytes(model))
        run.note += (f", {copy_seconds / run.watched.seconds:.0%} of cp, {run.watched.seconds / (copy_seconds * moved):.2f} times "
                     "cp's time for the bytes read and written")
    return Result(runs, [f"{setting.layers} of 32 layers; MB/s and shares count the checkpoint's bytes per second, against "
                         "the mean of both copies. A copy reads and writes the whole checkpoint; for as many bytes as a run "
                         "reads and writes, it takes that share of its time.", *(spent(run) for run in runs[1:-1])])


def spent(run: Run) -> str:
    """Whether arithmetic or I/O took the time. Phases on concurrent threads add up to more than the run. A page that is not
    in memory is read by the phase that touches it first."""
    phases = {name: phase["seconds"] for name, phase in run.summary.get("phases", {}).items()}
    largest = sorted(phases.items(), key=lambda phase: -phase[1])[:6]
    arithmetic = sum(seconds for name, seconds in phases.items() if name in ARITHMETIC)
    return (f"{run.name}: arithmetic {arithmetic:.1f} s, the other phases {sum(phases.values()) - arithmetic:.1f} s of "
            f"{run.watched.seconds:.1f} s (" + ", ".join(f"{name} {seconds:.1f}" for name, seconds in largest) + ").")


def small_model(setting: Setting) -> Path:
    if not setting.model_layers:
        return setting.model
    say(f"  {setting.model.name} with its first {setting.model_layers} layers")
    return keep_first_layers(setting.model, setting.scratch / f"{setting.model.name}-{setting.model_layers}",
                             setting.model_layers)


def small_options(setting: Setting, samples: int, tokens: int) -> list[str]:
    """GPTQ on random tokens."""
    vocabulary = json.loads((setting.model / "config.json").read_text())["vocab_size"]
    data = write_token_file(setting.scratch / f"tokens-{samples}x{tokens}.safetensors", samples, tokens, vocabulary)
    return ["--group-size", "64", "--dataset", str(data), "--num-calibration-samples", str(samples), "--max-seq-length",
            str(tokens)]


def spilling(setting: Setting) -> Result:
    """Both runs use the batches that fit the budget, because different batches round differently."""
    model = small_model(setting)
    options = small_options(setting, setting.samples, setting.sample_tokens)
    arguments = [str(model), "--output", str(output_of(setting, "plan")), *options, "--memory-budget", "512MiB",
                 *thread_options(setting)]
    options += ["--batch-tokens", str(plan(setting, arguments)["batch_tokens"])]
    within = compress(setting, "budget-512MiB", model, options, "512MiB")
    free = compress(setting, "no-budget", model, options)
    within.note = f"{within.summary['spilled_bytes'] / 1e6:.0f} MB spilled"
    different = differing_files(output_of(setting, within.name), output_of(setting, free.name))
    notes = [f"{model.name}, {setting.samples} x {setting.sample_tokens} random tokens, GPTQ W4A16 g64. Output: " +
             ("the same bytes." if not different else f"DIFFERENT: {', '.join(different)}."), slowdown(within, free)]
    for run in (within, free):
        remove(setting, output_of(setting, run.name))
    return Result([within, free], notes)


def linear_targets(setting: Setting) -> Result:
    model = small_model(setting)
    options = small_options(setting, LINEAR_SAMPLES, LINEAR_TOKENS)
    layers = compress(setting, "decoder-layers", model, options)
    linears = compress(setting, "linear-targets", model, [*options, "--sequential-targets", "Linear"])
    share = equal_code_share(output_of(setting, layers.name), output_of(setting, linears.name), FIRST_GROUP)
    notes = [f"{model.name}, {LINEAR_SAMPLES} x {LINEAR_TOKENS} random tokens, GPTQ W4A16 g64. Equal codes in the first "
             f"linear group: {share:.2%}.", slowdown(linears, layers)]
    for run in (layers, linears):
        remove(setting, output_of(setting, run.name))
    return Result([layers, linears], notes)


def slowdown(slow: Run, fast: Run) -> str:
    return (f"{slow.name} takes {slow.watched.seconds / fast.watched.seconds:.2f} times the seconds and "
            f"{slow.watched.anonymous_bytes / fast.watched.anonymous_bytes:.2f} times the peak of {fast.name}.")


CASES: dict[str, tuple[str, Callable[[Setting], Result]]] = {
    "8b-gptq": ("GPTQ W4A16 on the shape of Llama-3-8B within 4 GiB", large_gptq),
    "8b-datafree": ("Data-free FP8_DYNAMIC, W4A16, NVFP4A16 and MXFP4 on the shape of Llama-3-8B within 1.5 GiB", large_datafree),
    "spilling": ("Activations larger than the budget", spilling),
    "linear-targets": ("Linear targets against decoder layers", linear_targets),
}
