#pragma once

#include "layerpress/modifier/arguments/argument.h"

namespace layerpress::modifier {

/// AutoRoundModifier: GPTQ as --quality best runs it, with the observer gptq and error_propagation, under AutoRound's name. AutoRound's
/// own arguments (iters, batch_size, lr, enable_torch_compile, device_ids, disable_opt_rtn) are checked and have no effect;
/// error_propagation (true) is GPTQ's, and false in runs whose experts see the tokens that are routed to them only.
Kind autoround_modifier();

}  // namespace layerpress::modifier
