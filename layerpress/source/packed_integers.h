#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "layerpress/quant/scheme.h"

namespace layerpress::source {

// GPTQ and AWQ store weights with a row per input, codes packed into 32-bit words from the lowest bits on. Both functions give
// codes [outputs, inputs] as int8, with 2^(bits-1) subtracted. Multi-threaded.

/// From words [inputs * bits / 32, outputs]: a stream of consecutive inputs of one output, in which a code may begin in one word and end
/// in the next.
at::Tensor codes_packed_along_inputs(const at::Tensor& words, int bits);

/// From words [inputs, outputs * 4 / 32]: a word has eight outputs of one input, in AWQ's order 0 2 4 6 1 3 5 7.
at::Tensor codes_in_awq_order(const at::Tensor& words);

/// Throws CheckpointError for a number of columns per scale that is neither positive nor -1 (all columns). `format`: "gptq" or "awq".
void require_group_size(std::int64_t group_size, const std::string& format, const std::string& where);

/// "gptq, 4 bits, groups of 128".
std::string groups_description(const std::string& format, int bits, std::int64_t group_size);

/// The scheme of integers per group, or per channel where one group has all columns.
quant::QuantizationScheme integer_scheme(int bits, std::int64_t group_size, std::int64_t columns, bool symmetric);

}  // namespace layerpress::source
