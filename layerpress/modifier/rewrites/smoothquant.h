#pragma once

#include "layerpress/modifier/arguments/argument.h"

namespace layerpress::modifier {

/// SmoothQuant (arXiv 2211.10438) makes activations easier to quantize. The output channels of a norm or a linear are divided
/// by a scale, and the columns of the linears that read them are multiplied by it. The model's outputs stay the same. Let a be the
/// range of a channel over all tokens (maximum - minimum), and w twice the largest absolute weight of the balance layers
/// in this channel. The scale is a^strength / w^(1 - strength), or a if w is 0, and at least 1e-5.
///
/// Arguments, with LLM Compressor's meanings: smoothing_strength 0.5; mappings null, or a list of [[balance layers],
/// smooth layer] with names and re: patterns; ignore null, or names: a mapping is skipped if all of its layers are
/// ignored; algorithm "smoothquant", or "log_equalization" (arXiv 2308.15987): a / log2(2 + a). num_calibration_steps and
/// calibration_function must be null.
///
/// Without mappings, it smooths the norms of the residual stream that only linears read: before q, k and v, and before gate
/// and up. In mixtures of experts it smooths only the norm before the attention, like LLM Compressor.
///
/// All linears that read a smoothed value are multiplied. The balance layers of a mapping are those whose weights determine the
/// scale. A mapping that would change the model's outputs is refused.
Kind smoothquant_modifier();

/// The same with algorithm log_equalization unless the arguments name one: LLM Compressor's older name for it.
Kind logarithmic_equalization_modifier();

}  // namespace layerpress::modifier
