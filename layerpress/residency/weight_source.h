#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "layerpress/checkpoint/checkpoint.h"
#include "layerpress/quant/quantization_config.h"

namespace layerpress::residency {

/// The source of parameters, by their names in the graph. Thread-safe.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  /// The parameter on the CPU: a view of mapped memory where possible.
  virtual at::Tensor load(const std::string& name) const = 0;
  /// Announces that the parameter will be loaded soon.
  virtual void will_need(const std::string& name) const = 0;
  /// Reads the parameter's bytes into memory and returns when they are there. Throws IoError.
  virtual void fetch(const std::string& name) const { will_need(name); }
  /// Drops the parameter's pages. REQUIRES: tensors from earlier load() calls are not read any more.
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

/// A checkpoint in compressed-tensors format. Compressed weights are dequantized to `dtype` when they are loaded.
class CompressedWeights : public WeightSource {
 public:
  /// `scheme_of` maps the names of compressed weights ("...q_proj.weight") to their schemes.
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
