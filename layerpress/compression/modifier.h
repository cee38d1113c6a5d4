#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/div.h>
#include <ATen/ops/ones.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "layerpress/base/json.h"
#include "layerpress/base/system/phase_times.h"
#include "layerpress/compression/statistics/range_statistic.h"
#include "layerpress/graph/graph.h"
#include "layerpress/quant/compressed_weight.h"
#include "layerpress/quant/scheme.h"
#include "layerpress/quant/targets/matching.h"

namespace layerpress::compression {

/// Figures about a linear's inputs, which importance files have.
struct InputSquares {
  at::Tensor sums{};  ///< of squares, fp32, one for each column; undefined: they are not known
  double tokens = 0;  ///< over which they are sums

  /// The mean squares, fp32 [columns], ones without tokens; undefined if nothing is known.
  at::Tensor means() const {
    if (!sums.defined()) return {};
    return tokens > 0 ? sums.view({-1}).div(tokens) : at::ones({sums.numel()}, sums.options());
  }
};

/// The codes in which the source stores a weight.
struct StoredCodes {
  quant::QuantizationScheme scheme;
  std::function<quant::QuantizedWeight()> read;  ///< of the whole weight, on the CPU
};

/// A linear module, or an embedding, and its weight [rows, columns] as stored, on the computing device.
struct LinearWeight {
  std::string module;
  at::Tensor weight;
  const quant::QuantizationScheme* scheme = nullptr;
  at::ScalarType scale_dtype = at::kBFloat16;  ///< dtype in which scales are stored, unless the scheme names another
  std::int64_t group_rows = 0;                 ///< of all linears that are compressed with it, whoever compresses them
  std::int64_t first_row = 0;                  ///< where these rows begin in the whole weight
  at::Tensor whole{};  ///< that weight, for what depends on all of its rows; undefined where these are all
  /// The greatest Quantizer::value_to_share of the linear and of those that engines fuse with it. Nothing: the scheme has no such
  /// value, or the weight is whole and fused with none.
  std::optional<double> shared{};
  /// It, or one that engines fuse with it, is stored in MXFP4, which NVFP4 can hold exactly.
  bool from_mxfp4 = false;
  /// Weights that are exactly 0 stay 0, because an edit (edit.h) has pruned them.
  bool keeps_zeros = false;
  InputSquares importance{};            ///< from an importance file, for runs without data
  const StoredCodes* stored = nullptr;  ///< if the scheme can hold them, which is better than compressing again
};

/// A linear in a plan, before any weight is read.
struct LinearShape {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  at::ScalarType dtype = at::kBFloat16;  ///< stored dtype
  const quant::QuantizationScheme* scheme = nullptr;
  std::int64_t group_rows = 0;   ///< rows of all linears compressed with it; 0: of those passed together
  at::Device device = at::kCPU;  ///< device that compresses it
  bool computed = false;         ///< the original takes memory on a CPU, too
  bool keeps_zeros = false;      ///< as in LinearWeight
  bool operator==(const LinearShape&) const = default;
};

/// The cost of compress() for linears that read one value.
struct CompressionCost {
  std::uint64_t workspace_bytes = 0;    ///< peak of its allocations, including results, excluding inputs
  std::uint64_t result_bytes = 0;       ///< size of the results when it returns
  std::uint64_t host_bytes = 0;         ///< for linears on a device, what of it is computed on the host takes there
  std::map<std::string, double> flops;  ///< by phase, as in PhaseTimes; "observe" counts all candidates
};

/// The quantization of an attention's keys and values, and of its queries.
struct AttentionScheme {
  const quant::QuantizationArgs* args = nullptr;
  /// The group that names the attention, and then quantizes its queries, too; null: only the cache is quantized.
  const quant::QuantizationScheme* group = nullptr;
  /// The statistic from which the parameters of a value with heads of this size follow.
  std::function<RangeStatisticPtr(std::int64_t head_dim)> range;
};

/// The outcome for one module, for the summary.
struct ModuleReport {
  std::string module;
  std::string scheme;                    ///< such as "4-bit int group 64"
  std::string fallback;                  ///< "" or the fallback used ("dampening 0.1", "round-to-nearest", ...)
  std::optional<double> output_error;    ///< mean squared error of an output per token; needs statistics
  std::optional<double> output_power{};  ///< mean square of an output per token, from some of them; with output_error
  double weight_error = 0;               ///< ‖W - dequantized‖ / ‖W‖; filled in by the pipeline
  std::int64_t tokens = 0;               ///< tokens in the statistics
  /// For an expert's linear with selected tokens: the number that the router gave it.
  std::optional<std::int64_t> routed_tokens{};
  /// What a quantizer of a measuring run finds instead of codes, in an order of its own: sums over rows.
  std::vector<double> figures{};
  /// Adds those of other rows.
  void add_figures(const std::vector<double>& more);
  /// The root of output_error relative to that of output_power, if both are there.
  std::optional<double> relative_output_error() const;
  Json to_json() const;
  static ModuleReport from_json(const Json& json);  ///< throws CheckpointError
};

struct CompressedModule {
  quant::QuantizedWeight weight;
  ModuleReport report;
  /// report.weight_error, fp64, while a device has not computed it; BackgroundSink fills it in. Filled in by the
  /// pipeline.
  at::Tensor weight_error{};
  /// Figures about its inputs, if they were collected, whoever wanted them; filled in by the pipeline, on the computing device.
  InputSquares inputs{};
};

/// Linears that read one value, and its statistics, which are null if none were wanted or the run has no data.
struct CompressionTask {
  std::vector<LinearWeight> linears;
  const Statistics* statistics = nullptr;
};

class Edit;

/// An entry of a recipe: a transform (transform.h), edits (edit.h) or a quantizer. It knows nothing of batches, ranks, devices or files.
class Modifier {
 public:
  virtual ~Modifier() = default;

  /// Its type in recipes.
  virtual std::string type() const = 0;

  /// Whether it needs calibration data.
  virtual bool needs_data() const = 0;

  /// What of it needs the data, if it does: "GPTQModifier", or "QuantizationModifier (static scales of inputs in FP8)".
  virtual std::string data_use() const { return type(); }

  /// Arguments that were given and change nothing here.
  const std::vector<std::string>& arguments_without_effect() const { return without_effect_; }

  /// An entry of one of its lists of modules, as it is written.
  struct ListEntry {
    std::string list;  ///< "ignore"
    std::string entry;
  };
  /// Those that match no module of the model; they are known after its edits or transforms have been asked for. Of a quantizer, none:
  /// its lists are known beforehand.
  virtual std::vector<ListEntry> unmatched_entries() const { return {}; }

  /// What it does otherwise than its name says, in one sentence for the user; "": nothing.
  virtual std::string note() const { return ""; }

 protected:
  std::vector<std::string> without_effect_{};
};

/// Turns weights and statistics into codes, or, in a measuring run, into figures (quant::unchanged_scheme). The pipeline collects the statistics that it wants and stores the results.
class Quantizer : public Modifier {
 public:
  /// The scheme this modifier gives a module, or null when the module is not among its targets.
  virtual const quant::QuantizationScheme* scheme_for(const quant::ModuleName& module) const = 0;

  /// A group of modules and its scheme, by the name that the recipe gives it.
  struct SchemeGroup {
    std::string name;
    const quant::QuantizationScheme* scheme = nullptr;
  };
  /// The modules that stay as they are, by name, class or pattern.
  virtual std::vector<std::string> ignore_entries() const { return {}; }
  /// All schemes that scheme_for() may return.
  virtual std::vector<SchemeGroup> scheme_groups() const { return {}; }

  /// The statistics that it wants of a value which linears read that it compresses.
  virtual std::vector<StatisticPtr> statistics_wanted(const ValueFacts& facts) const = 0;
  /// Whether some of them are made from the original model's values, so that it runs beside the compressed one.
  virtual bool wants_original() const { return false; }
  /// What it does to a weight before it looks for codes, for linears that have edits, too: it then comes before them, and compress()
  /// leaves it out for weights that keep zeros, which it would fill. Null: nothing.
  virtual std::shared_ptr<const Edit> first_edit() const { return nullptr; }
  /// Whether the inputs of its linears are rounded during calibration as their schemes round them, and the original model's are not.
  virtual bool rounds_inputs() const { return false; }

  /// What a linear's whole weight contributes to a value that it has in common with the linears that engines fuse with it, such
  /// as NVFP4's global scale. Each of them gets the greatest contribution (LinearWeight::shared), before rows are divided among
  /// ranks. Nothing for a scheme without such a value. `statistics`: those of the value that the linear reads, or null.
  virtual std::optional<double> value_to_share(const LinearWeight& linear, const Statistics* statistics) const;

  /// The modifier that compresses embeddings among the targets, without statistics; it lives as long as this. Null: none does.
  virtual const Quantizer* for_embeddings() const { return nullptr; }

  /// Whether layers behind a compressed linear are calibrated with its compressed weight. Otherwise they see the original weight.
  virtual bool propagates() const { return true; }

  /// The statistic from which the stored parameters of the scheme's inputs follow (quant::has_stored_inputs), for a value that
  /// it also wants; null if there are none.
  virtual RangeStatisticPtr input_range(const quant::QuantizationScheme& scheme) const;
  /// How it quantizes what an attention reads; nothing: not at all.
  virtual std::optional<AttentionScheme> attention_scheme(const quant::ModuleName& module) const;
  /// The arguments of the cache of keys and values, which are the same for all attentions; null if it stays as it is.
  virtual const quant::QuantizationArgs* kv_cache() const { return nullptr; }

  /// Rows of a weight are compressed independently, given the statistics: any run of rows that begins at a multiple of this
  /// gives the same codes as within the whole. 0: all rows belong together.
  virtual std::int64_t row_step(const LinearShape& linear) const = 0;

  /// Memory and arithmetic of compress() for linears of these shapes.
  virtual CompressionCost cost(const std::vector<LinearShape>& linears) const = 0;

  /// Compresses linears that read one value, all assigned to this modifier; one result per linear, in order.
  /// `statistics` is null if none were wanted or the run has no data. Measures its phases in `times`.
  virtual std::vector<CompressedModule> compress(const std::vector<LinearWeight>& linears, const Statistics* statistics,
                                                 PhaseTimes& times) const = 0;

  /// The number of tasks with linears of these shapes for one call of compress_together(): more than one if a single
  /// task would not occupy the device.
  virtual std::size_t tasks_at_once(const std::vector<LinearShape>& linears) const;
  /// CompressionCost::workspace_bytes of compress_together() for `tasks` tasks with linears of these shapes.
  virtual std::uint64_t workspace_together(const std::vector<LinearShape>& linears, std::size_t tasks) const;
  /// compress() for several independent tasks with linears of the same shapes; results by task.
  virtual std::vector<std::vector<CompressedModule>> compress_together(const std::vector<CompressionTask>& tasks,
                                                                       PhaseTimes& times) const;
};

}  // namespace layerpress::compression
