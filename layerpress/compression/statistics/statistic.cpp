#include "layerpress/compression/statistics/statistic.h"

#include <algorithm>
#include <limits>

namespace layerpress::compression {

double Statistic::identity() const { return merge() == Merge::kMax ? -std::numeric_limits<double>::infinity() : 0; }

bool sees_original(const Statistic& statistic, graph::ValueId value) {
  const std::vector<StatisticSource> sources = statistic.sources(value);
  return std::any_of(sources.begin(), sources.end(), [](const StatisticSource& source) { return source.original; });
}

std::int64_t element_count(const Statistic& statistic, std::int64_t features, const RowRange& range) {
  const std::int64_t rows = range.last - range.first;
  const std::int64_t below = statistic.travel() == Travel::kTriangle ? (range.first + range.last - 1) * rows / 2 : 0;
  return rows * features - below;
}

}  // namespace layerpress::compression
