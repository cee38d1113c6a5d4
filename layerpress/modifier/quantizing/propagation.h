#pragma once

#include <optional>
#include <string>
#include <vector>

#include "layerpress/base/json.h"
#include "layerpress/compression/edit.h"
#include "layerpress/kernels/solver/error_propagation.h"

namespace layerpress::modifier {

inline std::int64_t rows_of(const compression::LinearWeight& linear) { return linear.weight.size(0); }
inline std::int64_t rows_of(const compression::LinearShape& linear) { return linear.rows; }

/// The number of rows of the linears' whole group.
template <typename Linear>
std::int64_t rows_of_group(const std::vector<Linear>& linears) {
  if (linears.front().group_rows > 0) return linears.front().group_rows;
  std::int64_t rows = 0;
  for (const Linear& linear : linears) rows += rows_of(linear);
  return rows;
}

/// Parses the argument error_propagation. Null, false or missing: none; true: the defaults; otherwise a mapping of
/// strength (0 to 2), damping (not negative) and residual (0 to 2). Throws RecipeError naming `where` and the key.
std::optional<kernels::ErrorPropagation> parse_error_propagation(const Json& arguments, const std::string& where);

/// Parses such a mapping, which stands at `place`.
kernels::ErrorPropagation error_propagation_of(const Json& mapping, const std::string& place);

/// The statistic that compares a value with the original model's. If one linear reads the value and writes into the residual
/// stream, and the stream's own error is to be corrected, it is that of the linear's outputs; otherwise that of the value.
compression::StatisticPtr difference_wanted(const compression::ValueFacts& facts,
                                            const kernels::ErrorPropagation& options);

/// Moves weights towards the original model's outputs, or leaves them as they are: by default, without `options`, where the
/// statistics have none that compares with the original model, as when nothing was compressed before, and where they do not allow it.
class Propagation {
 public:
  Propagation() = default;
  /// For linears that read the value of the statistics. Measured as "propagate".
  Propagation(const std::vector<compression::LinearWeight>& linears, const compression::Statistics& statistics,
              const std::optional<kernels::ErrorPropagation>& options, PhaseTimes& times);

  bool moves() const { return mover_.has_value(); }
  const std::string& fallback() const { return fallback_; }  ///< why requested moving was not possible, or ""

  /// The linear with its weight moved, in fp32. Measured as "propagate".
  compression::LinearWeight moved(compression::LinearWeight linear, PhaseTimes& times) const;
  /// The same for rows [first, ...) of a weight.
  at::Tensor moved(const at::Tensor& rows, std::int64_t first, PhaseTimes& times) const;

 private:
  std::optional<kernels::WeightMover> mover_;
  std::string fallback_;
};

/// Adds the cost of making a mover and moving all weights; returns the bytes that the mover holds.
std::uint64_t add_propagation_cost(const std::vector<compression::LinearShape>& linears,
                                   compression::CompressionCost& cost);

/// Propagation as an edit, for weights that other edits change after it.
compression::EditPtr propagation_edit(const kernels::ErrorPropagation& options);

}  // namespace layerpress::modifier
