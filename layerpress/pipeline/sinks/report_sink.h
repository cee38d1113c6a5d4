#pragma once

#include <atomic>
#include <vector>

#include "layerpress/pipeline/sinks/result_sink.h"

namespace layerpress::pipeline {

/// Keeps the reports of a measuring run, in the order of its work. It writes nothing.
class ReportSink final : public ResultSink {
 public:
  void on_compressed(const graph::Node&, const quant::QuantizationScheme&,
                     const compression::CompressedModule& result) override {
    reports_.push_back(result.report);
  }
  void on_tensor(const std::string&, const at::Tensor&) override {}
  void on_subgraph_done(std::size_t index, const Json&) override { done_ = index; }
  /// Nothing has to survive a crash, so that stored values give their space back at once.
  std::optional<std::size_t> durable_subgraph() override {
    const std::size_t done = done_;
    return done == kNone ? std::nullopt : std::optional(done);
  }

  const std::vector<compression::ModuleReport>& reports() const { return reports_; }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  std::vector<compression::ModuleReport> reports_;
  std::atomic<std::size_t> done_ = kNone;  // results may come from a BackgroundSink's thread
};

}  // namespace layerpress::pipeline
