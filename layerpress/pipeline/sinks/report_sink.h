#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "layerpress/pipeline/sinks/result_sink.h"

namespace layerpress::pipeline {

/// Keeps the reports of a measuring run, in the order of its work. It writes nothing.
class ReportSink final : public ResultSink {
 public:
  using Reports = std::vector<compression::ModuleReport>;
  /// Called with the reports of each subgraph that is done.
  using WhenDone = std::function<void(std::size_t index, std::span<const compression::ModuleReport> reports)>;
  /// `earlier`: of subgraphs that an interrupted run has measured, which come first.
  explicit ReportSink(Reports earlier = {}, WhenDone when_done = {})
      : when_done_(std::move(when_done)), reports_(std::move(earlier)), told_(reports_.size()) {}

  void on_compressed(const graph::Node&, const quant::QuantizationScheme&,
                     const compression::CompressedModule& result) override {
    reports_.push_back(result.report);
  }
  void on_tensor(const std::string&, const at::Tensor&) override {}
  void on_subgraph_done(std::size_t index, const Json&) override {
    if (when_done_) when_done_(index, std::span(reports_).subspan(told_));
    told_ = reports_.size();
    done_ = index;
  }
  /// Nothing has to survive a crash, so that stored values give their space back at once.
  std::optional<std::size_t> durable_subgraph() override {
    const std::size_t done = done_;
    return done == kNone ? std::nullopt : std::optional(done);
  }

  const Reports& reports() const { return reports_; }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  WhenDone when_done_;
  Reports reports_;
  std::size_t told_;
  std::atomic<std::size_t> done_ = kNone;  // results may come from a BackgroundSink's thread
};

}  // namespace layerpress::pipeline
