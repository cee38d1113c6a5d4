#include "layerpress/runtime/statistics_store.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>
#include <deque>

#include "layerpress/dist/group.h"
#include "layerpress/kernels/gram.h"

namespace layerpress::runtime {
namespace {

constexpr std::size_t kStripsUnderWay = 2;

/// Elements of rows [first, last) of the upper triangle.
std::int64_t elements(const dist::Slice& rows, std::int64_t features) {
  return rows.size() * features - (rows.first + rows.last - 1) * rows.size() / 2;
}

/// Sends strips of a triangle around, few at a time, and puts the sums back.
class TriangleMerge {
 public:
  TriangleMerge(const RunContext& run, const at::Tensor& gram, int root) : run_(run), gram_(gram), root_(root) {}

  void start(const dist::Slice& rows) {
    if (under_way_.size() == kStripsUnderWay) finish_one();
    const auto phase = run_.times.measure("reduce");
    const at::Tensor packed = at::empty({elements(rows, gram_.size(1))}, gram_.options());
    copy(rows, packed, /*pack=*/true);
    const bool all = root_ == StatisticsStore::kAllRanks;
    under_way_.push_back(
        {rows, packed, all ? run_.group.start_all_reduce(packed) : run_.group.start_reduce(packed, root_)});
  }

  void finish() {
    while (!under_way_.empty()) finish_one();
  }

 private:
  struct Strip {
    dist::Slice rows;
    at::Tensor packed;
    dist::Group::Pending pending;
  };

  void finish_one() {
    const auto phase = run_.times.measure("reduce");
    Strip& strip = under_way_.front();
    strip.pending.wait();
    copy(strip.rows, strip.packed, /*pack=*/false);
    under_way_.pop_front();
  }

  /// Between the matrix and its rows laid end to end.
  void copy(const dist::Slice& rows, const at::Tensor& packed, bool pack) const {
    const std::int64_t features = gram_.size(1);
    if (!gram_.is_cpu()) return copy_on_device(rows, packed, pack);
    auto* matrix = gram_.data_ptr<float>();
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

  void copy_on_device(const dist::Slice& rows, const at::Tensor& packed, bool pack) const {
    for (std::int64_t row = rows.first; row < rows.last; ++row) {
      const at::Tensor own = gram_.select(0, row).slice(0, row);
      const at::Tensor place = packed.narrow(0, elements({rows.first, row}, gram_.size(1)), own.size(0));
      pack ? place.copy_(own) : own.copy_(place);
    }
  }

  const RunContext& run_;
  at::Tensor gram_;
  int root_;
  std::deque<Strip> under_way_;
};

/// Operations of the triangle's rows [first, last) for this many tokens.
double gram_flops(std::int64_t tokens, const dist::Slice& rows, std::int64_t features) {
  return 2 * static_cast<double>(tokens) * static_cast<double>(elements(rows, features));
}

}  // namespace

std::vector<dist::Slice> triangle_strips(std::int64_t features) {
  // Large enough for the network, small enough beside the matrix.
  constexpr std::int64_t kLeast = 1 << 20, kMost = 8 << 20, kParts = 8;
  const std::int64_t wanted = std::clamp(features * features / 2 / kParts, kLeast, kMost);
  std::vector<dist::Slice> strips;
  for (std::int64_t first = 0; first < features;) {
    std::int64_t last = std::min(first + kernels::kGramRowStep, features);
    while (last < features && elements({first, last}, features) < wanted)
      last = std::min(last + kernels::kGramRowStep, features);
    strips.push_back({first, last});
    first = last;
  }
  return strips;
}

std::uint64_t merge_workspace_bytes(std::int64_t features) {
  std::int64_t largest = 0;
  const std::vector<dist::Slice> strips = triangle_strips(features);
  for (const dist::Slice& strip : strips) largest = std::max(largest, elements(strip, features));
  return static_cast<std::uint64_t>(largest) * std::min(strips.size(), kStripsUnderWay) * sizeof(float);
}

Statistics& StatisticsStore::of(const RunContext& run, graph::ValueId value) {
  Statistics& statistics = statistics_[value];
  if (!statistics.gram.defined()) {
    const std::int64_t features = run.graph.values[value].features;
    statistics.gram = at::zeros({features, features}, at::TensorOptions(at::kFloat).device(run.placement.device));
  }
  return statistics;
}

void StatisticsStore::add(const RunContext& run, graph::ValueId value, const at::Tensor& x) {
  const auto phase = run.times.measure("gram");
  Statistics& statistics = of(run, value);
  kernels::accumulate_gram(statistics.gram, x);
  statistics.tokens += x.size(0);
  run.times.add_flops("gram", gram_flops(x.size(0), {0, x.size(1)}, x.size(1)));
}

void StatisticsStore::add_last_and_merge(const RunContext& run, graph::ValueId value, const at::Tensor& x, int root) {
  if (run.group.size() == 1) {
    if (x.defined()) add(run, value, x);
    return;
  }
  Statistics& statistics = of(run, value);
  const std::int64_t features = statistics.gram.size(0);
  TriangleMerge merge(run, statistics.gram, root);
  for (const dist::Slice& strip : triangle_strips(features)) {
    if (x.defined()) {
      const auto phase = run.times.measure("gram");
      kernels::accumulate_gram_rows(statistics.gram, x, strip.first, strip.last);
      run.times.add_flops("gram", gram_flops(x.size(0), strip, features));
    }
    merge.start(strip);
  }
  merge.finish();
  statistics.tokens = run.all_tokens;
}

}  // namespace layerpress::runtime
