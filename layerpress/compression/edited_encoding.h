#pragma once

#include <string>
#include <vector>

#include "layerpress/compression/edit.h"

namespace layerpress::compression {

/// Applies edits in order and then one encoding. Weights without an encoding stay dense and get quant::dense_scheme(). To the pipeline
/// it is a quantizer like others: schedule, plan, division among ranks, output and resume need not tell them apart.
class EditedEncoding final : public Quantizer {
 public:
  /// `encoding`: null for dense results; it must live as long as this. REQUIRES: an edit.
  EditedEncoding(std::vector<EditPtr> edits, const Quantizer* encoding);

  const std::vector<EditPtr>& edits() const { return edits_; }

  std::string type() const override;
  bool needs_data() const override;
  const quant::QuantizationScheme* scheme_for(const quant::ModuleName& module) const override;
  std::vector<StatisticPtr> statistics_wanted(const ValueFacts& facts) const override;
  bool wants_original() const override;
  std::optional<double> value_to_share(const LinearWeight& linear, const Statistics* statistics) const override;
  RangeStatisticPtr input_range(const quant::QuantizationScheme& scheme) const override;
  /// Rows are compressed independently only if that holds for all edits, and weights stay dense: an encoding may look at other rows of
  /// the weight (LinearWeight::whole), which are not edited there.
  std::int64_t row_step(const LinearShape& linear) const override;
  CompressionCost cost(const std::vector<LinearShape>& linears) const override;
  std::vector<CompressedModule> compress(const std::vector<LinearWeight>& linears, const Statistics* statistics,
                                         PhaseTimes& times) const override;

 private:
  /// Whether the loss of the whole is measured, with the Gram matrix: each of several steps knows only its own.
  bool measures_losses() const;
  void add_measuring(const std::vector<LinearShape>& linears, std::uint64_t held, CompressionCost& cost) const;
  std::vector<std::optional<double>> measured_losses(const std::vector<LinearWeight>& linears,
                                                     const std::vector<CompressedModule>& modules,
                                                     const Statistics& statistics, PhaseTimes& times) const;

  std::vector<EditPtr> edits_;
  const Quantizer* encoding_;
};

}  // namespace layerpress::compression
