#pragma once

#include <memory>
#include <string>
#include <vector>

#include "layerpress/base/json.h"
#include "layerpress/compression/modifier.h"
#include "layerpress/modifier/arguments/argument.h"

namespace layerpress::modifier {

/// AutoRoundModifier: GPTQ as --quality best runs it, with the observer gptq and error_propagation, under AutoRound's name. AutoRound's
/// own arguments (iters, batch_size, lr, enable_torch_compile, device_ids, disable_opt_rtn) are checked and have no effect.
std::unique_ptr<compression::Quantizer> make_autoround_modifier(const OrderedJson& arguments, const std::string& where);

/// AutoRound's own arguments.
std::vector<Argument> autoround_arguments();

}  // namespace layerpress::modifier
