#pragma once

#include <atomic>
#include <future>
#include <string>
#include <vector>

#include "layerpress/residency/weight_source.h"

namespace layerpress::residency {

/// Reads the next weights on a separate thread during the computation with the current ones.
///
///   prefetch.start(names of subgraph 0);
///   for each subgraph s:  prefetch.wait();  Onload parameters(...);  prefetch.start(names of s + 1);  compute
class WeightPrefetch {
 public:
  explicit WeightPrefetch(const WeightSource& source) : source_(source) {}
  ~WeightPrefetch() { stop_ = true; }  ///< does not wait for parameters whose reading has not begun
  WeightPrefetch(const WeightPrefetch&) = delete;
  WeightPrefetch& operator=(const WeightPrefetch&) = delete;

  /// Starts fetching these parameters. REQUIRES: no fetch is in progress (wait() was called).
  void start(std::vector<std::string> names);
  /// Returns when all of them are in memory. Throws the exception of WeightSource::fetch.
  void wait();

 private:
  const WeightSource& source_;
  std::atomic<bool> stop_ = false;
  std::future<void> fetching_;  // last member: waits for its thread before the others are destroyed
};

}  // namespace layerpress::residency
