#pragma once

#include <ATen/ATen.h>

#include <map>
#include <string>

#include "layerpress/checkpoint/safetensors.h"
#include "layerpress/model/blocks/architecture.h"
#include "layerpress/setup/opening/open_model.h"
#include "tests/checkpoint/temporary_folder.h"

namespace layerpress::setup {

/// A model of an architecture of ours whose weights, in the folder "model" of `folder`, are zero.
inline OpenedModel open_zero_model(const test::TemporaryFolder& folder, const Json& config) {
  std::map<std::string, at::Tensor> tensors;
  for (const graph::Node& node : model::trace_model(config).graph.nodes)
    for (const graph::WeightUse& use : graph::weights_of(node.operation))
      tensors[use.name] = at::zeros(use.shape, at::kBFloat16);
  folder.write("model/config.json", config.dump());
  checkpoint::write_safetensors(folder / "model/model.safetensors", tensors);
  return open_model((folder / "model").string());
}

}  // namespace layerpress::setup
