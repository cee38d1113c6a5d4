#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "layerpress/base/json.h"
#include "layerpress/base/phase_times.h"
#include "layerpress/graph/graph.h"
#include "layerpress/kernels/output_cross.h"
#include "layerpress/quant/compressed_weight.h"
#include "layerpress/quant/matching.h"
#include "layerpress/quant/scheme.h"

namespace layerpress::compression {

/// Sums over the tokens that reached a value. They merge by addition: over batches, ranks, resumed runs.
struct Statistics {
  at::Tensor gram;  ///< fp32 [features, features], upper triangle of XᵀX; undefined when nobody wants it
  std::int64_t tokens = 0;
  /// fp32 [features, features], (X̃ - X)ᵀX with X̃ what the original model has in X's place; undefined when nobody wants it, or
  /// where nothing was compressed before and X̃ is X.
  at::Tensor cross{};
  /// fp32 [rows, features], in its place where the one linear that reads the value writes into the residual stream: EᵀX with E
  /// what the original model's stream has more behind the linear (kernels/output_cross.h), by the shares that were wanted.
  at::Tensor output_cross{};
};

/// What a modifier needs to know of a linear's input.
struct StatisticsWanted {
  bool gram = false;
  bool cross = false;  ///< beside the Gram matrix; the original model runs beside the compressed one for it
  /// Where it can be had, the output cross matrix instead, of these shares.
  std::optional<kernels::ResidualShares> output_cross{};
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
  /// The greatest Modifier::value_to_share of the linear and of those that engines fuse with it. Nothing: the scheme has no such
  /// value, or the weight is whole and fused with none.
  std::optional<double> shared{};
};

/// A linear in a plan, before any weight is read.
struct LinearShape {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  at::ScalarType dtype = at::kBFloat16;  ///< stored dtype
  const quant::QuantizationScheme* scheme = nullptr;
  std::int64_t group_rows = 0;   ///< rows of all linears compressed with it; 0: of those passed together
  at::Device device = at::kCPU;  ///< device that compresses it
  bool operator==(const LinearShape&) const = default;
};

/// The cost of compress() for linears that read one value.
struct CompressionCost {
  std::uint64_t workspace_bytes = 0;    ///< peak of its allocations, including results, excluding inputs
  std::uint64_t result_bytes = 0;       ///< size of the results when it returns
  std::map<std::string, double> flops;  ///< by phase, as in PhaseTimes; "observe" counts all candidates
};

/// The outcome for one module, for the summary.
struct ModuleReport {
  std::string module;
  std::string scheme;                  ///< such as "4-bit int group 64"
  std::string fallback;                ///< "" or the fallback used ("dampening 0.1", "round-to-nearest", ...)
  std::optional<double> output_error;  ///< mean squared error of an output per token; needs statistics
  double weight_error = 0;             ///< ‖W - dequantized‖ / ‖W‖; filled in by the pipeline
  std::int64_t tokens = 0;             ///< tokens in the statistics
  /// For an expert's linear with selected tokens: the number that the router gave it.
  std::optional<std::int64_t> routed_tokens{};
  Json to_json() const;
  static ModuleReport from_json(const Json& json);  ///< throws CheckpointError
};

struct CompressedModule {
  quant::QuantizedWeight weight;
  ModuleReport report;
  /// report.weight_error, fp64, while a device has not computed it; BackgroundSink fills it in. Filled in by the
  /// pipeline.
  at::Tensor weight_error{};
};

/// Linears that read one value, and its statistics, which are null if none were wanted or the run has no data.
struct CompressionTask {
  std::vector<LinearWeight> linears;
  const Statistics* statistics = nullptr;
};

/// A compression algorithm. It turns weights and statistics into codes and knows nothing of batches, ranks, devices or
/// files: the pipeline collects the statistics it wants and stores what it returns.
class Modifier {
 public:
  virtual ~Modifier() = default;

  /// Its type in recipes.
  virtual std::string type() const = 0;

  /// The scheme this modifier gives a module, or null when the module is not among its targets.
  virtual const quant::QuantizationScheme* scheme_for(const quant::ModuleName& module) const = 0;

  /// A group of modules and its scheme, by the name that the recipe gives it.
  struct SchemeGroup {
    std::string name;
    const quant::QuantizationScheme* scheme = nullptr;
  };
  /// All schemes that scheme_for() may return.
  virtual std::vector<SchemeGroup> scheme_groups() const { return {}; }

  /// Arguments that were given and change nothing here.
  virtual std::vector<std::string> arguments_without_effect() const { return {}; }

  /// Whether it can work without calibration data.
  virtual bool needs_data() const = 0;

  virtual StatisticsWanted statistics_wanted() const = 0;

  /// What a linear's whole weight contributes to a value that it has in common with the linears that engines fuse with it, such
  /// as NVFP4's global scale. Each of them gets the greatest contribution (LinearWeight::shared), before rows are divided among
  /// ranks. Nothing for a scheme without such a value.
  virtual std::optional<double> value_to_share(const LinearWeight& linear) const;

  /// The modifier that compresses embeddings among the targets, without statistics; it lives as long as this. Null: none does.
  virtual const Modifier* for_embeddings() const { return nullptr; }

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

/// The modifier and the scheme that compress a linear or an embedding node.
struct Assignment {
  const Modifier* modifier = nullptr;
  const quant::QuantizationScheme* scheme = nullptr;
  at::ScalarType scale_dtype = at::kBFloat16;  ///< the stored weight's dtype, in which its scales are stored, too
  at::Device device = at::kCPU;                ///< on which it is compressed
  std::vector<graph::NodeId> fused{};          ///< other compressed linears that engines run with it as one
};

/// Compressed linears by node.
using Assignments = std::map<graph::NodeId, Assignment>;

}  // namespace layerpress::compression
