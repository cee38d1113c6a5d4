#include <ATen/ATen.h>

#include "layerpress/model/blocks/architecture.h"
#include "layerpress/source/gguf_file.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/targets.h"

namespace layerpress::fuzz {

void gguf_model(std::string_view input) {
  const source::GgufFile file = source::open_gguf(write_input("model.gguf", input));
  for (const source::StoredWeight& weight : file.weights) {
    std::int64_t values = 1;
    for (const std::int64_t size : weight.shape) values *= size;
    // A value takes at least a bit and a half.
    require(values >= 0 && static_cast<std::uint64_t>(values) <= input.size() * 6, "a weight larger than the file");
    try {
      require(weight.dequantize(at::kFloat).sizes() == weight.shape, "values of another shape");
    } catch (const CheckpointError&) {  // its values are damaged
    }
  }
  for (const std::string& name : file.checkpoint->names()) (void)file.checkpoint->tensor(name);
  const Json& config = file.checkpoint->config();
  constexpr std::int64_t kMostLayers = 64;
  if (config.value("num_hidden_layers", Json(0)) <= Json(kMostLayers) && model::is_built_in(config))
    model::trace_model(config);
}

}  // namespace layerpress::fuzz
