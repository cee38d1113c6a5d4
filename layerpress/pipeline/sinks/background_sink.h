#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "layerpress/pipeline/sinks/result_sink.h"
#include "layerpress/residency/host_copies.h"

namespace layerpress::pipeline {

/// Passes results to another sink on a separate thread, in order, so that they are packed and written while a device
/// continues to compute. Exceptions of the sink are thrown by the next call.
class BackgroundSink : public ResultSink {
 public:
  /// Limit for queued results, in bytes of codes; a larger result is queued alone.
  static constexpr std::uint64_t kMostBytes = 512u << 20;

  /// `copies` copies results from the device; null: they are on the host.
  BackgroundSink(ResultSink& sink, std::shared_ptr<residency::HostCopies> copies,
                 std::uint64_t most_bytes = kMostBytes);
  /// Processes all queued results, unless the sink has failed.
  ~BackgroundSink() override;
  BackgroundSink(const BackgroundSink&) = delete;
  BackgroundSink& operator=(const BackgroundSink&) = delete;

  bool owns(graph::NodeId node) const override { return sink_.owns(node); }
  /// The node and the scheme must live until finish().
  void on_compressed(const graph::Node& node, const quant::QuantizationScheme& scheme,
                     const compression::CompressedModule& result) override;
  void on_tensor(const std::string& name, const at::Tensor& parameter) override;
  void on_subgraph_done(std::size_t index, const Json& boundary) override;
  std::optional<std::size_t> durable_subgraph() override { return sink_.durable_subgraph(); }
  /// Returns when the sink has received everything.
  void finish();

 private:
  struct Task {
    std::function<void()> run;
    std::uint64_t bytes = 0;
  };
  void add(Task task);
  void run();
  void throw_failure();

  ResultSink& sink_;
  std::shared_ptr<residency::HostCopies> copies_;
  const std::uint64_t most_bytes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;  // the first one is in progress
  std::uint64_t bytes_ = 0;
  std::exception_ptr failure_;
  bool failed_ = false, stop_ = false;
  std::thread thread_;  // last member: starts after the others are initialized
};

}  // namespace layerpress::pipeline
