#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "layerpress/kernels/numbers/scale_rounding.h"
#include "layerpress/kernels/scales/levels.h"

namespace layerpress::kernels {

/// Cuts a weight [rows, columns] into blocks that share one scale: [ceil(rows/block_rows),
/// ceil(columns/block_columns)].
struct ScaleGrid {
  std::int64_t block_rows = 1;
  std::int64_t block_columns = 0;
};
inline std::int64_t blocks_of(std::int64_t size, std::int64_t block) { return (size + block - 1) / block; }

/// How to choose scales.
struct ScaleSearch {
  /// Candidates: the range shrunk by each factor, tried in order; {1.0} is plain min-max.
  std::vector<double> shrink{1.0};
  double exponent = 2;  ///< error = sum(importance * |dequantized - w|^exponent)
  /// Stop after this many candidates in a row that improve no block of the whole weight; 0: try all.
  int patience = 0;
  double expand = 1;  ///< the range is widened by this factor before it is shrunk
};

/// Other rows of a weight, made when they are needed; they begin where blocks begin.
using OtherRows = std::function<at::Tensor()>;

/// Range of codes and how a range becomes a scale. Symmetric integers: scale = amax / ((2^bits - 1) / 2); asymmetric:
/// (max - min) / (2^bits - 1) and zero_point = round(clamp(minimum - min / scale)); fp8: amax / 448. Each operation is
/// rounded to the dtype that the scale is stored in, as compressed-tensors computes.
struct RangeRule {
  ElementType element;
  bool symmetric = true;
  /// Of symmetric integers, which have one code more below zero than above: a range whose greatest magnitude is positive gets a scale
  /// below zero, so that the greatest magnitude has this code ("full range" in AutoRound; Q4_0 of llama.cpp does the same).
  bool signed_scale = false;
};

/// Chooses the scale of each row's group of columns during the solve, when the group is next to be quantized.
/// Candidates are clippings of the range that the weights have by then; the one with the smallest loss is kept. GPTQ's
/// loss is a sum over columns of the error that later columns cannot compensate, so quantizing the group's own columns
/// once per candidate shows the full cost of the candidate.
struct GroupSearch {
  RangeRule rule;
  std::vector<double> shrink{1.0};  ///< candidates, as in ScaleSearch
  ScaleFormat stored;
};

/// Smallest and largest value of a block; both include 0.
struct Range {
  float minimum = 0;
  float maximum = 0;
  void extend(float value) {
    minimum = std::min(minimum, value);
    maximum = std::max(maximum, value);
  }
};

/// Scale and zero point of a range that is shrunk by a factor before. A scale of zero becomes the dtype's epsilon, with
/// the zero point 0 for a range of nothing.
Qparams qparams_of(const Range& range, double shrink, const RangeRule& rule, const ScaleFormat& stored);

struct ChosenScales {
  at::Tensor scale;       ///< fp32 [row blocks, column blocks], values representable in `stored`
  at::Tensor zero_point;  ///< fp32, same shape, or undefined
};

/// The same with ATen operations for tensors of minima (at most 0) and maxima (at least 0), on any device.
ChosenScales qparams_of(const at::Tensor& minimum, const at::Tensor& maximum, double shrink, const RangeRule& rule,
                        const ScaleFormat& stored);

/// Finds the scale of each block with the smallest error. Scales are rounded to `stored` (bf16, fp16, fp32) before the
/// error is measured, so that the stored scales are compared; a zero scale becomes the dtype's epsilon.
/// `importance`: fp32 [columns] or undefined. `others`: the rest of the weight that these rows are of; only patience
/// asks for them, and only where these rows do not show how far it goes. Non-finite weights: the caller checks.
/// Multi-threaded on the CPU; weights on other devices are searched there, by a kernel where blocks have one row
/// (kernels/scales/row_search.h), else with ATen.
ChosenScales search_scales(const at::Tensor& weight, const ScaleGrid& grid, const RangeRule& rule,
                           const ScaleSearch& search, const ScaleFormat& stored, const at::Tensor& importance,
                           const std::vector<OtherRows>& others = {});

/// How scales of a checkpoint's dtype (bf16, fp16, fp32) are stored.
ScaleFormat scales_of_dtype(at::ScalarType dtype);

/// search_scales with ATen operations over many rows at once, for any device; also the plain implementation for
/// tests.
ChosenScales plain_search_scales(const at::Tensor& weight, const ScaleGrid& grid, const RangeRule& rule,
                                 const ScaleSearch& search, const ScaleFormat& stored, const at::Tensor& importance,
                                 const std::vector<OtherRows>& others = {});

/// Bytes that plain_search_scales allocates at most.
std::uint64_t plain_search_workspace(std::int64_t rows, std::int64_t columns, const ScaleGrid& grid);

/// Bytes that search_scales allocates at most on `device` for a weight [rows, columns] with so many candidates,
/// including its result.
std::uint64_t search_workspace(std::int64_t rows, std::int64_t columns, const ScaleGrid& grid, const RangeRule& rule,
                               std::int64_t candidates, at::Device device = at::kCPU);

/// Rounds every weight to its nearest code: int8 [rows, columns] (bytes of fp8 values for fp8).
at::Tensor round_to_nearest(const at::Tensor& weight, const ScaleGrid& grid, const ElementType& element,
                            const ChosenScales& scales);

/// round_to_nearest by ATen operations over many rows at once: any device, and the tests' plain implementation.
at::Tensor plain_round_to_nearest(const at::Tensor& weight, const ScaleGrid& grid, const ElementType& element,
                                  const ChosenScales& scales);

/// Bytes that round_to_nearest allocates at most on `device` besides its result.
std::uint64_t round_workspace(std::int64_t rows, std::int64_t columns, const ScaleGrid& grid, at::Device device);

/// A per-block tensor expanded to all weights [rows, columns].
at::Tensor spread_blocks(const at::Tensor& per_block, const ScaleGrid& grid, std::int64_t rows, std::int64_t columns);

}  // namespace layerpress::kernels
