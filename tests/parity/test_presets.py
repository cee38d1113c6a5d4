"""Every preset of compressed-tensors is written as compressed-tensors, LLM Compressor and transformers have it, or refused by name."""

import json

import pytest
import torch
import transformers
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationConfig, QuantizationScheme, preset_name_to_scheme
from compressed_tensors.quantization.quant_scheme import PRESET_SCHEMES
from support import library_weights, program, tiny_models
from support.preset_runs import SIZES

REFUSED = {"UNQUANTIZED": "leaves weights unquantized"}
WRITTEN = [name for name in PRESET_SCHEMES if name not in REFUSED]


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name, tmp_path):
    model = tiny_models.save(tmp_path / "model", **SIZES)
    program.fails("oneshot", model, "--output", tmp_path / "out", "--algorithm", "rtn", "--scheme", name, fragments=[name, REFUSED[name]])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", WRITTEN)
def test_config(name, preset_run):
    """The library's scheme, format and all; only observers say how the scales came about."""
    written = preset_run(name).config
    [group] = written["config_groups"].values()
    wanted = json.loads(preset_name_to_scheme(name, ["Linear"]).model_dump_json())
    wanted["weights"]["observer"] = "minmax"
    wanted["format"] = preset_run(name).format
    assert group == wanted
    assert written["format"] == group["format"]
    assert QuantizationConfig.model_validate(written).config_groups["group_0"].weights.num_bits == wanted["weights"]["num_bits"]


@pytest.mark.parametrize("name", WRITTEN)
def test_codes_and_scales_are_the_library_s(name, preset_run, capsys):
    """In fp32, where both divide alike, all of them."""
    run = preset_run(name)
    shares, said = library_weights.shares_of_equal_bytes(run.model, run.folder)
    with capsys.disabled():
        print(f"\n{name}, {said}")
    assert set(shares.values()) == {1.0}


@pytest.mark.parametrize("name", WRITTEN)
def test_opens_with_equal_values(name, preset_run):
    """What compressed-tensors decompresses is what transformers computes with."""
    run = preset_run(name)
    [group] = run.config["config_groups"].values()
    scheme, tensors = QuantizationScheme.model_validate(group), tiny_models.tensors(run.folder)
    loaded, information = transformers.AutoModelForCausalLM.from_pretrained(
        run.folder, dtype=torch.float32, output_loading_info=True,
        quantization_config=transformers.CompressedTensorsConfig(dequantize=True))
    assert not any(information[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), information
    modules, found = dict(loaded.named_modules()), library_weights.compressed_modules(tensors)
    assert len(found) == 7
    for module in found:
        parts = {key.removeprefix(f"{module}."): tensor for key, tensor in tensors.items() if key.startswith(f"{module}.")}
        decompressed = BaseCompressor.get_value_from_registry(group["format"]).decompress(parts, scheme)["weight"]
        original = tiny_models.tensors(run.model)[f"{module}.weight"]
        assert torch.equal(modules[module].weight, decompressed.to(modules[module].weight.dtype)), module
        assert (decompressed.float() - original).norm() < run.largest_error * original.norm()
