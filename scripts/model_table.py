"""Writes docs/models.md: which causal language models of transformers Layerpress takes through an exported graph.

    python scripts/model_table.py [--types TYPE,...] [--work FOLDER] [--output docs/models.md]

For each model_type, a tiny random model is made and saved by transformers. Then: is its graph exported, do its logits equal
transformers' (fp32; three samples packed and one alone), is it compressed (W4A16, GPTQ, sequential pipeline), and does
transformers load the result. Results are kept in FOLDER as JSON, one file a type, so that a run that ends early continues.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
STEPS = ("made", "exported", "logits", "compressed", "reloaded")
LENGTHS = (13, 37, 21)
TOLERANCE = 1e-4
SECONDS = 240


def one_line(text, limit=160):
    text = " ".join(str(text).split())
    text = re.sub(r"/[^ ']*/(?=[\w.-]+)", "", text)  # folders of the machine
    return text if len(text) <= limit else text[: limit - 3] + "..."


def checked(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, **options)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")] or done.stderr.splitlines()
        raise RuntimeError(lines[-1].removeprefix("error: ") if lines else f"exit code {done.returncode}")
    return done.stdout


def examine(model_type, folder):
    """{"step": True or a reason, ...} up to the first step that fails, and the greatest relative difference of logits."""
    import numpy
    import torch
    from safetensors.numpy import load_file
    from support import any_model, program, tiny_models

    torch.set_num_threads(2)
    result, model = {}, folder / "model"
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    step = "made"
    try:
        any_model.save(model, model_type)
        samples = tiny_models.random_samples(LENGTHS, 256)
        wanted = any_model.logits(model, samples)
        result["made"], step = True, "exported"
        graph = json.loads(checked([program.PROGRAM, "inspect", model, "--model-graph", "export", "--json"], env=environment))["graph"]
        result["exported"], step = True, "logits"
        result["left_out"], result["aten"] = len(graph["left_out"]), graph["nodes"].get("aten", 0)
        result["by_sample"], result["nodes"] = graph["sample_by_sample"], sum(graph["nodes"].values())
        worst = 0
        for chosen in ((0, 1, 2), (1,)):
            tokens = program.write_token_file(folder / "tokens.safetensors", [samples[i] for i in chosen])
            written = folder / "logits.safetensors"
            checked([program.PRINT_LOGITS, model, tokens, written, "--dtype", "float32", "--export"], env=environment)
            ours, theirs = load_file(written)["logits"], numpy.concatenate([wanted[i] for i in chosen])
            worst = max(worst, float(numpy.abs(ours - theirs).max() / numpy.abs(theirs).max()))
        result["difference"] = worst
        if not worst <= TOLERANCE:
            raise RuntimeError(f"logits differ by {worst:.1e} of the greatest")
        result["logits"], step = True, "compressed"
        rows = program.write_samples(folder / "rows.jsonl", samples * 4)
        checked([program.PROGRAM, "oneshot", model, "--model-graph", "export", "--group-size", "16",
                 "--dataset", rows, "--pipeline", "sequential", "--output", folder / "out"], env=environment)
        result["compressed"], step = True, "reloaded"
        reload(folder / "out", samples[0])
        result["reloaded"] = True
    except Exception as fault:
        result[step] = one_line(f"{'' if isinstance(fault, RuntimeError) else type(fault).__name__ + ': '}{fault}")
    return result


def reload(folder, sample):
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    if info["missing_keys"] or info["unexpected_keys"]:
        raise RuntimeError(f"missing {sorted(info['missing_keys'])[:2]}, unexpected {sorted(info['unexpected_keys'])[:2]}")
    with torch.no_grad():
        if not torch.isfinite(model(torch.tensor([list(sample)]), use_cache=False).logits).all():
            raise RuntimeError("the logits are not finite")


def examined(model_type, work):
    """The result from an earlier run, or from a child process of its own."""
    kept = work / f"{model_type}.json"
    if kept.exists():
        return json.loads(kept.read_text())
    child = os.fork()
    if child == 0:
        import tempfile

        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, 1), os.dup2(sink, 2)
        signal.alarm(2 * SECONDS)
        with tempfile.TemporaryDirectory(dir=work) as folder:
            kept.write_text(json.dumps(examine(model_type, Path(folder))))
        os._exit(0)
    os.waitpid(child, 0)
    if not kept.exists():
        kept.write_text(json.dumps({"made": "the process ended or took too long"}))
    return json.loads(kept.read_text())


def cell(result, step):
    if step not in result:
        return ""
    return "yes" if result[step] is True else "no"


def table(results, all_types):
    import torch
    import transformers

    able = [result for result in results.values() if result.get("made") is True]
    counts = ", ".join(f"{step} {sum(result.get(step) is True for result in able)}" for step in STEPS[1:])
    lines = ["# Models through exported graphs", "",
             "Written by `scripts/model_table.py`: a tiny random model of each "
             f"{'causal language model' if all_types else 'type below (not all that there are)'} of transformers "
             f"{transformers.__version__}, with torch {torch.__version__.split('+')[0]}. \"Logits\" says whether they equal "
             f"transformers' within {TOLERANCE:g} of the greatest, packed and alone; \"compressed\" is W4A16 with the sequential "
             "pipeline; \"left out\" counts linears and lists of experts that have no node of their own.", "",
             f"Of {len(results)} types, {len(able)} could be made and run by transformers in the sizes that the script chose. "
             f"Of these: {counts}.", "",
             "| model_type | exported | logits | compressed | reloaded | nodes, of these aten, by sample | left out | reason |",
             "|---|---|---|---|---|---|---|---|"]
    for name, result in results.items():
        reason = next((result[step] for step in STEPS if result.get(step) not in (True, None)), "")
        nodes = f"{result['nodes']}, {result['aten']}, {result['by_sample']}" if "nodes" in result else ""
        cells = [cell(result, step) for step in STEPS[1:]]
        lines.append(f"| {name} | {' | '.join(cells)} | {nodes} | {result.get('left_out', '')} | {reason.replace('|', '/')} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--types", default="")
    parser.add_argument("--work", type=Path, default=Path("model_table"))
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "models.md")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    options.work = options.work.resolve()
    from support import any_model, program  # noqa: F401 (loaded once for all children)

    results = {}
    for model_type in options.types.split(",") if options.types else any_model.model_types():
        results[model_type] = examined(model_type, options.work)
        print(model_type, results[model_type], flush=True)
    options.output.write_text(table(results, not options.types), encoding="utf-8")


if __name__ == "__main__":
    main()
