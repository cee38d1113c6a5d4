"""`layerpress eval` against the same figures computed from transformers' logits."""

import json
import math
import shutil

import numpy
import pytest
import test_loading
import torch
from safetensors.torch import save_file
from support import program, tiny_checkpoints, tiny_models


def log_probabilities(folder, samples):
    return [torch.log_softmax(torch.from_numpy(each).double(), -1) for each in tiny_models.logits(folder, samples)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    parent = tmp_path_factory.mktemp("evaluated")
    samples = tiny_models.random_samples([40, 7, 64, 1, 23], seed=9)
    program.write_samples(parent / "samples.jsonl", samples)
    tiny_models.save(parent / "reference", seed=1)
    model = tiny_models.save(parent / "model", seed=1)
    with torch.no_grad():
        changed = tiny_models.load(model)
        for parameter in changed.parameters():
            parameter.mul_(1 + 0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)))
        changed.save_pretrained(model)
    return parent, samples


def test_perplexity_and_divergence(folders):
    parent, samples = folders
    ours = program.run("eval", parent / "model", "--dataset", parent / "samples.jsonl", "--reference", parent / "reference",
                       "--dtype", "float32").json()
    model, reference = (log_probabilities(parent / name, samples) for name in ("model", "reference"))
    losses = [-logs[:-1].gather(1, torch.tensor(sample[1:]).unsqueeze(1)) for logs, sample in zip(model, samples)
              if len(sample) > 1]
    divergence = torch.cat([(wanted.exp() * (wanted - logs)).sum(-1) for logs, wanted in zip(model, reference)])
    agreement = torch.cat([logs.argmax(-1) == wanted.argmax(-1) for logs, wanted in zip(model, reference)])
    assert ours["tokens"] == sum(len(loss) for loss in losses)
    assert ours["perplexity"] == pytest.approx(math.exp(torch.cat(losses).mean()), rel=1e-4)
    assert ours["kl_divergence"] == pytest.approx(divergence.mean().item(), rel=1e-3) and divergence.mean() > 0.05
    assert ours["top1_agreement"] == pytest.approx(agreement.double().mean().item())
    assert ours["kl_median"] == pytest.approx(divergence.quantile(0.5).item(), rel=1e-3)
    assert ours["kl_percentile_99"] == pytest.approx(divergence.quantile(0.99).item(), rel=1e-3)
    places = [(sample, position) for sample, ids in enumerate(samples) for position in range(len(ids))]
    wanted = [(*places[i], samples[places[i][0]][places[i][1]]) for i in divergence.argsort(descending=True)[:5]]
    assert [(token["sample"], token["position"], token["id"]) for token in ours["worst_tokens"]] == wanted
    assert [token["kl_divergence"] for token in ours["worst_tokens"]] == pytest.approx(divergence.sort(descending=True).values[:5].tolist(), rel=1e-3)
    assert {token["text"] for token in ours["worst_tokens"]} == {""}  # these models have no tokenizer


def test_worst_token_has_its_text(folders, tmp_path):
    """And the table quotes it, with the tokens before it."""
    parent, _ = folders
    model = tmp_path / "model"
    shutil.copytree(parent / "model", model)
    tiny_checkpoints.save_words(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).rename(model / name)
    data = program.write_samples(tmp_path / "words.jsonl", [[(7 * i + 1) % 99 + 1 for i in range(20)]])
    measure = ("eval", model, "--dataset", data, "--reference", parent / "reference")
    ids = json.loads(data.read_text())["input_ids"]
    worst = program.run(*measure).json()["worst_tokens"]
    for token in worst:
        at = token["position"]
        assert token["text"] == f"w{ids[at]}" and token["before"] == " ".join(f"w{i}" for i in ids[max(0, at - 12):at])
    lines = program.run(*measure, "--table").output.splitlines()
    [at] = [at for at, line in enumerate(lines) if "worst token" in line]
    assert lines[at].endswith(f'sample 0, position {worst[0]["position"]}')
    assert lines[at + 1].startswith(f'    "{worst[0]["text"]}"') and len(lines[at + 1]) <= 80


def test_residual_stream(folders):
    """How far the stream behind every layer is from the reference's, as hidden states have it."""
    parent, samples = folders
    ours = program.run("eval", parent / "model", "--dataset", parent / "samples.jsonl", "--reference", parent / "reference",
                       "--dtype", "float32").json()["layers"]
    streams = []
    for name in ("model", "reference"):
        model = tiny_models.load(parent / name).float()
        captured = [[] for _ in model.model.layers]
        hooks = [layer.register_forward_hook(
            lambda _, __, output, kept=kept: kept.append((output[0] if isinstance(output, tuple) else output)[0].double()))
            for layer, kept in zip(model.model.layers, captured)]
        with torch.no_grad():
            for sample in samples:
                model(torch.tensor([sample]))
        for hook in hooks:
            hook.remove()
        streams.append([torch.cat(kept) for kept in captured])
    wanted = [((own - other).norm(dim=1) / other.norm(dim=1)).mean().item() for own, other in zip(*streams)]
    assert [layer["name"] for layer in ours] == [f"model.layers.{i}" for i in range(len(wanted))] and len(wanted) > 1
    assert [layer["relative_error"] for layer in ours] == pytest.approx(wanted, rel=1e-3) and wanted[0] > 0.01


def test_table(folders):
    parent, _ = folders
    text = program.run("eval", parent / "model", "--dataset", parent / "samples.jsonl", "--reference", parent / "reference",
                       "--table").output
    rows = dict(line.rsplit(maxsplit=1) for line in text.splitlines() if line and not line.endswith((" %", "after")))
    assert {"perplexity", "tokens", "KL divergence", "  median token", "  99th percentile", "seconds", "model.layers.0"} <= rows.keys()
    assert float(rows["perplexity"]) > 1 and "top-1 agreement" in text


def test_other_layers_are_not_compared(folders, tmp_path):
    parent, _ = folders
    deeper = tiny_models.save(tmp_path / "deeper", num_hidden_layers=3)
    ours = program.run("eval", parent / "model", "--dataset", parent / "samples.jsonl", "--reference", deeper).json()
    assert ours["kl_divergence"] > 0 and "layers" not in ours


@pytest.mark.parametrize("options, kept, length", [([], 5, 64), (["--num-samples", "2"], 2, 64), (["--max-seq-length", "10"], 5, 10)])
def test_which_tokens(options, kept, length, folders):
    parent, samples = folders
    ours = program.run("eval", parent / "model", "--dataset", parent / "samples.jsonl", "--dtype", "float32", *options).json()
    cut = [sample[:length] for sample in samples[:kept]]
    losses = [-logs[:-1].gather(1, torch.tensor(sample[1:]).unsqueeze(1))
              for logs, sample in zip(log_probabilities(parent / "model", cut), cut) if len(sample) > 1]
    assert ours["tokens"] == sum(len(loss) for loss in losses)
    assert ours["perplexity"] == pytest.approx(math.exp(torch.cat(losses).mean()), rel=1e-4)
    assert ours.keys() == {"perplexity", "tokens", "seconds"}


def test_batches_do_not_matter(folders):
    parent, _ = folders
    run = lambda *options: program.run("eval", parent / "model", "--dataset", parent / "samples.jsonl", *options).json()
    assert run("--batch-tokens", "10")["perplexity"] == pytest.approx(run()["perplexity"], rel=1e-5)


def test_nothing_to_predict(folders, tmp_path):
    parent, _ = folders
    data = program.write_samples(tmp_path / "short.jsonl", [[1], [2]])
    program.fails("eval", parent / "model", "--dataset", data, fragments=["two tokens"])


def test_vocabularies_differ(folders, tmp_path):
    parent, _ = folders
    other = tiny_models.save(tmp_path / "other", vocab_size=80)
    program.fails("eval", parent / "model", "--dataset", parent / "samples.jsonl", "--reference", other, code=2,
                  fragments=["80", "96"])


def test_tokenizers_differ(folders, tmp_path):
    """A file that was only formatted otherwise is the same tokenizer."""
    parent, _ = folders
    for name in ("model", "reference"):
        shutil.copytree(parent / name, tmp_path / name)
    tiny_checkpoints.save_words(tmp_path)
    made = tmp_path / "tokenizer.json"
    for name in ("model", "reference"):
        for file in (made, tmp_path / "tokenizer_config.json"):
            shutil.copy(file, tmp_path / name)
    tokenizer = json.loads(made.read_text())
    (tmp_path / "reference" / made.name).write_text(json.dumps(tokenizer, indent=7))
    data = tmp_path / "text.jsonl"
    data.write_text(json.dumps({"text": "w3 w4 w7 w9 w4 w3"}))
    measure = ("eval", tmp_path / "model", "--reference", tmp_path / "reference", "--dataset", data)
    assert "--reference" not in program.run(*measure).errors
    words = tokenizer["model"]["vocab"]
    words["w3"], words["w4"] = words["w4"], words["w3"]
    (tmp_path / "reference" / made.name).write_text(json.dumps(tokenizer))
    outcome = program.run(*measure)
    assert f"the tokenizer of {tmp_path / 'reference'} makes other tokens of {data} than that of {tmp_path / 'model'}" in outcome.errors
    assert outcome.json()["kl_divergence"] > 0


def test_quantized_activations(folders, tmp_path):
    """The perplexity of the logits that transformers computes with quantized activations."""
    parent, samples = folders
    made = program.run("oneshot", parent / "model", "--output", tmp_path / "W8A8", "--algorithm", "rtn", "--scheme", "FP8_DYNAMIC")
    assert made.code == 0
    run = lambda *options: program.run("eval", tmp_path / "W8A8", "--dataset", parent / "samples.jsonl", "--dtype", "float32",
                                       *options).json()
    plain, served = run(), run("--quantize-activations")
    assert served["rounded_linears"] == 14 and "rounded_linears" not in plain
    losses = [-logs[:-1].gather(1, torch.tensor(sample[1:]).unsqueeze(1))
              for logs, sample in zip(log_probabilities(tmp_path / "W8A8", samples), samples) if len(sample) > 1]
    wanted = math.exp(torch.cat(losses).mean())
    assert abs(served["perplexity"] / wanted - 1) < 0.2 * abs(plain["perplexity"] / wanted - 1) + 1e-4


def test_no_activations_to_quantize(folders):
    parent, _ = folders
    program.fails("eval", parent / "model", "--dataset", parent / "samples.jsonl", "--quantize-activations", code=2,
                  fragments=["--quantize-activations", "no scheme"])

def test_static_scales(folders, tmp_path):
    """Static scales are read from the checkpoint; bad ones are named."""
    parent, samples = folders
    folder = tmp_path / "W8A8"
    program.run("oneshot", parent / "model", "--output", folder, "--algorithm", "rtn", "--scheme", "FP8_DYNAMIC")
    config = json.loads((folder / "config.json").read_text())
    group = config["quantization_config"]["config_groups"]["group_0"]
    group["input_activations"] |= {"strategy": "tensor", "dynamic": False}
    (folder / "config.json").write_text(json.dumps(config))
    modules = [name.removesuffix(".weight_scale") for name in tiny_models.tensors(folder) if name.endswith(".weight_scale")]

    def write(scale):
        tensors = {n: t for n, t in tiny_models.tensors(folder).items() if not n.endswith(".input_scale")}
        scales = {f"{name}.input_scale": torch.tensor([scale]) for name in modules if scale is not None}
        save_file(tensors | scales, folder / "model.safetensors", metadata={"format": "pt"})

    write(0.05)
    ours = program.logits(folder, samples, tmp_path, options=["--quantize-activations"])
    for mine, sample, plain in zip(ours, samples, program.logits(folder, samples, tmp_path)):
        theirs = test_loading.logits_of(test_loading.load(folder), sample)
        assert numpy.abs(mine - theirs).mean() < 0.01 * theirs.std() + 0.2 * numpy.abs(plain - theirs).mean()
    for scale, fragment in ((0.0, "positive"), (-1.0, "positive"), (math.nan, "finite"), (None, "missing")):
        write(scale)
        program.fails("eval", folder, "--dataset", parent / "samples.jsonl", "--quantize-activations",
                      fragments=["input_scale", fragment])


@pytest.mark.parametrize("graph", ["builtin", "export"])
def test_logits_that_are_capped_after_the_head(graph, tmp_path, monkeypatch):
    """Gemma 2 bends its logits behind the head. The sample is longer than the chunks that logits are computed in."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tiny_models.save(tmp_path / "model", "Gemma2", final_logit_softcapping=0.5, max_position_embeddings=512)
    samples = tiny_models.random_samples([257, 290], seed=3)
    program.write_samples(tmp_path / "samples.jsonl", samples)
    ours = program.run("eval", folder, "--dataset", tmp_path / "samples.jsonl", "--dtype", "float32", "--model-graph", graph,
                       "--reference", folder).json()
    losses = [-logs[:-1].gather(1, torch.tensor(sample[1:]).unsqueeze(1))
              for logs, sample in zip(log_probabilities(folder, samples), samples)]
    assert ours["perplexity"] == pytest.approx(math.exp(torch.cat(losses).mean()), rel=1e-5)
    assert ours["kl_divergence"] == pytest.approx(0, abs=1e-9)
