#include "layerpress/pipeline/sinks/background_sink.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <utility>
#include <vector>

namespace layerpress::pipeline {
namespace {

std::uint64_t bytes_of(quant::QuantizedWeight& weight) {
  std::uint64_t bytes = 0;
  weight.for_each_tensor([&](const at::Tensor& tensor) { bytes += tensor.nbytes(); });
  return bytes;
}

}  // namespace

BackgroundSink::BackgroundSink(ResultSink& sink, std::shared_ptr<residency::HostCopies> copies,
                               std::uint64_t most_bytes)
    : sink_(sink), copies_(std::move(copies)), most_bytes_(most_bytes), thread_([this] { run(); }) {}

BackgroundSink::~BackgroundSink() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void BackgroundSink::on_compressed(const graph::Node& node, const quant::QuantizationScheme& scheme,
                                   const compression::CompressedModule& result) {
  compression::CompressedModule held = result;
  std::vector<residency::HostCopies::Arriving> arriving;
  const auto send = [&](at::Tensor& tensor) {
    if (tensor.is_cpu()) return;
    arriving.push_back(copies_->to_host(tensor));
    tensor = arriving.back().tensor;
  };
  if (copies_) held.weight.for_each_tensor(send);
  if (copies_ && held.weight_error.defined()) send(held.weight_error);
  const std::uint64_t bytes = bytes_of(held.weight);
  add({[this, &node, &scheme, held = std::move(held), arriving = std::move(arriving)]() mutable {
         for (const residency::HostCopies::Arriving& copy : arriving) copies_->await(copy);
         if (held.weight_error.defined()) held.report.weight_error = held.weight_error.item<double>();
         sink_.on_compressed(node, scheme, held);
       },
       bytes});
}

void BackgroundSink::on_tensor(const std::string& name, const at::Tensor& parameter) {
  const bool copied = copies_ && !parameter.is_cpu();
  residency::HostCopies::Arriving arriving{};
  if (copied) arriving = copies_->to_host(parameter);
  const at::Tensor held = copied ? arriving.tensor : parameter;
  add({[this, name, held, arriving, copied] {
         if (copied) copies_->await(arriving);
         sink_.on_tensor(name, held);
       },
       held.nbytes()});
}

void BackgroundSink::on_subgraph_done(std::size_t index, const Json& boundary) {
  add({[this, index, boundary] { sink_.on_subgraph_done(index, boundary); }});
}

void BackgroundSink::finish() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return tasks_.empty(); });
  throw_failure();
}

void BackgroundSink::add(Task task) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return tasks_.empty() || bytes_ + task.bytes <= most_bytes_; });
  throw_failure();
  bytes_ += task.bytes;
  tasks_.push_back(std::move(task));
  changed_.notify_all();
}

void BackgroundSink::throw_failure() {
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void BackgroundSink::run() {
  const c10::InferenceMode inference;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return !tasks_.empty() || stop_; });
    if (tasks_.empty()) return;
    Task& task = tasks_.front();  // adding to a deque does not move its elements
    if (!failed_) {
      lock.unlock();
      std::exception_ptr failure;
      try {
        task.run();
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      failed_ = failure != nullptr;
      failure_ = failure;
    }
    bytes_ -= task.bytes;
    tasks_.pop_front();
    changed_.notify_all();
  }
}

}  // namespace layerpress::pipeline
