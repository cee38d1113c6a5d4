#pragma once

#include "layerpress/modifier/arguments/argument.h"

namespace layerpress::modifier {

/// AWQ (arXiv 2306.00978) makes weights easier to quantize. The output channels of a norm or a linear are divided by a scale,
/// and the columns of the linears that read them are multiplied by it, so that the weights of channels with large inputs lose
/// less when they are rounded. The model's outputs stay the same. A modifier behind it in the recipe quantizes.
///
/// Let x be the mean absolute input of a channel, and w the mean over the rows of all balance layers of |weight| divided by the
/// largest |weight| of its group. Candidates for the scale are x^r, and with duo scaling x^r / (w^(1 - r) + 1e-4), at least
/// 1e-4, divided by the geometric mean of the largest and the smallest. The candidate is taken with which the module around the
/// balance layers has the smallest squared error of its outputs when their weights are rounded to nearest with min-max scales.
///
/// Arguments, with LLM Compressor's meanings: duo_scaling true: x^0 and n_grid - 1 exponents with duo scaling; false: n_grid
/// exponents without it; "both": n_grid / 2 exponents with and without it. n_grid 20. mappings null, or a list of {smooth_layer,
/// balance_layers} with names and re: patterns. offload_device has no effect: activations wait where the run keeps them.
///
/// Without mappings, all places are used whose balance layers are quantized, but for the head. A mapping is skipped where
/// the model has no place for a scale (values of grouped heads) or where nothing is quantized, as LLM Compressor does.
Kind awq_modifier();

}  // namespace layerpress::modifier
