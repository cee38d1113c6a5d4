"""Importance files: written by calibrated runs, and used without data."""

import gguf
import numpy as np
import pytest
import torch
import transformers
from support import block_models, exact_model, program, ranked_runs, tiny_checkpoints, tiny_models
from support.watched_runs import RUN, killed, unfinished

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 256, "head_dim": 128, "decoder_sparse_step": 1,
           "norm_topk_prob": True}
LENGTHS = [48] * 24
WEIGHED = ["--algorithm", "rtn", "--observer", "hessian"]


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return block_models.save(tmp_path_factory.mktemp("llama") / "model")


@pytest.fixture(scope="module")
def samples():
    return tiny_models.random_samples(LENGTHS, vocabulary=block_models.SIZES["vocab_size"], seed=3)


@pytest.fixture(scope="module")
def data(samples, tmp_path_factory):
    return ["--dataset", program.write_samples(tmp_path_factory.mktemp("data") / "samples.jsonl", samples)]


@pytest.fixture(scope="module")
def importance(llama, data, tmp_path_factory):
    """A file, and the result that errors weighed by the same data give."""
    folder = tmp_path_factory.mktemp("importance")
    program.oneshot(llama, folder / "out.gguf", *data, *WEIGHED, "--imatrix", folder / "importance.gguf")
    return folder / "importance.gguf", folder / "out.gguf"


def tensors(path):
    return {tensor.name: tensor.data for tensor in gguf.GGUFReader(path).tensors}


def same_weights(path, other):
    ours, theirs = tensors(path), tensors(other)
    return ours.keys() == theirs.keys() and all(np.array_equal(ours[name], theirs[name]) for name in ours)


def sums_of_inputs(folder, samples, modules):
    """Sums of squares of what linears read in the original model."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    sums = {}
    for name in modules:
        def add(module, inputs, name=name):
            sums[name] = sums.get(name, 0) + inputs[0].double().square().flatten(0, -2).sum(0)
        model.get_submodule(name).register_forward_pre_hook(add)
    with torch.no_grad():
        for sample in samples:
            model(torch.as_tensor(sample)[None])
    return {name: figures.numpy() for name, figures in sums.items()}


def test_what_llama_imatrix_writes(llama, data, samples, tmp_path):
    """From a run that writes compressed-tensors and calibrates on the original weights."""
    path = tmp_path / "importance.gguf"
    program.oneshot(llama, tmp_path / "out", *data, "--group-size", "32", "--pipeline", "basic", "--imatrix", path)
    assert [file.name for file in (tmp_path / "out").glob(".*")] == [RUN]
    fields = {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items() if not name.startswith("GGUF.")}
    assert fields == {"general.type": "imatrix", "imatrix.datasets": [str(data[1])], "imatrix.chunk_count": len(LENGTHS),
                      "imatrix.chunk_size": 2048}
    places = {"model.layers.0.self_attn.q_proj": "blk.0.attn_q", "model.layers.1.self_attn.o_proj": "blk.1.attn_output",
              "model.layers.2.mlp.down_proj": "blk.2.ffn_down"}
    found = tensors(path)
    assert len(found) == 2 * 7 * block_models.SIZES["num_hidden_layers"]  # the head is ignored
    for module, wanted in sums_of_inputs(llama, samples, places).items():
        assert found[f"{places[module]}.weight.counts"].tolist() == [[sum(LENGTHS)]]
        assert np.allclose(found[f"{places[module]}.weight.in_sum2"][0], wanted, rtol=0.05, atol=1e-3 * wanted.max())


def test_rounding_with_a_file_is_rounding_with_its_data(llama, importance, tmp_path):
    path, weighed = importance
    program.oneshot(llama, tmp_path / "out.gguf", "--from-imatrix", path)
    assert same_weights(tmp_path / "out.gguf", weighed)
    fields = gguf.GGUFReader(tmp_path / "out.gguf").fields
    assert fields["quantize.imatrix.file"].contents() == "importance.gguf"
    assert fields["quantize.imatrix.chunks_count"].contents() == len(LENGTHS)
    assert not same_weights(program.oneshot(llama, tmp_path / "plain.gguf", "--algorithm", "rtn"), weighed)


def test_experts_have_rows_of_their_own(data, tmp_path):
    model = block_models.save(tmp_path / "model", "Qwen3Moe", **EXPERTS)
    path = tmp_path / "importance.gguf"
    program.oneshot(model, tmp_path / "weighed.gguf", *data, *WEIGHED, "--imatrix", path, "--no-moe-calibrate-all-experts",
                    "--min-tokens-per-expert", "1")
    found = tensors(path)
    assert found["blk.1.ffn_down_exps.weight.in_sum2"].shape == (4, 256)
    counts = found["blk.1.ffn_up_exps.weight.counts"].ravel()
    assert counts.sum() == 2 * sum(LENGTHS) and len(set(counts)) > 1
    program.oneshot(model, tmp_path / "out.gguf", "--from-imatrix", path)
    assert same_weights(tmp_path / "out.gguf", tmp_path / "weighed.gguf")


@pytest.mark.parametrize("kind", ["missing", "zeros"])
def test_missing_tensors_are_named(kind, llama, importance, tmp_path):
    """Zeros are no figures: with them, all codes of a weight would be as good, and it became zero."""
    writer = gguf.GGUFWriter(tmp_path / "part.gguf", "")
    writer.kv_data[0].clear()
    writer.add_string("general.type", "imatrix")
    for name, values in tensors(importance[0]).items():
        if "ffn_up" not in name:
            writer.add_tensor(name, values)
        elif kind == "zeros":
            writer.add_tensor(name, values * name.endswith(".counts"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    outcome = program.run("oneshot", llama, "--output", tmp_path / "out.gguf", "--from-imatrix", tmp_path / "part.gguf")
    assert "no figures for 3 tensors" in outcome.errors and "blk.2.ffn_up.weight" in outcome.errors
    ours, whole = tensors(tmp_path / "out.gguf"), tensors(importance[1])
    differing = {name for name in ours if not np.array_equal(ours[name], whole[name])}
    assert differing == {f"blk.{i}.ffn_up.weight" for i in range(3)}


def test_killed_and_resumed(llama, data, tmp_path):
    arguments = [*data, "--sequential-targets", "Linear", "--imatrix"]
    program.oneshot(llama, tmp_path / "first.gguf", *arguments, tmp_path / "first.importance")
    out = tmp_path / "second.gguf"
    killed(llama, out, *arguments, tmp_path / "second.importance")
    assert not (tmp_path / "second.importance").exists()
    program.oneshot(llama, out, *arguments, tmp_path / "second.importance", "--resume")
    assert out.read_bytes() == (tmp_path / "first.gguf").read_bytes()
    assert (tmp_path / "second.importance").read_bytes() == (tmp_path / "first.importance").read_bytes()
    assert not unfinished(out).exists()


@pytest.fixture(scope="module")
def exact(tmp_path_factory):
    """A model whose sums have no rounding, with a tokenizer."""
    parent = tmp_path_factory.mktemp("exact")
    model = exact_model.ExactModel(parent, vocab_size=block_models.SIZES["vocab_size"])
    for file in tiny_checkpoints.save(parent / "tokenizer", "byte_level_split").iterdir():
        if file.name.startswith("tokenizer"):
            (model.folder / file.name).write_bytes(file.read_bytes())
    return model


def test_several_ranks_write_one_file(exact, tmp_path):
    """One GGUF with the bytes of one process, and one importance file."""
    arguments = [*exact_model.EXACT, "lm_head", *exact.data, "--scheme", "Q4_K_S", "--imatrix"]
    program.oneshot(exact.folder, tmp_path / "alone.gguf", *arguments, tmp_path / "alone.importance", "--threads", "1")
    out = ranked_runs.run(2, exact.folder, tmp_path / "both" / "out.gguf", *arguments, tmp_path / "both.importance")
    assert out.read_bytes() == (tmp_path / "alone.gguf").read_bytes()
    assert [file.name for file in out.parent.iterdir()] == ["out.gguf"]
    assert (tmp_path / "both.importance").read_bytes() == (tmp_path / "alone.importance").read_bytes()


def test_ranks_without_data_write_one_file(exact, tmp_path):
    arguments = ["--scheme", "Q4_0", "--algorithm", "rtn"]
    alone = program.oneshot(exact.folder, tmp_path / "alone.gguf", *arguments)
    assert ranked_runs.run(3, exact.folder, tmp_path / "all" / "out.gguf", *arguments).read_bytes() == alone.read_bytes()


@pytest.mark.parametrize("arguments, fragments", [
    (["--from-imatrix", "FILE", "--imatrix", "other"], ["--imatrix", "--from-imatrix"]),
    (["--from-imatrix", "FILE", "--algorithm", "gptq"], ["GPTQModifier measures inputs itself"]),
    (["--imatrix", "other"], ["--dataset"]),
    (["--imatrix", "other", "--pipeline", "datafree"], ["--imatrix"]),
])
def test_refused_options(llama, importance, arguments, fragments, tmp_path):
    given = [str(importance[0]) if argument == "FILE" else argument for argument in arguments]
    program.fails("oneshot", llama, "--output", tmp_path / "out.gguf", *given, fragments=fragments, code=2)
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_llama_cpp_cannot_have(data, tmp_path):
    """The file names tensors as llama.cpp does, whatever the result's format is."""
    model = block_models.save(tmp_path / "model", "Qwen3Moe", **{**EXPERTS, "norm_topk_prob": False})
    program.fails("oneshot", model, "--output", tmp_path / "out", *data, "--imatrix", tmp_path / "importance.gguf",
                  fragments=["--imatrix: leave it out", "norm_topk_prob"], code=2)


def test_data_beside_a_file(llama, importance, data, tmp_path):
    outcome = program.run("oneshot", llama, "--output", tmp_path / "out.gguf", "--from-imatrix", importance[0], *data)
    assert "--dataset has no effect" in outcome.errors


def test_a_file_of_another_model(importance, tmp_path):
    model = block_models.save(tmp_path / "model", intermediate_size=768)
    program.fails("oneshot", model, "--output", tmp_path / "out.gguf", "--from-imatrix", importance[0],
                  fragments=["blk.0.ffn_down.weight", "another model"], code=1)
