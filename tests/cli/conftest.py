"""Small checkpoints and data for runs of the program."""

import shutil
from pathlib import Path

import pytest
from support import program, tiny_models

SETTINGS = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3}


def save_tokenizer(folder):
    """A tokenizer that gives the word wN the token N."""
    import json

    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"<unk>": 0, **{f"w{i}": i for i in range(1, tiny_models.VOCABULARY)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast",
                "chat_template": "{% for m in messages %}{{ m.content }} {% endfor %}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A checkpoint with a tokenizer; tests must not change it."""
    import torch

    folder = tiny_models.save(tmp_path_factory.mktemp("model") / "model", dtype=torch.bfloat16, **SETTINGS)
    save_tokenizer(folder)
    return folder


@pytest.fixture
def broken(model, tmp_path):
    """A copy of the model to spoil."""
    return Path(shutil.copytree(model, tmp_path / "broken"))


@pytest.fixture(scope="session")
def samples(tmp_path_factory):
    rows = tiny_models.random_samples([30, 64, 17, 64, 40, 64, 55, 21], seed=7)
    return program.write_samples(tmp_path_factory.mktemp("data") / "samples.jsonl", rows)


@pytest.fixture
def results(tmp_path):
    """The folder that outputs are made in; empty."""
    folder = tmp_path / "results"
    folder.mkdir()
    return folder


@pytest.fixture
def refused(results):
    """`oneshot`, which must fail with `code` and an error line with all `fragments`, and leave nothing behind."""

    def run(model, *arguments, fragments, code=1, **options):
        outcome = program.fails("oneshot", model, "--output", results / "out", *arguments, fragments=fragments, code=code,
                                **options)
        assert list(results.iterdir()) == []
        assert outcome.output == ""
        return outcome

    return run


@pytest.fixture(scope="session")
def rounding():
    """The fastest way to compress: no data."""
    return ["--algorithm", "rtn", "--group-size", "32"]


@pytest.fixture(scope="session")
def solving(samples):
    """GPTQ."""
    return ["--group-size", "32", "--dataset", samples]
