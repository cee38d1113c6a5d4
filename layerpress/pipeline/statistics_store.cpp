#include "layerpress/pipeline/statistics_store.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>

#include "layerpress/dist/group.h"
#include "layerpress/kernels/products/gram.h"

namespace layerpress::pipeline {
namespace {

using compression::Travel;

constexpr std::size_t kStripsUnderWay = 2;

/// The number of elements in rows [first, last) of the upper triangle.
std::int64_t elements(const dist::Slice& rows, std::int64_t features) {
  return rows.size() * features - (rows.first + rows.last - 1) * rows.size() / 2;
}

dist::Reduction reduction_of(compression::Merge merge) {
  return merge == compression::Merge::kMax ? dist::Reduction::kMax : dist::Reduction::kSum;
}

}  // namespace

/// Sends strips of figures, a few at a time, and stores the merged ones in their place.
class StatisticsStore::Merge {
 public:
  void start(const execution::RunContext& run, const compression::Statistic& statistic, const at::Tensor& figures,
             const dist::Slice& rows, int root) {
    if (under_way_.size() == kStripsUnderWay) finish_one(run);
    const auto phase = run.times.measure("reduce");
    Strip strip{{}, rows, figures.narrow(0, rows.first, rows.size()), {}};
    if (statistic.travel() == Travel::kTriangle) {
      strip.triangle = figures;
      strip.sent = at::empty({elements(rows, figures.size(1))}, figures.options());
      copy(figures, rows, strip.sent, /*pack=*/true);
    }
    const dist::Reduction reduction = reduction_of(statistic.merge());
    strip.pending = root == Contribution::kAllRanks ? run.group.start_all_reduce(strip.sent, reduction)
                                                    : run.group.start_reduce(strip.sent, root, reduction);
    under_way_.push_back(std::move(strip));
  }

  void finish(const execution::RunContext& run) {
    while (!under_way_.empty()) finish_one(run);
  }

 private:
  struct Strip {
    at::Tensor triangle;  // undefined: the strip is sent from its place
    dist::Slice rows;
    at::Tensor sent;
    dist::Group::Pending pending;
  };

  void finish_one(const execution::RunContext& run) {
    const auto phase = run.times.measure("reduce");
    Strip& strip = under_way_.front();
    strip.pending.wait();
    if (strip.triangle.defined()) copy(strip.triangle, strip.rows, strip.sent, /*pack=*/false);
    under_way_.pop_front();
  }

  /// Copies between the matrix and its rows, one after the other.
  static void copy(const at::Tensor& triangle, const dist::Slice& rows, const at::Tensor& packed, bool pack) {
    const std::int64_t features = triangle.size(1);
    if (!triangle.is_cpu()) return copy_on_device(triangle, rows, packed, pack);
    auto* matrix = triangle.data_ptr<float>();
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

  static void copy_on_device(const at::Tensor& triangle, const dist::Slice& rows, const at::Tensor& packed, bool pack) {
    for (std::int64_t row = rows.first; row < rows.last; ++row) {
      const at::Tensor own = triangle.select(0, row).slice(0, row);
      const at::Tensor place = packed.narrow(0, elements({rows.first, row}, triangle.size(1)), own.size(0));
      pack ? place.copy_(own) : own.copy_(place);
    }
  }

  std::deque<Strip> under_way_;
};

compression::SampleRows sample_rows(const execution::RunContext& run, const execution::Batch& batch, graph::Rows rows,
                                    bool all_tokens) {
  compression::SampleRows samples{batch.offsets, batch.places, run.all_samples};
  const execution::BatchImages& images = batch.images;
  for (std::size_t i = 0; i + 1 < batch.offsets.size(); ++i) {
    std::int64_t count = batch.offsets[i + 1] - batch.offsets[i];
    if (rows == graph::Rows::kPatches)
      count = images.of_sample(i) * images.geometry.tiles * images.geometry.tile_rows();
    if (rows == graph::Rows::kVision) count = images.of_sample(i) * images.geometry.tiles * images.geometry.patches();
    if (rows == graph::Rows::kIllustrated && images.of_sample(i) == 0) count = 0;
    samples.offsets[i + 1] = samples.offsets[i] + count;
  }
  const at::Tensor counted = execution::counted_rows(batch, rows);
  if (!counted.defined() || (all_tokens && rows == graph::Rows::kTokens)) return samples;
  const at::Tensor places = counted.contiguous();
  const auto* first = places.const_data_ptr<std::int64_t>();
  for (std::int64_t& offset : samples.offsets) offset = std::lower_bound(first, first + places.numel(), offset) - first;
  return samples;
}

StatisticsStore::StatisticsStore() : merge_(std::make_unique<Merge>()) {}

StatisticsStore::~StatisticsStore() = default;

/// Strips are large enough for the network, but small compared to all figures.
std::vector<dist::Slice> strips_of(const compression::Statistic& statistic, std::int64_t features) {
  constexpr std::int64_t kLeast = 1 << 20, kMost = 8 << 20, kParts = 8;
  const std::int64_t rows = statistic.rows(features);
  const bool triangle = statistic.travel() == Travel::kTriangle;
  const std::int64_t wanted = std::clamp((triangle ? rows * features / 2 : rows * features) / kParts, kLeast, kMost);
  std::vector<dist::Slice> strips;
  for (std::int64_t first = 0; first < rows;) {
    std::int64_t last = std::min(first + kernels::kGramRowStep, rows);
    while (last < rows && element_count(statistic, features, {first, last}) < wanted)
      last = std::min(last + kernels::kGramRowStep, rows);
    strips.push_back({first, last});
    first = last;
  }
  return strips;
}

std::uint64_t merge_workspace_bytes(const std::vector<compression::StatisticPtr>& statistics, std::int64_t features,
                                    int ranks) {
  if (ranks <= 1) return 0;
  // A triangle's strip is packed. In a run of two ranks, each also keeps its own strip beside the other's.
  const std::int64_t parts = ranks == 2 ? 1 : 0;
  std::int64_t largest = 0;
  std::size_t holding = 0;
  for (const compression::StatisticPtr& statistic : statistics) {
    const std::int64_t copies = parts + (statistic->travel() == Travel::kTriangle ? 1 : 0);
    if (copies == 0) continue;
    for (const dist::Slice& strip : strips_of(*statistic, features)) {
      largest = std::max(largest, copies * element_count(*statistic, features, {strip.first, strip.last}));
      ++holding;
    }
  }
  return static_cast<std::uint64_t>(largest) * std::min(holding, kStripsUnderWay) * sizeof(float);
}

compression::Statistics& StatisticsStore::of(const execution::RunContext& run, graph::ValueId value,
                                             const std::vector<Contribution>& contributions) {
  compression::Statistics& statistics = statistics_[value];
  const std::int64_t features = run.graph.values[value].features;
  for (const Contribution& contribution : contributions) {
    const compression::Statistic& statistic = *contribution.statistic;
    at::Tensor& figures = statistics.figures[std::string(statistic.name())];
    if (figures.defined()) continue;
    kinds_[value].push_back(contribution.statistic);
    figures = at::full({statistic.rows(features), features}, statistic.identity(),
                       at::TensorOptions(at::kFloat).device(run.placement.device));
  }
  return statistics;
}

namespace {

void add_rows(const execution::RunContext& run, const Contribution& contribution, at::Tensor& figures,
              const compression::RowRange& rows) {
  const compression::Statistic& statistic = *contribution.statistic;
  const auto phase = run.times.measure(statistic.phase());
  statistic.add(figures, contribution.input, rows);
  const auto tokens = static_cast<double>(contribution.input.values[0].size(0));
  run.times.add_flops(statistic.phase(), statistic.flops(tokens, figures.size(1), rows));
}

/// The number of tokens in this piece: of those that count, if statistics take these alone.
std::int64_t tokens_of(const std::vector<Contribution>& contributions) {
  std::optional<std::int64_t> tokens;
  for (const Contribution& contribution : contributions)
    if (const std::vector<at::Tensor>& values = contribution.input.values; !values.empty())
      tokens = std::min(tokens.value_or(values[0].size(0)), values[0].size(0));
  return tokens.value_or(0);
}

}  // namespace

void StatisticsStore::add(const execution::RunContext& run, graph::ValueId value,
                          const std::vector<Contribution>& contributions) {
  compression::Statistics& statistics = of(run, value, contributions);
  statistics.tokens += tokens_of(contributions);
  for (const Contribution& contribution : contributions) {
    at::Tensor& figures = statistics.figures.find(contribution.statistic->name())->second;
    add_rows(run, contribution, figures, {0, figures.size(0)});
  }
}

void StatisticsStore::add_last_and_merge(const execution::RunContext& run, graph::ValueId value,
                                         const std::vector<Contribution>& contributions) {
  if (run.group.size() == 1) {
    if (!contributions.front().input.values.empty()) add(run, value, contributions);
    return;
  }
  compression::Statistics& statistics = of(run, value, contributions);
  statistics.tokens += tokens_of(contributions);
  for (const Contribution& contribution : contributions)
    add_and_merge(run, contribution, statistics.figures.find(contribution.statistic->name())->second);
  merging_.push_back(value);
}

void StatisticsStore::add_and_merge(const execution::RunContext& run, const Contribution& contribution,
                                    at::Tensor& figures) {
  const compression::Statistic& statistic = *contribution.statistic;
  const bool adds = !contribution.input.values.empty();
  if (adds && !statistic.adds_by_rows()) add_rows(run, contribution, figures, {0, figures.size(0)});
  for (const dist::Slice& strip : strips_of(statistic, figures.size(1))) {
    if (adds && statistic.adds_by_rows()) add_rows(run, contribution, figures, {strip.first, strip.last});
    merge_->start(run, statistic, figures, strip, contribution.root);
  }
}

at::Tensor StatisticsStore::scale(graph::ValueId value) const {
  const auto found = scales_.find(value);
  return found == scales_.end() ? at::Tensor() : found->second;
}

void StatisticsStore::divide_channels(graph::ValueId value, const at::Tensor& scale) {
  at::Tensor& all = scales_[value];
  all = all.defined() ? all * scale : scale;
  const auto found = statistics_.find(value);
  if (found == statistics_.end()) return;
  for (const compression::StatisticPtr& statistic : kinds_.at(value))
    statistic->divide_channels(found->second.figures.find(statistic->name())->second, scale);
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
