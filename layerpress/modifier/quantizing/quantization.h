#pragma once

#include <memory>
#include <string>

#include "layerpress/base/json.h"
#include "layerpress/compression/modifier.h"

namespace layerpress::modifier {

/// Round-to-nearest: every weight to its nearest code, independent of data, unless the observer is "hessian".
/// Default observer: mse, and squared_error with NVFP4 and MX.
std::unique_ptr<compression::Quantizer> make_quantization_modifier(const OrderedJson& arguments,
                                                                   const std::string& where);

}  // namespace layerpress::modifier
