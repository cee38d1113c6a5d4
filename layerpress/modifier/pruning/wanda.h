#pragma once

#include <memory>
#include <string>
#include <vector>

#include "layerpress/base/json.h"
#include "layerpress/compression/modifier.h"
#include "layerpress/modifier/arguments/argument.h"

namespace layerpress::modifier {

/// Wanda (arXiv 2306.11695): in each row, or in each group of it, the weights with the smallest |w| ‖x‖ become zero, where ‖x‖ is the
/// norm of the weight's input channel over the calibration set. The others stay as they are. Arguments: pruning.h. Inputs that no
/// token has, or that are not finite, leave the magnitudes alone; the report says so.
std::unique_ptr<compression::Modifier> make_wanda_modifier(const OrderedJson& arguments, const std::string& where);

std::vector<Argument> wanda_arguments();

}  // namespace layerpress::modifier
