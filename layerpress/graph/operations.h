#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace layerpress::graph {

// One struct per kind of node. Each names its kind, and lists its attributes once through visit(), from which the text
// form, its parser and comparisons come. Weights are named as in the checkpoint; "" means there is none.
// A value is [tokens, features]; token ids are [tokens].

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

/// x / sqrt(mean(x²) + epsilon) * weight over runs of `size` features (a whole row, or one head of it).
struct RmsNorm {
  static constexpr const char* kKind = "rms_norm";
  std::string weight;  ///< [size]
  std::int64_t size = 0;
  double epsilon = 1e-6;
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("weight", self.weight), field("size", self.size), field("epsilon", self.epsilon);
  }
};

/// Rotary position embedding of every head, half-split layout (x1, x2 are the halves of the rotated part).
struct Rotary {
  static constexpr const char* kKind = "rotary";
  std::int64_t head_dim = 0;
  std::int64_t table = 0;  ///< index into Graph::rope_tables
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("head_dim", self.head_dim), field("table", self.table);
  }
};

/// Causal self-attention inside each sample: inputs q, k, v; grouped heads when kv_heads < heads.
struct Attention {
  static constexpr const char* kKind = "attention";
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  double scale = 1;
  std::int64_t window = 0;  ///< a token sees itself and the window-1 tokens before it; 0: all before it
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("heads", self.heads), field("kv_heads", self.kv_heads), field("head_dim", self.head_dim);
    field("scale", self.scale), field("window", self.window);
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

using Operation = std::variant<Embedding, Linear, RmsNorm, Rotary, Attention, GatedActivation, Add>;

/// A weight that an operation reads, with the shape it must have.
struct WeightUse {
  std::string name;
  std::vector<std::int64_t> shape;
};

const char* kind_name(const Operation& operation);
std::vector<WeightUse> weights_of(const Operation& operation);

}  // namespace layerpress::graph
