"""The models and arguments for which peer_scales.json has LLM Compressor's scales."""

LENGTHS = [40, 17, 64, 33]
#: by name: family, its settings, arguments of SmoothQuantModifier
SMOOTHED = {
    "llama": ("Llama", {}, {}),
    "llama-stronger": ("Llama", {}, {"smoothing_strength": 0.8}),
    "llama-logarithmic": ("Llama", {}, {"algorithm": "log_equalization"}),
    "llama-linears": ("Llama", {"num_key_value_heads": 4},
                      {"mappings": [[["re:.*o_proj"], "re:.*v_proj"], [["re:.*down_proj"], "re:.*up_proj"]]}),
    "qwen3": ("Qwen3", {}, {}),
    "phi3": ("Phi3", {}, {}),
    "cohere2": ("Cohere2", {}, {}),
    "gemma2": ("Gemma2", {}, {"mappings": [[["re:.*q_proj", "re:.*k_proj", "re:.*v_proj"], "re:.*input_layernorm"],
                                           [["re:.*gate_proj", "re:.*up_proj"], "re:.*pre_feedforward_layernorm"]]}),
    "mixtral": ("Mixtral", {"num_local_experts": 4}, {}),
}

IGNORED = ["lm_head", "re:.*mlp.gate$"]


def group(weights, **inputs):
    return {"config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, **weights},
                                          "input_activations": {"num_bits": 8, "strategy": "tensor", **inputs}}}}


INT, FLOAT = ({"type": name, "strategy": "channel"} for name in ("int", "float"))
#: by name: family, its settings, arguments of QuantizationModifier
STATIC = {
    "fp8": ("Llama", {}, {"scheme": "FP8"}),
    "fp8-minmax": ("Llama", {}, {"scheme": "FP8", "input_observer": "minmax"}),
    "fp8-mse": ("Llama", {}, {"scheme": "FP8", "observer": {"input": "mse"}}),
    "fp8-channels": ("Llama", {}, group(FLOAT, type="float", observer="static_minmax")),
    "fp8-faster": ("Llama", {}, group(FLOAT, type="float", observer="minmax",
                                      observer_kwargs={"averaging_constant": 0.4})),
    "int8": ("Llama", {}, group(INT, type="int", observer="static_minmax")),
    "int8-asymmetric": ("Llama", {}, group(INT, type="int", symmetric=False, observer="static_minmax")),
    "int8-default": ("Llama", {}, group(INT, type="int", symmetric=False)),
    "int8-mse": ("Llama", {}, group(INT, type="int", symmetric=False, observer="mse")),
    "fp8-experts": ("Qwen3Moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
                    {"scheme": "FP8"}),
}
