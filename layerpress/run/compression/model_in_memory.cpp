#include "layerpress/model_in_memory.h"

#include <ATen/ATen.h>

#include <memory>

#include "layerpress/setup/opening/open_model.h"

namespace layerpress {

std::vector<std::string> load_result(const ModelInMemory& model, const std::string& output) {
  const setup::OpenedModel result =
      setup::open_model(output, {.trust_remote_code = !model.code.empty(), .exported_graph = model.graph});
  // Not owned: the caller's model outlives this function.
  const setup::OpenedModel target =
      setup::open_model("", {.trust_remote_code = !model.code.empty(),
                             .in_memory = std::shared_ptr<const ModelInMemory>(std::shared_ptr<void>(), &model)});
  std::vector<std::string> changed;
  for (const std::string& name : graph::weights_read(result.traced.graph)) {
    if (!target.checkpoint->contains(name))
      throw CheckpointError(
          "[memory.load] {}: the result has a tensor {}, but the model in memory does not; load the result from its "
          "folder",
          output, name);
    at::Tensor own = target.checkpoint->tensor(name);
    const auto quantized = result.quantized.find(name);
    const at::Tensor value = quantized == result.quantized.end() ? result.checkpoint->tensor(name)
                                                                 : quantized->second.dequantize(own.scalar_type());
    if (own.sizes() != value.sizes())
      throw CheckpointError("[memory.load] {}: tensor {} has another shape than in memory", output, name);
    if (at::equal(own, value.to(own.scalar_type()))) continue;
    own.copy_(value);
    changed.push_back(name);
  }
  return changed;
}

}  // namespace layerpress
