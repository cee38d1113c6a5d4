#pragma once

#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "layerpress/residency/weight_source.h"

namespace layerpress::residency {

/// Reads the weights that are needed next in a thread of its own, while the current ones compute.
///
///   prefetch.start(names of subgraph 0);
///   for each subgraph s:  prefetch.wait();  Onload parameters(...);  prefetch.start(names of s + 1);  compute
class WeightPrefetch {
 public:
  explicit WeightPrefetch(const WeightSource& source);
  ~WeightPrefetch();  ///< does not wait for what is not yet begun
  WeightPrefetch(const WeightPrefetch&) = delete;
  WeightPrefetch& operator=(const WeightPrefetch&) = delete;

  /// Begins to fetch these parameters. REQUIRES: nothing is under way (wait() was called).
  void start(std::vector<std::string> names);
  /// Returns when all of them are in memory. Throws what WeightSource::fetch threw.
  void wait();

 private:
  void run();
  const WeightSource& source_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> names_;
  std::exception_ptr failure_;
  bool busy_ = false;
  bool stop_ = false;
  std::thread thread_;  // last: starts when everything above is there
};

}  // namespace layerpress::residency
