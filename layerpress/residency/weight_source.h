#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>

#include "layerpress/checkpoint/checkpoint.h"
#include "layerpress/quant/quantization_config.h"

namespace layerpress::residency {

/// Where parameters come from, by their names in the graph. Thread-safe.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  /// The parameter on the CPU: a view of mapped memory where possible.
  virtual at::Tensor load(const std::string& name) const = 0;
  /// Says that the parameter will be loaded soon.
  virtual void will_need(const std::string& name) const = 0;
  /// Reads the parameter's bytes into memory and returns when they are there. Throws CheckpointError.
  virtual void fetch(const std::string& name) const { will_need(name); }
  /// Lets the parameter's pages go. REQUIRES: no tensor from load() is read any more without loading it again.
  virtual void release(const std::string& name) const = 0;
};

/// A plain checkpoint.
class CheckpointWeights : public WeightSource {
 public:
  explicit CheckpointWeights(std::shared_ptr<const checkpoint::Checkpoint> checkpoint)
      : checkpoint_(std::move(checkpoint)) {}
  at::Tensor load(const std::string& name) const override { return checkpoint_->tensor(name); }
  void will_need(const std::string& name) const override { checkpoint_->will_need(name); }
  void fetch(const std::string& name) const override { checkpoint_->fetch(name); }
  void release(const std::string& name) const override { checkpoint_->release(name); }

 private:
  std::shared_ptr<const checkpoint::Checkpoint> checkpoint_;
};

/// A checkpoint in compressed-tensors format: compressed weights are dequantized as they are loaded, to `dtype`.
class CompressedWeights : public WeightSource {
 public:
  /// `scheme_of`: weight name ("...q_proj.weight") to its scheme, for the compressed modules.
  CompressedWeights(std::shared_ptr<const checkpoint::Checkpoint> checkpoint,
                    std::map<std::string, quant::QuantizationScheme> scheme_of, at::ScalarType dtype)
      : checkpoint_(std::move(checkpoint)), scheme_of_(std::move(scheme_of)), dtype_(dtype) {}
  at::Tensor load(const std::string& name) const override;
  void will_need(const std::string& name) const override;
  void fetch(const std::string& name) const override;
  void release(const std::string& name) const override;

 private:
  template <typename Function>
  void for_each_part(const std::string& name, Function&& function) const;
  std::shared_ptr<const checkpoint::Checkpoint> checkpoint_;
  std::map<std::string, quant::QuantizationScheme> scheme_of_;
  at::ScalarType dtype_;
};

}  // namespace layerpress::residency
