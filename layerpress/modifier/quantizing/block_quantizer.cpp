#include "layerpress/modifier/quantizing/block_quantizer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "layerpress/base/text.h"
#include "layerpress/compression/statistics/gram_statistic.h"
#include "layerpress/compression/statistics/square_sum.h"
#include "layerpress/gguf/blocks/block_gptq.h"
#include "layerpress/gguf/blocks/block_rows.h"
#include "layerpress/modifier/arguments/argument.h"
#include "layerpress/modifier/quantizing/factorization.h"
#include "layerpress/modifier/quantizing/gptq_modifier.h"
#include "layerpress/modifier/quantizing/output_power.h"
#include "layerpress/modifier/quantizing/propagation.h"
#include "layerpress/quant/block_scheme.h"
#include "layerpress/quant/rounding/observer.h"
#include "layerpress/quant/rounding/stored_blocks.h"
#include "layerpress/quant/targets/group_targets.h"

namespace layerpress::modifier {
namespace {

using compression::CompressedModule;
using compression::LinearShape;
using compression::LinearWeight;

const gguf::BlockType& type_of(const quant::QuantizationScheme& scheme) { return *quant::block_type(scheme); }

/// What rounding to nearest, and what searches the scales for it, takes of a weight's elements.
constexpr double kFlopsOfRounding = 400;

const gguf::BlockType& format_of(const Json& group, const std::string& place) {
  const Json format = group.value("format", Json());
  const gguf::BlockType* type = format.is_string() ? gguf::find_block_type(format.get<std::string>()) : nullptr;
  if (type != nullptr) return *type;
  throw RecipeError("[recipe.modifier] {}.format is {}; beside groups in llama.cpp's types, it is one of {}", place,
                    format.dump(), join(gguf::block_type_names()));
}

/// The groups of modules, which rounding and GPTQ have in common.
class BlockGroups {
 public:
  BlockGroups(const Json& arguments, const std::string& where) : where_(where) {
    if (json_has(arguments, "ignore")) ignore_entries_ = names_or_none_in(arguments["ignore"], where + ".ignore");
    ignore_.emplace(ignore_entries_, where + ".ignore");
    std::vector<quant::GroupTargets::Group> targets;
    for (const auto& [name, group] : arguments["config_groups"].items()) {
      const std::string place = fmt::format("{}.{}", where, name);
      if (!group.is_object())
        throw RecipeError("[recipe.modifier] {}: a group is a mapping of targets and format", place);
      for (const auto& [key, value] : group.items())
        if (key != "targets" && key != "format" && !value.is_null())
          throw RecipeError(
              "[recipe.modifier] {}.{}: beside groups in llama.cpp's types, a group has targets and format only", place,
              key);
      quant::QuantizationScheme scheme = quant::block_scheme(format_of(group, place));
      scheme.targets = names_or_none_in(group.value("targets", Json::array({"Linear"})), place + ".targets");
      targets.push_back({scheme.targets, place});
      groups_.push_back({name, std::move(scheme)});
    }
    targets_.emplace(targets);
  }

  const quant::QuantizationScheme* scheme_for(const quant::ModuleName& module) const {
    const int group = ignore_->matches(module) ? -1 : targets_->group_of(module);
    return group < 0 ? nullptr : &groups_[static_cast<std::size_t>(group)].scheme;
  }
  std::vector<compression::Quantizer::SchemeGroup> groups() const {
    std::vector<compression::Quantizer::SchemeGroup> groups;
    for (const Group& group : groups_) groups.push_back({group.name, &group.scheme});
    return groups;
  }
  const std::vector<std::string>& ignore_entries() const { return ignore_entries_; }
  const std::string& where() const { return where_; }

 private:
  struct Group {
    std::string name;
    quant::QuantizationScheme scheme;
  };
  std::string where_;
  std::vector<Group> groups_;
  std::vector<std::string> ignore_entries_;
  std::optional<quant::TargetList> ignore_;
  std::optional<quant::GroupTargets> targets_;
};

/// Rounds to nearest.
class BlockRounder : public compression::Quantizer {
 public:
  BlockRounder(std::shared_ptr<const BlockGroups> groups, std::string type, bool weighs)
      : groups_(std::move(groups)), type_(std::move(type)), weighs_(weighs) {}

  std::string type() const override { return type_; }
  bool needs_data() const override { return weighs_; }
  std::string data_use() const override {
    return type_ == "GPTQModifier" ? type_ : type_ + " (an observer that weighs errors by inputs)";
  }
  const quant::QuantizationScheme* scheme_for(const quant::ModuleName& module) const override {
    return groups_->scheme_for(module);
  }
  std::vector<std::string> ignore_entries() const override { return groups_->ignore_entries(); }
  std::vector<SchemeGroup> scheme_groups() const override { return groups_->groups(); }
  const compression::Quantizer* for_embeddings() const override { return embeddings_.get(); }
  std::int64_t row_step(const LinearShape&) const override { return 1; }

  std::vector<compression::StatisticPtr> statistics_wanted(const compression::ValueFacts&) const override {
    if (!weighs_) return {};
    return {std::make_shared<compression::SquareSum>()};
  }

  compression::CompressionCost cost(const std::vector<LinearShape>& linears) const override {
    compression::CompressionCost cost;
    std::uint64_t codes = 0, copy = 0;  // the latter of a weight that is rounded on the host of its device
    for (const LinearShape& linear : linears) {
      cost.flops["quantize"] += kFlopsOfRounding * static_cast<double>(linear.rows * linear.columns);
      cost.result_bytes += quant::quantized_bytes(*linear.scheme, linear.rows, linear.columns, linear.dtype);
      copy = std::max(copy, static_cast<std::uint64_t>(linear.rows * linear.columns) * c10::elementSize(linear.dtype));
      // The codes of a quantized source, as they are read and as integers.
      if (linear.computed)
        codes = std::max(codes, static_cast<std::uint64_t>(linear.rows * linear.columns) * (2 + sizeof(int)));
      if (linear.scheme->scaled_blocks)  // the weight divided by its factor
        codes = std::max(codes, static_cast<std::uint64_t>(linear.rows * linear.columns) * sizeof(float));
    }
    cost.workspace_bytes = cost.result_bytes + codes;
    if (!linears.front().device.is_cpu()) cost.host_bytes = cost.result_bytes + codes + copy;
    return cost;
  }

  std::vector<CompressedModule> compress(const std::vector<LinearWeight>& linears,
                                         const compression::Statistics* statistics, PhaseTimes& times) const override {
    compression::InputSquares measured;
    if (weighs_ && statistics != nullptr)
      measured = {statistics->of<compression::SquareSum>(), static_cast<double>(statistics->tokens)};
    std::vector<CompressedModule> modules;
    for (const LinearWeight& linear : linears) {
      if (std::optional<CompressedModule> kept = kept_codes(linear, statistics, times)) {
        modules.push_back(std::move(*kept));
        continue;
      }
      modules.push_back(rounded(linear, weighs_ ? measured.means() : linear.importance.means(), times));
      if (statistics != nullptr) modules.back().report.tokens = statistics->tokens;
    }
    return modules;
  }

  /// `importance`: the mean squares of the columns' inputs, or undefined.
  static CompressedModule rounded(const LinearWeight& linear, const at::Tensor& importance, PhaseTimes& times) {
    const auto phase = times.measure("quantize");
    times.add_flops("quantize", kFlopsOfRounding * static_cast<double>(linear.weight.numel()));
    CompressedModule module = module_of(linear);
    const at::Tensor weights = importance.defined() ? importance.to(at::kCPU, at::kFloat).contiguous() : importance;
    set_blocks(linear, gguf::round_rows(type_of(*linear.scheme), weight_for_blocks(linear, module), weights), module);
    return module;
  }

  /// The weight on the CPU, divided by the factor that the module gets if the scheme has one.
  static at::Tensor weight_for_blocks(const LinearWeight& linear, CompressedModule& module) {
    if (!linear.scheme->scaled_blocks) return linear.weight.to(at::kCPU);
    module.weight.global_scale = quant::scale_of_blocks(linear.whole.defined() ? linear.whole : linear.weight);
    return linear.weight.to(at::kCPU, at::kFloat).div(module.weight.global_scale.to(at::kCPU));
  }

  /// Blocks are rounded on the CPU and go where the weight is, like other schemes' codes.
  static void set_blocks(const LinearWeight& linear, const at::Tensor& blocks, CompressedModule& module) {
    module.weight.codes = blocks.to(linear.weight.device());
  }

  /// What the source stores, if the blocks can hold it.
  static std::optional<CompressedModule> kept_codes(const LinearWeight& linear,
                                                    const compression::Statistics* statistics, PhaseTimes& times) {
    if (linear.stored == nullptr) return std::nullopt;
    const auto phase = times.measure("quantize");
    quant::QuantizedWeight stored = linear.stored->read();
    for (at::Tensor* part : {&stored.codes, &stored.scale, &stored.zero_point})
      if (part->defined() && part->size(0) > 1) *part = part->narrow(0, linear.first_row, linear.weight.size(0));
    std::optional<at::Tensor> blocks = quant::blocks_of(type_of(*linear.scheme), linear.stored->scheme, stored);
    if (!blocks) return std::nullopt;
    CompressedModule module = module_of(linear);
    set_blocks(linear, *blocks, module);
    if (linear.scheme->scaled_blocks) module.weight.global_scale = at::reciprocal(stored.global_scale);
    if (statistics != nullptr) module.report.tokens = statistics->tokens;
    return module;
  }

  static CompressedModule module_of(const LinearWeight& linear) {
    CompressedModule module;
    module.report.module = linear.module;
    module.report.scheme = linear.scheme->format;
    return module;
  }

  /// Lets it round embeddings, too, which have no inputs to weigh errors with.
  void round_embeddings() { embeddings_ = std::make_unique<BlockRounder>(groups_, type_, /*weighs=*/false); }

 private:
  std::shared_ptr<const BlockGroups> groups_;
  std::string type_;
  bool weighs_;
  std::unique_ptr<const BlockRounder> embeddings_;
};

/// The observer that is named; throws for one that is not among those that blocks have.
std::optional<quant::Observer> observer_of(const Json& arguments, const std::string& where,
                                           const std::vector<quant::Observer>& known) {
  if (!json_has(arguments, "weight_observer")) return std::nullopt;
  const auto name = json_get<std::string>(arguments, "weight_observer", where);
  const quant::Observer observer = quant::parse_observer(name, Json::object(), where).observer;
  if (std::find(known.begin(), known.end(), observer) == known.end())
    throw RecipeError("[recipe.modifier] {}: blocks of a GGUF have no observer {}; leave weight_observer out", where,
                      name);
  return observer;
}

/// The observers of GPTQ that say how thoroughly to search; minmax: once.
const std::vector<quant::Observer> kSearches = {quant::Observer::kMinMax, quant::Observer::kHessian,
                                                quant::Observer::kImportance, quant::Observer::kGptq};

class BlockGptq final : public BlockRounder {
 public:
  BlockGptq(const std::shared_ptr<const BlockGroups>& groups, const Json& arguments)
      : BlockRounder(groups, "GPTQModifier", /*weighs=*/true),
        dampening_(json_get_or<double>(arguments, "dampening_frac", groups->where(), 0.01)),
        passes_(observer_of(arguments, groups->where(), kSearches) == quant::Observer::kMinMax ? 1 : 2),
        propagation_(parse_error_propagation(arguments, groups->where())) {
    if (!(dampening_ >= 0) || dampening_ > 1e6)
      throw RecipeError("[recipe.modifier] {}: dampening_frac must be from 0 to 1e6", groups->where());
  }

  bool wants_original() const override { return propagation_.has_value(); }

  std::vector<compression::StatisticPtr> statistics_wanted(const compression::ValueFacts& facts) const override {
    std::vector<compression::StatisticPtr> wanted = {std::make_shared<compression::GramStatistic>()};
    if (propagation_ && facts.differs) wanted.push_back(difference_wanted(facts, *propagation_));
    return wanted;
  }

  compression::CompressionCost cost(const std::vector<LinearShape>& linears) const override {
    compression::CompressionCost cost = BlockRounder::cost(linears);
    const std::int64_t columns = linears.front().columns;
    const auto width = static_cast<double>(columns);
    std::uint64_t greatest = 0;
    for (const LinearShape& linear : linears) {
      cost.flops["solve"] += static_cast<double>(linear.rows) * width * width;
      const std::uint64_t moved = propagation_ ? sizeof(float) * static_cast<std::uint64_t>(linear.rows * columns) : 0;
      greatest = std::max(greatest, moved + gguf::gptq_blocks_workspace(linear.rows, columns));
    }
    cost.flops["factorize"] += factorize_flops(columns);
    cost.workspace_bytes =
        std::max(kernels::factorize_workspace(columns, linears.front().device),
                 kernels::factor_bytes(columns) + cost.result_bytes + greatest + output_power_workspace(columns));
    if (!linears.front().device.is_cpu()) cost.host_bytes += kernels::factor_bytes(columns) + greatest;
    if (!propagation_) return cost;
    const std::uint64_t working = cost.workspace_bytes + kernels::moving_workspace(columns);
    const std::uint64_t held = add_propagation_cost(linears, cost);
    cost.workspace_bytes = std::max(cost.workspace_bytes, held + working);
    return cost;
  }

  std::vector<CompressedModule> compress(const std::vector<LinearWeight>& linears,
                                         const compression::Statistics* statistics, PhaseTimes& times) const override {
    if (statistics == nullptr) throw InternalError("[modifier.blocks] no statistics for {}", linears.front().module);
    const at::Tensor gram = statistics->of<compression::GramStatistic>();
    const Propagation propagation(linears, *statistics, propagation_, times);
    const at::Tensor importance = importance_of(gram, statistics->tokens);
    std::vector<CompressedModule> modules(linears.size());
    for (const auto& [width, members] : by_block_width(linears)) {
      const Factorization factorization = width > 0 ? factorized(gram, width, times) : Factorization();
      for (const std::size_t i : members) {
        if (std::optional<CompressedModule> kept = kept_codes(linears[i], statistics, times)) {
          modules[i] = std::move(*kept);
          continue;
        }
        LinearWeight moved = propagation.moved(linears[i], times);
        if (!moved.whole.defined()) moved.whole = linears[i].weight;  // as ranks with some of the rows see it
        modules[i] = factorization.factor ? solved(moved, *factorization.factor, statistics->tokens, times)
                                          : rounded(moved, importance, times);
        compression::ModuleReport& report = modules[i].report;
        report.fallback = join_both(factorization.fallback, propagation.fallback());
        report.tokens = statistics->tokens;
        if (report.output_error) report.output_power = mean_output_power(linears[i].weight, gram, statistics->tokens);
      }
    }
    return modules;
  }

 private:
  static const gguf::GridType* grid_of(const LinearWeight& linear) {
    return dynamic_cast<const gguf::GridType*>(&type_of(*linear.scheme));
  }

  /// Linears whose blocks have the same number of values have one factorization; 0: types that are rounded.
  static std::map<std::int64_t, std::vector<std::size_t>> by_block_width(const std::vector<LinearWeight>& linears) {
    std::map<std::int64_t, std::vector<std::size_t>> members;
    for (std::size_t i = 0; i < linears.size(); ++i)
      members[grid_of(linears[i]) == nullptr ? 0 : grid_of(linears[i])->block_values()].push_back(i);
    return members;
  }

  /// The mean squares of the inputs; undefined if they say nothing.
  static at::Tensor importance_of(const at::Tensor& gram, std::int64_t tokens) {
    if (tokens == 0 || !at::isfinite(gram.diagonal()).all().item<bool>()) return {};
    return gram.diagonal() / tokens;
  }

  /// With blocks of `width` columns in activation order, and the columns of each in their own.
  Factorization factorized(const at::Tensor& gram, std::int64_t width, PhaseTimes& times) const {
    Factorization result =
        factorize_with_fallbacks(gram, dampening_, {.by_activation = true, .group_columns = width}, times);
    if (result.factor)
      for (at::Tensor* part : {&result.factor->order, &result.factor->feedback, &result.factor->pivots})
        *part = part->to(at::kCPU);
    return result;
  }

  CompressedModule solved(const LinearWeight& linear, const kernels::HessianFactor& factor, std::int64_t tokens,
                          PhaseTimes& times) const {
    const auto phase = times.measure("solve");
    const auto columns = static_cast<double>(linear.weight.size(1));
    times.add_flops("solve", static_cast<double>(linear.weight.numel()) * columns);
    CompressedModule module = module_of(linear);
    gguf::BlockGptqResult result =
        gguf::gptq_blocks(*grid_of(linear), weight_for_blocks(linear, module), factor, passes_);
    set_blocks(linear, result.blocks, module);
    if (linear.scheme->scaled_blocks) result.loss *= std::pow(module.weight.global_scale.item<double>(), 2);
    if (tokens > 0) module.report.output_error = result.loss / static_cast<double>(linear.weight.size(0) * tokens);
    return module;
  }

  double dampening_;
  int passes_;  // of the choice of a block's scales
  std::optional<kernels::ErrorPropagation> propagation_;
};

}  // namespace

bool names_block_types(const OrderedJson& arguments) {
  const auto groups = arguments.is_object() ? arguments.find("config_groups") : arguments.end();
  if (groups == arguments.end() || !groups->is_object() || groups->empty()) return false;
  return std::any_of(groups->begin(), groups->end(), [](const OrderedJson& group) {
    return group.is_object() && !json_has(group, "weights") && json_has(group, "format") &&
           group["format"].is_string() && gguf::find_block_type(group["format"].get<std::string>()) != nullptr;
  });
}

std::unique_ptr<compression::Modifier> make_block_quantizer(const OrderedJson& arguments, const std::string& where,
                                                            BlockRounding rounding) {
  const Json plain(arguments);
  if (json_has(plain, "kv_cache_scheme"))
    throw RecipeError(
        "[recipe.modifier] {}.kv_cache_scheme: a GGUF has no place for scales of keys and values; leave it out", where);
  std::vector<Argument> known = {{"config_groups"}, {"ignore"}, {"weight_observer"}};
  if (rounding == BlockRounding::kGptq)
    known = joined(known, {{"dampening_frac"}, {"error_propagation"}, {"block_size"}, {"actorder"}});
  (void)check_arguments(plain, where, known);
  const auto groups = std::make_shared<const BlockGroups>(plain, where);
  std::unique_ptr<BlockRounder> quantizer;
  if (rounding == BlockRounding::kGptq)
    quantizer = std::make_unique<BlockGptq>(groups, plain);
  else
    quantizer = std::make_unique<BlockRounder>(
        groups, "QuantizationModifier",
        observer_of(plain, where, {quant::Observer::kHessian, quant::Observer::kImportance}).has_value());
  quantizer->round_embeddings();
  return quantizer;
}

}  // namespace layerpress::modifier
