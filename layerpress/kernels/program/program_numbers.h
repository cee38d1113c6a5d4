#pragma once

#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

namespace layerpress::kernels {

/// A function of numbers, such as those that sizes are computed with, or an element of a list.
using NumberFunction = c10::IValue (*)(const std::vector<c10::IValue>& arguments);

/// The function of Python's operator module or of torch's symbolic numbers. Throws CheckpointError for others.
NumberFunction find_number_function(const std::string& name);

}  // namespace layerpress::kernels
