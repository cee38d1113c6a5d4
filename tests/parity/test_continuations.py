"""`layerpress prepare --generate`: samples that the model itself writes."""

import json

import pytest
import torch
from safetensors.torch import load_file
from support import program, tiny_models

LENGTHS = [200, 9, 130, 1]


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """A model that is sure of each next token, so that what it writes does not depend on chance; and samples."""
    folder = tmp_path_factory.mktemp("continued")
    model = tiny_models.save(folder / "model", tie_word_embeddings=False)
    tensors = tiny_models.tensors(model)
    tiny_models.rewrite_tensors(model, tensors | {"lm_head.weight": 3000 * tensors["lm_head.weight"]})
    samples = tiny_models.random_samples(LENGTHS, seed=3)
    return model, samples, program.write_samples(folder / "samples.jsonl", samples)


def prepared(model, data, out, *options):
    outcome = program.run("prepare", model, "--dataset", data, "--output", out, *options)
    tensors = load_file(out)
    bounds = tensors["sample_offsets"].tolist()
    return outcome, [tensors["input_ids"][a:b].tolist() for a, b in zip(bounds, bounds[1:])]


def greedy(model, beginning, length):
    if len(beginning) == length:
        return beginning
    ids = torch.tensor([beginning])
    made = tiny_models.load(model).generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=length - len(beginning),
                                            eos_token_id=None, pad_token_id=0)
    return made[0].tolist()


def test_what_the_model_writes(parts, tmp_path):
    """Behind the given samples; each goes on from a part of one, the parts of one sample lie evenly in it, and it gets as long."""
    model, samples, data = parts
    outcome, made = prepared(model, data, tmp_path / "tokens.safetensors", "--generate", "10")
    assert made[:4] == samples and len(made) == 14
    assert f"14 samples, {sum(map(len, made))} tokens" in outcome.output
    for i, ids in enumerate(made[4:]):
        sample = samples[i % 4]
        prefix = min(64, (len(sample) + 1) // 2)
        start = (len(sample) - prefix) * (i // 4) // 3
        assert ids == greedy(model, sample[start:start + prefix], len(sample)), i
    out = tmp_path / "out"
    run = program.run("oneshot", model, "--output", out, "--dataset", tmp_path / "tokens.safetensors", "--summary", tmp_path / "summary.json",
                      "--group-size", "32")
    assert run.code == 0
    assert json.loads((tmp_path / "summary.json").read_text())["samples"] == 14


def test_chance_follows_the_seed(tmp_path):
    model = tiny_models.save(tmp_path / "model")
    data = program.write_samples(tmp_path / "samples.jsonl", tiny_models.random_samples([30], seed=3))
    first, again, other = (prepared(model, data, tmp_path / "t.safetensors", "--generate", "2", "--seed", seed)[1] for seed in (1, 1, 2))
    assert first == again != other
    assert first[1] != first[2]


def test_a_text_may_end(parts, tmp_path):
    model, samples, data = parts
    written = prepared(model, data, tmp_path / "t.safetensors", "--generate", "1")[1][4]
    end = written[100]
    ended = tiny_models.save(tmp_path / "ended", tie_word_embeddings=False)
    tiny_models.rewrite_tensors(ended, tiny_models.tensors(model))
    (ended / "generation_config.json").write_text(json.dumps({"eos_token_id": [end], "do_sample": False, "repetition_penalty": 9.0}))
    shorter = prepared(ended, data, tmp_path / "t.safetensors", "--generate", "1")[1][4]
    assert shorter == written[:written.index(end, 64) + 1] and len(shorter) < len(written)


def test_refusals(parts, tmp_path):
    model, samples, data = parts
    out = tmp_path / "t.safetensors"
    request = ("prepare", model, "--dataset", data, "--output", out)
    program.fails(*request, "--generate", "-1", code=2, fragments=["--generate"])
    masked = tmp_path / "masked.jsonl"
    masked.write_text(json.dumps({"input_ids": samples[0], "loss_mask": [1] * len(samples[0])}))
    program.fails("prepare", model, "--dataset", masked, "--output", out, "--use-loss-mask", "--generate", "2", code=2,
                  fragments=["--generate", str(masked), "loss masks"])
    damaged = tiny_models.save(tmp_path / "damaged")
    tensors = tiny_models.tensors(damaged)
    tiny_models.rewrite_tensors(damaged, {name: torch.full_like(value, float("nan")) for name, value in tensors.items()})
    program.fails("prepare", damaged, "--dataset", data, "--output", out, "--generate", "2", code=1,
                  fragments=["cannot continue samples", "layerpress verify"])
    assert not out.exists()
