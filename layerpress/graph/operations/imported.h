#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "layerpress/graph/operations/operation.h"

namespace layerpress::graph {

// Operators of imported graphs.

/// Bytes as a polynomial in the number of tokens.
struct TokenBytes {
  std::int64_t fixed = 0, per_token = 0, per_pair = 0;  ///< per_pair: tokens squared
};

/// Operators of an imported graph between two values of ours, as one program (kernels/program/tensor_program.h). Inputs that are
/// not the token ids are the program's inputs, in order. Rows are tokens, or those that are selected for an expert.
struct Aten {
  static constexpr const char* kKind = "aten";
  std::string program;
  std::vector<std::string> weight_names;          ///< in the program's order
  std::vector<std::vector<std::int64_t>> shapes;  ///< of the weights
  std::vector<std::int64_t> constants;            ///< indices into Graph::constants
  std::int64_t features = 0;                      ///< of the output
  std::string mixes;  ///< why a token's result may depend on other tokens, so that each sample runs alone; or ""
  std::vector<std::int64_t>
      kept_inputs{};  ///< of which the result is a sum, each row times a number; none: it is another function
  /// Inputs that only linears of the program read, and the weights of these, one for each; an input may be there several times. "": of the
  /// input, something takes the type alone.
  std::vector<std::int64_t> linear_inputs{};
  std::vector<std::string> linear_weights{};
  std::int64_t least_tokens = 1;                                  ///< of a sample
  std::int64_t most_tokens = 0;                                   ///< of a sample; 0: any number
  std::int64_t fixed_bytes = 0, token_bytes = 0, pair_bytes = 0;  ///< workspace, as in TokenBytes
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("program", self.program), field("weight_names", self.weight_names), field("shapes", self.shapes);
    field("constants", self.constants), field("features", self.features), field("mixes", self.mixes);
    field("kept_inputs", self.kept_inputs);
    field("linear_inputs", self.linear_inputs), field("linear_weights", self.linear_weights);
    field("least_tokens", self.least_tokens), field("most_tokens", self.most_tokens);
    field("fixed_bytes", self.fixed_bytes), field("token_bytes", self.token_bytes);
    field("pair_bytes", self.pair_bytes);
  }
  WeightUses weights() const {
    WeightUses uses;
    for (std::size_t i = 0; i < weight_names.size() && i < shapes.size(); ++i)
      uses.push_back({weight_names[i], shapes[i]});
    return uses;
  }
  void check(const NodeCheck& node) const {
    node.require(node.inputs() > 0, "an input, if only the token ids");
    node.require(weight_names.size() == shapes.size(), "a shape for every weight");
    for (const std::int64_t constant : constants) node.require(node.has_constant(constant), "constant exists");
    const bool selected = node.rows(0) == Rows::kSelected;
    for (std::size_t i = 0; i < node.inputs(); ++i)
      node.require(node.rows(i) == (selected ? Rows::kSelected : Rows::kTokens), "rows are tokens");
    node.require(!selected || mixes.empty(), "selected tokens are treated alone");
    node.require(linear_inputs.size() == linear_weights.size(), "a weight for every input of linears");
    node.require(features > 0 && least_tokens > 0 && most_tokens >= 0, "positive sizes");
    node.output(features);
  }
  std::vector<std::string> details(const std::string&) const {
    return mixes.empty() ? std::vector<std::string>() : std::vector<std::string>{"sample by sample"};
  }
  bool keeps_rows(std::size_t input) const {
    return std::find(kept_inputs.begin(), kept_inputs.end(), static_cast<std::int64_t>(input)) != kept_inputs.end();
  }
  TokenBytes workspace() const { return {fixed_bytes, token_bytes, pair_bytes}; }
};

/// An orthogonal matrix by which the batch's rows of images are turned, because the rows that they join are.
struct ImageRotation {
  std::int64_t order = 0;   ///< of the kernels::Hadamard in each block of its diagonal; 0: rows stay
  std::int64_t seeded = 0;  ///< kernels::Hadamard::Seeded
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("rotation", self.order), field("seeded", self.seeded);
  }
  bool fits(std::int64_t features) const {
    return order >= 0 && seeded >= 0 && seeded <= 2 && (order == 0 || features % order == 0);
  }
};

/// The embeddings of tokens: those of images replaced by what the model's vision part makes of them, which the batch has.
struct MergeImages {
  static constexpr const char* kKind = "merge_images";
  std::int64_t axes = 1;  ///< positions of a token in the model
  ImageRotation rotation{};
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("axes", self.axes), ImageRotation::visit(self.rotation, field);
  }
  void check(const NodeCheck& node) const {
    node.expect(1, {});
    node.require(node.rows(0) == Rows::kTokens, "rows are tokens");
    node.require(axes > 0 && axes <= 16, "a few positions");
    node.require(rotation.fits(node.features(0)), "rotation divides the features");
    node.output(node.features(0));
  }
  bool keeps_rows(std::size_t) const { return true; }
};

/// Adds what the model's vision part makes for a layer to the hidden state at tokens of images; the batch has it.
struct AddImages {
  static constexpr const char* kKind = "add_images";
  static constexpr std::int64_t kMostLayers = 1024;
  std::int64_t layer = 0;  ///< place among those of the sample
  ImageRotation rotation{};
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("layer", self.layer), ImageRotation::visit(self.rotation, field);
  }
  void check(const NodeCheck& node) const {
    node.expect(1, {});
    node.require(node.rows(0) == Rows::kTokens, "rows are tokens");
    node.require(layer >= 0 && layer < kMostLayers, "a layer of a model");
    node.require(rotation.fits(node.features(0)), "rotation divides the features");
    node.output(node.features(0));
  }
  bool keeps_rows(std::size_t) const { return true; }
};

using ImportedOperations = Family<Aten, MergeImages, AddImages>;

}  // namespace layerpress::graph
