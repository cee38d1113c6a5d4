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

def weights(targets, **arguments):
    return {"config_groups": {"group_0": {"targets": targets, "weights": {
        "num_bits": 4, "strategy": "group", "group_size": 32, **arguments}}}}


def mapping(smooth, balance, **arguments):
    return {"mappings": [{"smooth_layer": smooth, "balance_layers": balance}], **arguments}


ONE, HEADS = {"num_hidden_layers": 1}, {"num_hidden_layers": 1, "num_key_value_heads": 4}
QKV, GATE_UP = ["re:.*q_proj$", "re:.*k_proj$", "re:.*v_proj$"], ["re:.*gate_proj$", "re:.*up_proj$"]
BEFORE, BETWEEN = "re:.*input_layernorm$", "re:.*post_attention_layernorm$"
#: by name: family, its settings, arguments of AWQModifier and of the QuantizationModifier behind it. One layer, and only what one
#: mapping balances is quantized: elsewhere the inputs are those of a model that is compressed so far, LLM Compressor's are not.
ACTIVATION_AWARE = {
    "llama-attention": ("Llama", ONE, mapping(BEFORE, QKV), weights(QKV)),
    "llama-values": ("Llama", HEADS, mapping("re:.*v_proj$", ["re:.*o_proj$"]), weights(["re:.*o_proj$"])),
    "llama-mlp": ("Llama", ONE, mapping(BETWEEN, GATE_UP, duo_scaling="both"), weights(GATE_UP, symmetric=False)),
    "llama-down": ("Llama", ONE, mapping("re:.*up_proj$", ["re:.*down_proj$"], duo_scaling=False, n_grid=9),
                   weights(["re:.*down_proj$"])),
    "llama-blocks": ("Llama", ONE, mapping(BETWEEN, GATE_UP), weights(
        GATE_UP, strategy="block", group_size=None, block_structure=[16, 32], type="float", num_bits=8)),
    "llama-nvfp4": ("Llama", ONE, mapping(BEFORE, QKV), {"scheme": {"NVFP4A16": QKV}}),
    "cohere2": ("Cohere2", ONE, mapping(BEFORE, QKV + GATE_UP), weights(QKV + GATE_UP)),
}


def imatrix(observer="imatrix_mse", targets=QKV, **arguments):
    return weights(targets, observer=observer, **arguments)


CHANNELS = {"strategy": "channel", "group_size": None}
E2M1 = {"strategy": "tensor_group", "group_size": 16, "type": "float", "scale_dtype": "torch.float8_e4m3fn"}
#: by name: family, its settings, arguments of QuantizationModifier with observers that weigh errors with the inputs. One layer, and only
#: what reads one value is quantized, for the same reason.
IMPORTANCE = {
    "int4": ("Llama", ONE, imatrix()),
    "int4-bf16": ("Llama", ONE, imatrix()),
    "int4-asymmetric": ("Llama", ONE, imatrix(targets=GATE_UP, symmetric=False)),
    "int3-arguments": ("Llama", ONE, imatrix(num_bits=3, observer_kwargs={"maxshrink": 0.4, "grid": 50, "norm": 2, "patience": 0})),
    "int8-channels": ("Llama", ONE, imatrix(targets=GATE_UP, num_bits=8, **CHANNELS)),
    "int8-tensor": ("Llama", ONE, imatrix(num_bits=8, **{**CHANNELS, "strategy": "tensor"})),
    "fp8-channels": ("Llama", ONE, imatrix(num_bits=8, type="float", **CHANNELS)),
    "mxfp4": ("Llama", ONE, imatrix(type="float", scale_dtype="torch.uint8")),
    "nvfp4": ("Llama", ONE, imatrix(**E2M1)),
    "nvfp4-expanded": ("Llama", ONE, imatrix("nvfp4_expanded_imatrix", **E2M1)),
}

IGNORED = ["lm_head", "re:.*mlp.gate$"]


def group(weights, **inputs):
    return {"config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, **weights},
                                          "input_activations": {"num_bits": 8, "strategy": "tensor", **inputs}}}}


INT, FLOAT = ({"type": name, "strategy": "channel"} for name in ("int", "float"))
def cache(**arguments):
    return {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor", "dynamic": False, **arguments}


def attention(target, **arguments):
    """Queries, keys and values of some attentions, and weights elsewhere."""
    return {"config_groups": {"group_0": {"targets": [target], "input_activations": cache(**arguments)},
                              "group_1": {"targets": ["Linear"], "weights": {"num_bits": 8, "strategy": "channel"}}}}


NVFP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "scale_dtype": "torch.float8_e4m3fn"}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
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
    "fp8-experts": ("Qwen3Moe", EXPERTS, {"scheme": "FP8"}),
}
#: the same of input_global_scale
GLOBAL = {
    "nvfp4": ("Llama", {}, {"scheme": "NVFP4"}),
    "nvfp4-minmax": ("Llama", {}, {"scheme": "NVFP4", "input_observer": "minmax"}),
    "nvfp4-experts": ("Qwen3Moe", EXPERTS, {"scheme": "NVFP4"}),
    "nvfp4-bf16": ("Llama", {}, {"scheme": "NVFP4"}),
}
#: the same of k_scale and v_scale; LLM Compressor 0.14.0.1 stores q_scale as uninitialized memory
CACHED = {
    "kv": ("Llama", {}, {"scheme": "FP8_DYNAMIC", "kv_cache_scheme": cache()}),
    "kv-range": ("Qwen3", {}, {"scheme": "NVFP4", "kv_cache_scheme": cache(observer="static_minmax")}),
    "kv-mse": ("Llama", {}, {"scheme": "FP8_DYNAMIC", "kv_cache_scheme": cache(observer="mse")}),
    "kv-heads": ("Llama", {}, {"scheme": "FP8_DYNAMIC", "kv_cache_scheme": cache(strategy="attn_head")}),
    "kv-heads-range": ("Llama", {}, {"scheme": "FP8_DYNAMIC", "kv_cache_scheme":
                                     cache(strategy="attn_head", observer="static_minmax")}),
    "kv-heads-mse": ("Llama", {}, {"scheme": "FP8_DYNAMIC", "kv_cache_scheme": cache(strategy="attn_head", observer="mse")}),
    "kv-mixed": ("Llama", {}, {"kv_cache_scheme": cache(), "config_groups": {
        "experts": {"targets": ["re:.*mlp.*_proj$"], "weights": NVFP4, "input_activations": {
            **NVFP4, "dynamic": "local", "observer": "static_minmax"}},
        "attention": {"targets": ["re:.*self_attn.*_proj$"], "weights": {
            "num_bits": 8, "type": "float", "strategy": "channel"}, "input_activations": {
            "num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}}}}),
    "kv-integers": ("Llama", {}, {"scheme": "FP8_DYNAMIC", "kv_cache_scheme": cache(type="int", symmetric=False)}),
    "kv-alone": ("Llama", {}, {"kv_cache_scheme": cache()}),
    "kv-bf16": ("Llama", {}, {"scheme": "FP8_DYNAMIC", "kv_cache_scheme": cache(observer="static_minmax")}),
    "kv-window": ("Gemma2", {"sliding_window": 16}, {"scheme": "FP8_DYNAMIC", "kv_cache_scheme": cache()}),
    "attention": ("Llama", {}, attention("LlamaAttention", observer="static_minmax")),
    "attention-heads": ("Llama", {}, attention("re:.*self_attn$", strategy="attn_head")),
    "attention-one": ("Llama", {}, {**attention("re:.*layers.1.self_attn$"), "kv_cache_scheme": cache()}),
}
