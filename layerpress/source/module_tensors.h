#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <string>
#include <vector>

#include "layerpress/quant/weight_parameters.h"
#include "layerpress/source/source_format.h"

namespace layerpress::source {

/// The stored tensors of one module, by suffix. Errors name the tensor.
class ModuleTensors {
 public:
  ModuleTensors(CheckpointPointer stored, std::string module)
      : stored_(std::move(stored)), module_(std::move(module)) {}

  const std::string& module() const { return module_; }
  std::string name(const std::string& suffix) const { return module_ + "." + suffix; }
  bool has(const std::string& suffix) const { return stored_->contains(name(suffix)); }
  /// The first of these suffixes that is there, else "".
  std::string first_of(std::initializer_list<const char*> suffixes) const;
  /// The full names of those that are there.
  std::vector<std::string> names_of(std::initializer_list<const char*> suffixes) const;

  /// Throws CheckpointError if it is missing or has none of these dtypes.
  const checkpoint::StoredTensor& spec(const std::string& suffix, std::initializer_list<at::ScalarType> dtypes) const;
  void require_shape(const std::string& suffix, const std::vector<std::int64_t>& shape) const;
  [[noreturn]] void refuse(const std::string& suffix, const std::string& what) const;

  at::Tensor get(const std::string& suffix) const { return stored_->tensor(name(suffix)); }
  /// Scales of any float dtype, with powers of two (F8_E8M0, or U8) widened to fp32. Throws DamagedWeightsError unless all are
  /// positive and finite.
  at::Tensor scales(const std::string& suffix, quant::ScaleSigns signs = quant::ScaleSigns::kPositive) const;
  /// Scales that are powers of two as bytes, which are their exponents with 127 added; of F8_E8M0, U8, or F32 numbers. Throws
  /// DamagedWeightsError for others and for NaN.
  at::Tensor exponents(const std::string& suffix) const;
  /// fp8 codes. Throws DamagedWeightsError for NaN.
  at::Tensor fp8_codes(const std::string& suffix) const;

 private:
  CheckpointPointer stored_;
  std::string module_;
};

/// The dtypes of scales that are numbers.
inline constexpr std::initializer_list<at::ScalarType> kScaleDtypes = {at::kFloat, at::kBFloat16, at::kHalf,
                                                                       at::kFloat8_e8m0fnu};

/// A form in which each weight is the tensors of one module.
class ModuleFormat : public SourceFormat {
 public:
  /// In the order of the modules' names.
  std::vector<StoredWeight> weights(const CheckpointPointer& stored) const override;

 private:
  /// Whether a tensor with this last name shows that its module has a weight in this form.
  virtual bool marks(const std::string& suffix, const checkpoint::StoredTensor& tensor) const = 0;
  virtual StoredWeight weight(const ModuleTensors& tensors) const = 0;
};

/// Gives a weight of fp8 codes in "weight" and scales its values, and keeps both with scales of `scale_dtype`; with the static scale of
/// the module's inputs, too, unless `input_scale` is "".
void read_fp8(StoredWeight& weight, const ModuleTensors& tensors, const std::string& scale,
              const std::string& input_scale, at::ScalarType scale_dtype);

std::int64_t divided_up(std::int64_t value, std::int64_t by);

}  // namespace layerpress::source
