"""Writes docs/models.md: which causal language models of transformers Layerpress takes through an exported graph.

    python scripts/model_table.py [--types TYPE,...] [--work FOLDER] [--output docs/models.md]

For each model_type, a tiny random model is made and saved by transformers. Then: is its graph exported, do its logits equal
transformers' (fp32; three samples packed and one alone), is it compressed by GPTQ in the sequential pipeline (W4A16, W8A8),
and does transformers load each result and compute about the same with it; where it cannot load the compressed result, does it load
what compressed-tensors decodes of it. Results are kept in FOLDER as JSON, one file a type, so that a run that ends early continues.
"""

import argparse
import json
import os
import re
import resource
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "python")]
STEPS = ("made", "exported", "logits", "W4A16", "W4A16 reloaded", "W8A8", "W8A8 reloaded")
SCHEMES = {"W4A16": ("--group-size", "16"), "W8A8": ()}
MOST_BYTES = 10 << 30  # a model that the settings do not make small must not fill the machine
LENGTHS = (13, 37, 21)
TOLERANCE = 1e-4
# The divergence of a compressed model, as a part of the divergence of a randomly initialized model.
MOST_DIVERGENCE = 1
SECONDS = 240


def one_line(text, limit=160):
    text = " ".join(str(text).split())
    text = re.sub(r"/[^ ']*/(?=[\w.-]+)", "", text)  # folders of the machine
    return text if len(text) <= limit else text[: limit - 3] + "..."


def checked(command, **options):
    from support import program

    done = program.completed([str(part) for part in command], **options)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")] or done.stderr.splitlines()
        raise RuntimeError(lines[-1].removeprefix("error: ") if lines else f"exit code {done.returncode}")
    return done.stdout


def start_servers():
    """The servers that all children use, so that libtorch is loaded once."""
    from support import program

    program.servers.clear()
    for command in (program.PROGRAM, program.PRINT_LOGITS):
        program.completed([str(command)])


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
        export(model, folder / "cache")
        graph = json.loads(checked([program.PROGRAM, "inspect", model, "--model-graph", "export", "--json"], env=environment))["graph"]
        result["exported"], step = True, "logits"
        result["left_out"], result["aten"] = len(graph["left_out"]), graph["nodes"].get("aten", 0)
        result["left_out_names"] = graph["left_out"][:4]
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
        result["logits"] = True
    except Exception as fault:
        result[step] = reason_of(fault)
        return result
    rows = program.write_samples(folder / "rows.jsonl", samples * 4)
    for scheme, options in SCHEMES.items():
        result |= compressed(scheme, [model, "--model-graph", "export", "--dataset", rows, *options], folder, samples, wanted)
    return result


def export(model, cache):
    """What the program would ask its helper for; from now on the graph is in the cache."""
    from layerpress_graph import command, request

    command.export(request.Request(model=str(model), dtype="float32", cache=str(cache / "layerpress" / "graphs")))


def reason_of(fault):
    from layerpress_graph.errors import ExportError

    return one_line(f"{'' if type(fault) in (RuntimeError, ExportError) else type(fault).__name__ + ': '}{fault}")


def compressed(scheme, arguments, folder, samples, wanted):
    """{scheme: True or a reason, scheme + " reloaded": ...} and the divergence of the compressed model."""
    from support import program, reloading

    result, step, output = {}, scheme, folder / scheme
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    try:
        checked([program.PROGRAM, "oneshot", *arguments, "--scheme", scheme, "--pipeline", "sequential", "--output", output],
                env=environment)
        result[scheme], step = True, f"{scheme} reloaded"
        try:
            own = reloading.logits(output, samples)
        except reloading.NotLoaded as fault:
            result[f"{scheme} decoded"] = one_line(fault)
            own = reloading.logits(reloading.decoded(output, folder / f"{scheme}-decoded"), samples)
        mine, nothing = reloading.divergence(own, wanted)
        result[f"{scheme} divergence"] = mine / nothing
        if not mine < MOST_DIVERGENCE * nothing:
            raise RuntimeError(f"its divergence is {mine / nothing:.2g} of that of a randomly initialized model")
        result[step] = True
    except Exception as fault:
        result[step] = reason_of(fault)
    return result


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
        signal.alarm(3 * SECONDS)
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
        with tempfile.TemporaryDirectory(dir=work) as folder:
            kept.write_text(json.dumps(examine(model_type, Path(folder))))
        os._exit(0)
    os.waitpid(child, 0)
    if not kept.exists():
        kept.write_text(json.dumps({"made": "the process ended or took too long"}))
        start_servers()
    return json.loads(kept.read_text())


def cell(result, step):
    if step not in result:
        return ""
    if result[step] is not True:
        return "no"
    return "decoded" if step.replace("reloaded", "decoded") in result and step.endswith("reloaded") else "yes"


def share(part, whole):
    return f"{part} of {whole} ({100 * part / max(whole, 1):.1f} %)"


def summary(results):
    """The figures over all types that transformers can build and run."""
    able = [result for result in results.values() if result.get("made") is True]
    both = [result for result in able if all(result.get(f"{scheme} reloaded") is True for scheme in SCHEMES)]
    directly = [result for result in both if not any(f"{scheme} decoded" in result for scheme in SCHEMES)]
    lines = [f"Of {len(results)} types, transformers makes and runs {len(able)} in the sizes that the script chose. Of these:", "",
             "| step | types |", "|---|---|"]
    lines += [f"| {step} | {share(sum(result.get(step) is True for result in able), len(able))} |" for step in STEPS[1:]]
    lines += [f"| compressed and reloaded, both schemes | {share(len(both), len(able))} |",
              f"| of these, without decoding | {share(len(directly), len(able))} |"]
    return lines


EXPLANATION = """\
A tiny random model of each {what} of transformers {transformers}, with torch {torch} and compressed-tensors {compressed}, made by
`python scripts/model_table.py` (5 to 20 s of processor time a type; `--types llama,qwen3_5` for some).

- *exported*: the graph is exported and imported.
- *logits*: they equal transformers' within {tolerance:g} of the greatest, fp32; three samples packed, and one alone.
- *W4A16*, *W8A8*: GPTQ with the sequential pipeline compresses the model.
- *reloaded*: transformers loads the result without missing or surplus tensors, and its logits are closer to the original's than those of a randomly
  initialized model. *decoded*: transformers' loader fails on the compressed result, for the reason in the last column, but compressed-tensors decodes
  it to a checkpoint that transformers loads under the same conditions. The loader merges the experts of a layer only if they are packed
  integers without zero points, MXFP4 or FP8, and those of some families ([experts](experts.md)) not at all. It loads no experts in int8
  or MXFP8, and those in NVFP4 without their global scales; and it initializes the linears of some models as if they were not packed.
- *left out*: linears and lists of experts without a node of their own. They stay uncompressed.
"""


def table(results, all_types):
    import compressed_tensors
    import torch
    import transformers

    explanation = EXPLANATION.format(
        what="causal language model" if all_types else "type below (not all that there are)", tolerance=TOLERANCE,
        transformers=transformers.__version__, torch=torch.__version__.split("+")[0], compressed=compressed_tensors.__version__)
    lines = [explanation, *summary(results), "",
             f"| model_type | {' | '.join(STEPS[1:])} | nodes, of these aten, by sample | left out | reasons |",
             "|---|" + "---|" * (len(STEPS) + 2)]
    for name, result in results.items():
        reasons = [f"{step}: {result[step]}" for step in (*STEPS, "W4A16 decoded", "W8A8 decoded")
                   if result.get(step) not in (True, None)]
        nodes = f"{result['nodes']}, {result['aten']}, {result['by_sample']}" if "nodes" in result else ""
        cells = [*(cell(result, step) for step in STEPS[1:]), nodes, str(result.get("left_out", "")),
                 "; ".join(dict.fromkeys(reasons)).replace("|", "/")]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def with_table(document, written):
    """The document with the table that stands between its marks written anew; the words around it stay."""
    begin, end = "<!-- table -->\n", "<!-- end of the table -->\n"
    before, _, rest = document.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}{written}{end}{after}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--types", default="")
    parser.add_argument("--work", type=Path, default=Path(".cache/model_table"))
    parser.add_argument("--output", type=Path, help="(default: docs/models.md, which some types alone do not change)")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    options.work = options.work.resolve()
    from layerpress_graph import command  # noqa: F401 (loaded once for all children)
    from support import any_model, program  # noqa: F401

    start_servers()
    results = {}
    for model_type in options.types.split(",") if options.types else any_model.model_types():
        results[model_type] = examined(model_type, options.work)
        print(model_type, results[model_type], flush=True)
    if options.types and options.output is None:
        return
    output = options.output or ROOT / "docs" / "models.md"
    document = output.read_text(encoding="utf-8") if output.exists() else ""
    output.write_text(with_table(document, table(results, not options.types)), encoding="utf-8")


if __name__ == "__main__":
    main()
