#include "layerpress/verification/comparison.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <set>

#include "layerpress/base/text.h"
#include "layerpress/compression/transform.h"
#include "layerpress/gguf/architectures/architecture.h"
#include "layerpress/quant/container_format.h"
#include "layerpress/source/source_format.h"

namespace layerpress::verification {
namespace {

/// Elements of a weight that are compared together.
constexpr std::int64_t kChunk = 8 << 20;
/// Rows and groups with a smaller share of the mean power are noise: nothing can be said of their direction.
constexpr double kLeastPower = 1e-2;
/// The same where a group seems small: one of few elements beside a tensor's greatest rounds to little.
constexpr double kLeastPowerOfSmall = 0.1;
constexpr double kHalf = 0.6;  ///< of a size, rounding included

/// The share of rows that may be others: where calibration data is short, GPTQ gives up single rows.
constexpr double kMostForeign = 0.01;
/// The share of groups whose size may be another where weights are only rounded.
constexpr double kMostDoubled = 0.001;

/// Limits of a weight's relative error, and of the cosine between a row and the original one. GPTQ may move single groups far, and
/// seldom a row.
struct Limits {
  double error, cosine;
};

Limits limits_of(int bits) {
  if (bits >= 6) return {0.15, 0.9};
  if (bits >= 4) return {0.6, 0.5};
  return bits == 3 ? Limits{0.9, 0.3} : Limits{1.3, 0.1};
}

/// How large a weight may be along the original: rounding makes it a little smaller.
struct Sizes {
  double least, most;
};

Sizes sizes_of(int bits) {
  if (bits >= 8) return {0.96, 1.04};
  return bits > 2 ? Sizes{0.8, 1.2} : Sizes{0.65, 1.3};
}

/// The same of columns with a tenth of the mean power, and the share of columns that may be others: GPTQ moves single columns of
/// few bits far.
struct ColumnLimits {
  Sizes sizes;
  double most_foreign;
};
constexpr double kLeastColumnPower = 0.1;

ColumnLimits column_limits(int bits) { return bits >= 6 ? ColumnLimits{{0.7, 1.4}, 0} : ColumnLimits{{0.5, 2}, 0.02}; }

/// Where weights that stay make up for those that go, they grow, but not to this size along the original ones.
constexpr Limits kMoved = {1.3, 0.3};
constexpr double kMostGrown = 1.7;
/// Where more elements were pruned, the others need not resemble the original ones.
constexpr double kMostPruned = 0.75;
constexpr double kMostForeignOfFew = 0.25;  ///< of such a weight's rows

/// Sums over groups of columns, [rows, groups].
struct Sums {
  at::Tensor original, product, rounded;  ///< <w, w>, <w, ŵ>, <ŵ, ŵ>

  Sums of_rows() const { return {original.sum(1, true), product.sum(1, true), rounded.sum(1, true)}; }
  at::Tensor cosine() const { return product / (original * rounded).sqrt().clamp_min(1e-30); }
  /// How large ŵ is along w: 1 for w itself.
  at::Tensor along() const { return product / original.clamp_min(1e-30); }
  at::Tensor weighty(double least = kLeastPower) const { return original.gt(least * original.mean()); }
};

Sums sums_of(const at::Tensor& original, const at::Tensor& rounded, std::int64_t size) {
  const std::int64_t rows = original.size(0);
  const at::Tensor w = original.to(at::kFloat).reshape({rows, -1, size});
  const at::Tensor q = rounded.to(at::kFloat).reshape({rows, -1, size});
  return {w.square().sum(2), (w * q).sum(2), q.square().sum(2)};
}

/// Rows that are others than the original's.
at::Tensor foreign_rows(const Sums& rows, const Limits& limits) {
  return rows.cosine().lt(limits.cosine).logical_and(rows.weighty());
}

/// Groups that are turned around or of twice the size, or, where `finds_small`, of half of it, as with a wrong scale or zero point.
at::Tensor suspicious_groups(const Sums& groups, bool finds_small) {
  const at::Tensor along = groups.along();
  const at::Tensor found = along.lt(0).logical_or(along.gt(1.9)).logical_and(groups.weighty());
  return finds_small ? found.logical_or(along.lt(kHalf).logical_and(groups.weighty(kLeastPowerOfSmall))) : found;
}

/// Sums over the rows of a weight, [columns].
struct ColumnSums {
  at::Tensor original, product;

  void add(const at::Tensor& w, const at::Tensor& rounded) {
    const at::Tensor wide = w.to(at::kFloat);
    const at::Tensor own = wide.square().sum(0), both = (wide * rounded.to(at::kFloat)).sum(0);
    original = original.defined() ? original + own : own;
    product = product.defined() ? product + both : both;
  }

  /// The columns that are not as large along the original's as `sizes`.
  at::Tensor foreign(const Sizes& sizes) const {
    const at::Tensor along = product / original.clamp_min(1e-30);
    return along.lt(sizes.least)
        .logical_or(along.gt(sizes.most))
        .logical_and(original.gt(kLeastColumnPower * original.mean()))
        .nonzero()
        .flatten();
  }
};

/// The part of the squared error that a constant in each group makes up, as wrong zero points do. Rounding errors of a group add up to
/// little.
double shift_of_groups(const at::Tensor& original, const at::Tensor& rounded, std::int64_t size) {
  const at::Tensor error = rounded.to(at::kFloat) - original.to(at::kFloat);
  return (error.reshape({error.size(0), -1, size}).sum(2).square() / static_cast<double>(size))
      .sum(at::kDouble)
      .item<double>();
}
constexpr double kMostShifted = 0.3;
/// Of weights that GPTQ moved: where inputs have no mean, as after a LayerNorm, it moves the error there, and wrong zero points are more.
constexpr double kMostShiftedBySolvers = 0.6;

/// A weight [rows, columns] as it is compared.
struct ComparedWeight {
  std::string name;
  std::int64_t rows = 0, columns = 0;
  int bits = 16;
  std::int64_t group_size = 0;  ///< divides the columns
  bool has_zero_points = false;
  bool has_own_scales = false;  ///< groups do not share one
};

/// Of blocks of a GGUF, whose types have 2 bits and more, what 4 bits allow.
ComparedWeight described(const source::StoredWeight& weight) {
  const std::int64_t columns = weight.shape[1];
  const auto& args = weight.scheme.weights;
  const std::int64_t size = args ? args->group_size.value_or(-1) : -1;
  return {weight.name,
          weight.shape[0],
          columns,
          args ? args->num_bits : 4,
          size >= 16 && columns % size == 0 ? size : columns,
          args && !args->symmetric,
          !args || args->strategy == quant::Strategy::kGroup || args->strategy == quant::Strategy::kTensorGroup ||
              args->strategy == quant::Strategy::kChannel};
}

/// product / power; 1 where the product is negative, as of turned weights.
at::Tensor positive(const at::Tensor& product, const at::Tensor& power) {
  return at::where(product.lt(0), at::ones_like(power), product / power.clamp_min(1e-30));
}

/// Rows of the original without what may have been pruned.
at::Tensor compared(const at::Tensor& original, const at::Tensor& rounded, const Change& change) {
  return change.prunes ? original.masked_fill(rounded.eq(0), 0) : original;
}

/// Positive scales of columns, [columns], with which `original` is nearest to `rounded`.
at::Tensor fitted_columns(const at::Tensor& original, const at::Tensor& rounded, const Change& change,
                          std::int64_t chunk) {
  ColumnSums sums;
  for (std::int64_t first = 0; first < original.size(0); first += chunk) {
    const std::int64_t last = std::min(first + chunk, original.size(0));
    const at::Tensor found = rounded.slice(0, first, last);
    sums.add(compared(original.slice(0, first, last), found, change), found);
  }
  return positive(sums.product, sums.original);
}

/// By what the elements of a norm or a bias were divided, fp32; 1 where the source has zero, and no positive number for elements that
/// are not the source's divided by one.
at::Tensor divisors(const at::Tensor& original, const at::Tensor& stored, double offset) {
  const at::Tensor before = original.to(at::kFloat) + offset, after = stored.to(at::kFloat) + offset;
  return at::where(before.eq(0), at::ones_like(before), before / after);
}

/// By what the norms say that the weight's columns were multiplied, fp32 [columns]; undefined without norms.
at::Tensor norm_scales(const Change& change, const at::Tensor& weight, const setup::OpenedModel& result,
                       const setup::OpenedModel& source) {
  at::Tensor scales;
  for (const DividedNorm& norm : change.norms) {
    if (!result.checkpoint->contains(norm.weight) || !source.checkpoint->contains(norm.weight)) continue;
    const at::Tensor divided =
        divisors(source.checkpoint->tensor(norm.weight), result.checkpoint->tensor(norm.weight), norm.offset);
    const at::Tensor known = at::where(divided.gt(0).logical_and(divided.isfinite()), divided, at::ones_like(divided));
    const at::Tensor own = compression::scale_of(norm.columns, known, weight.size(1));
    scales = scales.defined() ? scales * own : own;
  }
  return scales;
}

/// The rows of `original`, each with the positive scale with which it is nearest to that of `rounded`.
at::Tensor with_row_scales(const at::Tensor& original, const at::Tensor& rounded) {
  const Sums rows = sums_of(original, rounded, original.size(1));
  return original * positive(rows.product, rows.original);
}

/// Places in a weight, found some rows at a time.
struct Places {
  std::int64_t count = 0, first_row = -1;

  void add(const at::Tensor& mask, std::int64_t row) {
    const at::Tensor found = mask.nonzero();
    if (found.size(0) > 0 && first_row < 0) first_row = row + found[0][0].item<std::int64_t>();
    count += found.size(0);
  }
};

/// Compares one weight, some rows at a time. Returns its relative error, if that is a number. `known`: norm_scales().
std::optional<double> compare_weight(const ComparedWeight& weight, const at::Tensor& original,
                                     const at::Tensor& rounded, const Change& change, const at::Tensor& known,
                                     Findings& findings, const Changes& all = {}) {
  const bool follows_original = all.follow_original;
  const std::string module = parent_name(weight.name);
  const Limits own = limits_of(weight.bits);
  const Limits limits =
      change.moves ? Limits{std::max(own.error, kMoved.error), std::min(own.cosine, kMoved.cosine)} : own;
  const std::int64_t chunk = std::max<std::int64_t>(1, kChunk / weight.columns);
  double power = 0, error = 0, shift = 0, zeros = 0;
  double own_power = 0, own_product = 0, own_error = 0;  // of the rows that are the source's
  Places foreign, suspicious, resized;
  ColumnSums columns;
  const bool is_fitted = change.scales_rows || change.scales_columns;
  const bool keeps_size = !is_fitted && !change.moves && !follows_original;
  const bool finds_small = weight.has_own_scales && keeps_size && weight.bits >= (all.only_rounds ? 4 : 6);
  // A weight has one input, so that its columns have scales of norms or of a linear.
  const at::Tensor scales = change.scales_columns ? fitted_columns(original, rounded, change, chunk) : known;
  for (std::int64_t first = 0; first < weight.rows; first += chunk) {
    const std::int64_t last = std::min(first + chunk, weight.rows);
    const at::Tensor found = rounded.slice(0, first, last);
    at::Tensor expected = compared(original.slice(0, first, last), found, change);
    if (change.prunes) zeros += static_cast<double>(found.eq(0).sum().item<std::int64_t>());
    if (scales.defined()) expected = expected.to(at::kFloat) * scales;
    if (change.scales_rows) expected = with_row_scales(expected.to(at::kFloat), found);
    const Sums groups = sums_of(expected, found, weight.group_size);
    const Sums rows = groups.of_rows();
    const at::Tensor errors = (groups.original - 2 * groups.product + groups.rounded).clamp_min(0).sum(1, true);
    const at::Tensor others = foreign_rows(rows, limits);
    const auto sum_of_own = [&](const at::Tensor& sums) {
      return sums.masked_fill(others, 0).sum(at::kDouble).item<double>();
    };
    power += rows.original.sum(at::kDouble).item<double>(), own_power += sum_of_own(rows.original);
    error += errors.sum(at::kDouble).item<double>(), own_error += sum_of_own(errors);
    own_product += sum_of_own(rows.product);
    foreign.add(others, first);
    if (weight.bits > 2) suspicious.add(suspicious_groups(groups, finds_small), first);
    if (weight.bits >= 6 && keeps_size) resized.add(suspicious_groups(rows, weight.has_own_scales), first);
    const bool by_columns = keeps_size && weight.bits >= 4;
    if (!by_columns && !weight.has_zero_points) continue;
    const at::Tensor kept = expected.masked_fill(others, 0), kept_found = found.masked_fill(others, 0);
    if (by_columns) columns.add(kept, kept_found);
    if (weight.has_zero_points) shift += shift_of_groups(kept, kept_found, weight.group_size);
  }
  const auto relative_to = [](double size, double own) { return std::sqrt(size > 0 ? own / size : own); };
  const double relative = relative_to(power, error), own_relative = relative_to(own_power, own_error);
  if (!std::isfinite(relative)) {
    findings.warning("source", module, "has weights whose squares overflow, so it was not compared");
    return std::nullopt;
  }
  const double size = own_power > 0 ? own_product / own_power : 1;
  const Sizes sizes = sizes_of(weight.bits);
  const ColumnLimits by_column = column_limits(weight.bits);
  const at::Tensor others = columns.original.defined() ? columns.foreign(by_column.sizes) : at::empty({0}, at::kLong);
  // Moving towards the original's outputs may change a weight beyond recognition where little of it is left: 2 bits with one scale for a
  // row or for all of them, or few elements that make up for those that were pruned.
  const double elements = static_cast<double>(weight.rows * weight.columns);
  const bool is_coarse = (follows_original && weight.bits <= 2 && weight.group_size == weight.columns) ||
                         (change.prunes && change.moves && zeros > kMostPruned * elements &&
                          static_cast<double>(foreign.count) < kMostForeignOfFew * static_cast<double>(weight.rows));
  const auto report = [&](const std::string& what) {
    if (is_coarse)
      findings.warning("source", module, what);
    else
      findings.fault("source", module, what);
  };
  const std::string rows_off = fmt::format("{} of its {} rows are not the source's, the first is row {}", foreign.count,
                                           weight.rows, foreign.first_row);
  const std::int64_t groups = weight.rows * (weight.columns / std::max<std::int64_t>(1, weight.group_size));
  const bool has_other_groups = !change.moves && !is_fitted && suspicious.count > 0;
  const std::string groups_off =
      fmt::format("{} of its {} groups have another sign, or twice or half the size, the first is in row {}",
                  suspicious.count, groups, suspicious.first_row);
  if (change.prunes && zeros == elements && original.ne(0).any().item<bool>())
    findings.fault("source", module, "holds zeros only, and the source's weight does not");
  else if (static_cast<double>(foreign.count) > kMostForeign * static_cast<double>(weight.rows))
    report(rows_off);
  else if (own_relative > (follows_original ? std::max(limits.error, kMoved.error) : limits.error))
    report(fmt::format("differs from the source by {:.2f} of its size", relative));
  else if (keeps_size ? size < sizes.least || size > sizes.most : !is_fitted && size > kMostGrown)
    findings.fault("source", module, fmt::format("is {:.2f} times as large as the source", size));
  else if (!is_fitted && shift > (all.only_rounds ? kMostShifted : kMostShiftedBySolvers) * own_error)
    report(
        fmt::format("{:.0f} % of its difference from the source are constants in its groups, as of wrong zero points",
                    100 * shift / own_error));
  else if (resized.count > 0)
    findings.fault("source", module,
                   fmt::format("{} of its {} rows have another sign, or twice or half the size, the first is row {}, "
                               "which rounding to {} bits does not do",
                               resized.count, weight.rows, resized.first_row, weight.bits));
  else if (static_cast<double>(others.numel()) > by_column.most_foreign * static_cast<double>(weight.columns))
    findings.fault("source", module,
                   fmt::format("{} of its {} columns are not the source's, the first is column {}", others.numel(),
                               weight.columns, others[0].item<std::int64_t>()));
  else if (all.only_rounds && has_other_groups &&
           static_cast<double>(suspicious.count) > kMostDoubled * static_cast<double>(groups))
    findings.fault("source", module, groups_off + ", which rounding does not do");
  else if (foreign.count > 0)
    findings.warning("source", module, rows_off);
  else if (relative > limits.error)
    findings.warning("source", module,
                     fmt::format("differs from the source by {:.2f} of its size, moved towards the original model's "
                                 "outputs; more samples would move it less",
                                 relative));
  else if (has_other_groups)
    findings.warning("source", module, groups_off);
  return relative;
}

/// Rows of a product, each of which differs by what rounding makes: at most 2^-9 of an element in bfloat16, and of sums of such elements.
void compare_computed(const std::string& name, const at::Tensor& original, const at::Tensor& stored,
                      Findings& findings) {
  constexpr double kOfRow = 0.02, kOfAll = 0.01, kOfSize = 0.003;
  const at::Tensor expected = original.to(at::kDouble), found = stored.to(at::kDouble);
  const std::int64_t columns = std::max<std::int64_t>(expected.size(-1), 1);
  const at::Tensor rows = expected.reshape({-1, columns}).norm(2, 1);
  const at::Tensor errors = (found - expected).reshape({-1, columns}).norm(2, 1);
  const double size = rows.norm().item<double>();
  // Rows of next to nothing, as of tokens that no text had, are what rounding of the others leaves.
  const double least = 1e-3 * size / std::sqrt(static_cast<double>(std::max<std::int64_t>(rows.numel(), 1)));
  const at::Tensor foreign = errors.gt(kOfRow * rows + kOfRow * least).nonzero().reshape({-1});
  const double ratio = size == 0 ? 1 : (found * expected).sum().item<double>() / (size * size);
  if (foreign.numel() > 0 && expected.dim() > 1)
    findings.fault("source", name,
                   fmt::format("is not compressed, but {} of its {} rows are not the source's as the recipe changes "
                               "them, the first is row {}",
                               foreign.numel(), rows.numel(), foreign[0].item<std::int64_t>()));
  else if (errors.norm().item<double>() > kOfAll * size || std::abs(ratio - 1) > kOfSize)
    findings.fault("source", name, "is not compressed, but differs from the source's as the recipe changes it");
}

/// `is_computed`: the original is a product, such as a rotation, which another machine rounds otherwise. `of_file`: of a GGUF, which
/// holds 1 + x of norms, and -exp(x) of what a delta rule forgets.
void compare_plain(const std::string& name, const at::Tensor& original, const at::Tensor& stored, bool is_computed,
                   bool of_file, Findings& findings) {
  if (is_computed) {
    compare_computed(name, original, stored, findings);
    return;
  }
  const at::Tensor expected = original.to(stored.scalar_type());
  if (at::equal(expected, stored)) return;
  constexpr double kRounding = 1e-6;            // of -exp(x) and 1 + x, also in a file that the result was made of
  if (at::equal((expected + 1) - 1, stored)) {  // as LLM Compressor leaves norms that compute with 1 + weight
    if (!of_file) findings.warning("source", name, "lost digits: it was rounded as 1 + the source's value");
  } else if (stored.dim() != 1 || !at::allclose(stored.to(at::kFloat), expected.to(at::kFloat), kRounding, kRounding)) {
    findings.fault("source", name, "is not compressed, but differs from the source's");
  }
}

/// A tensor that is not quantized. A weight that only lost elements has the source's others.
void compare_changed(const std::string& name, const at::Tensor& original, const at::Tensor& stored,
                     const Change& change, const at::Tensor& known, bool is_computed, bool of_file,
                     Findings& findings) {
  if (change.divided) {
    if (!divisors(original, stored, *change.divided).gt(0).logical_and(stored.isfinite()).all().item<bool>())
      findings.fault("source", name, "is not the source's, divided by positive numbers");
  } else if (stored.dim() != 2 ||
             (!change.moves && !change.scales_rows && !change.scales_columns && !known.defined())) {
    compare_plain(name, compared(original, stored, change), stored, is_computed, of_file, findings);
  } else {
    compare_weight({.name = name, .rows = stored.size(0), .columns = stored.size(1), .group_size = stored.size(1)},
                   original, stored, change, known, findings);
  }
}

/// The tensors of a source that its result has, too, by their names there. A GGUF holds the language model only, and not all of it.
std::map<std::string, std::string> expected_names(const setup::OpenedModel& result, const setup::OpenedModel& source) {
  std::optional<gguf::Architecture> file;
  if (result.file_metadata) file = gguf::architecture_for(source.checkpoint->config());
  std::map<std::string, std::string> names;
  for (const std::string& name : source.checkpoint->names())
    if (!source::describes_activations(name) && (!file || !file->place(name).places.empty()))
      names[file ? gguf::text_name(name) : name] = name;
  return names;
}

/// Scales of inputs, keys and values that both have: measured again they are of the same size.
void compare_activations(const setup::OpenedModel& result, const setup::OpenedModel& source, Findings& findings) {
  constexpr double kMost = 4;
  for (const std::string& name : source.stored->names()) {
    if (!source::describes_activations(name) || !name.ends_with("_scale") || !result.stored->contains(name)) continue;
    const at::Tensor original = source.stored->tensor(name).to(at::kDouble),
                     stored = result.stored->tensor(name).to(at::kDouble);
    if (original.sizes() != stored.sizes()) continue;
    const at::Tensor ratio = stored / original;
    const at::Tensor others = ratio.gt(kMost).logical_or(ratio.lt(1 / kMost));
    if (others.any().item<bool>())
      findings.fault("source", name,
                     fmt::format("is {:.3g} times the source's", ratio.masked_select(others)[0].item<double>()));
  }
}

/// A head of its own is what an untied embedding leaves.
void check_further(const setup::OpenedModel& result, const setup::OpenedModel& source,
                   const std::map<std::string, std::string>& expected, Findings& findings) {
  for (const std::string& name : result.checkpoint->names())
    if (!expected.contains(name) && !source::describes_activations(name) &&
        !(source.traced.tied_head && name.ends_with("lm_head.weight")))
      findings.warning("further", name, "is not in the source");
}

/// Whether a key of config.json says something of the model's tools, or of text, and nothing of what the model computes.
bool is_free(const std::string& key) {
  static const std::set<std::string> kFree = {"use_cache",     "tie_word_embeddings",  "quantization_config",
                                              "_name_or_path", "transformers_version", "dtype",
                                              "torch_dtype"};
  return kFree.count(key) != 0 || key.ends_with("_implementation");
}

bool are_near(const std::vector<double>& values, const std::vector<double>& others) {
  constexpr double kRounding = 1e-3;
  return std::equal(values.begin(), values.end(), others.begin(), others.end(), [](double value, double other) {
    return value == other || std::abs(value - other) <= kRounding * std::max(std::abs(value), std::abs(other));
  });
}

std::vector<double> values_of(const graph::Constant& constant) {
  std::vector<double> values;
  if (constant.dtype == "float32")
    for (std::size_t at = 0; at + sizeof(float) <= constant.bytes.size(); at += sizeof(float)) {
      float value = 0;
      std::memcpy(&value, constant.bytes.data() + at, sizeof value);
      values.push_back(value);
    }
  return values;
}

bool is_same(const graph::RopeTable& one, const graph::RopeTable& other) {
  return are_near(one.inverse_frequencies, other.inverse_frequencies) &&
         are_near({one.attention_scaling}, {other.attention_scaling}) &&
         (one.long_inverse_frequencies.empty() || other.long_inverse_frequencies.empty() ||
          are_near(one.long_inverse_frequencies, other.long_inverse_frequencies));
}

bool is_imported(const graph::Graph& graph) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(),
                     [](const graph::Node& node) { return std::holds_alternative<graph::Aten>(node.operation); });
}

/// How a module attends to tokens and turns their positions, in the order of its nodes.
struct Attending {
  std::vector<graph::Attention> attentions;
  std::vector<graph::RopeTable> tables;
  std::vector<std::string> programs;  ///< of imported operators
};

std::map<std::string, Attending> attending_modules(const graph::Graph& graph) {
  std::map<std::string, Attending> modules;
  for (const graph::Node& node : graph.nodes) {
    Attending& module = modules[graph.module_name(node)];
    if (const auto* attention = std::get_if<graph::Attention>(&node.operation))
      module.attentions.push_back(*attention);
    else if (const auto* rotary = std::get_if<graph::Rotary>(&node.operation))
      module.tables.push_back(graph.rope_tables.at(static_cast<std::size_t>(rotary->table)));
    else if (const auto* imported = std::get_if<graph::Aten>(&node.operation))
      module.programs.push_back(imported->program);
  }
  return modules;
}

constexpr const char* kOtherProgram = "computes something else than in the source, by config.json";

std::string window_text(std::int64_t window) {
  return window == 0 ? "all tokens before it" : fmt::format("the last {}", window);
}

/// 0 also for a window that a text of so many `positions` does not leave, as the context of a GGUF ends at the window.
std::int64_t effective_window(const graph::Attention& attention, std::int64_t positions) {
  return positions > 0 && attention.window >= positions ? 0 : attention.window;
}

/// "": there is none. `positions`: the longest text.
std::string difference(const Attending& result, const Attending& source, std::int64_t positions) {
  if (result.tables.size() != source.tables.size())
    return fmt::format("turns positions {} times, in the source {} times", result.tables.size(), source.tables.size());
  if (!std::equal(result.tables.begin(), result.tables.end(), source.tables.begin(), is_same))
    return "turns positions by other angles than in the source";
  for (std::size_t i = 0; i < std::min(result.attentions.size(), source.attentions.size()); ++i) {
    const graph::Attention &own = result.attentions[i], &original = source.attentions[i];
    const std::int64_t window = effective_window(own, positions), wanted = effective_window(original, positions);
    if (window != wanted)
      return fmt::format("lets a token see {}, in the source {}", window_text(window), window_text(wanted));
    if (!are_near({own.scale, own.soft_cap}, {original.scale, original.soft_cap}))
      return "scales scores otherwise than in the source";
  }
  return result.programs == source.programs && result.attentions.size() == source.attentions.size() ? ""
                                                                                                    : kOtherProgram;
}

bool is_simple(const Json& value) { return value.is_number() || value.is_boolean() || value.is_string(); }

/// Numbers, switches and words of config.json that both have, also in its sections, and a factor of positions that only the result
/// has. Tools may write other keys and lists in their own way.
void compare_configs(const Json& result, const Json& source, const std::string& place, Findings& findings) {
  const bool is_rotary = place.find("rope_") != std::string::npos;  // of rope_parameters or rope_scaling
  for (const auto& [key, value] : result.items()) {
    const auto found = source.find(key);
    if (is_free(key) || (found == source.end() && !(is_rotary && key == "factor"))) continue;
    const Json original = found == source.end() ? Json() : *found;
    if (value.is_object() && original.is_object()) {
      compare_configs(value, original, place + key + ".", findings);
    } else if (value != original && is_simple(value) && (is_simple(original) || found == source.end()) &&
               (found == source.end() || value.is_string() == original.is_string())) {
      const std::string what = fmt::format("is {}, the source's is {}", shortened(value), shortened(original));
      if (key.ends_with("_token_id"))
        findings.warning("config", place + key, what);
      else
        findings.fault("config", place + key, what);
    }
  }
}

}  // namespace

Comparison compare(const setup::OpenedModel& result, const setup::OpenedModel& source, const Changes& changes,
                   const RunControl& control, Findings& findings) {
  Comparison comparison;
  const std::map<std::string, std::string> names = expected_names(result, source);
  for (const auto& [own, name] : names) {
    control.check_stop();
    control.phase("compare", static_cast<std::uint64_t>(comparison.tensors), names.size());
    ++comparison.tensors;
    if (!result.checkpoint->contains(own)) {
      findings.fault("missing", name, "is in the source, but not in the checkpoint");
      continue;
    }
    const auto& original = source.checkpoint->spec(name);
    const auto& stored = result.checkpoint->spec(own);
    if (original.shape != stored.shape) {
      findings.fault("shape", name,
                     fmt::format("has shape {}, in the source {}", quant::shape_text(stored.shape),
                                 quant::shape_text(original.shape)));
      continue;
    }
    if (changes.unknown) continue;
    const auto quantized = result.quantized.find(own);
    const auto allowed = changes.tensors.find(name);
    const Change change = allowed == changes.tensors.end() ? Change{} : allowed->second;
    try {
      const at::Tensor expected = source.checkpoint->tensor(name), found = result.checkpoint->tensor(own);
      const at::Tensor known = norm_scales(change, expected, result, source);
      if (quantized == result.quantized.end()) {
        compare_changed(name, expected, found, change, known, source.checkpoint->is_computed(name),
                        result.file_metadata.has_value(), findings);
      } else if (quantized->second.shape.size() == 2) {
        const auto error =
            compare_weight(described(quantized->second), expected, found, change, known, findings, changes);
        if (error) comparison.errors.push_back({parent_name(name), *error});
      }
    } catch (const CheckpointError& error) {
      findings.fault("codes", name, error.what());
    }
    source.checkpoint->release(name);
    result.checkpoint->release(own);
  }
  check_further(result, source, names, findings);
  if (!changes.unknown) compare_activations(result, source, findings);
  if (!result.file_metadata && !source.file_metadata)
    compare_configs(result.checkpoint->config(), source.checkpoint->config(), "", findings);
  return comparison;
}

void compare_attention(const model::TracedModel& compressed, const graph::Graph& source, bool of_file,
                       Findings& findings) {
  const graph::Graph& result = compressed.graph;
  const auto has_all = [](const std::vector<graph::RopeTable>& own, const std::vector<graph::RopeTable>& wanted) {
    return std::all_of(wanted.begin(), wanted.end(), [&](const graph::RopeTable& table) {
      return std::any_of(own.begin(), own.end(), [&](const graph::RopeTable& other) { return is_same(other, table); });
    });
  };
  const auto is_not_another = [](const graph::Constant& one, const graph::Constant& other) {
    return one.name != other.name || are_near(values_of(one), values_of(other));
  };
  const bool same_constants = std::all_of(result.constants.begin(), result.constants.end(), [&](const auto& own) {
    return std::all_of(source.constants.begin(), source.constants.end(),
                       [&](const auto& other) { return is_not_another(own, other); });
  });
  const bool compares_tables = !result.rope_tables.empty() && !source.rope_tables.empty();
  const bool same_tables =
      has_all(source.rope_tables, result.rope_tables) && (of_file || has_all(result.rope_tables, source.rope_tables));
  if (!same_constants || (compares_tables && !same_tables))
    return findings.fault("config", "the rotary embedding", "turns positions by other angles than the source's");
  if (is_imported(result) != is_imported(source)) return;   // the same functions in other operations
  std::map<std::string, std::vector<std::string>> modules;  // by what is wrong
  const std::map<std::string, Attending> originals = attending_modules(source);
  for (const auto& [module, own] : attending_modules(result))
    if (const auto original = originals.find(module); original != originals.end())
      if (const std::string fault = difference(own, original->second, compressed.max_position_embeddings);
          !fault.empty())
        modules[fault].push_back(module);
  for (const auto& [fault, found] : modules) {
    const std::string others = found.size() == 1 ? "" : fmt::format(" ({} modules)", found.size());
    if (fault == kOtherProgram)
      findings.warning("config", found.front(), fault + others);
    else
      findings.fault("config", found.front(), fault + others);
  }
}

}  // namespace layerpress::verification
