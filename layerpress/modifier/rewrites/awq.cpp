#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "layerpress/base/text.h"
#include "layerpress/compression/statistics/mean_absolute.h"
#include "layerpress/compression/transform.h"
#include "layerpress/gguf/blocks/grid_type.h"
#include "layerpress/kernels/solver/scaled_columns.h"
#include "layerpress/modifier/arguments/argument.h"
#include "layerpress/modifier/rewrites/scale_mappings.h"
#include "layerpress/quant/block_scheme.h"
#include "layerpress/quant/rounding/observer.h"
#include "layerpress/quant/rounding/rounded_weight.h"
#include "layerpress/quant/weight_numbers.h"

namespace layerpress::modifier {
namespace {

using compression::TransformInput;
using compression::TransformSite;

constexpr double kLeastRatio = 1e-4;

/// A candidate's exponent of the inputs, and whether it also looks at the weights.
struct Candidate {
  double ratio = 0;
  bool duo = false;
};

std::vector<Candidate> candidates_of(const Json& duo_scaling, std::int64_t n_grid, const std::string& where) {
  const bool both = duo_scaling == "both";
  if (!both && !duo_scaling.is_boolean())
    throw RecipeError("[recipe.modifier] {}: duo_scaling is {}; use true, false or \"both\"", where,
                      duo_scaling.dump());
  const bool duo = both || duo_scaling.get<bool>();
  const std::int64_t least = both ? 4 : duo ? 3 : 2;
  if (n_grid < least || n_grid > 1000)
    throw RecipeError("[recipe.modifier] {}: n_grid is {}; at least {} and at most 1000 with this duo_scaling", where,
                      n_grid, least);
  std::vector<Candidate> candidates;
  if (duo && !both) candidates.push_back({0, false});  // nothing is scaled
  const std::int64_t count = both ? n_grid / 2 : duo ? n_grid - 1 : n_grid;
  for (std::int64_t i = 0; i < count; ++i) {
    const double ratio = static_cast<double>(i) / static_cast<double>(count - 1);
    if (both) candidates.push_back({ratio, false});
    candidates.push_back({ratio, duo});
  }
  return candidates;
}

/// A figure of each column, brought to the channels of the source: the mean over the columns that hold a channel.
class ChannelMeans {
 public:
  ChannelMeans(std::int64_t channels, const at::TensorOptions& options)
      : sum_(at::zeros({channels}, options)), count_(at::zeros({channels}, options)) {}

  /// `rows`: over how many values a column's sum was taken.
  void add(const std::vector<graph::ChannelRun>& columns, const at::Tensor& sums, double rows) {
    for (const graph::ChannelRun& run : columns) {
      sum_.narrow(0, run.source, run.count).add_(sums.narrow(0, run.first, run.count));
      count_.narrow(0, run.source, run.count).add_(rows);
    }
  }
  at::Tensor means() const { return sum_ / count_; }

 private:
  at::Tensor sum_, count_;
};

/// Which weights have one scale.
kernels::ScaleGrid grid_of(const quant::QuantizationScheme& scheme, std::int64_t rows, std::int64_t columns) {
  if (scheme.weights) return quant::scale_grid(*scheme.weights, rows, columns);
  constexpr std::int64_t kUsualGroup = 32;
  const auto* type = dynamic_cast<const gguf::GridType*>(quant::block_type(scheme));
  return {.block_rows = 1, .block_columns = type == nullptr ? kUsualGroup : type->shape().group};
}

bool has_global_scale(const quant::QuantizationScheme& scheme) {
  return scheme.weights && quant::has_global_scale(*scheme.weights);
}

/// For each column of a weight [rows, columns], the sum over rows of |w| / (largest |w| that has the same scale + 1e-6).
at::Tensor normalized_sums(const at::Tensor& weight, const quant::QuantizationScheme& scheme) {
  constexpr std::int64_t kElements = 1 << 20;
  const std::int64_t rows = weight.size(0), columns = weight.size(1);
  const kernels::ScaleGrid grid = grid_of(scheme, rows, columns);
  const std::int64_t step = std::max<std::int64_t>(1, kElements / (columns * grid.block_rows)) * grid.block_rows;
  at::Tensor sums = at::zeros({columns}, weight.options().dtype(at::kDouble));
  for (std::int64_t first = 0; first < rows; first += step) {
    const at::Tensor some = at::abs(weight.narrow(0, first, std::min(step, rows - first)).to(at::kFloat));
    for (std::int64_t column = 0; column < columns; column += grid.block_columns) {
      const at::Tensor block = some.narrow(1, column, std::min(grid.block_columns, columns - column));
      at::Tensor largest = at::amax(block, {1}, /*keepdim=*/true);
      if (grid.block_rows > 1) {
        const std::int64_t parts = kernels::blocks_of(block.size(0), grid.block_rows);
        for (std::int64_t part = 0; part < parts; ++part) {
          const std::int64_t row = part * grid.block_rows;
          at::Tensor own = largest.narrow(0, row, std::min(grid.block_rows, block.size(0) - row));
          own.fill_(at::amax(own));
        }
      }
      sums.narrow(0, column, block.size(1)).add_(at::sum(block / (largest + 1e-6), {0}, false, at::kDouble));
    }
  }
  return sums;
}

std::int64_t source_features(const TransformSite& site, const TransformInput& input) {
  return input.graph.values[input.graph.nodes[site.place.source].output].features;
}

/// The value whose channels are the inputs that are compared: a norm's output, or what the first balanced linear reads.
graph::ValueId input_of(const graph::Graph& graph, const TransformSite& site) {
  if (!std::holds_alternative<graph::Linear>(graph.nodes[site.place.source].operation))
    return graph.nodes[site.place.source].output;
  return graph.nodes[site.balanced.front()].inputs[0];
}

/// The mean absolute input of each channel of the source.
at::Tensor input_means(const TransformSite& site, const TransformInput& input) {
  const graph::ValueId value = input_of(input.graph, site);
  const compression::Statistics& statistics = input.statistics(value);
  const at::Tensor sums = statistics.of<compression::MeanAbsolute>().flatten();
  for (const graph::ScaledValue& scaled : site.place.values) {
    if (scaled.value != value) continue;
    ChannelMeans means(source_features(site, input), sums.options());
    means.add(scaled.channels, sums, static_cast<double>(statistics.tokens));
    return means.means();
  }
  throw InternalError("[modifier.awq] the balanced linear reads a value that is not scaled");
}

at::Tensor weight_means(const TransformSite& site, const TransformInput& input) {
  std::optional<ChannelMeans> means;
  for (const graph::ScaleReader& reader : site.place.readers) {
    if (!site.balances(reader)) continue;
    const at::Tensor weight = input.parameter(reader.weight);
    const at::Tensor sums = normalized_sums(weight, *input.scheme_of(reader.node));
    if (!means) means.emplace(source_features(site, input), sums.options());
    means->add(reader.columns, sums, static_cast<double>(weight.size(0)));
  }
  return means->means().to(at::kFloat);
}

/// The greatest magnitude in the scaled weights of the balanced readers, if a scheme has a global scale; else 0.
double largest_scaled(const TransformSite& site, const TransformInput& input, const at::Tensor& scale) {
  double largest = 0;
  for (const graph::ScaleReader& reader : site.place.readers) {
    if (!site.balances(reader)) continue;
    if (!has_global_scale(*input.scheme_of(reader.node))) continue;
    const at::Tensor weight = input.parameter(reader.weight);
    const at::Tensor scaled =
        kernels::scaled_columns(weight, compression::scale_of(reader.columns, scale, weight.size(1)));
    largest = std::max(largest, quant::magnitude_for_global_scale(scaled, *input.scheme_of(reader.node)->weights, {}));
  }
  return largest;
}

/// The weights of the balanced readers after Q(W * s) / s.
std::map<std::string, at::Tensor> rounded_parameters(const TransformSite& site, const TransformInput& input,
                                                     const at::Tensor& scale) {
  std::map<std::string, at::Tensor> parameters;
  const double largest = largest_scaled(site, input, scale);
  for (const graph::ScaleReader& reader : site.place.readers) {
    if (!site.balances(reader)) continue;
    const at::Tensor weight = input.parameter(reader.weight);
    parameters[reader.weight] = quant::rounded_weight(
        weight, compression::scale_of(reader.columns, scale, weight.size(1)), *input.scheme_of(reader.node), largest);
  }
  return parameters;
}

const std::vector<Argument> kAwqArguments = {{"mappings", "list[Any] | None"},
                                             {"offload_device", "str | None"},
                                             {"duo_scaling", "bool | str"},
                                             {"n_grid", "int"}};

class AwqModifier : public compression::Transform {
 public:
  AwqModifier(const Json& arguments, const std::string& where) : where_(where) {
    without_effect_ = check_arguments(arguments, where, kAwqArguments);
    if (json_has(arguments, "offload_device")) without_effect_.emplace_back("offload_device");
    const Json duo = json_has(arguments, "duo_scaling") ? arguments["duo_scaling"] : Json(true);
    candidates_ = candidates_of(duo, json_get_or<std::int64_t>(arguments, "n_grid", where, 20), where);
    if (json_has(arguments, "mappings")) {
      mappings_ = read_scale_mappings(arguments["mappings"], where);
      if (names_hook_target(arguments["mappings"])) without_effect_.emplace_back("mappings.activation_hook_target");
    }
  }

  std::string type() const override { return "AWQModifier"; }

  std::vector<TransformSite> sites(const graph::Graph& graph, const compression::SchemeOf& scheme_of) const override {
    const std::vector<graph::ScaleAbsorber> places = graph::scale_absorbers(graph);
    std::vector<TransformSite> sites;
    if (mappings_.empty()) {
      for (const graph::ScaleAbsorber& place : places) add(graph, place, nullptr, scheme_of, sites);
      if (sites.empty())
        throw RecipeError("[recipe.check] {}: it found no quantized layers to scale; {}", where_,
                          places.empty()
                              ? "the model has nothing before linears that could take scales, so leave it out"
                              : "put it before the modifier that quantizes, or write mappings");
    }
    skipped_.clear();
    for (const ScaleMapping& mapping : mappings_) {
      require_modules(graph, mapping);
      const std::size_t before = sites.size();
      bool is_read = false, has_place = false;
      for (const graph::ScaleAbsorber& place : places) {
        if (!mapping.smooth.matches(module_of(graph, place.source))) continue;
        has_place = true;
        is_read = add(graph, place, &mapping, scheme_of, sites) || is_read;
      }
      if (has_place && !is_read)
        throw RecipeError("[recipe.check] {}: its balance layers do not read the smooth layer; correct or remove it",
                          mapping.where);
      if (sites.size() == before) skipped_.push_back(mapping.where);
    }
    return sites;
  }

  std::string note() const override {
    if (skipped_.empty()) return "";
    return fmt::format(
        "{} {} no effect, because the model does not allow a scale between its layers, as between values of grouped "
        "heads and o_proj, or because its balance layers are not quantized",
        join(skipped_), skipped_.size() == 1 ? "has" : "have");
  }

  std::vector<ListEntry> unmatched_entries() const override { return unmatched_in(mappings_); }

  at::Tensor scale(const TransformSite& site, const TransformInput& input) const override {
    const std::vector<at::Tensor> scales = candidate_scales(site, input);
    const compression::Trial trial{scales.size(),
                                   [&](std::size_t i) { return rounded_parameters(site, input, scales[i]); }};
    const std::vector<double> losses = input.run_trial(trial);
    std::optional<std::size_t> best;
    for (std::size_t i = 0; i < losses.size(); ++i)
      if (std::isfinite(losses[i]) && (!best || losses[i] < losses[*best])) best = i;
    if (!best)
      throw RecipeError(
          "[modifier.awq] the outputs around {} are not finite with any scale; check the model and the calibration "
          "data",
          input.graph.module_name(input.graph.nodes[site.balanced.front()]));
    return scales[*best];
  }

  std::uint64_t candidate_workspace(const TransformSite& site, const graph::Graph& graph, at::ScalarType dtype,
                                    const at::Device& device, const compression::SchemeOf& scheme_of) const override {
    std::uint64_t most = 0;
    for (const graph::NodeId n : site.balanced) {
      const auto* linear = std::get_if<graph::Linear>(&graph.nodes[n].operation);
      if (linear == nullptr) continue;
      const std::int64_t rows = linear->out_features, columns = linear->in_features;
      const quant::QuantizationScheme& scheme = *scheme_of(n);
      most = std::max(most, quant::rounded_weight_workspace(scheme, rows, columns, dtype, device));
      if (has_global_scale(scheme))  // largest_scaled
        most = std::max(most, static_cast<std::uint64_t>(rows * columns) * c10::elementSize(dtype) +
                                  kernels::scaled_columns_workspace(columns, device));
    }
    return most;
  }

 private:
  /// Adds a place if `mapping` (null: any) names quantized readers of it. Whether it names any readers.
  bool add(const graph::Graph& graph, const graph::ScaleAbsorber& place, const ScaleMapping* mapping,
           const compression::SchemeOf& scheme_of, std::vector<TransformSite>& sites) const {
    TransformSite site{place, {}};
    bool has_readers = false;
    for (const graph::ScaleReader& reader : place.readers) {
      const bool is_head = graph.nodes[reader.node].output == graph.output;
      if (mapping == nullptr ? is_head : !mapping->balance.matches(module_of(graph, reader.node))) continue;
      has_readers = true;
      if (scheme_of(reader.node) == nullptr) continue;
      require_channels(graph, reader.node, *scheme_of(reader.node));
      site.balanced.push_back(reader.node);
    }
    if (site.balanced.empty()) return has_readers;
    site.statistics[input_of(graph, site)] = {std::make_shared<compression::MeanAbsolute>()};
    site.candidates = candidates_.size();
    sites.push_back(std::move(site));
    return true;
  }

  /// With one scale for the whole weight, how a column compares with others of its group says nothing.
  void require_channels(const graph::Graph& graph, graph::NodeId reader,
                        const quant::QuantizationScheme& scheme) const {
    const bool duo = std::any_of(candidates_.begin(), candidates_.end(), [](const auto& own) { return own.duo; });
    if (duo && scheme.weights && scheme.weights->strategy == quant::Strategy::kTensor)
      throw RecipeError("[recipe.check] {}: {} has one scale for the whole weight; set duo_scaling to false", where_,
                        graph.module_name(graph.nodes[reader]));
  }

  std::vector<at::Tensor> candidate_scales(const TransformSite& site, const TransformInput& input) const {
    const at::Tensor x = input_means(site, input);
    at::Tensor w;
    at::Tensor scaled = at::zeros({x.size(0)}, x.options().dtype(at::kBool));
    for (const graph::ChannelRun& run : site.place.channels) scaled.narrow(0, run.first, run.count).fill_(true);
    std::vector<at::Tensor> scales;
    for (const Candidate& candidate : candidates_) {
      at::Tensor scale = at::pow(x, candidate.ratio);
      if (candidate.duo) {
        if (!w.defined()) w = weight_means(site, input).to(x.device());
        scale = scale / (at::pow(w, 1 - candidate.ratio) + 1e-4);
      }
      scale = scale.clamp_min(kLeastRatio);
      const at::Tensor own = scale.masked_select(scaled);
      scale = scale / at::sqrt(own.max() * own.min());
      scales.push_back(at::where(scaled.logical_and(at::isfinite(scale)), scale, at::ones_like(scale)));
    }
    return scales;
  }

  std::string where_;
  std::vector<Candidate> candidates_;
  std::vector<ScaleMapping> mappings_;
  mutable std::vector<std::string> skipped_;  // mappings, known after sites()
};

}  // namespace

/// AWQ (arXiv 2306.00978) makes weights easier to quantize. The output channels of a norm or a linear are divided by a scale,
/// and the columns of the linears that read them are multiplied by it, so that the weights of channels with large inputs lose
/// less when they are rounded. The model's outputs stay the same. A modifier behind it in the recipe quantizes.
///
/// Let x be the mean absolute input of a channel, and w the mean over the rows of all balance layers of |weight| divided by the
/// largest |weight| of its group. Candidates for the scale are x^r, and with duo scaling x^r / (w^(1 - r) + 1e-4), at least
/// 1e-4, divided by the geometric mean of the largest and the smallest. The candidate is taken with which the module around the
/// balance layers has the smallest squared error of its outputs when their weights are rounded to nearest with min-max scales.
///
/// Arguments, with LLM Compressor's meanings: duo_scaling true: x^0 and n_grid - 1 exponents with duo scaling; false: n_grid
/// exponents without it; "both": n_grid / 2 exponents with and without it. n_grid 20. mappings null, or a list of {smooth_layer,
/// balance_layers} with names and re: patterns. offload_device has no effect: activations wait where the run keeps them.
///
/// Without mappings, all places are used whose balance layers are quantized, but for the head. A mapping is skipped where
/// the model has no place for a scale (values of grouped heads) or where nothing is quantized, as LLM Compressor does; a note says so.
/// One whose balance layers do not read the smooth layer is refused.
Kind awq_modifier() { return {"AWQModifier", make<AwqModifier>, kAwqArguments}; }

}  // namespace layerpress::modifier
