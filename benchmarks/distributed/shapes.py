"""The properties of a model that determine the cost of compressing it: its linear groups, according to config.json."""
import json
from dataclasses import dataclass
from pathlib import Path

EIGHT_BILLION = {"num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
                 "num_key_value_heads": 8, "vocab_size": 128256}
# While calibrating, every token goes through the gate and up projections of every expert, so that each expert's statistics see
# all tokens; a layer's output needs only the chosen experts.
CONFIGS = {
    "Llama-3-8B": EIGHT_BILLION,
    "Qwen3-30B-A3B": {"num_hidden_layers": 48, "hidden_size": 2048, "moe_intermediate_size": 768, "num_experts": 128,
                      "num_experts_per_tok": 8, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
                      "vocab_size": 151936},
    "Llama-3.1-405B": {"num_hidden_layers": 126, "hidden_size": 16384, "intermediate_size": 53248,
                       "num_attention_heads": 128, "num_key_value_heads": 8, "vocab_size": 128256},
}


@dataclass(frozen=True)
class LinearGroup:
    """Linears that read one value; a layer has `count` such groups, which are independent of each other."""
    name: str
    columns: int
    rows: int
    count: int = 1
    passes: float = 1  # how often a token is multiplied with a weight, on average

    @property
    def weights(self) -> int:
        """For all `count` groups."""
        return self.rows * self.columns * self.count

    @property
    def triangle_bytes(self) -> int:
        """Bytes of one group's statistics when sent: the upper triangle in fp32."""
        return self.columns * (self.columns + 1) // 2 * 4


@dataclass(frozen=True)
class Shape:
    """A decoder with identical layers."""
    name: str
    layers: int
    attention_features: int  # heads times the size of one
    groups: tuple[LinearGroup, ...]
    embedding_weights: int

    @property
    def layer_weights(self) -> int:
        return sum(group.weights for group in self.groups)

    @property
    def bytes(self) -> int:
        """Bytes of the checkpoint in bf16."""
        return 2 * (self.layers * self.layer_weights + self.embedding_weights)


def shape_of(name: str, config: dict) -> Shape:
    """Llama and similar models, with a dense MLP or with experts."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    head = config.get("head_dim") or hidden // heads
    key_value = config.get("num_key_value_heads", heads) * head
    experts = config.get("num_experts", 0)
    inner = config["moe_intermediate_size"] if experts else config["intermediate_size"]
    chosen = config.get("num_experts_per_tok", experts) / experts if experts else 0
    groups = (LinearGroup("q/k/v", hidden, heads * head + 2 * key_value), LinearGroup("o", heads * head, hidden),
              LinearGroup("gate/up", hidden, 2 * inner * max(1, experts), passes=1 + chosen),
              LinearGroup("down", inner, hidden, max(1, experts), passes=chosen if experts else 1))
    tables = 1 if config.get("tie_word_embeddings") else 2
    return Shape(name, config["num_hidden_layers"], heads * head, groups, tables * config["vocab_size"] * hidden)


def known_shapes() -> dict[str, Shape]:
    return {name: shape_of(name, config) for name, config in CONFIGS.items()}


def shape_of_checkpoint(folder: Path) -> Shape:
    return shape_of(folder.name, json.loads((folder / "config.json").read_text(encoding="utf-8")))
