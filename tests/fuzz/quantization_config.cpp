// {"config": config.json, "tensors": {name: [dtype, shape, [content...]]}}; a tensor without content has a pattern.
#include "layerpress/quant/quantization_config.h"

#include <ATen/ATen.h>

#include <map>

#include "layerpress/checkpoint/checkpoint.h"
#include "layerpress/checkpoint/element_types.h"
#include "layerpress/quant/targets/matching.h"
#include "layerpress/source/source_format.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/targets.h"

namespace layerpress::fuzz {
namespace {

constexpr std::int64_t kMostBytes = 1 << 15, kMostValues = 1 << 18;
constexpr std::size_t kMostTensors = 32;

/// Undefined for a description that is none.
at::Tensor make_tensor(const Json& description) {
  if (!description.is_array() || description.size() < 2 || !description[0].is_string() || !description[1].is_array())
    return {};
  const auto dtype = checkpoint::dtype_named(description[0].get<std::string>());
  if (!dtype) return {};
  std::vector<std::int64_t> shape;
  std::int64_t bytes = static_cast<std::int64_t>(c10::elementSize(*dtype));
  for (const Json& size : description[1]) {
    if (!size.is_number_unsigned() || size.get<std::uint64_t>() > static_cast<std::uint64_t>(kMostBytes)) return {};
    shape.push_back(size.get<std::int64_t>());
    bytes *= shape.back();
    if (bytes > kMostBytes) return {};
  }
  at::Tensor tensor = at::empty(shape, *dtype);
  const Json content = description.size() > 2 ? description[2] : Json();
  if (content.is_array() && *dtype == at::kLong) {
    for (std::int64_t i = 0; i < tensor.numel(); ++i) {
      const auto place = static_cast<std::size_t>(i);
      const bool given = place < content.size() && content[place].is_number_integer();
      tensor.mutable_data_ptr<std::int64_t>()[i] = given ? content[place].get<std::int64_t>() : 0;
    }
    return tensor;
  }
  auto* values = static_cast<std::uint8_t*>(tensor.mutable_data_ptr());
  for (std::int64_t i = 0; i < bytes; ++i)
    values[i] = static_cast<std::uint8_t>(*dtype == at::kBool ? i % 2 : i * 37 % 120);
  return tensor;
}

void use_weight(const source::StoredWeight& weight) {
  std::int64_t values = 1;
  for (const std::int64_t size : weight.shape) values *= size;
  require(values >= 0 && values <= kMostValues, "a weight of many more values than are stored");
  if (weight.dequantize) require(weight.dequantize(at::kFloat).sizes() == weight.shape, "values of another shape");
  if (weight.read) (void)weight.read();
  if (weight.can_be_kept()) (void)weight.compressed();
}

}  // namespace

void quantization_config(std::string_view input) {
  const Json model = described(input);
  if (!model.is_object() || !model.contains("config") || !model.contains("tensors")) return;
  const Json &config = model["config"], &descriptions = model["tensors"];
  if (!config.is_object() || !descriptions.is_object() || descriptions.size() > kMostTensors) return;
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, description] : descriptions.items())
    if (at::Tensor tensor = make_tensor(description); tensor.defined()) tensors.emplace(name, std::move(tensor));
  const auto stored = checkpoint::Checkpoint::in_memory(config, tensors);
  const auto format = source::source_format(*stored);
  if (format == nullptr) return;
  for (const source::StoredWeight& weight : format->weights(stored)) {
    try {
      use_weight(weight);
    } catch (const CheckpointError&) {  // its content is damaged; others may be read
    }
  }
  if (stored->quantization_config().value("quant_method", "") != "compressed-tensors") return;
  const auto parsed = quant::parse_quantization_config(stored->quantization_config(), "config.json");
  (void)quant::assign_groups(parsed, {{"model.layers.0.mlp.up_proj", {"Linear"}}});
}

}  // namespace layerpress::fuzz
