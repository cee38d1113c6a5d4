#pragma once

#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "layerpress/residency/weight_source.h"

namespace layerpress::residency {

/// Reads the next weights on a separate thread during the computation with the current ones.
///
///   prefetch.start(names of subgraph 0);
///   for each subgraph s:  prefetch.wait();  Onload parameters(...);  prefetch.start(names of s + 1);  compute
class WeightPrefetch {
 public:
  explicit WeightPrefetch(const WeightSource& source);
  ~WeightPrefetch();  ///< does not wait for parameters whose reading has not begun
  WeightPrefetch(const WeightPrefetch&) = delete;
  WeightPrefetch& operator=(const WeightPrefetch&) = delete;

  /// Starts fetching these parameters. REQUIRES: no fetch is in progress (wait() was called).
  void start(std::vector<std::string> names);
  /// Returns when all of them are in memory. Throws the exception of WeightSource::fetch.
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
  std::thread thread_;  // last member: starts after the others are initialized
};

}  // namespace layerpress::residency
