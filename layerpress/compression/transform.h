#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "layerpress/base/system/phase_times.h"
#include "layerpress/compression/modifier.h"
#include "layerpress/compression/trial.h"
#include "layerpress/graph/facts/scale_absorbers.h"

namespace layerpress::compression {

/// A place of the graph at which a transform changes parameters.
struct TransformSite {
  graph::ScaleAbsorber place;
  std::vector<graph::NodeId> balanced;  ///< the readers whose weights determine the scale
  /// To be collected before the parameters are changed.
  std::map<graph::ValueId, std::vector<StatisticPtr>> statistics{};
  std::size_t candidates = 0;                   ///< of the trial that it wants; 0: none
  std::vector<graph::ValueId> trial_outputs{};  ///< filled in by the setup where there are candidates

  bool balances(const graph::ScaleReader& reader) const {
    return std::find(balanced.begin(), balanced.end(), reader.node) != balanced.end();
  }
};

/// The scheme of a linear node; null if it is not quantized.
using SchemeOf = std::function<const quant::QuantizationScheme*(graph::NodeId)>;

/// The input of Transform::scale().
struct TransformInput {
  const graph::Graph& graph;
  /// A parameter as stored, or as earlier transforms have changed it, on the computing device.
  std::function<at::Tensor(const std::string&)> parameter;
  /// The statistics of the values that the site names. They are the same on all ranks.
  std::function<const Statistics&(graph::ValueId)> statistics;
  SchemeOf scheme_of;
  RunTrial run_trial;  ///< for this site; only if TransformSite::candidates is not 0
};

/// Changes parameters (norms, linears, biases) so that the model is easier to compress and its outputs stay the same. All ranks
/// make the same changes.
class Transform : public Modifier {
 public:
  bool needs_data() const override { return true; }

  /// The places where it is applied, in the order of the graph. Throws RecipeError for mappings that match nothing, or that would
  /// change the model's outputs.
  virtual std::vector<TransformSite> sites(const graph::Graph& graph, const SchemeOf& scheme_of) const = 0;

  /// The scale by which the channels of the source's output are divided: fp32 [features of the output], positive.
  virtual at::Tensor scale(const TransformSite& site, const TransformInput& input) const = 0;

  /// Bytes that making a trial's candidate takes at most on `device`, besides its parameters; `dtype`: of these.
  virtual std::uint64_t candidate_workspace(const TransformSite& site, const graph::Graph& graph, at::ScalarType dtype,
                                            const at::Device& device, const SchemeOf& scheme_of) const;
};

/// The parameters of a place after scaling, each in its own dtype: the source's channels divided by the scale, the readers'
/// columns multiplied by it. They are computed in fp32 and rounded once.
std::map<std::string, at::Tensor> scaled_parameters(const graph::ScaleAbsorber& place, const at::Tensor& scale,
                                                    const TransformInput& input);

/// The scale of each channel of a value (ScaledValue::channels) or of each column of a weight (ScaleReader::columns), fp32 [features];
/// 1 for those that are not scaled.
at::Tensor scale_of(const std::vector<graph::ChannelRun>& runs, const at::Tensor& scale, std::int64_t features);

/// Bytes that scaled_parameters() allocates in addition to its results.
std::uint64_t scaling_workspace_bytes();

}  // namespace layerpress::compression
