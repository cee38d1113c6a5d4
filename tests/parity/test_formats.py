"""What is written: opened by compressed-tensors, decoded by a slow reference, and read back by the program itself."""

import json

import compressed_tensors
import numpy
import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.nvfp4.helpers import pack_fp4_to_uint8
from compressed_tensors.quantization import QuantizationConfig, QuantizationScheme, preset_name_to_scheme
from support import compressed_cases, program, tiny_models

SUFFIXES = {
    "pack-quantized": {"weight_packed", "weight_scale", "weight_shape"},
    "int-quantized": {"weight", "weight_scale"},
    "float-quantized": {"weight", "weight_scale"},
    "naive-quantized": {"weight", "weight_scale"},
    "nvfp4-pack-quantized": {"weight_packed", "weight_scale", "weight_global_scale"},
    "mxfp4-pack-quantized": {"weight_packed", "weight_scale"},
    "mxfp8-quantized": {"weight", "weight_scale"},
}
SCALE_DTYPES = {"nvfp4-pack-quantized": torch.float8_e4m3fn, "mxfp4-pack-quantized": torch.uint8, "mxfp8-quantized": torch.uint8}


def test_config(compressed):
    written = compressed.config["quantization_config"]
    kept = json.loads(json.dumps(QuantizationConfig.model_validate(written).to_dict()))
    # The library's model class writes three keys more than its config class holds.
    assert {**kept, "sparsity_config": {}, "transform_config": {}, "version": written["version"]} == written
    assert (written["quant_method"], written["quantization_status"]) == ("compressed-tensors", "compressed")
    formats = {scheme["format"] for scheme in written["config_groups"].values()}
    if len(formats) > 1:
        formats.discard("dense")  # of groups without weights
    assert written["format"] == (formats.pop() if len(formats) == 1 else "mixed-precision")
    for scheme in written["config_groups"].values():
        read = QuantizationScheme.model_validate(scheme)
        for args in ("weights", "input_activations"):
            assert getattr(read, args) is None or getattr(read, args).num_bits == scheme[args]["num_bits"]


def test_config_beside_quantization(compressed):
    """Everything else of config.json stays; head and embedding are not tied any more if either is compressed."""
    config, original = compressed.config, json.loads((compressed.model / "config.json").read_text())
    del config["quantization_config"]
    if not {"lm_head", "model.embed_tokens"}.isdisjoint(compressed.scheme_of):
        original["tie_word_embeddings"] = False
    assert config == original


@pytest.mark.parametrize("preset", compressed_cases.PRESETS)
def test_preset_is_the_library_s(compressed_by_name, preset):
    """All but what says how the scales came about."""
    [written] = compressed_by_name(f"rtn {preset}").schemes.values()
    wanted = json.loads(preset_name_to_scheme(preset, ["Linear"]).model_dump_json())
    for scheme in (written, wanted):
        scheme.pop("format")
        for args in (scheme["weights"], scheme["input_activations"]):
            if args:
                args["observer"] = None
    assert written == wanted


def test_tensors(compressed):
    """Exactly the tensors of the format, and every other one of the model as it was."""
    schemes, tensors = compressed.scheme_of, compressed.tensors
    original = tiny_models.tensors(compressed.model)
    assert schemes
    expected = set()
    for module, scheme in schemes.items():
        zero_point = set() if scheme["weights"]["symmetric"] else {"weight_zero_point"}
        expected |= {f"{module}.{suffix}" for suffix in SUFFIXES[scheme["format"]] | zero_point}
        assert tensors[f"{module}.weight_scale"].dtype == SCALE_DTYPES.get(scheme["format"], torch.bfloat16)
    if compressed.name == "tied embedding":
        original["lm_head.weight"] = original["model.embed_tokens.weight"]
    plain = {name for name in original if name.removesuffix(".weight") not in schemes}
    assert set(tensors) == expected | plain | compressed.value_scales
    assert all(torch.equal(tensors[name], original[name]) for name in plain)


def test_compressed_tensors_decodes_the_same(compressed):
    """The library's weights are the reference's, rounded once."""
    for module, stored in compressed.stored.items():
        scheme = compressed.scheme_of[module]
        compressor = BaseCompressor.get_value_from_registry(scheme["format"])
        state = compressor.decompress(dict(stored.parts), QuantizationScheme.model_validate(scheme))
        wanted = torch.from_numpy(stored.weight()).to(state["weight"].dtype)
        assert state["weight"].dtype == torch.bfloat16
        assert torch.equal(state["weight"], wanted), module


def test_compressed_tensors_encodes_the_same(compressed):
    """Packing the reference's codes with the library gives the bytes in the file."""
    for module, stored in compressed.stored.items():
        if compressed.scheme_of[module]["format"] in ("nvfp4-pack-quantized", "mxfp4-pack-quantized"):
            assert torch.equal(pack_fp4_to_uint8(torch.from_numpy(stored.codes)), stored.parts["weight_packed"])
        if compressed.scheme_of[module]["format"] != "pack-quantized":
            continue
        pack = compressed_tensors.compressors.pack_to_int32
        packed = pack(torch.from_numpy(stored.codes).to(torch.int8), stored.bits)
        assert torch.equal(packed, stored.parts["weight_packed"])
        assert stored.parts["weight_shape"].dtype == torch.int64


def test_program_reads_its_own_output(compressed, tmp_path):
    """The same program computes the same bits from compressed weights and from the reference's decoded ones."""
    plain = compressed_cases.save_decoded(compressed, tmp_path / "plain", torch.float32)
    pairs = zip(compressed.logits, program.logits(plain, compressed_cases.SAMPLES, tmp_path))
    assert all(numpy.array_equal(ours, decoded) for ours, decoded in pairs)


@pytest.mark.parametrize("name", ["rtn W4A16_ASYM", "gptq W3A16", "gptq W8A8", "rtn FP8_DYNAMIC", "odd blocks", "tensor"])
def test_program_reads_its_own_output_in_bf16(name, compressed_by_name, tmp_path):
    compressed = compressed_by_name(name)
    plain = compressed_cases.save_decoded(compressed, tmp_path / "plain", torch.bfloat16)
    run = lambda folder: program.logits(folder, compressed_cases.SAMPLES, tmp_path, "bfloat16")
    assert all(numpy.array_equal(ours, decoded) for ours, decoded in zip(run(compressed.folder), run(plain)))
