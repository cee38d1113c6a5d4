#include "layerpress/pipeline/statistics_store.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>
#include <deque>

#include "layerpress/dist/group.h"
#include "layerpress/kernels/gram.h"

namespace layerpress::pipeline {
namespace {

constexpr std::size_t kStripsUnderWay = 2;

/// The number of elements in rows [first, last) of the upper triangle.
std::int64_t elements(const dist::Slice& rows, std::int64_t features) {
  return rows.size() * features - (rows.first + rows.last - 1) * rows.size() / 2;
}

/// Operations of `rows` rows of a matrix for this many tokens.
double matrix_flops(std::int64_t tokens, std::int64_t rows, std::int64_t features) {
  return 2 * static_cast<double>(tokens) * static_cast<double>(rows) * static_cast<double>(features);
}

/// Operations of the triangle's rows [first, last) for this many tokens.
double gram_flops(std::int64_t tokens, const dist::Slice& rows, std::int64_t features) {
  return 2 * static_cast<double>(tokens) * static_cast<double>(elements(rows, features));
}

}  // namespace

/// Sends strips of triangles around, few at a time, and puts the sums back.
class StatisticsStore::Merge {
 public:
  void start(const execution::RunContext& run, const at::Tensor& gram, const dist::Slice& rows, int root) {
    if (under_way_.size() == kStripsUnderWay) finish_one(run);
    const auto phase = run.times.measure("reduce");
    const at::Tensor packed = at::empty({elements(rows, gram.size(1))}, gram.options());
    copy(gram, rows, packed, /*pack=*/true);
    under_way_.push_back(
        {gram, rows, packed,
         root == kAllRanks ? run.group.start_all_reduce(packed) : run.group.start_reduce(packed, root)});
  }

  /// Rows of a matrix, where they lie.
  void start_in_place(const execution::RunContext& run, const at::Tensor& matrix, const dist::Slice& rows, int root) {
    if (under_way_.size() == kStripsUnderWay) finish_one(run);
    const auto phase = run.times.measure("reduce");
    const at::Tensor own = matrix.narrow(0, rows.first, rows.size());
    under_way_.push_back(
        {{}, rows, own, root == kAllRanks ? run.group.start_all_reduce(own) : run.group.start_reduce(own, root)});
  }

  void finish(const execution::RunContext& run) {
    while (!under_way_.empty()) finish_one(run);
  }

 private:
  struct Strip {
    at::Tensor gram;  // undefined: what travels lies in its place
    dist::Slice rows;
    at::Tensor packed;
    dist::Group::Pending pending;
  };

  void finish_one(const execution::RunContext& run) {
    const auto phase = run.times.measure("reduce");
    Strip& strip = under_way_.front();
    strip.pending.wait();
    if (strip.gram.defined()) copy(strip.gram, strip.rows, strip.packed, /*pack=*/false);
    under_way_.pop_front();
  }

  /// Between the matrix and its rows laid end to end.
  static void copy(const at::Tensor& gram, const dist::Slice& rows, const at::Tensor& packed, bool pack) {
    const std::int64_t features = gram.size(1);
    if (!gram.is_cpu()) return copy_on_device(gram, rows, packed, pack);
    auto* matrix = gram.data_ptr<float>();
    auto* line = packed.data_ptr<float>();
    at::parallel_for(rows.first, rows.last, std::max<std::int64_t>(1, (1 << 16) / features),
                     [&](std::int64_t begin, std::int64_t end) {
                       for (std::int64_t row = begin; row < end; ++row) {
                         float* own = matrix + row * features + row;
                         float* place = line + elements({rows.first, row}, features);
                         const auto bytes = static_cast<std::size_t>(features - row) * sizeof(float);
                         pack ? std::memcpy(place, own, bytes) : std::memcpy(own, place, bytes);
                       }
                     });
  }

  static void copy_on_device(const at::Tensor& gram, const dist::Slice& rows, const at::Tensor& packed, bool pack) {
    for (std::int64_t row = rows.first; row < rows.last; ++row) {
      const at::Tensor own = gram.select(0, row).slice(0, row);
      const at::Tensor place = packed.narrow(0, elements({rows.first, row}, gram.size(1)), own.size(0));
      pack ? place.copy_(own) : own.copy_(place);
    }
  }

  std::deque<Strip> under_way_;
};

StatisticsStore::StatisticsStore() : merge_(std::make_unique<Merge>()) {}

StatisticsStore::~StatisticsStore() = default;

namespace {

/// Rows that travel together: large enough for the network, small enough beside the matrix. `count(rows)`: their elements.
template <typename Count>
std::vector<dist::Slice> strips_of(std::int64_t all_rows, std::int64_t all, const Count& count) {
  constexpr std::int64_t kLeast = 1 << 20, kMost = 8 << 20, kParts = 8;
  const std::int64_t wanted = std::clamp(all / kParts, kLeast, kMost);
  std::vector<dist::Slice> strips;
  for (std::int64_t first = 0; first < all_rows;) {
    std::int64_t last = std::min(first + kernels::kGramRowStep, all_rows);
    while (last < all_rows && count(dist::Slice{first, last}) < wanted)
      last = std::min(last + kernels::kGramRowStep, all_rows);
    strips.push_back({first, last});
    first = last;
  }
  return strips;
}

}  // namespace

std::vector<dist::Slice> triangle_strips(std::int64_t features) {
  return strips_of(features, features * features / 2,
                   [&](const dist::Slice& rows) { return elements(rows, features); });
}

std::vector<dist::Slice> matrix_strips(std::int64_t rows, std::int64_t features) {
  return strips_of(rows, rows * features, [&](const dist::Slice& strip) { return strip.size() * features; });
}

std::uint64_t merge_workspace_bytes(std::int64_t features, std::int64_t rows, int ranks) {
  if (ranks <= 1) return 0;
  // A triangle's strip is packed. Of a pair each keeps its own part beside the other's, for a matrix's strip, too.
  const bool pair = ranks == 2;
  std::int64_t largest = 0;
  const std::vector<dist::Slice> strips = triangle_strips(features);
  for (const dist::Slice& strip : strips) largest = std::max(largest, (pair ? 2 : 1) * elements(strip, features));
  std::size_t under_way = strips.size();
  if (pair && rows > 0) {
    under_way = kStripsUnderWay;  // the first of one beside the last of the other
    for (const dist::Slice& strip : matrix_strips(rows, features)) largest = std::max(largest, strip.size() * features);
  }
  return static_cast<std::uint64_t>(largest) * std::min(under_way, kStripsUnderWay) * sizeof(float);
}

compression::Statistics& StatisticsStore::of(const execution::RunContext& run, graph::ValueId value,
                                             const CrossWanted& cross) {
  compression::Statistics& statistics = statistics_[value];
  const std::int64_t features = run.graph.values[value].features;
  const auto make = [&](at::Tensor& sums, std::int64_t rows) {
    if (!sums.defined()) sums = at::zeros({rows, features}, at::TensorOptions(at::kFloat).device(run.placement.device));
  };
  make(statistics.gram, features);
  if (cross.square) make(statistics.cross, features);
  if (cross.weight.defined()) make(statistics.output_cross, cross.weight.size(0));
  return statistics;
}

namespace {

void add_output_cross(const execution::RunContext& run, compression::Statistics& statistics,
                      const StatisticsStore::Input& input, const StatisticsStore::CrossWanted& cross) {
  const auto phase = run.times.measure("cross");
  kernels::accumulate_output_cross(statistics.output_cross,
                                   {input.x, input.reference, input.stream.compressed, input.stream.reference},
                                   cross.weight, cross.shares);
  run.times.add_flops("cross", 2 * matrix_flops(input.x.size(0), cross.weight.size(0), input.x.size(1)));
}

}  // namespace

void StatisticsStore::add(const execution::RunContext& run, graph::ValueId value, const Input& input,
                          const CrossWanted& cross) {
  const at::Tensor& x = input.x;
  compression::Statistics& statistics = of(run, value, cross);
  {
    const auto phase = run.times.measure("gram");
    kernels::accumulate_gram(statistics.gram, x);
    run.times.add_flops("gram", gram_flops(x.size(0), {0, x.size(1)}, x.size(1)));
  }
  statistics.tokens += x.size(0);
  if (cross.weight.defined()) add_output_cross(run, statistics, input, cross);
  if (!cross.square) return;
  const auto phase = run.times.measure("cross");
  kernels::accumulate_cross_gram(statistics.cross, input.reference, x);
  run.times.add_flops("cross", matrix_flops(x.size(0), x.size(1), x.size(1)));
}

void StatisticsStore::add_last_and_merge(const execution::RunContext& run, graph::ValueId value, const Input& input,
                                         const CrossWanted& cross, int root) {
  const at::Tensor& x = input.x;
  if (run.group.size() == 1) {
    if (x.defined()) add(run, value, input, cross);
    return;
  }
  compression::Statistics& statistics = of(run, value, cross);
  const std::int64_t features = statistics.gram.size(0);
  if (x.defined()) statistics.tokens += x.size(0);
  for (const dist::Slice& strip : triangle_strips(features)) {
    if (x.defined()) {
      const auto phase = run.times.measure("gram");
      kernels::accumulate_gram_rows(statistics.gram, x, strip.first, strip.last);
      run.times.add_flops("gram", gram_flops(x.size(0), strip, features));
    }
    merge_->start(run, statistics.gram, strip, root);
  }
  if (cross.square) add_and_merge_cross(run, statistics, input, root);
  if (cross.weight.defined()) {
    if (x.defined()) add_output_cross(run, statistics, input, cross);
    for (const dist::Slice& strip : matrix_strips(statistics.output_cross.size(0), features))
      merge_->start_in_place(run, statistics.output_cross, strip, root);
  }
  merging_.push_back(value);
}

void StatisticsStore::add_and_merge_cross(const execution::RunContext& run, compression::Statistics& statistics,
                                          const Input& input, int root) {
  const std::int64_t features = statistics.cross.size(0);
  for (const dist::Slice& strip : matrix_strips(features, features)) {
    if (input.x.defined()) {
      const auto phase = run.times.measure("cross");
      kernels::accumulate_cross_gram_rows(statistics.cross, input.reference, input.x, strip.first, strip.last);
      run.times.add_flops("cross", matrix_flops(input.x.size(0), strip.size(), features));
    }
    merge_->start_in_place(run, statistics.cross, strip, root);
  }
}

void StatisticsStore::finish_merging(const execution::RunContext& run) {
  merge_->finish(run);
  std::vector<std::int64_t> counts;  // counts of rows other than tokens
  for (const graph::ValueId value : merging_) {
    if (run.graph.values[value].rows == graph::Rows::kTokens)
      statistics_.at(value).tokens = run.all_tokens;
    else
      counts.push_back(statistics_.at(value).tokens);
  }
  if (!counts.empty()) {
    const auto phase = run.times.measure("reduce");
    run.group.all_reduce(at::from_blob(counts.data(), {static_cast<std::int64_t>(counts.size())}, at::kLong));
  }
  auto count = counts.begin();
  for (const graph::ValueId value : merging_)
    if (run.graph.values[value].rows != graph::Rows::kTokens) statistics_.at(value).tokens = *count++;
  merging_.clear();
}

}  // namespace layerpress::pipeline
