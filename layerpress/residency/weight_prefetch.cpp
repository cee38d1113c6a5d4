#include "layerpress/residency/weight_prefetch.h"

#include <utility>

namespace layerpress::residency {

void WeightPrefetch::start(std::vector<std::string> names) {
  fetching_ = std::async(std::launch::async, [this, names = std::move(names)] {
    for (std::size_t i = 0; i < names.size() && !stop_; ++i) source_.fetch(names[i]);
  });
}

void WeightPrefetch::wait() {
  if (fetching_.valid()) fetching_.get();
}

}  // namespace layerpress::residency
