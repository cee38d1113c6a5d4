#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "layerpress/graph/expert_operations.h"
#include "layerpress/graph/vision_operations.h"

namespace layerpress::graph {

// One struct per kind of node. Each names its kind and lists its attributes once through visit(), from which the text
// form, its parser and comparisons are derived. Weights are named as in the checkpoint; "" means no weight. A value is
// [tokens, features]; token ids are [tokens].

/// Row lookup: token ids -> [tokens, features].
struct Embedding {
  static constexpr const char* kKind = "embedding";
  std::string weight;  ///< [vocabulary, features]
  std::int64_t vocabulary = 0;
  std::int64_t features = 0;
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("weight", self.weight), field("vocabulary", self.vocabulary), field("features", self.features);
  }
};

/// y = x Wᵀ + b.
struct Linear {
  static constexpr const char* kKind = "linear";
  std::string weight;  ///< [out_features, in_features]
  std::string bias;    ///< [out_features] or ""
  std::int64_t in_features = 0;
  std::int64_t out_features = 0;
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("weight", self.weight), field("bias", self.bias);
    field("in_features", self.in_features), field("out_features", self.out_features);
  }
};

/// x / sqrt(mean(x²) + epsilon) * (weight_offset + weight) over `size` consecutive features (a whole row, or one head
/// of it).
struct RmsNorm {
  static constexpr const char* kKind = "rms_norm";
  std::string weight;  ///< [size]
  std::int64_t size = 0;
  double epsilon = 1e-6;
  double weight_offset = 0;   ///< not 0 only if rounded_once
  bool rounded_once = false;  ///< round to the dtype once, after the weight; otherwise also before it
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("weight", self.weight), field("size", self.size), field("epsilon", self.epsilon);
    field("weight_offset", self.weight_offset), field("rounded_once", self.rounded_once);
  }
};

/// (x - mean(x)) / sqrt(variance(x) + epsilon) * weight + bias over `size` consecutive features.
struct LayerNorm {
  static constexpr const char* kKind = "layer_norm";
  std::string weight;  ///< [size]
  std::string bias;    ///< [size] or ""
  std::int64_t size = 0;
  double epsilon = 1e-5;
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("weight", self.weight), field("bias", self.bias), field("size", self.size), field("epsilon", self.epsilon);
  }
};

/// Rotary position embedding of every head. The rotated part of a head starts at `offset` and has two features per
/// frequency. The two features of a pair are in the two halves of the part, or next to each other (interleaved).
struct Rotary {
  static constexpr const char* kKind = "rotary";
  std::int64_t head_dim = 0;
  std::int64_t table = 0;  ///< index into Graph::rope_tables
  std::int64_t offset = 0;
  bool interleaved = false;
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("head_dim", self.head_dim), field("table", self.table);
    field("offset", self.offset), field("interleaved", self.interleaved);
  }
};

/// Causal self-attention inside each sample. Inputs q, k, v; grouped heads if kv_heads < heads.
/// Scores are scale * q·k or, if soft_cap > 0, soft_cap * tanh(scale * q·k / soft_cap).
struct Attention {
  static constexpr const char* kKind = "attention";
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  double scale = 1;
  std::int64_t window = 0;          ///< a token sees itself and the window-1 tokens before it; 0: all tokens before it
  double soft_cap = 0;              ///< 0: none
  std::int64_t value_head_dim = 0;  ///< head size of v and of the output; 0: head_dim
  std::int64_t value_dim() const { return value_head_dim > 0 ? value_head_dim : head_dim; }
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("heads", self.heads), field("kv_heads", self.kv_heads), field("head_dim", self.head_dim);
    field("scale", self.scale), field("window", self.window), field("soft_cap", self.soft_cap);
    field("value_head_dim", self.value_head_dim);
  }
};

/// activation(a) * b for inputs a, b. `function`: "silu", "gelu", "gelu_tanh".
struct GatedActivation {
  static constexpr const char* kKind = "gated_activation";
  std::string function = "silu";
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("function", self.function);
  }
};

/// a + b.
struct Add {
  static constexpr const char* kKind = "add";
  template <typename Self, typename Visitor>
  static void visit(Self&, Visitor&&) {}
};

/// sigmoid(a) * b; input a has one feature per row.
struct Gate {
  static constexpr const char* kKind = "gate";
  template <typename Self, typename Visitor>
  static void visit(Self&, Visitor&&) {}
};

/// x * factor.
struct Scale {
  static constexpr const char* kKind = "scale";
  double factor = 1;
  bool rounded_factor = false;  ///< the factor is rounded to x's dtype first
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("factor", self.factor), field("rounded_factor", self.rounded_factor);
  }
};

/// cap * tanh(x / cap).
struct SoftCap {
  static constexpr const char* kKind = "soft_cap";
  double cap = 1;
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("cap", self.cap);
  }
};

/// Features [begin, end) of each `size` consecutive features (a whole row, or one head of it), concatenated.
struct Slice {
  static constexpr const char* kKind = "slice";
  std::int64_t size = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("size", self.size), field("begin", self.begin), field("end", self.end);
  }
};

/// Inputs a [tokens, heads * first] and b [tokens, second]. The output has, for every head, its part of a and then all
/// of b.
struct JoinHeads {
  static constexpr const char* kKind = "join_heads";
  std::int64_t heads = 0;
  std::int64_t first = 0;
  std::int64_t second = 0;
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("heads", self.heads), field("first", self.first), field("second", self.second);
  }
};

using Operation =
    std::variant<Embedding, Linear, RmsNorm, LayerNorm, Rotary, Attention, GatedActivation, Add, Gate, Scale, SoftCap,
                 Slice, JoinHeads, Route, SelectTokens, TakeRouted, Expert, PatchEmbedding, TileEmbedding,
                 ClassEmbedding, PatchPosition, ZeroPadding, VisionAttention, Activation, GatedAdd, VisionFeatures,
                 SelectIllustrated, MergeIllustrated, CrossAttention, MaskUnattending>;

/// A weight that an operation reads, with its required shape.
struct WeightUse {
  std::string name;
  std::vector<std::int64_t> shape;
};

const char* kind_name(const Operation& operation);
std::vector<WeightUse> weights_of(const Operation& operation);

}  // namespace layerpress::graph
