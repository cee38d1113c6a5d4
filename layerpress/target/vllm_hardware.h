#pragma once

#include <string>
#include <vector>

#include "layerpress/quant/scheme.h"
#include "layerpress/target/target.h"

namespace layerpress::target {

/// How vLLM serves a model whose modules have these schemes and shapes, and the hardware that all of them together need: "an NVIDIA
/// GPU of the Ampere generation or later, or an x86 CPU". Where vLLM lacks a common kernel, the command is the way that
/// remains, and the hardware says why. No CPU kernel runs experts in integers, or looks up rows of compressed embeddings. Facts as of vLLM 0.33, as in vllm_kernels.h.
Serving vllm_serving(const std::string& output, const std::vector<CompressedShape>& modules,
                     const CompressedParts& parts = {});

}  // namespace layerpress::target
