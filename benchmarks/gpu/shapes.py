"""Random checkpoints for the measurements on a GPU."""
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "memory_cases"))

from llama_checkpoint import LlamaShape
from safetensors_stream import TensorSpec

SMALL = LlamaShape(num_hidden_layers=4, hidden_size=512, intermediate_size=1536, num_attention_heads=8, num_key_value_heads=4,
                   vocab_size=2048)


@dataclass(frozen=True)
class MixtureShape:
    """Sizes, named as in config.json; the defaults are those of Qwen3-30B-A3B, with one layer instead of 48."""
    num_hidden_layers: int = 1
    hidden_size: int = 2048
    num_experts: int = 128
    moe_intermediate_size: int = 768
    num_experts_per_tok: int = 8
    num_attention_heads: int = 32
    num_key_value_heads: int = 4
    head_dim: int = 128
    vocab_size: int = 32000

    def config(self) -> dict:
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", **fields, "hidden_act": "silu",
                "intermediate_size": 3 * self.hidden_size, "decoder_sparse_step": 1, "mlp_only_layers": [],
                "norm_topk_prob": True, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "max_position_embeddings": 8192,
                "tie_word_embeddings": False, "attention_bias": False, "bos_token_id": 0, "eos_token_id": 1,
                "torch_dtype": "bfloat16"}

    def tensors(self) -> list[TensorSpec]:
        embedding = (self.vocab_size, self.hidden_size)
        layers = [spec for layer in range(self.num_hidden_layers) for spec in self._layer(f"model.layers.{layer}.")]
        return [TensorSpec("model.embed_tokens.weight", embedding), *layers,
                TensorSpec("model.norm.weight", (self.hidden_size,)), TensorSpec("lm_head.weight", embedding)]

    def _layer(self, prefix: str) -> list[TensorSpec]:
        hidden, inner = self.hidden_size, self.moe_intermediate_size
        query, key_value = self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim
        shapes = {"self_attn.q_proj": (query, hidden), "self_attn.k_proj": (key_value, hidden),
                  "self_attn.v_proj": (key_value, hidden), "self_attn.o_proj": (hidden, query),
                  "self_attn.q_norm": (self.head_dim,), "self_attn.k_norm": (self.head_dim,),
                  "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,), "mlp.gate": (self.num_experts, hidden)}
        for expert in range(self.num_experts):
            shapes |= {f"mlp.experts.{expert}.gate_proj": (inner, hidden), f"mlp.experts.{expert}.up_proj": (inner, hidden),
                       f"mlp.experts.{expert}.down_proj": (hidden, inner)}
        return [TensorSpec(f"{prefix}{name}.weight", shape) for name, shape in shapes.items()]


def mixture_layer(experts: int) -> MixtureShape:
    return MixtureShape(num_experts=experts, num_experts_per_tok=min(8, experts))
