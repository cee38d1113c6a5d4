#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "layerpress/graph/facts/residual_writes.h"
#include "layerpress/quant/scheme.h"

namespace layerpress::compression {

/// How the figures of batches and ranks are combined, element by element.
enum class Merge { kSum, kMax };

/// Which elements of a statistic are defined and sent between ranks.
enum class Travel { kTriangle, kWhole };

/// Rows [first, last) of a statistic's figures.
struct RowRange {
  std::int64_t first = 0;
  std::int64_t last = 0;
};

/// A value of the compressed model, or the original model's value in its place.
struct StatisticSource {
  graph::ValueId value = -1;
  bool original = false;
  auto operator<=>(const StatisticSource&) const = default;  // NOLINT(modernize-use-nullptr): clang-tidy 14 is wrong
};

/// The samples to which rows of a value belong.
struct SampleRows {
  std::vector<std::int64_t> offsets{};  ///< sample i: rows [offsets[i], offsets[i + 1])
  std::vector<std::int64_t> places{};   ///< of each sample in the whole calibration set
  std::int64_t all = 0;                 ///< samples in the calibration set, of all ranks
};

/// The contribution of some tokens: tensors [tokens, features] of the computing dtype, and a parameter.
struct StatisticInput {
  std::vector<at::Tensor> values;  ///< in the order of Statistic::sources()
  at::Tensor parameter{};          ///< Statistic::parameter() in the computing dtype, if it names one
  SampleRows samples{};            ///< if Statistic::looks_at_samples()
};

/// Figures [rows, features] in fp32 about a value of the graph, to which every batch contributes and which are merged over
/// ranks. Each statistic is one file. A modifier names the statistics that it wants; schedule, store, division among ranks
/// and plan know only this interface.
class Statistic {
 public:
  virtual ~Statistic() = default;

  /// A value's statistics with the same name are collected once.
  virtual std::string_view name() const = 0;
  /// The phase in which its time and arithmetic are counted.
  virtual const char* phase() const { return "statistics"; }

  /// Its inputs, in the order in which they are computed: those of the compressed model, `value` itself first and the others before it
  /// in the graph, then the original model's, which may lie behind `value`.
  virtual std::vector<StatisticSource> sources(graph::ValueId value) const { return {{value}}; }
  /// The parameter of the original model that it needs, or "".
  virtual std::string parameter() const { return ""; }

  /// Rows of its figures for a value with this many features.
  virtual std::int64_t rows(std::int64_t features) const = 0;
  virtual Merge merge() const = 0;
  virtual Travel travel() const { return Travel::kWhole; }
  /// Whether all ranks need it, whichever rank compresses the linears. Its figures are small.
  virtual bool everywhere() const { return false; }
  /// Whether it distinguishes samples. It then needs values with one row per token.
  virtual bool looks_at_samples() const { return false; }
  /// Whether tokens that a loss mask leaves out contribute, too.
  virtual bool takes_all_tokens() const { return false; }
  /// Whether add() can process ranges of rows separately, so that finished rows are sent while others are computed.
  virtual bool adds_by_rows() const { return false; }

  /// Merges the contribution of these tokens into rows [range.first, range.last) of `figures`: all rows, unless it adds by
  /// rows.
  virtual void add(at::Tensor& figures, const StatisticInput& input, const RowRange& range) const = 0;
  /// Floating-point operations of add() for this many tokens.
  virtual double flops(double tokens, std::int64_t features, const RowRange& range) const = 0;
  /// The most memory that add() allocates on a device, in bytes, without the conversion of a parameter.
  virtual std::uint64_t workspace_bytes(std::int64_t features, at::ScalarType dtype, at::Device device,
                                        int threads) const = 0;

  /// Whether divide_channels() is possible.
  virtual bool follows_division() const { return true; }
  /// Changes the figures to those of a value whose channel c is divided by scale[c], fp32 [features], positive.
  virtual void divide_channels(at::Tensor& figures, const at::Tensor& scale) const = 0;

  RowRange all_rows(std::int64_t features) const { return {0, rows(features)}; }
  /// The figures before any token has contributed.
  double identity() const;
};

using StatisticPtr = std::shared_ptr<const Statistic>;

/// The source that is computed last of all that a value's statistics have.
StatisticSource last_source(const std::vector<StatisticPtr>& statistics, graph::ValueId value);

/// The number of defined elements in some rows.
std::int64_t element_count(const Statistic& statistic, std::int64_t features, const RowRange& range);

/// The facts about a value by which a modifier chooses its statistics.
struct ValueFacts {
  graph::ValueId value = -1;
  /// Whether the original model has another value in its place, because something was compressed before.
  bool differs = false;
  /// The one linear that reads it and writes into the residual stream, if the original model's stream differs.
  std::optional<graph::ResidualWrite> write{};
  /// The scheme of a linear that reads it.
  const quant::QuantizationScheme* scheme = nullptr;
};

/// The collected statistics of a value, by name.
struct Statistics {
  std::map<std::string, at::Tensor, std::less<>> figures{};
  std::int64_t tokens = 0;  ///< that contributed

  /// Undefined if it was not collected.
  at::Tensor of(std::string_view name) const {
    const auto found = figures.find(name);
    return found == figures.end() ? at::Tensor() : found->second;
  }
  /// The same by its class, which has its name as kName.
  template <typename Kind>
  at::Tensor of() const {
    return of(Kind::kName);
  }
};

}  // namespace layerpress::compression
