#include "layerpress/kernels/scales/scale_search.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <limits>
#include <mutex>

#include "layerpress/kernels/cpu/table.h"
#include "layerpress/kernels/products/wide_rows.h"
#include "layerpress/kernels/scales/row_search.h"
#include "layerpress/kernels/scales/search_patience.h"

namespace layerpress::kernels {
namespace {

// Rows of blocks up to this size are searched in one buffer by one thread; larger ones strip by strip.
constexpr std::int64_t kStripElements = 1 << 18;
constexpr std::int64_t kStripsAtOnce = 64;  // limits the memory for strips' results

/// The input of a search.
struct Problem {
  const at::Tensor& weight;
  const ScaleGrid& grid;
  const RangeRule& rule;
  const ScaleSearch& search;
  const ScaleFormat& stored;
  const float* importance;

  std::int64_t candidates() const { return static_cast<std::int64_t>(search.shrink.size()); }
  std::int64_t row_blocks() const { return blocks_of(weight.size(0), grid.block_rows); }
  std::int64_t column_blocks() const { return blocks_of(weight.size(1), grid.block_columns); }
};

/// Scales and zero points that one block may get, and room for their errors.
struct Candidates {
  std::vector<float> scales, zero_points, errors;

  void set(const Problem& problem, const Range& observed) {
    const auto expand = static_cast<float>(problem.search.expand);
    const Range range{widened(problem.stored, observed.minimum, expand),
                      widened(problem.stored, observed.maximum, expand)};
    scales.clear(), zero_points.clear();
    for (const double shrink : problem.search.shrink) {
      const Qparams q = qparams_of(range, shrink, problem.rule, problem.stored);
      scales.push_back(q.scale), zero_points.push_back(q.zero_point);
    }
  }
  Qparams at(std::size_t index) const { return {scales[index], zero_points[index]}; }
};

/// Some rows of a block, or all of them, in fp32.
struct BlockRows {
  const float* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t stride = 0;
  std::int64_t columns = 0;
  std::int64_t first_column = 0;

  void extend(Range& range) const {
    for (std::int64_t r = 0; r < rows; ++r)
      cpu::table().minimum_maximum(data + r * stride, columns, &range.minimum, &range.maximum);
  }

  /// Adds the errors of all candidates.
  void add_errors(const Problem& problem, const Candidates& candidates, float* errors) const {
    for (std::int64_t r = 0; r < rows; ++r)
      cpu::table().scale_errors(
          {.weights = data + r * stride,
           .importance = problem.importance == nullptr ? nullptr : problem.importance + first_column,
           .count = columns,
           .scales = candidates.scales.data(),
           .zero_points = problem.rule.symmetric ? nullptr : candidates.zero_points.data(),
           .candidates = problem.candidates(),
           .exponent = static_cast<float>(problem.search.exponent),
           .element = problem.rule.element,
           .errors = errors});
  }
};

/// Follows errors in the order of candidates.
struct BestCandidate {
  std::size_t index = 0;
  float error = std::numeric_limits<float>::infinity();

  void offer(std::size_t candidate, float candidate_error, Improving& improving) {
    if (candidate > 0 && !(candidate_error < error)) return;
    *this = {candidate, candidate_error};
    if (!improving.empty()) improving[candidate] = 1;
  }
};

void join(const Improving& some, Improving& all) {
  for (std::size_t c = 0; c < some.size(); ++c) all[c] |= some[c];
}

/// Calls function(block, rows of it) for the blocks that lie side by side in rows of a weight in fp32.
template <typename Function>
void for_each_block(const Problem& problem, const float* data, std::int64_t rows, Function&& function) {
  const std::int64_t columns = problem.weight.size(1);
  for (std::int64_t begin = 0, block = 0; begin < columns; begin += problem.grid.block_columns, ++block)
    function(block, BlockRows{.data = data + begin,
                              .rows = rows,
                              .stride = columns,
                              .columns = std::min(problem.grid.block_columns, columns - begin),
                              .first_column = begin});
}

/// Where the blocks' results go.
struct Results {
  float* scales;
  float* zero_points;  // null: all are 0

  explicit Results(const ChosenScales& chosen)
      : scales(chosen.scale.data_ptr<float>()),
        zero_points(chosen.zero_point.defined() ? chosen.zero_point.data_ptr<float>() : nullptr) {}
  void store(std::int64_t block, const Qparams& q) const {
    scales[block] = q.scale;
    if (zero_points != nullptr) zero_points[block] = q.zero_point;
  }
};

/// Searches a block that lies in cache.
Qparams search_block(const Problem& problem, const BlockRows& block, Candidates& candidates, Improving& improving) {
  Range range;
  block.extend(range);
  candidates.set(problem, range);
  if (problem.candidates() == 1) return candidates.at(0);
  candidates.errors.assign(candidates.scales.size(), 0.0f);
  block.add_errors(problem, candidates, candidates.errors.data());
  BestCandidate best;
  for (std::size_t c = 0; c < candidates.errors.size(); ++c) best.offer(c, candidates.errors[c], improving);
  return candidates.at(best.index);
}

/// One row of blocks per step of a thread.
void search_small_blocks(const Problem& problem, const Results& results, Improving& improving) {
  const std::int64_t column_blocks = problem.column_blocks(), rows = problem.weight.size(0);
  const std::int64_t grain = std::max<std::int64_t>(1, 16384 / (problem.grid.block_rows * problem.weight.size(1)));
  std::mutex joining;
  at::parallel_for(0, problem.row_blocks(), grain, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> buffer;
    Candidates candidates;
    Improving own(improving.size(), 0);
    for (std::int64_t b = begin; b < end; ++b) {
      const std::int64_t first = b * problem.grid.block_rows, count = std::min(problem.grid.block_rows, rows - first);
      for_each_block(problem, wide_rows(problem.weight, first, count, buffer), count,
                     [&](std::int64_t block, const BlockRows& block_rows) {
                       results.store(b * column_blocks + block, search_block(problem, block_rows, candidates, own));
                     });
    }
    const std::lock_guard<std::mutex> lock(joining);
    join(own, improving);
  });
}

/// Blocks too large for a thread's cache: ranges, then errors, strip by strip, put together in the order of strips.
class LargeBlockSearch {
 public:
  LargeBlockSearch(const Problem& problem, const Results& results, Improving& improving)
      : problem_(problem),
        results_(results),
        improving_(improving),
        strip_rows_(std::max<std::int64_t>(1, kStripElements / problem.weight.size(1))),
        strips_per_block_(blocks_of(std::min(problem.grid.block_rows, problem.weight.size(0)), strip_rows_)) {}

  void run() {
    const std::int64_t step = std::max<std::int64_t>(1, kStripsAtOnce / strips_per_block_);
    for (std::int64_t first = 0; first < problem_.row_blocks(); first += step)
      search(first, std::min(step, problem_.row_blocks() - first));
  }

 private:
  /// Searches rows of blocks [first, first + count).
  void search(std::int64_t first, std::int64_t count) {
    const std::int64_t across = problem_.column_blocks(), tried = problem_.candidates();
    std::vector<Range> ranges(static_cast<std::size_t>(count * strips_per_block_ * across));
    for_each_strip(first, count, [&](std::int64_t strip, std::int64_t block, const BlockRows& rows) {
      rows.extend(ranges[static_cast<std::size_t>(strip * across + block)]);
    });
    candidates_.resize(static_cast<std::size_t>(count * across));
    for (std::int64_t b = 0; b < count * across; ++b) candidates_[b].set(problem_, whole_range(ranges, b));
    std::vector<float> errors(tried == 1 ? 0 : static_cast<std::size_t>(count * strips_per_block_ * across * tried));
    if (tried > 1)
      for_each_strip(first, count, [&](std::int64_t strip, std::int64_t block, const BlockRows& rows) {
        rows.add_errors(problem_, candidates_[strip / strips_per_block_ * across + block],
                        errors.data() + (strip * across + block) * tried);
      });
    for (std::int64_t b = 0; b < count * across; ++b)
      results_.store(first * across + b, candidates_[b].at(tried == 1 ? 0 : best(errors, b)));
  }

  /// Calls function(strip, block, rows) on all threads; strips are counted from row of blocks `first` on.
  template <typename Function>
  void for_each_strip(std::int64_t first, std::int64_t count, Function&& function) const {
    at::parallel_for(0, count * strips_per_block_, 1, [&](std::int64_t begin, std::int64_t end) {
      std::vector<float> buffer;
      for (std::int64_t strip = begin; strip < end; ++strip) {
        const std::int64_t top = (first + strip / strips_per_block_) * problem_.grid.block_rows;
        const std::int64_t bottom = std::min(top + problem_.grid.block_rows, problem_.weight.size(0));
        const std::int64_t row = top + strip % strips_per_block_ * strip_rows_;
        const std::int64_t rows = std::min(strip_rows_, bottom - row);
        if (rows <= 0) continue;  // the last row of blocks may have fewer
        for_each_block(problem_, wide_rows(problem_.weight, row, rows, buffer), rows,
                       [&](std::int64_t block, const BlockRows& block_rows) { function(strip, block, block_rows); });
      }
    });
  }

  /// The place of the results of strip `s` of block `b` (counted over the current rows of blocks).
  std::size_t place(std::int64_t b, std::int64_t s) const {
    const std::int64_t across = problem_.column_blocks();
    return static_cast<std::size_t>((b / across * strips_per_block_ + s) * across + b % across);
  }

  Range whole_range(const std::vector<Range>& ranges, std::int64_t b) const {
    Range whole;
    for (std::int64_t s = 0; s < strips_per_block_; ++s) {
      const Range& part = ranges[place(b, s)];
      whole = {std::min(whole.minimum, part.minimum), std::max(whole.maximum, part.maximum)};
    }
    return whole;
  }

  std::size_t best(const std::vector<float>& errors, std::int64_t b) {
    BestCandidate best;
    const auto tried = static_cast<std::size_t>(problem_.candidates());
    for (std::size_t c = 0; c < tried; ++c) {
      double error = 0;
      for (std::int64_t s = 0; s < strips_per_block_; ++s)
        error += static_cast<double>(errors[place(b, s) * tried + c]);
      best.offer(c, static_cast<float>(error), improving_);
    }
    return best.index;
  }

  const Problem& problem_;
  const Results& results_;
  Improving& improving_;
  std::int64_t strip_rows_, strips_per_block_;
  std::vector<Candidates> candidates_;
};

bool in_strips(const ScaleGrid& grid, std::int64_t columns) {
  return grid.block_rows > 1 && grid.block_rows * columns > kStripElements;
}

}  // namespace

ScaleFormat scales_of_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16:
      return {ScaleType::kBf16};
    case at::kHalf:
      return {ScaleType::kHalf};
    default:
      return {ScaleType::kFloat};
  }
}

Qparams qparams_of(const Range& whole, double shrink, const RangeRule& rule, const ScaleFormat& stored) {
  const auto factor = static_cast<float>(shrink);
  const Qparams found =
      range_parameters(stored, rule.element, rule.symmetric, whole.minimum * factor, whole.maximum * factor);
  return {sign_of_scale(rule.signed_scale, whole.minimum, whole.maximum) * found.scale, found.zero_point};
}

namespace {

ChosenScales search_on_cpu(const at::Tensor& input, const ScaleGrid& grid, const RangeRule& rule,
                           const ScaleSearch& search, const ScaleFormat& stored, const at::Tensor& importance,
                           Improving& improving) {
  const at::Tensor weight = input.contiguous();
  const at::Tensor weights_of_error = importance.defined() ? importance.to(at::kFloat).contiguous() : at::Tensor();
  const Problem problem{weight, grid,   rule,
                        search, stored, importance.defined() ? weights_of_error.const_data_ptr<float>() : nullptr};
  ChosenScales chosen;
  chosen.scale = at::empty({problem.row_blocks(), problem.column_blocks()}, at::kFloat);
  if (!rule.symmetric) chosen.zero_point = at::empty_like(chosen.scale);
  const Results results(chosen);
  if (in_strips(grid, weight.size(1)))
    LargeBlockSearch(problem, results, improving).run();
  else
    search_small_blocks(problem, results, improving);
  return chosen;
}

}  // namespace

ChosenScales search_scales(const at::Tensor& weight, const ScaleGrid& grid, const RangeRule& rule,
                           const ScaleSearch& search, const ScaleFormat& stored, const at::Tensor& importance,
                           const std::vector<OtherRows>& others) {
  if (weight.is_cpu())
    return search_with_patience(weight, search, others,
                                [&](const at::Tensor& rows, const ScaleSearch& candidates, Improving& improving) {
                                  return search_on_cpu(rows, grid, rule, candidates, stored, importance, improving);
                                });
  if (grid.block_rows > 1) return plain_search_scales(weight, grid, rule, search, stored, importance, others);
  return search_rows_by(row_searcher(weight.device()), weight, grid, rule, search, stored, importance, others);
}

std::uint64_t search_workspace(std::int64_t rows, std::int64_t columns, const ScaleGrid& grid, const RangeRule& rule,
                               std::int64_t candidates, at::Device device) {
  constexpr std::int64_t kWide = sizeof(float);
  const std::int64_t across = blocks_of(columns, grid.block_columns), threads = at::get_num_threads();
  const std::int64_t result = kWide * blocks_of(rows, grid.block_rows) * across * (rule.symmetric ? 1 : 2);
  if (!device.is_cpu()) {
    const bool by_rows = grid.block_rows == 1;
    return static_cast<std::uint64_t>(result) + (by_rows ? 0 : plain_search_workspace(rows, columns, grid));
  }
  const bool strips = in_strips(grid, columns);
  const std::int64_t buffered = strips ? std::max(columns, kStripElements) : grid.block_rows * columns;
  const std::int64_t of_a_strip = across * (static_cast<std::int64_t>(sizeof(Range)) + kWide * candidates);
  const std::int64_t remembered = strips ? 2 * kStripsAtOnce * of_a_strip : 0;
  return static_cast<std::uint64_t>(result + threads * kWide * buffered + remembered);
}

at::Tensor round_to_nearest(const at::Tensor& input, const ScaleGrid& grid, const ElementType& element,
                            const ChosenScales& scales) {
  const at::Tensor weight = input.contiguous();
  const std::int64_t rows = weight.size(0), columns = weight.size(1);
  if (!weight.is_cpu()) return plain_round_to_nearest(weight, grid, element, scales);
  at::Tensor codes = at::empty({rows, columns}, at::kChar);
  const std::int64_t column_blocks = scales.scale.size(1);
  const float* scale = scales.scale.const_data_ptr<float>();
  const float* zero = scales.zero_point.defined() ? scales.zero_point.const_data_ptr<float>() : nullptr;
  auto* target = codes.data_ptr<std::int8_t>();
  at::parallel_for(0, rows, std::max<std::int64_t>(1, 65536 / columns), [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> buffer;
    for (std::int64_t row = begin; row < end; ++row) {
      const float* wide = wide_rows(weight, row, 1, buffer);
      const std::int64_t first = row / grid.block_rows * column_blocks;
      cpu::table().quantize(wide,
                            {columns, grid.block_columns, scale + first, zero == nullptr ? nullptr : zero + first},
                            element, target + row * columns);
    }
  });
  return codes;
}

}  // namespace layerpress::kernels
