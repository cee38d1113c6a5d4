#include "layerpress/compression/statistics/statistic.h"

#include <limits>

namespace layerpress::compression {

double Statistic::identity() const { return merge() == Merge::kMax ? -std::numeric_limits<double>::infinity() : 0; }

StatisticSource last_source(const std::vector<StatisticPtr>& statistics, graph::ValueId value) {
  StatisticSource last{value};
  for (const StatisticPtr& statistic : statistics)
    if (const StatisticSource own = statistic->sources(value).back(); own.original) last = own;
  return last;
}

std::int64_t element_count(const Statistic& statistic, std::int64_t features, const RowRange& range) {
  const std::int64_t rows = range.last - range.first;
  const std::int64_t below = statistic.travel() == Travel::kTriangle ? (range.first + range.last - 1) * rows / 2 : 0;
  return rows * features - below;
}

}  // namespace layerpress::compression
