#pragma once

#include <string>
#include <vector>

#include "layerpress/quant/scheme.h"

namespace layerpress::target {

/// The hardware on which vLLM serves a model whose modules have these schemes, all of them together: "an NVIDIA GPU of
/// the Ampere generation or later, or an x86 CPU". It follows "needs". Where vLLM lacks a common kernel, it names the
/// reason and the reader that remains. Facts as of vLLM 0.33, as in vllm_kernels.h.
std::string serving_hardware(const std::vector<quant::QuantizationScheme>& schemes);

}  // namespace layerpress::target
