#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "layerpress/compression/edited_encoding.h"
#include "layerpress/compression/modifier.h"
#include "layerpress/compression/statistics/range_statistic.h"
#include "layerpress/compression/transform.h"
#include "layerpress/quant/rounding/value_parameters.h"

namespace layerpress::compression {

/// The edits, the quantizer and the scheme of a linear node.
struct Assignment {
  /// What compresses it: the recipe's quantizer, or the edits and then that quantizer.
  const Quantizer* modifier = nullptr;
  const quant::QuantizationScheme* scheme = nullptr;
  at::ScalarType scale_dtype = at::kBFloat16;  ///< the stored weight's dtype, in which its scales are stored, too
  at::Device device = at::kCPU;                ///< on which it is compressed
  bool computed = false;                       ///< the original weight is computed when it is loaded, not mapped
  bool from_mxfp4 = false;                     ///< as in LinearWeight
  std::vector<graph::NodeId> fused{};          ///< other compressed linears that engines run with it as one
  /// Whether later layers are calibrated with the compressed weight: Quantizer::propagates(), and always for a weight that a
  /// transform changes, because a resumed run finds only the compressed one.
  bool propagates = true;
  const Quantizer* encoding = nullptr;  ///< the recipe's quantizer; null: the weight stays dense
  const Modifier* first = nullptr;      ///< the first entry of the recipe that changes the weight
  bool edited = false;                  ///< there are edits
  bool measures_inputs = false;         ///< the sums of squares of its inputs are wanted, for an importance file
  InputSquares importance{};            ///< from an importance file
  std::shared_ptr<const StoredCodes> stored{};  ///< as in LinearWeight

  /// Those that the modifier wants, and SquareSum if it measures its inputs.
  std::vector<StatisticPtr> statistics_wanted(const ValueFacts& facts) const;
};

/// An attention whose keys and values are quantized.
struct QuantizedAttention {
  graph::NodeId node = -1;
  const quant::QuantizationArgs* args = nullptr;
  const quant::QuantizationScheme* group = nullptr;  ///< as in AttentionScheme
  bool stored = false;                               ///< as the source has it, with the source's scales
};

/// A transform at one of its sites.
struct PlannedTransform {
  const Transform* transform = nullptr;
  TransformSite site;
};

/// Parameters that follow from the range of a value and are stored with the module that reads it, such as the static scale of a
/// linear's input, or the scale of the keys that an attention reads.
struct StoredParameters {
  graph::NodeId reader = -1;
  quant::StoredValue value;
  RangeStatisticPtr statistic;
  /// The values from whose common range they follow: the one that is read, and those for which engines use the same parameters.
  std::shared_ptr<const std::vector<graph::ValueId>> values;
};

/// The result of applying a recipe to a model.
struct Assignments {
  std::map<graph::NodeId, Assignment> linears{};                ///< those that are edited or quantized
  std::vector<std::shared_ptr<const EditedEncoding>> edited{};  ///< their edits, each with its encoding
  std::vector<PlannedTransform> transforms{};                   ///< in the order in which they are applied
  std::vector<QuantizedAttention> attentions{};                 ///< those whose keys and values are quantized
  std::vector<StoredParameters> stored{};                       ///< in the order of their readers
  /// Targets that are not quantized because the source stores them in the same scheme.
  std::vector<std::string> stored_alike{};
  /// Routers and gates that stay as they are, although patterns among the targets match them (graph::weighing_linears).
  std::vector<graph::NodeId> left_routers{};
  /// Targets that are not quantized because the result stores their weights as several tensors each.
  std::vector<graph::NodeId> left_divided{};

  /// The scheme of a linear node; null if it is not quantized.
  const quant::QuantizationScheme* scheme_of(graph::NodeId linear) const {
    const auto found = linears.find(linear);
    return found == linears.end() || quant::is_dense(*found->second.scheme) ? nullptr : found->second.scheme;
  }
  /// Whether anything is written in codes.
  bool quantizes() const {
    return !attentions.empty() || std::any_of(linears.begin(), linears.end(),
                                              [](const auto& entry) { return !quant::is_dense(*entry.second.scheme); });
  }
  /// The parameters that transforms change.
  std::set<std::string> transformed(const graph::Graph& graph) const;
  /// The parameters that differ from the original model's: those that transforms change, and the weights of quantized linears.
  std::set<std::string> changed(const graph::Graph& graph) const;
  /// Those of them that stay uncompressed.
  std::set<std::string> changed_plain(const graph::Graph& graph) const;
  /// The weights that operations read uncompressed, besides linears and the experts that they are parts of. A linear that shares one is
  /// untied when it is compressed.
  std::set<std::string> read_plain(const graph::Graph& graph) const;
};

}  // namespace layerpress::compression
