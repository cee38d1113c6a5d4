#pragma once

#include "layerpress/modifier/arguments/argument.h"

namespace layerpress::modifier {

/// Wanda (arXiv 2306.11695): in each row, or in each group of it, the weights with the smallest |w| ‖x‖ become zero, where ‖x‖ is the
/// norm of the weight's input channel over the calibration set. The others stay as they are. Arguments: pruning.h. Inputs that no
/// token has, or that are not finite, leave the magnitudes alone; the report says so.
Kind wanda_modifier();

}  // namespace layerpress::modifier
