#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "layerpress/plan/memory_plan.h"

namespace layerpress::plan {

/// The sizes of weights and values in one way to do a run.
class PlannedSizes {
 public:
  /// Refers to `request`.
  explicit PlannedSizes(const PlanRequest& request);

  const graph::Graph& graph() const { return graph_; }
  const residency::Placement& placement() const { return run_.placement; }
  int threads() const { return run_.threads; }
  bool is_on_host() const { return run_.placement.device.is_cpu(); }

  static std::uint64_t bytes_of(std::int64_t elements, at::ScalarType dtype);
  std::int64_t elements(const std::string& weight) const { return elements_.at(weight); }
  at::ScalarType stored_dtype(const std::string& weight) const;
  /// In the computing dtype.
  std::uint64_t weight_bytes(const std::string& weight) const;
  /// In the dtype of the original.
  std::uint64_t stored_weight_bytes(const std::string& weight) const;
  /// In the files, where weights may be quantized.
  std::uint64_t file_bytes(const std::string& weight) const;
  /// Memory for a moment in which a quantized weight is computed, itself included; 0 for a mapped one.
  std::uint64_t computing_bytes(const std::string& weight) const;
  /// Whether a weight of the original checkpoint is used where it is mapped.
  bool can_stay(const std::string& weight) const;
  /// Whether the weight comes from the original checkpoint.
  bool is_original(const std::string& weight) const { return !request_.input.mapped || request_.input.mapped(weight); }

  /// A value of one batch; of the original model, too.
  std::uint64_t value_bytes(graph::ValueId value, std::size_t batch) const;
  /// The same for a value that a stage keeps.
  std::uint64_t kept_bytes(graph::ValueId stored, std::size_t batch) const;
  /// If only some rows of a value count, they are copied.
  std::uint64_t counted_bytes(graph::ValueId value, std::size_t batch) const;
  /// The number of rows of a value that count in statistics, over all batches.
  double counted_rows(graph::ValueId value) const;

  /// Whether values between stages wait on the host and are copied while a device computes (HostCopies).
  bool copies() const { return request_.activation_home.is_cpu() && !is_on_host(); }
  /// Bytes on the device of a stage's values that wait on the host: values that the previous batch has read, values that
  /// the next batch will read, and values of the previous batch that are still being copied.
  std::uint64_t copied_bytes(const graph::Stage& stage, std::size_t batch) const;

 private:
  const PlanRequest& request_;
  const setup::RunSetup& run_;
  const graph::Graph& graph_;
  std::map<std::string, std::int64_t> elements_;
};

}  // namespace layerpress::plan
