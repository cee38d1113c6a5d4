"""`layerpress prepare --generate`: samples that the model itself writes."""

import json
import shutil

import pytest
import torch
from layerpress_data.continuations import answer
from layerpress_data.errors import PrepareError
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
    (model / "generation_config.json").write_text("{}")
    tiny_models.rewrite_config(model, lambda config: config.update(eos_token_id=None, bos_token_id=None))
    samples = tiny_models.random_samples(LENGTHS, seed=3)
    return model, samples, program.write_samples(folder / "samples.jsonl", samples)


def prepared(model, data, out, *options):
    outcome = program.run("prepare", model, "--dataset", data, "--output", out, *options)
    tensors = load_file(out)
    bounds = tensors["sample_offsets"].tolist()
    return outcome, [tensors["input_ids"][a:b].tolist() for a, b in zip(bounds, bounds[1:])]


def greedy(model, beginning, length=LENGTHS[0]):
    ids = torch.tensor([beginning])
    made = tiny_models.load(model).generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=length - len(beginning),
                                            eos_token_id=None, pad_token_id=0)
    return made[0].tolist()


def test_what_the_model_writes(parts, tmp_path):
    """Behind the given samples; each goes on from a part of one, the parts of one sample lie evenly in it, and it gets as long as the longest."""
    model, samples, data = parts
    outcome, made = prepared(model, data, tmp_path / "tokens.safetensors", "--generate", "10")
    assert made[:4] == samples and len(made) == 14
    assert f"14 samples, {sum(map(len, made))} tokens" in outcome.output
    for i, ids in enumerate(made[4:]):
        sample = samples[i % 4]
        prefix = min(64, (len(sample) + 1) // 2)
        start = (len(sample) - prefix) * (i // 4) // 3
        assert ids == greedy(model, sample[start:start + prefix]), i
    out = tmp_path / "out"
    run = program.run("oneshot", model, "--output", out, "--dataset", tmp_path / "tokens.safetensors", "--summary", tmp_path / "summary.json",
                      "--group-size", "32")
    assert run.code == 0
    assert json.loads((tmp_path / "summary.json").read_text())["samples"] == 14


def test_chance_follows_the_seed(tmp_path):
    model = tiny_models.save(tmp_path / "model")
    data = program.write_samples(tmp_path / "samples.jsonl", tiny_models.random_samples([30], seed=3))
    outcome, first = prepared(model, data, tmp_path / "t.safetensors", "--generate", "2", "--seed", 1)
    assert "--seed" not in outcome.errors
    again, other = (prepared(model, data, tmp_path / "t.safetensors", "--generate", "2", "--seed", seed)[1] for seed in (1, 2))
    assert first == again != other
    assert first[1] != first[2]


def test_a_text_may_end(parts, tmp_path):
    """At a token that ends no turn; what else generation_config.json has changes nothing."""
    model = shutil.copytree(parts[0], tmp_path / "model")
    sample = tiny_models.random_samples([40], seed=5)[0]
    data = program.write_samples(tmp_path / "samples.jsonl", [sample])
    written = prepared(model, data, tmp_path / "t.safetensors", "--generate", "1")[1][1]
    end = next(token for token in written[22:] if token not in sample)
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [end], "do_sample": False, "repetition_penalty": 9.0}))
    shorter = prepared(model, data, tmp_path / "t.safetensors", "--generate", "1")[1][1]
    assert shorter == written[:written.index(end, 20) + 1] and len(shorter) < len(written)


def test_texts_keep_their_first_token_and_conversations_their_beginning(parts, tmp_path):
    model = shutil.copytree(parts[0], tmp_path / "model")
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 95]}))
    tiny_models.rewrite_config(model, lambda config: config.update(bos_token_id=1, eos_token_id=7))
    text, talk = ([1] + [token for token in sample if token not in (1, 7, 95)] for sample in tiny_models.random_samples([180, 140], seed=4))
    talk[40] = talk[100] = 7  # the end of a turn, which ends no text here
    data = program.write_samples(tmp_path / "samples.jsonl", [text, talk])
    made = prepared(model, data, tmp_path / "t.safetensors", "--generate", "6")[1]
    assert made[:2] == [text, talk]
    for i in range(3):
        start, later = (len(text) - 64) * i // 3, (len(talk) - 64) * i // 3
        for ids, part in ((made[2 + 2 * i], [1] + text[start + 1:start + 64]), (made[3 + 2 * i], talk[:later + 64])):
            wanted = greedy(model, part, len(text))
            assert ids == wanted[:wanted.index(95, len(part)) + 1] if 95 in wanted[len(part):] else ids == wanted, i


def test_compressed_checkpoints(tmp_path):
    model = tiny_models.save(tmp_path / "model", dtype=torch.bfloat16)
    program.run("oneshot", model, "--output", tmp_path / "out", "--algorithm", "rtn", "--scheme", "NVFP4A16")
    data = program.write_samples(tmp_path / "samples.jsonl", tiny_models.random_samples([30], seed=3))
    assert len(prepared(tmp_path / "out", data, tmp_path / "t.safetensors", "--generate", "2")[1]) == 3


def test_a_tensor_that_transformers_does_not_find(parts, tmp_path):
    """It would have random values."""
    model, _, _ = parts
    broken = shutil.copytree(model, tmp_path / "broken")
    tensors = tiny_models.tensors(broken)
    name = "model.layers.1.mlp.up_proj.weight"
    tiny_models.rewrite_tensors(broken, {other: value for other, value in tensors.items() if other != name})
    with pytest.raises(PrepareError, match=name.replace(".", "[.]")):
        answer({"model": str(broken), "samples": [[1, 2, 3]], "continuations": 2, "output": str(tmp_path / "t.safetensors"), "seed": 0,
                "trust_remote_code": False}, lambda _: None)
    assert not (tmp_path / "t.safetensors").exists()


def test_refusals(parts, tmp_path):
    model, samples, data = parts
    out = tmp_path / "t.safetensors"
    request = ("prepare", model, "--dataset", data, "--output", out)
    program.fails(*request, "--generate", "-1", code=2, fragments=["--generate"])
    masked = tmp_path / "masked.jsonl"
    masked.write_text(json.dumps({"input_ids": samples[0], "loss_mask": [1] * len(samples[0])}))
    program.fails("prepare", model, "--dataset", masked, "--output", out, "--use-loss-mask", "--generate", "2", code=2,
                  fragments=["--generate", "--use-loss-mask"])
    damaged = tiny_models.save(tmp_path / "damaged")
    tensors = tiny_models.tensors(damaged)
    tiny_models.rewrite_tensors(damaged, {name: torch.full_like(value, float("nan")) for name, value in tensors.items()})
    program.fails("prepare", damaged, "--dataset", data, "--output", out, "--generate", "2", code=1,
                  fragments=["cannot continue the samples", "layerpress verify"])
    short = program.write_samples(tmp_path / "short.jsonl", [[5], [7]])
    program.fails("prepare", model, "--dataset", short, "--output", out, "--generate", "2", code=1, fragments=["two tokens"])
    assert not out.exists()
