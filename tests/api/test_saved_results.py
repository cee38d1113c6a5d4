"""save_pretrained() of a model in memory after oneshot(): the result's files, and nothing else that readers would take for them."""

import copy
import gc
import json
import pickle
import shutil

import pytest


@pytest.fixture
def pruned(loaded):
    """A model in memory with its result, in several files."""
    from layerpress.modifiers import MagnitudePruningModifier

    import layerpress

    recipe = MagnitudePruningModifier(final_sparsity=0.5, targets=["re:.*_proj$"])
    return layerpress.oneshot(loaded, recipe=recipe, max_shard_size="100KB", progress=False)


def zeros(folder):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype="auto").model.layers[0].mlp.up_proj.weight.eq(0).float().mean().item()


def test_weights_of_another_checkpoint_go(pruned, model, tmp_path):
    import layerpress

    whole = shutil.copytree(model, tmp_path / "whole")
    pruned.save_pretrained(whole)
    assert not (whole / "model.safetensors").exists() and (whole / "model.safetensors.index.json").exists()
    assert zeros(whole) == pytest.approx(0.5, abs=0.01)
    pruned.save_pretrained(whole)  # over links to the same files
    assert not list(whole.glob(".*.unfinished")) and zeros(whole) == pytest.approx(0.5, abs=0.01)
    shutil.copy(model / "model.safetensors", whole)
    found = layerpress.verify(whole)
    assert found["warnings"] and {warning["check"] for warning in found["warnings"]} == {"files"}


def test_files_are_no_folders(pruned, tmp_path):
    from layerpress import UsageError

    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is not a folder"):
        pruned.save_pretrained(tmp_path / "file")


def test_later_changes_are_not_lost_in_silence(pruned, tmp_path):
    import torch

    from layerpress import UsageError

    pruned.generation_config.max_new_tokens = 77
    pruned.save_pretrained(tmp_path / "saved")
    assert '"max_new_tokens": 77' in (tmp_path / "saved" / "generation_config.json").read_text()
    with torch.no_grad():
        pruned.lm_head.weight.mul_(2)
    with pytest.raises(UsageError, match="lm_head.weight was changed after oneshot"):
        pruned.save_pretrained(tmp_path / "changed")
    assert not (tmp_path / "changed").exists()
    pruned.save_pretrained(tmp_path / "dense", save_compressed=False)
    assert zeros(tmp_path / "dense") == pytest.approx(0.5, abs=0.01)


def test_replaced_parameters_are_not_lost_in_silence(pruned, tmp_path):
    import torch

    from layerpress import UsageError

    moved = pruned.model.norm.weight
    pruned.model.norm.weight = torch.nn.Parameter(moved.detach().clone())  # as moving to a device does
    pruned.save_pretrained(tmp_path / "saved")
    pruned.model.norm.weight = torch.nn.Parameter(torch.zeros_like(moved))
    with pytest.raises(UsageError, match="model.norm.weight was changed after oneshot"):
        pruned.save_pretrained(tmp_path / "changed")
    pruned.model.norm.weight = moved
    pruned.resize_token_embeddings(pruned.config.vocab_size + 8)
    with pytest.raises(UsageError, match="(embed_tokens|lm_head).weight was changed after oneshot"):
        pruned.save_pretrained(tmp_path / "changed")
    assert not (tmp_path / "changed").exists()


@pytest.mark.parametrize("options, message", [
    ({"push_to_hub": True}, "upload"), ({"variant": "x"}, "variant"), ({"state_dict": {"a": 1}}, "state_dict"), ({"nonsense": 3}, "nonsense")])
def test_arguments_are_refused_by_name(options, message, pruned, tmp_path):
    from layerpress import UsageError

    with pytest.raises(UsageError, match=message):
        pruned.save_pretrained(tmp_path / "saved", **options)


def test_arguments_of_peers_are_taken(pruned, tmp_path, caplog):
    pruned.save_pretrained(tmp_path / "other", is_main_process=False)
    assert not (tmp_path / "other").exists()
    pruned.save_pretrained(tmp_path / "saved", safe_serialization=True, disable_sparse_compression=True, max_shard_size="5GB")
    assert "max_shard_size has no effect" in caplog.text and (tmp_path / "saved" / "config.json").exists()


def test_a_copy_saves_the_result_too(pruned, tmp_path):
    import torch

    from layerpress import UsageError

    other = copy.deepcopy(pruned)
    with torch.no_grad():
        pruned.lm_head.weight.mul_(2)
    del pruned
    gc.collect()
    other.save_pretrained(tmp_path / "saved")
    assert zeros(tmp_path / "saved") == pytest.approx(0.5, abs=0.01)
    other.save_pretrained(tmp_path / "dense", save_compressed=False)
    assert zeros(tmp_path / "dense") == pytest.approx(0.5, abs=0.01)
    with torch.no_grad():
        other.lm_head.weight.mul_(2)
    with pytest.raises(UsageError, match="was changed after oneshot"):
        other.save_pretrained(tmp_path / "changed")


def test_changed_settings_are_written(pruned, tmp_path):
    pruned.save_pretrained(tmp_path / "before")
    pruned.config.use_cache = False
    pruned.config.note = "mine"
    rope = pruned.config.rope_parameters
    pruned.config.rope_parameters = {name: value for name, value in rope.items() if name != "rope_type"}
    try:
        pruned.save_pretrained(tmp_path / "after")
    finally:
        pruned.config.use_cache = True
        del pruned.config.note
        pruned.config.rope_parameters = rope
    before, after = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("before", "after"))
    assert before["rope_parameters"].pop("rope_type")
    assert after == {**before, "use_cache": False, "note": "mine"}


def test_a_pickled_model_saves_the_result_too(pruned, tmp_path):
    import torch

    from layerpress import UsageError

    again = pickle.loads(pickle.dumps(pruned))
    again.save_pretrained(tmp_path / "saved")
    assert zeros(tmp_path / "saved") == pytest.approx(0.5, abs=0.01)
    assert (again.lm_head.weight == pruned.lm_head.weight).all()
    pickle.loads(pickle.dumps(again)).save_pretrained(tmp_path / "saved")
    with torch.no_grad():
        again.lm_head.weight[0] += 1
    for changed in (again, pickle.loads(pickle.dumps(again)), copy.deepcopy(again)):
        with pytest.raises(UsageError, match="lm_head.weight was changed"):
            changed.save_pretrained(tmp_path / "changed")


def test_a_relative_output_is_found_from_another_folder(loaded, tmp_path, monkeypatch):
    from layerpress.modifiers import MagnitudePruningModifier

    import layerpress

    monkeypatch.chdir(tmp_path)
    recipe = MagnitudePruningModifier(final_sparsity=0.5, targets=["re:.*_proj$"])
    model = layerpress.oneshot(loaded, recipe=recipe, output_dir="out", progress=False)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    model.save_pretrained("saved")
    assert zeros(tmp_path / "elsewhere" / "saved") == pytest.approx(0.5, abs=0.01)
