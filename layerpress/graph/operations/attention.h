#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "layerpress/graph/operations/operation.h"

namespace layerpress::graph {

// Attention among the tokens of a sample, and the positions that go into it.

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
  void check(const NodeCheck& node) const {
    node.expect(1, {});
    node.require(head_dim > 0 && node.features(0) % head_dim == 0, "head_dim divides the features");
    const std::int64_t pairs = node.rotated_pairs(table);
    node.require(pairs >= 0, "table exists");
    node.require(pairs > 0 && offset >= 0 && offset + 2 * pairs <= head_dim, "rotated part fits the head");
    node.output(node.features(0));
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
  bool mutual = false;              ///< tokens of one image, which the batch knows, also see the later ones of it
  std::int64_t value_dim() const { return value_head_dim > 0 ? value_head_dim : head_dim; }
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("heads", self.heads), field("kv_heads", self.kv_heads), field("head_dim", self.head_dim);
    field("scale", self.scale), field("window", self.window), field("soft_cap", self.soft_cap);
    field("value_head_dim", self.value_head_dim), field("mutual", self.mutual);
  }
  void check(const NodeCheck& node) const {
    node.expect(3, {heads * head_dim, kv_heads * head_dim, kv_heads * value_dim()});
    node.require(kv_heads > 0 && heads % kv_heads == 0, "heads are a multiple of kv_heads");
    node.require(soft_cap >= 0, "a cap is positive");
    node.output(heads * value_dim());
  }
  std::vector<std::string> details(const std::string&) const {
    std::vector<std::string> lines{heads_text(heads, kv_heads)};
    if (window > 0) lines.push_back("window " + std::to_string(window));
    if (mutual) lines.emplace_back("images see themselves");
    return lines;
  }
  ScalePassage passage(std::size_t input) const {
    return heads == kv_heads ? passes_only(2, input) : ScalePassage::kBlocked;
  }
};

using Attentions = Family<Rotary, Attention>;

}  // namespace layerpress::graph
