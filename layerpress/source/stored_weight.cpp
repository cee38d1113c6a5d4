#include "layerpress/source/stored_weight.h"

#include <utility>

#include "layerpress/quant/compressed_weight.h"

namespace layerpress::source {

void dequantize_from(StoredWeight& weight, std::function<quant::QuantizedWeight()> read) {
  weight.workspace_bytes = quant::quantized_bytes(*weight.scheme.weights, weight.shape[0], weight.shape[1], at::kFloat);
  weight.read = read;
  weight.dequantize = [scheme = weight.scheme, read = std::move(read)](at::ScalarType dtype) {
    return quant::dequantize(scheme, read(), dtype);
  };
}

void keep_from(StoredWeight& weight, at::ScalarType scale_dtype, std::function<quant::QuantizedWeight()> read) {
  weight.compressed_layout = quant::compressed_layout(weight.scheme, weight.shape[0], weight.shape[1], scale_dtype);
  weight.compressed = [scheme = weight.scheme, read = std::move(read)] { return quant::compress(scheme, read()); };
}

void keep_input_scale(StoredWeight& weight, at::ScalarType dtype, std::function<at::Tensor()> read) {
  weight.input_parameter = [read](const std::string& suffix) {
    return suffix == "input_scale" ? std::optional(read()) : std::nullopt;
  };
  weight.compressed_layout.push_back({"input_scale", dtype, {1}});
  weight.compressed = [others = std::move(weight.compressed), read = std::move(read), dtype] {
    std::vector<quant::NamedTensor> parts = others();
    parts.push_back({"input_scale", read().reshape({1}).to(dtype)});
    return parts;
  };
}

}  // namespace layerpress::source
