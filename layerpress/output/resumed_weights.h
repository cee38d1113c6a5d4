#pragma once

#include <map>
#include <set>
#include <string>

#include "layerpress/output/output_writer.h"
#include "layerpress/residency/weight_source.h"

namespace layerpress::output {

/// The weights of a run that goes on: those of finished subgraphs as they were compressed or changed, read back from the output
/// and dequantized to `dtype`; all others from the original checkpoint.
class ResumedWeights : public residency::WeightSource {
 public:
  ResumedWeights(const setup::OpenedModel& model, const compression::Assignments& assignments,
                 const std::vector<graph::Subgraph>& subgraphs, const OutputWriter& output, at::ScalarType dtype);

  at::Tensor load(const std::string& name) const override;
  bool computes(const std::string& name) const override {
    return changed_.count(name) == 0 && (!is_original(name) || model_.checkpoint->is_computed(name));
  }
  void will_need(const std::string& name) const override;
  void fetch(const std::string& name) const override;
  void release(const std::string& name) const override;
  /// Whether the weight is used where it lies in the original checkpoint.
  bool is_original(const std::string& name) const { return compressed_.count(name) == 0 && changed_.count(name) == 0; }

 private:
  struct Compressed {
    std::string module;
    const quant::QuantizationScheme* scheme;
  };
  const setup::OpenedModel& model_;
  const OutputWriter& output_;
  at::ScalarType dtype_;
  std::map<std::string, Compressed> compressed_;  // by weight name
  std::set<std::string> changed_;                 // by transforms, and uncompressed
};

}  // namespace layerpress::output
