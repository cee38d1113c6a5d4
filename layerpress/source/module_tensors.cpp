#include "layerpress/source/module_tensors.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <set>

#include "layerpress/base/text.h"
#include "layerpress/quant/container_format.h"
#include "layerpress/quant/weight_numbers.h"

namespace layerpress::source {
namespace {

/// Powers of two as fp32 numbers.
at::Tensor widened(const at::Tensor& exponents) {
  if (exponents.scalar_type() == at::kByte) return quant::wide_scales(exponents, {});
  return exponents.scalar_type() == at::kFloat8_e8m0fnu ? exponents.to(at::kFloat) : exponents;
}

}  // namespace

std::string ModuleTensors::first_of(std::initializer_list<const char*> suffixes) const {
  for (const char* suffix : suffixes)
    if (has(suffix)) return suffix;
  return "";
}

std::vector<std::string> ModuleTensors::names_of(std::initializer_list<const char*> suffixes) const {
  std::vector<std::string> names;
  for (const char* suffix : suffixes)
    if (has(suffix)) names.push_back(name(suffix));
  return names;
}

void ModuleTensors::refuse(const std::string& suffix, const std::string& what) const {
  throw DamagedWeightsError("[source.read] {}: {}; the checkpoint is damaged or not what its config says", name(suffix),
                            what);
}

const checkpoint::StoredTensor& ModuleTensors::spec(const std::string& suffix,
                                                    std::initializer_list<at::ScalarType> dtypes) const {
  if (!has(suffix)) refuse(suffix, "the tensor is missing");
  const checkpoint::StoredTensor& stored = stored_->spec(name(suffix));
  if (std::find(dtypes.begin(), dtypes.end(), stored.dtype) != dtypes.end()) return stored;
  std::vector<std::string> expected;
  for (const at::ScalarType dtype : dtypes) expected.emplace_back(checkpoint::dtype_name(dtype));
  refuse(suffix,
         fmt::format("stored as {}, expected {}", checkpoint::dtype_name(stored.dtype), join(expected, " or ")));
}

void ModuleTensors::require_shape(const std::string& suffix, const std::vector<std::int64_t>& shape) const {
  const std::vector<std::int64_t>& stored = stored_->spec(name(suffix)).shape;
  if (stored != shape)
    refuse(suffix, fmt::format("shape {}, expected {}", quant::shape_text(stored), quant::shape_text(shape)));
}

at::Tensor ModuleTensors::scales(const std::string& suffix, quant::ScaleSigns signs) const {
  at::Tensor scale = widened(get(suffix));
  if (const std::string fault = quant::fault_of_scales(scale, signs); !fault.empty()) refuse(suffix, fault);
  return scale;
}

at::Tensor ModuleTensors::exponents(const std::string& suffix) const {
  const at::Tensor stored = get(suffix);
  at::Tensor bytes = stored;
  if (stored.scalar_type() == at::kFloat8_e8m0fnu) bytes = stored.view(at::kByte);
  if (stored.scalar_type() == at::kFloat) {
    const at::Tensor bits = stored.contiguous().view(at::kInt);  // the sign and the exponent stand before 23 others
    if (bits.bitwise_and(0x807FFFFF).ne(0).any().item<bool>())
      refuse(suffix, "holds numbers that are not powers of two");
    bytes = bits.bitwise_right_shift(23).to(at::kByte);
  }
  constexpr int kNan = 255;
  if (bytes.eq(kNan).any().item<bool>()) refuse(suffix, "holds NaN or infinity");
  return bytes;
}

at::Tensor ModuleTensors::fp8_codes(const std::string& suffix) const {
  at::Tensor codes = get(suffix);
  if (quant::holds_fp8_nan(codes)) refuse(suffix, "holds NaN");
  return codes;
}

std::vector<StoredWeight> ModuleFormat::weights(const CheckpointPointer& stored) const {
  std::set<std::string> modules;
  for (const std::string& name : stored->names())
    if (name.find('.') != std::string::npos && marks(last_part(name), stored->spec(name)))
      modules.insert(parent_name(name));
  std::vector<StoredWeight> weights;
  for (const std::string& module : modules) weights.push_back(weight({stored, module}));
  return weights;
}

void read_fp8(StoredWeight& weight, const ModuleTensors& tensors, const std::string& scale,
              const std::string& input_scale, at::ScalarType scale_dtype) {
  const auto sizes = quant::scale_shape(*weight.scheme.weights, weight.shape[0], weight.shape[1]);
  const auto read = [=] {
    quant::QuantizedWeight read;
    read.codes = tensors.fp8_codes("weight");
    read.scale = tensors.scales(scale).reshape(sizes);
    if (!input_scale.empty()) (void)tensors.scales(input_scale);  // is checked also where it is not kept
    return read;
  };
  dequantize_from(weight, read);
  keep_from(weight, scale_dtype, read);
  if (!input_scale.empty()) keep_input_scale(weight, scale_dtype, [=] { return tensors.scales(input_scale); });
}

std::int64_t divided_up(std::int64_t value, std::int64_t by) { return value / by + (value % by != 0 ? 1 : 0); }

}  // namespace layerpress::source
