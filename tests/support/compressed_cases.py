"""Cases for the tests of formats: recipes by name, and checkpoints that are made with them on demand."""

import functools
import json
import shutil

import torch
import transformers
from compressed_tensors.utils import match_named_modules
from safetensors.torch import save_file

from support import program, reference, tiny_models

VOCABULARY = 200
SAMPLES = tiny_models.random_samples([19, 30], VOCABULARY, seed=5)

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 384,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
}

TOKEN_INT8 = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
TOKEN_FP8 = {**TOKEN_INT8, "type": "float"}
CACHE_FP8 = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor", "dynamic": False}
NVFP4 = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group", "group_size": 16}


def weights(bits, strategy, **more):
    return {"num_bits": bits, "type": "int", "symmetric": True, "strategy": strategy, **more}


def group(args, targets=("Linear",), **more):
    return {"targets": list(targets), "weights": args, **more}


def recipe(modifier, *groups, ignore=("lm_head",), **more):
    """A recipe with config_groups, as JSON."""
    arguments = {"ignore": list(ignore), "config_groups": {f"group_{i}": g for i, g in enumerate(groups)}, **more}
    return {"quant_stage": {"quant_modifiers": {modifier: arguments}}}


ATTENTION, MLP = ["re:.*self_attn.*_proj$"], ["re:.*mlp.*_proj$"]
ROUNDING, GPTQ = "QuantizationModifier", "GPTQModifier"

#: By GPTQ and by rounding; fused linears of one group each, static scales of inputs and of the cache.
FOUR_SCHEMES = {"quant_stage": {"quant_modifiers": {
    GPTQ: {"config_groups": {
        "group_0": group(NVFP4, ["re:.*(gate|up)_proj$"],
                         input_activations={**NVFP4, "dynamic": "local", "observer": "static_minmax"}),
        "group_1": group(weights(4, "group", group_size=32), ["re:.*down_proj$"])}},
    ROUNDING: {"config_groups": {
        "group_2": group(weights(8, "tensor", type="float"), ["re:.*[qkv]_proj$"],
                         input_activations={**CACHE_FP8, "observer": "minmax"}),
        "group_3": group(weights(8, "group", type="float", group_size=32, scale_dtype="torch.uint8"), ["re:.*o_proj$"])},
        "kv_cache_scheme": {**CACHE_FP8, "observer": "static_minmax"}}}}}

PRESETS = ["W4A16", "W4A16_ASYM", "W2A16", "W3A16", "W5A16", "W6A16", "W7A16", "W8A16", "W8A8", "W4A8", "FP8_DYNAMIC",
           "FP8_BLOCK", "NVFP4", "NVFP4A16", "MXFP4A16", "MXFP4", "MXFP8A16", "MXFP8"]

NOT_SOLVED = ("W5A16", "W6A16", "W4A8", "MXFP4", "MXFP8")  # they differ from others in what does not matter there

# Command line options, or a recipe.
CASES = {
    **{f"rtn {preset}": ["--algorithm", "rtn", "--scheme", preset] for preset in PRESETS},
    **{f"gptq {preset}": ["--scheme", preset] for preset in PRESETS if preset not in NOT_SOLVED},
    "rtn group 64": ["--algorithm", "rtn", "--group-size", "64"],
    "rtn group 32 asymmetric": ["--algorithm", "rtn", "--scheme", "W4A16_ASYM", "--group-size", "32"],
    "gptq group 32": ["--group-size", "32", "--observer", "minmax"],
    "NVFP4A16 without a scale dtype":
        recipe(ROUNDING, group(weights(4, "tensor_group", type="float", group_size=16))),
    "channel": recipe(ROUNDING, group(weights(4, "channel"))),
    "channel asymmetric 3 bits": recipe(ROUNDING, group(weights(3, "channel", symmetric=False))),
    "channel asymmetric 8 bits": recipe(ROUNDING, group(weights(8, "channel", symmetric=False))),
    "gptq channel": recipe(GPTQ, group(weights(4, "channel"))),
    "tensor": recipe(ROUNDING, group(weights(8, "tensor"))),
    "tensor asymmetric": recipe(ROUNDING, group(weights(5, "tensor", symmetric=False))),
    "tensor int8 with activations": recipe(GPTQ, group(weights(8, "tensor"), input_activations=TOKEN_INT8)),
    "tensor fp8": recipe(ROUNDING, group(weights(8, "tensor", type="float"), input_activations=TOKEN_FP8)),
    "fp8 weights only": recipe(ROUNDING, group(weights(8, "channel", type="float"))),
    "asymmetric int8 with activations":
        recipe(ROUNDING, group(weights(8, "channel", symmetric=False), input_activations=TOKEN_INT8)),
    "W4AFP8": recipe(ROUNDING, group(weights(4, "group", group_size=128), input_activations=TOKEN_FP8)),
    "int8 with fp8 activations": recipe(ROUNDING, group(weights(8, "channel"), input_activations=TOKEN_FP8)),
    "mixed precision": recipe(
        ROUNDING, group(weights(8, "channel", type="float"), ATTENTION, input_activations=TOKEN_FP8),
        group(weights(4, "group", group_size=128), MLP)),
    "gptq mixed bits": recipe(
        GPTQ, group(weights(8, "group", group_size=64), ATTENTION), group(weights(3, "group", group_size=32), MLP)),
    "nvfp4 beside fp8": recipe(
        GPTQ, group(NVFP4, MLP, input_activations={**NVFP4, "dynamic": "local", "observer": "static_minmax"}),
        group(weights(8, "channel", type="float"), ATTENTION, input_activations=TOKEN_FP8), kv_cache_scheme=CACHE_FP8),
    "four schemes": FOUR_SCHEMES,
    "cache by head": recipe(
        ROUNDING, group(weights(8, "channel", type="float"), input_activations=TOKEN_FP8),
        kv_cache_scheme={**CACHE_FP8, "strategy": "attn_head"}),
    "attention": recipe(
        GPTQ, {"targets": ["LlamaAttention"], "input_activations": CACHE_FP8}, group(weights(8, "group", group_size=128))),
    "attention's class beside linears": recipe(
        ROUNDING, group(weights(8, "channel"), ["LlamaAttention", "re:.*self_attn$", "Linear"], input_activations=TOKEN_INT8)),
    "attention alone": recipe(GPTQ, group(weights(4, "group", group_size=128), ATTENTION)),
    "two modifiers": {"quant_stage": {"quant_modifiers": {
        GPTQ: {"targets": MLP, "scheme": "W4A16"}, ROUNDING: {"targets": ATTENTION, "scheme": "FP8_DYNAMIC"}}}},
    "head": recipe(ROUNDING, group(weights(4, "group", group_size=128, symmetric=False)), ignore=()),
    "gptq tied head": recipe(GPTQ, group(weights(8, "group", group_size=128)), ignore=()),
    "odd blocks": ["--algorithm", "rtn", "--scheme", "FP8_BLOCK"],
    "biases": ["--scheme", "W8A8"],
    "embedding W8A16": recipe(ROUNDING, group(weights(8, "group", group_size=128), ["Embedding"])),
    "fp8 embedding": recipe(ROUNDING, group(weights(8, "channel", type="float"), ["Embedding"])),
    "int8 embedding": recipe(ROUNDING, group(weights(8, "channel"), ["Embedding"], format="int-quantized")),
    "fp8 embedding and linears": recipe(
        ROUNDING, group(weights(8, "channel", type="float"), ["Linear", "Embedding"], input_activations=TOKEN_FP8)),
    "gptq and embedding": recipe(GPTQ, group(weights(4, "group", group_size=128), ["Linear", "Embedding"])),
    "embedding beside gptq": {"quant_stage": {"quant_modifiers": {
        GPTQ: {"scheme": "W4A16", "ignore": ["lm_head"]},
        ROUNDING: {"targets": ["re:.*embed_tokens$"], "scheme": "W8A16"}}}},
    "tied embedding": recipe(ROUNDING, group(weights(8, "group", group_size=128, symmetric=False), ["Embedding"])),
    "gptq tied embedding and head": recipe(
        GPTQ, group(weights(8, "group", group_size=128), ["Linear", "Embedding"]), ignore=()),
}

TIED = ("gptq tied head", "tied embedding", "gptq tied embedding and head")
SETTINGS = {**{name: {"tie_word_embeddings": True} for name in TIED}, "odd blocks": {"intermediate_size": 320},
            "biases": {"attention_bias": True, "mlp_bias": True}}


def save_model(folder, **settings):
    return tiny_models.save(folder, dtype=torch.bfloat16, **{**SIZES, **settings})


def calibration_samples():
    return tiny_models.random_samples([40, 64, 33, 64, 50, 64], VOCABULARY)


class Compressed:
    """A model and what `layerpress oneshot` made of it."""

    def __init__(self, name, folder):
        folder.mkdir()
        self.name, self.model, self.folder = name, save_model(folder / "model", **SETTINGS.get(name, {})), folder / "out"
        how = CASES[name]
        if isinstance(how, dict):
            (folder / "recipe.json").write_text(json.dumps(how))
            how = ["--recipe", folder / "recipe.json"]
        dataset = program.write_samples(folder / "samples.jsonl", calibration_samples())
        self.summary_file = folder / "summary.json"
        self.outcome = program.run("oneshot", self.model, "--output", self.folder, "--dataset", dataset, "--summary",
                                   self.summary_file, *how)

    @property
    def config(self):
        return json.loads((self.folder / "config.json").read_text())

    @property
    def schemes(self):
        return self.config["quantization_config"]["config_groups"]

    @functools.cached_property
    def scheme_of(self):
        """Each module with compressed weights and its scheme, resolved by compressed-tensors' own matching."""
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(self.model))
        ignore, resolved = self.config["quantization_config"]["ignore"], {}
        for scheme in self.schemes.values():
            for name, _ in match_named_modules(model, scheme["targets"], ignore) if scheme["weights"] else ():
                assert name not in resolved, f"{name} is a target of two groups"
                resolved[name] = scheme
        return resolved

    @functools.cached_property
    def tensors(self):
        return tiny_models.tensors(self.folder)

    @functools.cached_property
    def stored(self):
        """The contents of every compressed module, as a slow, independent reader decodes them."""
        return {module: reference.Stored(self.tensors, module, scheme) for module, scheme in self.scheme_of.items()}

    @functools.cached_property
    def logits(self):
        """The program's own fp32 logits of SAMPLES."""
        return program.logits(self.folder, SAMPLES, self.folder.parent)

    @property
    def value_scales(self):
        """The names of the scales that belong to what linears and attentions read."""
        names = {f"{module}.input_global_scale" for module, scheme in self.scheme_of.items()
                 if scheme["input_activations"] and scheme["input_activations"]["dynamic"] == "local"}
        names |= {f"{module}.input_scale" for module, scheme in self.scheme_of.items()
                  if scheme["input_activations"] and not scheme["input_activations"]["dynamic"]}
        if self.config["quantization_config"]["kv_cache_scheme"]:
            kinds = "kvq" if any(not scheme["weights"] for scheme in self.schemes.values()) else "kv"
            names |= {f"model.layers.{layer}.self_attn.{kind}_scale" for layer in range(2) for kind in kinds}
        return names

    @property
    def quantizes_activations(self):
        return any(scheme["input_activations"] for scheme in self.schemes.values())

    @functools.cached_property
    def served_logits(self):
        """The same with activations as an engine quantizes them."""
        options = ["--quantize-activations"] if self.quantizes_activations else []
        return program.logits(self.folder, SAMPLES, self.folder.parent, options=options)


def save_decoded(compressed, folder, dtype):
    """A plain checkpoint of the decoded weights."""
    shutil.copytree(compressed.folder, folder, ignore=shutil.ignore_patterns("*.safetensors*"))
    replaced = {f"{module}.{suffix}" for module, stored in compressed.stored.items() for suffix in stored.parts
                if suffix.startswith("weight")}
    plain = {name: tensor.to(dtype) for name, tensor in compressed.tensors.items() if name not in replaced}
    for module, stored in compressed.stored.items():
        plain[f"{module}.weight"] = torch.from_numpy(stored.weight()).to(dtype)
    save_file(plain, folder / "model.safetensors", {"format": "pt"})
    tiny_models.rewrite_config(folder, lambda config: config.pop("quantization_config"))
    return folder
