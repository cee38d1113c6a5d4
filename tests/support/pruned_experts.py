"""What removing experts must give, computed from the original checkpoint with transformers and torch alone."""

import copy
import json
import math
import re
import shutil

import torch

from support import tiny_models

COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def recipe(folder, *modifiers, **arguments):
    """A recipe that removes experts, and then does what the other modifiers (type, arguments) say."""
    path = folder / "recipe.yaml"
    all_of_them = [("REAPPruningModifier", {"sparsity": 0.5, **arguments}), *modifiers]
    path.write_text(json.dumps({"prune_stage": {f"m{i}_modifiers": {kind: own} for i, (kind, own) in enumerate(all_of_them)}}))
    return path


def total_experts(source):
    config = json.loads((source / "config.json").read_text())
    return next(config.get("text_config", config)[key] for key in COUNTS if key in config.get("text_config", config))


def sliced(source, folder, kept):
    """A copy of the checkpoint `source` in which each layer has the experts of `kept` only."""
    shutil.copytree(source, folder)
    tensors, result = tiny_models.tensors(source), {}
    text, total = json.loads((source / "config.json").read_text()), total_experts(source)
    section = text.get("text_config", text)
    for name, tensor in tensors.items():
        layer = next((own for own in kept if name.startswith(own + ".")), None)
        expert = re.search(r"(.*\.experts\.)(\d+)(\..*)", name)
        if layer is None:
            result[name] = tensor
        elif expert:
            if int(expert[2]) in kept[layer]:
                result[f"{expert[1]}{kept[layer].index(int(expert[2]))}{expert[3]}"] = tensor
        else:
            rest = name.removeprefix(layer)
            shared = "shared" in rest or tensor.dim() == 0 or total not in tensor.shape
            result[name] = tensor if shared else tensor.index_select(list(tensor.shape).index(total), torch.tensor(kept[layer]))
    for key in COUNTS:
        if key in section:
            section[key] = len(next(iter(kept.values())))
    (folder / "config.json").write_text(json.dumps(text))
    tiny_models.rewrite_tensors(folder, {name: tensor.contiguous() for name, tensor in result.items()})
    return folder


def saliency(mlp, x):
    """Of the experts of a Qwen3Moe layer, by the definition: the mean over an expert's tokens of its weight times the length of
    its output."""
    chosen = torch.nn.functional.linear(x, mlp.gate.weight).softmax(-1).topk(mlp.gate.top_k, -1)
    weights = chosen.values / chosen.values.sum(-1, keepdim=True) if mlp.gate.norm_topk_prob else chosen.values
    found = []
    for expert in range(mlp.gate.weight.shape[0]):
        token, slot = (chosen.indices == expert).nonzero(as_tuple=True)
        gate, up = torch.nn.functional.linear(x[token], mlp.experts.gate_up_proj[expert]).chunk(2, -1)
        output = torch.nn.functional.linear(torch.nn.functional.silu(gate) * up, mlp.experts.down_proj[expert])
        contribution = weights[token, slot].double() * output.double().norm(dim=-1)
        found.append(float(contribution.mean()) if len(token) else 0.0)
    return found


def keep(layer, stay):
    """Leaves a layer of a Qwen3Moe model only these experts."""
    for owner, name in ((layer.mlp.gate, "weight"), (layer.mlp.experts, "gate_up_proj"), (layer.mlp.experts, "down_proj")):
        setattr(owner, name, torch.nn.Parameter(copy.deepcopy(getattr(owner, name).data[stay])))
    for owner in (layer.mlp, layer.mlp.gate, layer.mlp.experts):
        if hasattr(owner, "num_experts"):
            owner.num_experts = len(stay)


def measured(model, layer, samples):
    """The saliencies of the layer's experts."""
    inputs = []
    hook = layer.mlp.register_forward_pre_hook(lambda _, given: inputs.append(given[0].reshape(-1, given[0].shape[-1])))
    for sample in samples:
        model(torch.tensor([list(sample)]), use_cache=False)
    hook.remove()
    return torch.tensor(saliency(layer.mlp, torch.cat(inputs)))


@torch.no_grad()
def plain_choice(source, samples, dropped):
    """{layer: kept experts} of a Qwen3Moe model. A layer is measured behind layers without the experts that go."""
    model, kept = tiny_models.load(source), {}
    for number, layer in enumerate(model.model.layers):
        order = measured(model, layer, samples).argsort(descending=True, stable=True)
        kept[f"model.layers.{number}.mlp"] = sorted(order[:len(order) - dropped].tolist())
        keep(layer, kept[f"model.layers.{number}.mlp"])
    return kept


@torch.no_grad()
def plain_choice_over_layers(source, samples, dropped, least):
    """The same where layers may keep different numbers: the whole model is measured, and all experts are compared."""
    model = tiny_models.load(source)
    scores = torch.stack([measured(model, layer, samples) for layer in model.model.layers])
    scores /= scores.max(-1, keepdim=True).values
    kept = [set(range(scores.shape[1])) for _ in scores]
    for place in scores.flatten().argsort().tolist():
        layer, expert = divmod(place, scores.shape[1])
        if dropped and len(kept[layer]) > least:
            kept[layer].remove(expert)
            dropped -= 1
    return {f"model.layers.{number}.mlp": sorted(own) for number, own in enumerate(kept)}


@torch.no_grad()
def perplexity_with(source, kept, samples):
    """That of the original in which each layer has only the experts of `kept`."""
    model, total, count = tiny_models.load(source), 0.0, 0
    for number, layer in enumerate(model.model.layers):
        keep(layer, kept[f"model.layers.{number}.mlp"])
    for sample in samples:
        ids = torch.tensor([list(sample)])
        losses = torch.nn.functional.cross_entropy(model(ids, use_cache=False).logits[0, :-1].double(), ids[0, 1:], reduction="sum")
        total, count = total + float(losses), count + ids.shape[1] - 1
    return math.exp(total / count)
