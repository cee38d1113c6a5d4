#pragma once

#include "layerpress/modifier/arguments/argument.h"

namespace layerpress::modifier {

/// Round-to-nearest: every weight to its nearest code, independent of data, unless the observer is "hessian".
/// Default observer: mse, and squared_error with NVFP4 and MX. Groups in llama.cpp's types: block_quantizer.h.
Kind quantization_modifier();

}  // namespace layerpress::modifier
