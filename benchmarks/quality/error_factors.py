"""What turns the output error of rounded linears into a divergence of predictions: several factors, compared on a Llama with PyTorch.

    .venv/bin/python benchmarks/quality/error_factors.py MODEL TEXT.jsonl

For every group of linears that get one scheme, the divergence with that group alone in 4 bits is measured, and predicted by each factor
from its error in 4 bits. Printed are the rank correlation, and the standard deviation of the predictions' logarithms after one common
factor. See docs/mixed-precision.md.
"""
import argparse
import json
import math
import sys
from pathlib import Path

import numpy
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "examples" / "demo"), str(ROOT / "benchmarks" / "peer_comparison")]

from report import table  # noqa: E402

FAMILIES = ("self_attn.q_proj self_attn.k_proj self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj mlp.up_proj", "mlp.down_proj")


def rounded(weight: torch.Tensor, bits: int, group: int = 64) -> torch.Tensor:
    """Symmetric integers; of several ranges the one with the least squared error."""
    groups, most = weight.view(weight.shape[0], -1, group), 2 ** (bits - 1) - 1
    widest = groups.abs().amax(-1, keepdim=True)
    best = least = None
    for share in (1.0, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6):
        scale = (widest * share / (most + 0.5)).clamp_min(1e-12)
        values = (groups / scale).round().clamp(-most - 1, most) * scale
        error = (values - groups).square().sum(-1, keepdim=True)
        best = values if best is None else torch.where(error < least, values, best)
        least = error if least is None else torch.minimum(error, least)
    return best.view_as(weight)


class Model:
    """A model whose layers run from any of them on."""

    def __init__(self, folder: Path, text: Path, samples: int, length: int):
        self.whole = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        tokenizer, body = AutoTokenizer.from_pretrained(folder), self.whole.model
        rows = (tokenizer(json.loads(line)["text"]).input_ids for line in text.read_text(encoding="utf-8").splitlines())
        self.ids = torch.tensor([ids[:length] for ids in rows if len(ids) >= length][:samples])
        self.positions = torch.arange(length)[None]
        self.angles = body.rotary_emb(torch.zeros(1, 1, self.whole.config.hidden_size), self.positions)
        self.mask = torch.full((length, length), -math.inf).triu(1)[None, None]
        self.modules = dict(body.named_modules())
        self.inputs, self.grams = [body.embed_tokens(self.ids)], {}
        hooks = [module.register_forward_hook(self.adding_gram(name)) for name, module in self.modules.items()
                 if name.startswith("layers.") and isinstance(module, torch.nn.Linear)]
        for layer in body.layers:
            self.inputs.append(self.through(layer, self.inputs[-1]))
        for hook in hooks:
            hook.remove()
        self.logs = self.predictions(self.inputs[-1])

    def adding_gram(self, name):
        def add(module, given, output):
            rows = given[0].reshape(-1, given[0].shape[-1])
            self.grams[name] = rows.T @ rows

        return add

    def through(self, layer, hidden):
        out = layer(hidden, attention_mask=self.mask, position_ids=self.positions, position_embeddings=self.angles)
        return out[0] if isinstance(out, tuple) else out

    def predictions(self, hidden):
        return self.whole.lm_head(self.whole.model.norm(hidden)).log_softmax(-1)

    def disturbed(self, layer: int, weights: dict[str, torch.Tensor]) -> tuple[float, float]:
        """KL divergence, and the last layer's squared relative error, with these weights in that layer."""
        saved = {name: self.modules[name].weight.data for name in weights}
        for name, weight in weights.items():
            self.modules[name].weight.data = weight
        hidden = self.inputs[layer]
        for module in self.whole.model.layers[layer:]:
            hidden = self.through(module, hidden)
        for name, weight in saved.items():
            self.modules[name].weight.data = weight
        error = ((hidden - self.inputs[-1]).norm(dim=-1) / self.inputs[-1].norm(dim=-1)).square().mean()
        return float((self.logs.exp() * (self.logs - self.predictions(hidden))).sum(-1).mean()), float(error)

    def output_error(self, name: str, weight: torch.Tensor) -> float:
        own = self.modules[name].weight
        return float((((weight - own) @ self.grams[name]) * (weight - own)).sum() / ((own @ self.grams[name]) * own).sum())


def agreement(predicted: list[float], measured: list[float]) -> list[str]:
    ours, theirs = numpy.log(predicted), numpy.log(measured)
    ranks = [values.argsort().argsort() for values in (ours, theirs)]
    return [f"{numpy.corrcoef(*ranks)[0, 1]:.2f}", f"{(ours - theirs).std():.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path, help="JSON lines with `text`")
    parser.add_argument("--samples", type=int, default=2, help="default 2")
    parser.add_argument("--length", type=int, default=256, help="tokens per sample (default 256)")
    given = parser.parse_args()
    torch.manual_seed(0)
    with torch.inference_mode():
        model = Model(given.model, given.text, given.samples, given.length)
        figures: dict[str, list[float]] = {}
        for layer in range(len(model.whole.model.layers)):
            for family in FAMILIES:
                names = [f"layers.{layer}.{name}" for name in family.split()]
                own = {name: model.modules[name].weight for name in names}
                three, four = ({name: rounded(weight, bits) for name, weight in own.items()} for bits in (3, 4))
                noise = {name: weight + torch.randn_like(weight) * (three[name] - weight).square().mean(1, keepdim=True).sqrt()
                         for name, weight in own.items()}
                errors = [sum(model.output_error(name, weights[name]) for name in names) for weights in (three, four)]
                divergence, stream = model.disturbed(layer, three)
                for factor, value in {
                        "measured": model.disturbed(layer, four)[0],
                        "divergence in 3 bits": divergence * errors[1] / errors[0],
                        "divergence with white noise of 3 bits' size": model.disturbed(layer, noise)[0] * errors[1] / errors[0],
                        "residual stream's error in 3 bits": stream * errors[1] / errors[0],
                        "constant": errors[1],
                        "HIGGS' score": sum(math.log(weight.numel() + 1) * (1 + 0.05 * layer) * (1.2 if "attn" in name else 0.9)
                                            * float((four[name] - weight).square().mean()) for name, weight in own.items())}.items():
                    figures.setdefault(factor, []).append(value)
    measured = figures.pop("measured")
    print(table(["factor", "rank correlation", "deviation of logarithms"],
                [[name, *agreement(values, measured)] for name, values in figures.items()]))


if __name__ == "__main__":
    main()
