"""Runs two programs on the same small models and compares what they write; see scripts/same_bytes.

Weight files, their index and config.json are compared. Model cards, recipes and summaries may change their words.
"""

import concurrent.futures
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from support import any_model, compressed_cases, quantized_sources, tiny_mllama, tiny_models
from support.program import write_samples
from support.ranked_runs import free_port, rank_environment
from support.watched_runs import finished_subgraphs

COMPARED = ("*.safetensors", "*.index.json", "config.json")
FAMILIES = ["Mistral", "Qwen2", "Qwen3", "Gemma2", "Gemma3", "Phi3", "Olmo2", "SmolLM3", "Granite", "Cohere2", "DeepseekV2", "DeepseekV3"]
EXPERTS = {"Mixtral": {"num_local_experts": 4}, "Olmoe": {"num_experts": 4, "num_key_value_heads": 4},
           "Qwen2Moe": {"num_experts": 4, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64},
           "Qwen3Moe": {"num_experts": 4, "moe_intermediate_size": 32, "head_dim": 16}}
IMPORTED = ["lfm2", "glm4", "qwen3_next", "granitemoehybrid", "mamba2", "nemotron_h"]
MODIFIERS = {
    "smoothquant": {"SmoothQuantModifier": {"smoothing_strength": 0.7}, "GPTQModifier": {"scheme": "W8A8", "ignore": ["lm_head"]}},
    "smoothquant alone": {"SmoothQuantModifier": {}},
    "awq": {"AWQModifier": {}, "QuantizationModifier": {"scheme": "W4A16_ASYM", "ignore": ["lm_head"]}},
    "awq and gptq": {"AWQModifier": {"duo_scaling": "both"}, "GPTQModifier": {"scheme": "W4A16", "ignore": ["lm_head"]}},
}
# Of the model of compressed_cases.
RUNS = {
    "best": ["--quality", "best"], "fast": ["--quality", "fast"], "best W3A16": ["--scheme", "W3A16", "--quality", "best"],
    "best NVFP4": ["--scheme", "NVFP4", "--quality", "best"], "basic": ["--pipeline", "basic"], "two passes": ["--pipeline", "two_pass"],
    "datafree": ["--algorithm", "rtn", "--pipeline", "datafree"], "disk": ["--sequential-offload-device", "disk"],
    "static fp8": ["--scheme", "FP8"], "nvfp4-fp8": ["--scheme", "nvfp4-fp8"], "float32": ["--dtype", "float32"],
    "shards": ["--max-shard-size", "200KB"], "two layers at once": ["--sequential-targets-per-subgraph", "2"],
    "cut at linears": ["--sequential-targets", "Linear"], "small batches": ["--batch-tokens", "64"],
}
ROUTED = ["--no-moe-calibrate-all-experts", "--min-tokens-per-expert", "20"]


class Case:
    """A run that both programs make: `how` are options; `killed` ends it once and resumes it."""

    def __init__(self, name, model, data, how, ranks=1, killed=False):
        self.name, self.model, self.data, self.how, self.ranks, self.killed = name, model, data, how, ranks, killed

    def digests(self, program, folder):
        """A digest by file of what the program writes, or its error line."""
        output = folder / "out"
        command = [str(program), "oneshot", str(self.model), "--output", str(output), *map(str, self.how)]
        if self.data is not None:
            command += ["--dataset", str(self.data)]
        if self.killed:
            kill_after_first_subgraph(command, output)
            command.append("--resume")
        port = free_port()
        environments = [rank_environment(rank, self.ranks, port) if self.ranks > 1 else {} for rank in range(self.ranks)]
        processes = [subprocess.Popen(command + (["--threads", "1"] if environment else []), stdout=subprocess.DEVNULL, text=True,
                                      stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env={**os.environ, **environment})
                     for environment in environments]
        errors = [process.communicate()[1] for process in processes]
        if any(process.returncode for process in processes):
            return {"error": next((line for text in errors for line in text.splitlines() if line.startswith("error: ")), "no error line")}
        return {str(file.relative_to(output)): hashlib.sha256(file.read_bytes()).hexdigest()
                for pattern in COMPARED for file in sorted(output.glob(pattern))}


def kill_after_first_subgraph(command, output):
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    while process.poll() is None and finished_subgraphs(output) < 1:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()


def recipe(folder, name, content):
    path = folder / f"{name.replace(' ', '-')}.json"
    path.write_text(json.dumps(content))
    return ["--recipe", path]


def presets_and_recipes(folder):
    """The cases of the tests of formats."""
    data = write_samples(folder / "presets.jsonl", compressed_cases.calibration_samples())
    models = {}
    for name, how in compressed_cases.CASES.items():
        settings = compressed_cases.SETTINGS.get(name, {})
        model = models.setdefault(str(settings), folder / f"presets-{len(models)}")
        if not model.exists():
            compressed_cases.save_model(model, **settings)
        yield Case(f"format: {name}", model, data, recipe(folder, name, how) if isinstance(how, dict) else how)
    plain = models["{}"]
    for name, how in RUNS.items():
        yield Case(f"run: {name}", plain, None if name == "datafree" else data, how)
    for name, modifiers in MODIFIERS.items():
        yield Case(f"run: {name}", plain, data, recipe(folder, name, {"quant_stage": {"quant_modifiers": modifiers}}))
    for quality in ("balanced", "best"):
        yield Case(f"ranks: two, {quality}", plain, data, ["--quality", quality], ranks=2)
        yield Case(f"resumed: {quality}", plain, data, ["--quality", quality], killed=True)


def families(folder):
    data = write_samples(folder / "families.jsonl", tiny_models.random_samples([40, 64, 33, 50]))
    for family in FAMILIES:
        model = tiny_models.save(folder / family, family, dtype=torch.bfloat16)
        yield Case(f"family: {family}", model, data, ["--group-size", "8"])
    for family, settings in EXPERTS.items():
        model = tiny_models.save(folder / family, family, dtype=torch.bfloat16, **{"num_experts_per_tok": 2, **settings})
        for name, how in {"all": [], "routed": ROUTED, "best": ["--quality", "best"]}.items():
            yield Case(f"experts: {family}, {name}", model, data, ["--group-size", "8", *how])
    yield Case("ranks: experts", folder / "Mixtral", data, ["--group-size", "8"], ranks=2)
    yield Case("resumed: experts", folder / "Mixtral", data, ["--group-size", "8"], killed=True)


def sources(folder):
    """Quantized sources to another scheme, and images."""
    data = write_samples(folder / "sources.jsonl", tiny_models.random_samples([40, 64, 33, 50]))
    for name in quantized_sources.FORMATS:
        parent = folder / name.replace(" ", "-").replace(",", "")
        parent.mkdir()
        model = quantized_sources.QuantizedSource(parent, name).folder
        yield Case(f"source: {name}", model, data, ["--scheme", "W8A8"])
    oss = folder / "gpt-oss"
    oss.mkdir()
    yield Case("source: gpt-oss", quantized_sources.save_gpt_oss(oss)[0], data, ["--group-size", "16"])
    model = tiny_mllama.save(folder / "mllama", dtype=torch.bfloat16)
    images = folder / "images.safetensors"
    tiny_mllama.write_token_file(images, [tiny_mllama.Sample(20, (1,), [3], 1), tiny_mllama.Sample(30, (4,), [5], 2), tiny_mllama.Sample(25)])
    ignored = ["--ignore", "re:.*lm_head,re:.*vision_model.*,re:.*multi_modal_projector.*", "--group-size", "16"]
    yield Case("images: mllama", model, images, ignored)


def imported(folder):
    data = write_samples(folder / "imported.jsonl", tiny_models.random_samples([40, 64, 33, 50], 256))
    for kind in IMPORTED:
        model = any_model.save(folder / kind, kind, dtype=torch.bfloat16)
        yield Case(f"imported: {kind}", model, data, ["--group-size", "8"])


def compare(case, programs, folder):
    found = []
    for program in programs:
        with tempfile.TemporaryDirectory(dir=folder) as place:
            found.append(case.digests(program, Path(place)))
    old, new = found
    different = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    return case.name, different, old.get("error"), new.get("error")


def main():
    if len(sys.argv) < 3:
        sys.exit("usage: scripts/same_bytes OLD NEW [PATTERN...]")
    programs, patterns = [Path(path).resolve() for path in sys.argv[1:3]], sys.argv[3:]
    failed = refused = total = 0
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent)
        places = {make: folder / make.__name__ for make in (presets_and_recipes, families, sources, imported)}
        for place in places.values():
            place.mkdir()
        cases = [case for make, place in places.items() for case in make(place)
                 if not patterns or any(pattern in case.name for pattern in patterns)]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for name, different, old_error, new_error in pool.map(lambda case: compare(case, programs, folder), cases):
                total += 1
                refused += old_error is not None and not different
                failed += bool(different)
                if different:
                    print(f"{name}: differs in {', '.join(different)}", *filter(None, (old_error, new_error)), sep="\n  ")
                elif old_error:
                    print(f"{name}: both refuse: {old_error}")
    print(f"{total - failed - refused} of {total} runs wrote the same bytes, {refused} were refused by both, {failed} differ")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
