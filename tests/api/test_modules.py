"""Modules of torch that are no transformers models."""

import json

import pytest
import torch
from layerpress.modifiers import QuantizationModifier, SpinQuantModifier
from safetensors.torch import load_file
from support import tiny_models
from torch import nn

import layerpress

VOCABULARY, WIDTH, HEADS = 128, 64, 4
GROUPS = {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "symmetric": True, "strategy": "group", "group_size": 32}}}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        y = self.before_attention(x)
        heads = (linear(y).unflatten(-1, (HEADS, -1)).transpose(1, 2) for linear in (self.query, self.key, self.value))
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(-2)
        x = x + self.out(mixed)
        return x + self.down(nn.functional.gelu(self.up(self.before_mlp(x))))


class SmallTransformer(nn.Module):
    def __init__(self, block=Block):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(96, WIDTH)
        self.blocks = nn.ModuleList(block() for _ in range(3))
        self.norm, self.lm_head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.norm(x))


class Deciding(Block):
    def forward(self, x):
        if x.mean() > 0:
            return super().forward(x)
        return x


def made(block=Block):
    torch.manual_seed(3)
    module = SmallTransformer(block).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, parameter.shape[-1] ** -0.5)
    return module


@pytest.fixture
def rows():
    return [{"input_ids": sample} for sample in tiny_models.random_samples([30, 64, 17, 64, 40, 64], VOCABULARY, seed=7)]


def squared_error(module, original, samples):
    return sum(float((module(sample) - original(sample)).square().sum()) for sample in samples)


def test_a_module(rows, gptq, tmp_path):
    """GPTQ by classes of layers: the result decodes to the module's own values, near those before and better than rounding."""
    before, rounded = made(), made()
    module = made()
    assert layerpress.oneshot(module, dataset=rows, recipe=gptq, sequential_targets=["Block"], output_dir=tmp_path / "out",
                              progress=False) is module
    assert module.compression["modules"] == 18
    stored = load_file(tmp_path / "out" / "model.safetensors")
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert config["quant_method"] == "compressed-tensors" and config["ignore"] == ["lm_head"]
    assert sorted(name for name in stored if name.endswith(".weight_packed")) == sorted(
        f"blocks.{i}.{name}.weight_packed" for i in range(3) for name in ("query", "key", "value", "out", "up", "down"))
    others = [name for name in before.state_dict() if f"{name}_packed" not in stored]
    assert all(torch.equal(stored[name], before.state_dict()[name]) for name in others)
    plain = QuantizationModifier(ignore=["lm_head"], config_groups=GROUPS)
    layerpress.oneshot(rounded, dataset=rows, recipe=plain, output_dir=tmp_path / "rounded", progress=False)
    ids = [torch.tensor([row["input_ids"]]) for row in rows]
    with torch.no_grad():
        assert 0 < squared_error(module, before, ids) < squared_error(rounded, before, ids)
    module.save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved" / "config.json").exists()


def test_a_module_that_decides_by_values(rows, gptq, tmp_path):
    """It is refused by its line, and each of its modules keeps its mode."""
    module = made(Deciding).train()
    module.blocks[1].eval()
    modes = [each.training for each in module.modules()]
    with pytest.raises(layerpress.CheckpointError, match=r"module 'blocks.0' at test_modules.py:\d+.*torch.where"):
        layerpress.oneshot(module, dataset=rows, recipe=gptq, output_dir=tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()
    assert [each.training for each in module.modules()] == modes


def test_a_module_without_token_ids(rows, gptq, tmp_path):
    with pytest.raises(layerpress.CheckpointError, match=r"\[graph.export\] Sequential.*token ids"):
        layerpress.oneshot(nn.Sequential(nn.Linear(WIDTH, WIDTH)), dataset=rows, recipe=gptq, output_dir=tmp_path / "out", progress=False)


class Windows(Block):
    """Adds what whole windows of tokens sum up to; a sample without one computes nothing with the gate."""

    def __init__(self):
        super().__init__()
        self.content, self.gate = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        x = super().forward(x)
        count = x.shape[1] // 32
        content, gate = self.content(x)[:, :count * 32], self.gate(x)[:, :count * 32]
        if count > 0:
            content = (content.view(1, count, 32, -1) * gate.view(1, count, 32, -1).softmax(dim=2)).sum(dim=2)
        return x + torch.cat([x, content], dim=1).mean(dim=1, keepdim=True)


def test_windows_that_short_samples_lack(rows, gptq, tmp_path):
    """One graph holds for samples with none, one and two windows, and has the gate."""
    module = made(Windows)
    layerpress.oneshot(module, dataset=rows, recipe=gptq, output_dir=tmp_path / "out", progress=False)
    assert module.compression["modules"] == 24
    assert "blocks.2.gate.weight_packed" in load_file(tmp_path / "out" / "model.safetensors")


class RootMeanSquare(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Tied(nn.Module):
    """A head that reads the embedding."""

    def __init__(self):
        super().__init__()
        self.tokens, self.norm, self.lm_head = nn.Embedding(VOCABULARY, WIDTH), RootMeanSquare(), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.blocks = nn.ModuleList(nn.Sequential(RootMeanSquare(), nn.Linear(WIDTH, WIDTH, bias=False)) for _ in range(3))
        self.lm_head.weight = self.tokens.weight

    def forward(self, ids):
        x = self.tokens(ids)
        for block in self.blocks:
            x = x + block(x)
        return self.lm_head(self.norm(x))


@pytest.mark.parametrize("recipe, said", [
    (SpinQuantModifier(rotations=["R1"]), "lm_head.weight would be a weight apart from the one that it shares"),
    (QuantizationModifier(scheme="FP8_DYNAMIC"), "lm_head shares its weight with tokens.*give it a weight of its own"),
])
def test_weights_that_modules_share_are_not_separated(recipe, said, tmp_path):
    with pytest.raises(layerpress.RecipeError, match=said):
        layerpress.oneshot(Tied(), recipe=recipe, output_dir=tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()
