#include "layerpress/setup/opening/quantized_source.h"

#include <fmt/ranges.h>

#include <utility>

#include "layerpress/checkpoint/strict_json.h"
#include "layerpress/setup/opening/rewriting.h"
#include "layerpress/source/gguf_file.h"
#include "layerpress/source/source_format.h"

namespace layerpress::setup {

void find_quantized_weights(OpenedModel& opened) {
  const std::unique_ptr<source::SourceFormat> format = source::source_format(*opened.stored);
  if (format == nullptr) return;
  opened.source_format = format->description();
  for (source::StoredWeight& weight : format->weights(opened.stored)) {
    std::string name = weight.name;
    opened.quantized.emplace(std::move(name), std::move(weight));
  }
  for (const std::string& name : opened.stored->names()) {
    const checkpoint::StoredTensor& stored = opened.stored->spec(name);
    if (stored.dtype == at::kFloat8_e4m3fn && stored.shape.size() == 3 && opened.quantized.count(name) == 0)
      throw UnsupportedError(
          "[source.read] {}: {} {} holds all experts in one quantized tensor, which is not supported; start from a "
          "checkpoint with a tensor for each, or from the model that it was made of",
          opened.stored->location().string(), checkpoint::in_quotes(name), stored.shape);
  }
  if (opened.quantized.empty() && !format->may_be_without_weights())
    throw CheckpointError(
        "[source.read] {}: config.json says that weights are quantized ({}), but no tensor has the form of such "
        "weights; remove "
        "quantization_config if they are not",
        opened.stored->location().string(), opened.source_format);
}

at::ScalarType open_file(const std::filesystem::path& path, OpenedModel& opened, const RunControl& control) {
  source::GgufFile file = source::open_gguf(path);
  if (!file.missing_tokenizer.empty())
    control.message(LogLevel::kWarning,
                    fmt::format("{}; prepare tokens with the original model's tokenizer", file.missing_tokenizer));
  opened.has_tokenizer = file.missing_tokenizer.empty();
  opened.stored = std::move(file.checkpoint);
  opened.source_format = std::move(file.description);
  opened.file_metadata = std::move(file.metadata);
  for (source::StoredWeight& weight : file.weights) {
    std::string name = weight.name;
    opened.quantized.emplace(std::move(name), std::move(weight));
  }
  return file.dtype;
}

checkpoint::ComputedTensor values_of(const source::StoredWeight& weight, at::ScalarType dtype) {
  return {.spec = {weight.name, dtype, weight.shape},
          .parts = weight.parts,
          .compute = [dequantize = weight.dequantize, dtype] { return dequantize(dtype); },
          .workspace_bytes = weight.workspace_bytes,
          .expert = weight.expert,
          .sharers = weight.sharers};
}

void show_values(OpenedModel& opened, at::ScalarType dtype) {
  rewrite::Changes changes;
  for (const auto& [name, weight] : opened.quantized) changes.computed.push_back(values_of(weight, dtype));
  opened.checkpoint = opened.stored;
  apply(changes, opened);
}

}  // namespace layerpress::setup
