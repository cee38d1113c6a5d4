#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>

#include "layerpress/checkpoint/checkpoint.h"

namespace layerpress::residency {

/// The source of parameters, by their names in the graph. Thread-safe.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  /// The parameter on the CPU: a view of mapped memory where possible.
  virtual at::Tensor load(const std::string& name) const = 0;
  /// Whether load() computes the parameter anew each time it is called.
  virtual bool computes(const std::string&) const { return false; }
  /// Announces that the parameter will be loaded soon.
  virtual void will_need(const std::string& name) const = 0;
  /// Reads the parameter's bytes into memory and returns when they are there. Throws IoError.
  virtual void fetch(const std::string& name) const { will_need(name); }
  /// Drops the parameter's pages. REQUIRES: tensors from earlier load() calls are not read any more.
  virtual void release(const std::string& name) const = 0;
};

/// A checkpoint: its parameters are mapped, or computed from what it stores.
class CheckpointWeights : public WeightSource {
 public:
  explicit CheckpointWeights(std::shared_ptr<const checkpoint::Checkpoint> checkpoint = nullptr)
      : checkpoint_(std::move(checkpoint)) {}
  /// From now on, another one. REQUIRES: nothing is loaded meanwhile.
  void use(std::shared_ptr<const checkpoint::Checkpoint> checkpoint) { checkpoint_ = std::move(checkpoint); }
  at::Tensor load(const std::string& name) const override { return checkpoint_->tensor(name); }
  bool computes(const std::string& name) const override { return checkpoint_->is_computed(name); }
  void will_need(const std::string& name) const override { checkpoint_->will_need(name); }
  void fetch(const std::string& name) const override { checkpoint_->fetch(name); }
  void release(const std::string& name) const override { checkpoint_->release(name); }

 private:
  std::shared_ptr<const checkpoint::Checkpoint> checkpoint_;
};

}  // namespace layerpress::residency
