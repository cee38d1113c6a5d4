#include "layerpress/compression/edited_encoding.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "layerpress/base/text.h"
#include "layerpress/compression/output_loss.h"
#include "layerpress/compression/statistics/gram_statistic.h"

namespace layerpress::compression {
namespace {

void add_new(const std::vector<StatisticPtr>& more, std::vector<StatisticPtr>& wanted) {
  for (const StatisticPtr& statistic : more)
    if (std::none_of(wanted.begin(), wanted.end(),
                     [&](const auto& known) { return known->name() == statistic->name(); }))
      wanted.push_back(statistic);
}

/// Adds what follows while `held` bytes of edited weights are in memory.
void add_cost(const CompressionCost& next, std::uint64_t held, CompressionCost& cost) {
  cost.workspace_bytes = std::max(cost.workspace_bytes, held + next.workspace_bytes);
  for (const auto& [phase, flops] : next.flops) cost.flops[phase] += flops;
}

/// Linears of one scheme report one error, as ranks join it.
void set_errors(const std::vector<LinearWeight>& linears, const std::vector<std::optional<double>>& losses,
                std::int64_t tokens, std::vector<CompressedModule>& modules) {
  std::map<const quant::QuantizationScheme*, std::pair<double, double>> sums;  // losses and rows
  for (std::size_t i = 0; i < linears.size(); ++i) {
    auto& [loss, rows] = sums[linears[i].scheme];
    loss += *losses[i], rows += static_cast<double>(linears[i].weight.size(0));
  }
  for (std::size_t i = 0; i < linears.size(); ++i) {
    const auto& [loss, rows] = sums[linears[i].scheme];
    modules[i].report.output_error = loss / rows / static_cast<double>(tokens);
  }
}

}  // namespace

EditedEncoding::EditedEncoding(std::vector<EditPtr> edits, const Quantizer* encoding)
    : edits_(std::move(edits)), encoding_(encoding) {}

std::string EditedEncoding::type() const {
  std::vector<std::string> types;
  for (const EditPtr& edit : edits_) types.push_back(edit->type());
  if (encoding_ != nullptr) types.push_back(encoding_->type());
  return join(types);
}

bool EditedEncoding::needs_data() const {
  return (encoding_ != nullptr && encoding_->needs_data()) || !statistics_wanted({}).empty();
}

bool EditedEncoding::wants_original() const {
  return (encoding_ != nullptr && encoding_->wants_original()) ||
         std::any_of(edits_.begin(), edits_.end(), [](const EditPtr& edit) { return edit->wants_original(); });
}

const quant::QuantizationScheme* EditedEncoding::scheme_for(const quant::ModuleName& module) const {
  return encoding_ == nullptr ? &quant::dense_scheme() : encoding_->scheme_for(module);
}

std::vector<StatisticPtr> EditedEncoding::statistics_wanted(const ValueFacts& facts) const {
  std::vector<StatisticPtr> wanted;
  for (const EditPtr& edit : edits_) add_new(edit->statistics_wanted(facts), wanted);
  if (encoding_ != nullptr) add_new(encoding_->statistics_wanted(facts), wanted);
  return wanted;
}

std::optional<double> EditedEncoding::value_to_share(const LinearWeight& linear, const Statistics* statistics) const {
  return encoding_ == nullptr ? std::nullopt : encoding_->value_to_share(linear, statistics);
}

RangeStatisticPtr EditedEncoding::input_range(const quant::QuantizationScheme& scheme) const {
  return encoding_ == nullptr ? nullptr : encoding_->input_range(scheme);
}

std::int64_t EditedEncoding::row_step(const LinearShape& linear) const {
  std::int64_t step = encoding_ == nullptr ? 1 : 0;
  for (const EditPtr& edit : edits_) step = std::lcm(step, edit->row_step(linear));  // 0 if one is 0
  return step;
}

CompressionCost EditedEncoding::cost(const std::vector<LinearShape>& linears) const {
  CompressionCost cost;
  std::uint64_t held = 0;
  for (const EditPtr& edit : edits_) {
    const CompressionCost own = edit->cost(linears);
    add_cost(own, held, cost);
    held = own.result_bytes;  // those of the edit before are let go
  }
  cost.result_bytes = held;
  if (encoding_ != nullptr) {
    std::vector<LinearShape> edited = linears;
    for (LinearShape& linear : edited) linear.keeps_zeros = true;
    const CompressionCost own = encoding_->cost(edited);
    add_cost(own, held, cost);
    cost.result_bytes = own.result_bytes;
  }
  if (measures_losses()) add_measuring(linears, held, cost);
  return cost;
}

bool EditedEncoding::measures_losses() const {
  const std::vector<StatisticPtr> wanted = statistics_wanted({});
  return (encoding_ != nullptr || edits_.size() > 1) &&
         std::any_of(wanted.begin(), wanted.end(), [](const auto& own) { return own->name() == GramStatistic::kName; });
}

void EditedEncoding::add_measuring(const std::vector<LinearShape>& linears, std::uint64_t held,
                                   CompressionCost& cost) const {
  std::uint64_t decoded = 0;
  const std::int64_t columns = linears.front().columns;
  for (const LinearShape& linear : linears) {
    cost.flops["measure"] += output_loss_flops(linear.rows, columns);
    if (encoding_ != nullptr)
      decoded = std::max(decoded, quant::quantized_bytes(quant::dense_scheme(), linear.rows, columns, linear.dtype));
  }
  const std::uint64_t gram = static_cast<std::uint64_t>(columns * columns) * sizeof(float);
  cost.workspace_bytes =
      std::max(cost.workspace_bytes, held + cost.result_bytes + decoded + gram + output_loss_workspace(columns));
}

std::vector<CompressedModule> EditedEncoding::compress(const std::vector<LinearWeight>& linears,
                                                       const Statistics* statistics, PhaseTimes& times) const {
  std::vector<LinearWeight> edited = linears;
  std::vector<ModuleReport> reports(linears.size());
  std::vector<std::optional<double>> losses(linears.size());
  for (const EditPtr& edit : edits_) {
    std::vector<EditedWeight> results = edit->edit(edited, statistics, times);
    for (std::size_t i = 0; i < edited.size(); ++i) {
      edited[i].weight = std::move(results[i].weight);
      edited[i].keeps_zeros = results[i].keeps_zeros;
      edited[i].whole = at::Tensor();
      losses[i] = results[i].loss;
      reports[i].scheme = join_both(reports[i].scheme, edit->describe());
      reports[i].fallback = join_both(reports[i].fallback, results[i].fallback);
    }
  }
  std::vector<CompressedModule> modules(linears.size());
  if (encoding_ != nullptr) modules = encoding_->compress(edited, statistics, times);
  for (std::size_t i = 0; i < linears.size(); ++i) {
    ModuleReport& report = modules[i].report;
    report.module = linears[i].module;
    report.scheme = join_both(reports[i].scheme, report.scheme);
    report.fallback = join_both(reports[i].fallback, report.fallback);
    if (statistics != nullptr) report.tokens = statistics->tokens;
    if (encoding_ == nullptr) modules[i].weight.codes = edited[i].weight;
  }
  if (statistics == nullptr || statistics->tokens == 0) return modules;
  if (measures_losses()) losses = measured_losses(linears, modules, *statistics, times);
  if (std::all_of(losses.begin(), losses.end(), [](const auto& loss) { return loss.has_value(); }))
    set_errors(linears, losses, statistics->tokens, modules);
  return modules;
}

std::vector<std::optional<double>> EditedEncoding::measured_losses(const std::vector<LinearWeight>& linears,
                                                                   const std::vector<CompressedModule>& modules,
                                                                   const Statistics& statistics,
                                                                   PhaseTimes& times) const {
  std::vector<std::optional<double>> losses(linears.size());
  const auto phase = times.measure("measure");
  const at::Tensor hessian = kernels::symmetric_from_upper(statistics.of<GramStatistic>());
  for (std::size_t i = 0; i < linears.size(); ++i) {
    const at::Tensor& weight = linears[i].weight;
    losses[i] =
        output_loss(weight, quant::dequantize(*linears[i].scheme, modules[i].weight, weight.scalar_type()), hessian);
    times.add_flops("measure", output_loss_flops(weight.size(0), weight.size(1)));
  }
  return losses;
}

}  // namespace layerpress::compression
