"""The Python package as scripts/build leaves it: build/python. Its tests need no process of their own."""

import sys

import pytest
from support import program, tiny_models

PACKAGE = program.PROGRAM.parent / "python"
# Before `python/`, which has the package's sources without the extension module.
sys.path.insert(0, str(PACKAGE))

SETTINGS = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3}
LENGTHS = [30, 64, 17, 64, 40, 64]


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A checkpoint with a tokenizer that gives the word wN the token N; tests must not change it."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = tiny_models.save(tmp_path_factory.mktemp("model") / "model", dtype=torch.bfloat16, **SETTINGS)
    words = {"<unk>": 0, **{f"w{i}": i for i in range(1, tiny_models.VOCABULARY)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", chat_template=template).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def samples():
    return [[int(token) for token in sample] for sample in tiny_models.random_samples(LENGTHS, seed=7)]


@pytest.fixture(scope="session")
def by_program(model, samples, tmp_path_factory):
    """What the command makes of the model."""
    folder = tmp_path_factory.mktemp("by_program")
    rows = program.write_samples(folder / "rows.jsonl", samples)
    recipe = folder / "recipe.yaml"
    recipe.write_text("s_stage: {m_modifiers: {GPTQModifier: {ignore: [lm_head], config_groups: {group_0: {targets: [Linear], "
                      "weights: {num_bits: 4, type: int, symmetric: true, strategy: group, group_size: 32}}}}}}")
    return program.oneshot(model, folder / "out", "--dataset", rows, "--recipe", recipe)


@pytest.fixture
def gptq():
    from layerpress.modifiers import GPTQModifier

    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
    return GPTQModifier(ignore=["lm_head"], config_groups={"group_0": {"targets": ["Linear"], "weights": weights}})


@pytest.fixture
def loaded(model):
    """The model in memory."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model, dtype="auto")
