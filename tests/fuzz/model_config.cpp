#include "layerpress/checkpoint/checkpoint.h"
#include "layerpress/gguf/architectures/architecture.h"
#include "layerpress/model/blocks/architecture.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/targets.h"

namespace layerpress::fuzz {
namespace {

constexpr std::int64_t kMostLayers = 8;  // more of them are only slower

bool has_many_layers(const Json& config) {
  for (const auto& [key, value] : config.items()) {
    if (value.is_object() && has_many_layers(value)) return true;
    const bool counts = key.ends_with("_layers") || key.ends_with("experts");
    if (counts && value.is_number_integer() && value.get<std::int64_t>() > kMostLayers) return true;
  }
  return false;
}

}  // namespace

void model_config(std::string_view input) {
  const Json config = parse_json(input, "config.json");
  if (!config.is_object() || has_many_layers(config)) return;
  const auto with_each_reader = [&](auto&& read) {
    try {
      read();
    } catch (const CheckpointError&) {  // of one of them; the other may take the file
    }
  };
  with_each_reader([&] {
    const model::TracedModel traced = model::trace_model(config);
    model::check_weights(traced.graph, *checkpoint::Checkpoint::in_memory(config, {}));
  });
  with_each_reader([&] { gguf::architecture_for(config); });
}

}  // namespace layerpress::fuzz
