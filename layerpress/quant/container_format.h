#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "layerpress/quant/quantized_weight.h"

namespace layerpress::quant {

/// Reads the tensors of one module by their suffixes; every error names the module and the tensor.
class ModuleReader {
 public:
  using Tensors = std::function<std::optional<at::Tensor>(const std::string& suffix)>;

  ModuleReader(const std::string& module, const Tensors& tensors) : module_(module), tensors_(tensors) {}

  /// Throws DamagedWeightsError.
  [[noreturn]] void refuse(const std::string& suffix, const std::string& what) const;

  std::optional<at::Tensor> find(const std::string& suffix) const { return tensors_(suffix); }
  at::Tensor get(const std::string& suffix, at::ScalarType dtype) const;
  at::Tensor get(const std::string& suffix, at::ScalarType dtype, const std::vector<std::int64_t>& shape) const;
  void require_shape(const std::string& suffix, const at::Tensor& tensor, const std::vector<std::int64_t>& shape) const;

 private:
  const std::string& module_;
  const Tensors& tensors_;
};

/// "[3, 4]".
std::string shape_text(c10::IntArrayRef shape);

/// What a container format is for.
struct FormatRules {
  /// In config groups.
  const char* name;
  /// Whether it stores weights of these arguments.
  bool (*holds)(const QuantizationArgs& weights);
  /// Whether compressed-tensors chooses it for a scheme that names no format, unless one earlier in the list is chosen.
  bool (*is_default_for)(const QuantizationScheme& scheme);
};

/// One of compressed-tensors' container formats: which tensors stand for a compressed weight, and how they are laid
/// out. container_formats.cpp lists them with their rules.
class ContainerFormat {
 public:
  explicit ContainerFormat(const FormatRules& rules) : rules_(rules) {}
  virtual ~ContainerFormat() = default;

  std::string name() const { return rules_.name; }
  bool holds(const QuantizationArgs& weights) const { return rules_.holds(weights); }
  bool is_default_for(const QuantizationScheme& scheme) const { return rules_.is_default_for(scheme); }

  /// The tensors of a weight [rows, columns] that is stored as `weight_dtype` in the original.
  virtual std::vector<NamedTensorSpec> layout(const QuantizationArgs& weights, std::int64_t rows, std::int64_t columns,
                                              at::ScalarType weight_dtype) const = 0;

  /// The same tensors with their content. The weight has been checked.
  virtual std::vector<NamedTensor> write(const QuantizationArgs& weights, const QuantizedWeight& weight) const = 0;

  /// The inverse; validates dtypes, shapes and values.
  virtual QuantizedWeight read(const QuantizationArgs& weights, const ModuleReader& reader) const = 0;

 private:
  FormatRules rules_;
};

/// All formats; where several are default for a scheme, the first is.
const std::vector<const ContainerFormat*>& container_formats();

/// Null for an unknown name.
const ContainerFormat* find_container_format(const std::string& name);

}  // namespace layerpress::quant
