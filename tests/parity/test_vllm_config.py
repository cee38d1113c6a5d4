"""vLLM's own reader of quantization_config accepts what is written, where vLLM is installed."""

import pytest
from support import compressed_cases
from test_presets import WRITTEN


@pytest.fixture(scope="module")
def config_class():
    """The reader needs vLLM's package, but no engine and no GPU."""
    try:
        from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsConfig
    except Exception as fault:  # its imports fail in many ways where a part of it is missing
        pytest.skip(f"vLLM's CompressedTensorsConfig cannot be imported ({type(fault).__name__}: {fault}); pip install vllm")
    return CompressedTensorsConfig


def check(section, config_class):
    read = config_class.from_config(section)
    targets = {target for scheme in section["config_groups"].values() for target in scheme["targets"]}
    assert set(read.target_scheme_map) == targets
    assert read.quant_format == section["format"] and read.ignore == section["ignore"]
    for target, scheme in read.target_scheme_map.items():
        [wanted] = [each for each in section["config_groups"].values() if target in each["targets"]]
        assert wanted["weights"] is None or scheme["weights"].num_bits == wanted["weights"]["num_bits"]
        assert (scheme["input_activations"] is None) == (wanted["input_activations"] is None)


def test_accepts_every_config(config_class, compressed_by_name):
    """One test each, so that a machine without vLLM skips once."""
    for name in compressed_cases.CASES:
        check(compressed_by_name(name).config["quantization_config"], config_class)


def test_accepts_every_preset(config_class, preset_run):
    for name in WRITTEN:
        check(preset_run(name).config, config_class)
