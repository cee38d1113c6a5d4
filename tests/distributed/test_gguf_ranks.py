"""GGUF files that ranks write together, and GGUF files that they read: the bytes are those of one process."""

import shutil

import gguf
import pytest
from support import exact_model, program, ranked_runs, tiny_checkpoints, tiny_models
from support.exact_model import EXACT, SUBGRAPHS
from support.ranked_runs import RankedRun
from support.watched_runs import contents

RECIPE = """
blocks_stage:
  blocks_modifiers:
    QuantizationModifier:
      config_groups:
        gates: {targets: ['re:.*(gate|up)_proj$'], format: Q6_K}
        others: {targets: ['re:.*(q|k|v)_proj$'], format: Q8_0}
"""


@pytest.fixture(scope="module")
def worded(tmp_path_factory):
    """The exact model with a tokenizer that a GGUF can hold."""
    parent = tmp_path_factory.mktemp("worded")
    exact = exact_model.ExactModel(parent, vocab_size=768)
    for file in tiny_checkpoints.save(parent / "tokenizer", "byte_level_split").glob("tokenizer*"):
        shutil.copy(file, exact.folder)
    exact.blocks = [*EXACT, *exact.data, "--scheme", "Q4_K_M"]
    return exact


@pytest.fixture(scope="module")
def source(worded):
    """The same model as a GGUF, some of whose linears are in blocks; the inputs of linears stay exact."""
    recipe = worded.folder.parent / "recipe.yaml"
    recipe.write_text(RECIPE)
    file = program.oneshot(worded.folder, worded.folder.parent / "source.gguf", "--recipe", recipe)
    assert {tensor.tensor_type.name for tensor in gguf.GGUFReader(file).tensors} == {"Q6_K", "Q8_0", "BF16", "F32"}
    return file


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What one process makes of a model with some options, made once."""
    made = {}

    def get(model, name, *options):
        key = (model, name, *map(str, options))
        if key not in made:
            made[key] = program.oneshot(model, tmp_path_factory.mktemp("alone") / name, *options, "--threads", "1")
        return made[key]

    return get


def killed_and_resumed(ranks, model, out, *options):
    """A run of some ranks, one of which is killed in the middle; the same ranks go on."""
    RankedRun(ranks, model, out, *options, "--timeout", ranked_runs.TIMEOUT).wait_for_subgraphs(SUBGRAPHS // 2).kill(1).end_by_failing("rank 1 ")
    return ranked_runs.run(ranks, model, out, *options, "--resume")


def test_ranks_write_one_file(worded, alone, results):
    out = ranked_runs.run(2, worded.folder, results / "out.gguf", *worded.blocks)
    assert out.read_bytes() == alone(worded.folder, "out.gguf", *worded.blocks).read_bytes()
    assert list(results.iterdir()) == [out]


def test_ranks_go_on_with_a_file(worded, alone, results):
    out = killed_and_resumed(2, worded.folder, results / "out.gguf", *worded.blocks)
    assert out.read_bytes() == alone(worded.folder, "out.gguf", *worded.blocks).read_bytes()


def test_ranks_go_on_with_parts(worded, alone, results):
    how = [*worded.blocks, "--max-shard-size", "300KB"]
    out = killed_and_resumed(2, worded.folder, results / "out.gguf", *how)
    expected = contents(alone(worded.folder, "out.gguf", *how))
    assert contents(out) == expected and len(expected) > 3


def test_ranks_read_a_file(source, worded, alone, results):
    wanted = tiny_models.tensors(alone(source, "out", *worded.solving))
    assert exact_model.differing(ranked_runs.run(2, source, results / "out", *worded.solving), wanted) == []
    wanted = alone(source, "out.gguf", *worded.blocks)
    assert ranked_runs.run(2, source, results / "out.gguf", *worded.blocks).read_bytes() == wanted.read_bytes()


def test_ranks_go_on_reading_a_file(source, worded, alone, results):
    wanted = tiny_models.tensors(alone(source, "out", *worded.solving))
    assert exact_model.differing(killed_and_resumed(2, source, results / "out", *worded.solving), wanted) == []
