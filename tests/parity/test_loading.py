"""transformers loads what is written: no key missing or left over, and the logits that the program itself computes."""

import numpy
import pytest
import torch
import transformers
from support.compressed_cases import SAMPLES, save_decoded

EMBEDDING = "model.embed_tokens"


def load(folder, dtype=torch.float32, **options):
    model, information = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, output_loading_info=True, **{"attn_implementation": "eager", **options})
    assert not any(information[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), information
    return model.eval()


@torch.no_grad()
def logits_of(model, sample):
    return model(torch.tensor([sample])).logits[0].float().numpy()


def is_rounded(compressed):
    """The library dequantizes NVFP4 and the MX formats to bf16, whatever the model's dtype."""
    return any(scheme["format"].startswith(("nvfp4", "mxfp")) for scheme in compressed.schemes.values())


def dtype_for(compressed):
    return torch.bfloat16 if is_rounded(compressed) else torch.float32


def attention_for(compressed):
    """compressed-tensors cannot quantize the queries of transformers' eager attention, which is in no table."""
    return {"attn_implementation": "sdpa" if any(not scheme["weights"] for scheme in compressed.schemes.values()) else "eager"}


def is_readable(compressed, dequantize):
    """The library has no code for packed embeddings, nor for activations of embeddings unless it dequantizes (docs/formats.md)."""
    scheme = compressed.scheme_of.get(EMBEDDING)
    return scheme is None or (scheme["format"] != "pack-quantized" and (dequantize or not scheme["input_activations"]))


def test_dequantized(compressed, tmp_path):
    """transformers' dequantized weights, without quantized activations."""
    if not is_readable(compressed, dequantize=True):
        with pytest.raises(AttributeError, match="'Embedding' object has no attribute 'weight'"):
            load(compressed.folder, quantization_config=transformers.CompressedTensorsConfig(dequantize=True))
        model = load(save_decoded(compressed, tmp_path / "decoded", torch.float32))
        for ours, sample in zip(compressed.logits, SAMPLES):
            assert numpy.abs(ours - logits_of(model, sample)).max() < 2e-4
        return
    model = load(compressed.folder, dtype_for(compressed), **attention_for(compressed),
                 quantization_config=transformers.CompressedTensorsConfig(dequantize=True))
    for module in model.modules():
        if getattr(module, "quantization_scheme", None) is not None:
            module.quantization_enabled = False
    for ours, sample in zip(compressed.logits, SAMPLES):
        wanted = logits_of(model, sample)
        assert wanted.std() > 0.5
        assert numpy.abs(ours - wanted).max() < (0.2 * wanted.std() if is_rounded(compressed) else 2e-4)


def test_as_users_load_it(compressed):
    """Compressed weights, quantized activations: the program's logits with its own quantized activations.

    Each rounding may fall on the other side of a middle, so that logits agree as numbers of few bits do. The MX formats
    are computed in bf16 there, so that many do; tests of the rounding itself hold them."""
    if compressed.name == "odd blocks":
        # No reader quantizes 320 activations by 128; the weights load (above), and the run warned.
        assert "multiples of 128" in compressed.outcome.errors
        return
    if not is_readable(compressed, dequantize=False):
        with pytest.raises((AttributeError, RuntimeError), match="no attribute 'weight'|'indices' to have"):
            logits_of(load(compressed.folder), SAMPLES[0])
        return
    model = load(compressed.folder, dtype_for(compressed), **attention_for(compressed))
    quantized, rounded = compressed.quantizes_activations, is_rounded(compressed)
    fp4 = any(args and (args["type"], args["num_bits"]) == ("float", 4)
              for args in (scheme["input_activations"] for scheme in compressed.schemes.values()))
    tolerance = 0.5 if fp4 else 0.15 if quantized and rounded else 0.02 if quantized or rounded else 1e-4
    for ours, plain, sample in zip(compressed.served_logits, compressed.logits, SAMPLES):
        theirs = logits_of(model, sample)
        error = numpy.abs(ours - theirs).mean()
        assert error < tolerance * theirs.std()
        # Closer than without quantized activations, or nothing was quantized.
        assert error < 0.5 * numpy.abs(plain - theirs).mean() or not quantized or rounded
