"""Results that other runs have made of results: what verify says of them beside the original, and beside what each run began with."""

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import program, tiny_models

MLP = "{ignore: [lm_head, 're:.*self_attn.*'], config_groups: {g: {targets: [Linear], weights: {num_bits: 4, strategy: group, group_size: 32}}}}"
CACHE = "{num_bits: 8, type: float, strategy: tensor, dynamic: false, symmetric: true}"
RECIPES = {
    "codes": f"QuantizationModifier: {MLP}",
    "rotated": f"{{SpinQuantModifier: {{}}, QuantizationModifier: {MLP}}}",
    "pruned": "MagnitudePruningModifier: {final_sparsity: 0.5, targets: ['re:.*_proj$']}",
    "bytes": "QuantizationModifier: {ignore: [lm_head, 're:.*mlp.*'], scheme: FP8_DYNAMIC}",
    "cache": f"QuantizationModifier: {{targets: [Linear], kv_cache_scheme: {CACHE}}}",
}


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chains")
    program.write_samples(folder / "rows.jsonl", tiny_models.random_samples([40] * 4))
    return tiny_models.save(folder / "model", dtype=torch.bfloat16, hidden_size=64, intermediate_size=128, num_hidden_layers=2)


def made(source, out, recipe, original, *options):
    if not recipe.startswith("--"):
        file = out.with_suffix(".yaml")
        file.write_text(f"s_stage: {{m_modifiers: {RECIPES[recipe] if RECIPES[recipe].startswith('{') else '{' + RECIPES[recipe] + '}'}}}\n")
        options = ("--recipe", file, *options)
    else:
        options = (*recipe.split(), *options)
    data = ["--dataset", original.with_name("rows.jsonl")] if recipe == "cache" else []
    return program.oneshot(source, out, *data, *options)


def says(result, source, code=0):
    outcome = program.run("verify", result, "--source", source, code=code)
    return outcome.output + outcome.errors


@pytest.mark.parametrize("runs", [("codes", "pruned"), ("rotated", "pruned"), ("codes", "rotated"), ("rotated", "rotated"),
                                  ("codes", "bytes", "cache"), ("cache", "--scheme FP8_DYNAMIC --algorithm rtn --dtype fp32")], ids="-".join)
def test_both_sources(runs, original, tmp_path):
    source = original
    for number, recipe in enumerate(runs):
        before, source = source, made(source, tmp_path / f"{number}", recipe, original)
        for other in (original, before):
            said = says(source, other)
            assert " 0 faults, 0 warnings" in said, (recipe, other, said)


def test_files_keep_the_history(tmp_path):
    """GGUF files have a key for it. Their tokenizer is a real one."""
    original = tiny_models.save(tmp_path / "model", dtype=torch.bfloat16, hidden_size=64, intermediate_size=128, vocab_size=49152)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(program.TEST_MODEL / file, original)
    rotated = made(original, tmp_path / "rotated", "rotated", original)
    file = tmp_path / "file.gguf"
    program.run("oneshot", rotated, "--output", file, "--scheme", "Q8_0", "--algorithm", "rtn")
    for source in (original, rotated):
        assert " 0 faults" in says(file, source)
    back = made(file, tmp_path / "back", "pruned", original)
    for source in (original, file):
        assert " 0 faults" in says(back, source)


@pytest.mark.parametrize("damage, told", [(b"# caf\xe9\n", True), (b"\r\n# \x1b[0m\r", False)])
def test_odd_recipes_of_sources(damage, told, original, tmp_path):
    """Comments hold nothing that breaks the new file; what cannot be kept is told, instead of faults that are none."""
    source = made(original, tmp_path / "source", "rotated", original)
    file = source / "recipe.yaml"
    file.write_bytes(file.read_bytes().rstrip() + b"\n" + damage)
    result = made(source, tmp_path / "result", "cache", original)
    said = says(result, original)
    assert ("no text of a usual size' is not a stage" in said) == told and " 0 faults" in said
    assert " 0 faults, 0 warnings" in says(result, source)
    assert all(c.isprintable() or c == "\n" for c in (result / "recipe.yaml").read_text(encoding="utf-8"))


def test_scales_of_the_source_are_compared(original, tmp_path):
    source = made(original, tmp_path / "source", "cache", original)
    result = made(source, tmp_path / "result", "codes", original)
    tensors = load_file(result / "model.safetensors")
    name = "model.layers.1.self_attn.v_scale"
    damaged = shutil.copytree(result, tmp_path / "damaged")
    save_file(tensors | {name: tensors[name] * 100}, damaged / "model.safetensors", {"format": "pt"})
    said = says(damaged, source, code=1)
    assert f"{name}: is 1" in said and "times the source's" in said
