#pragma once

namespace layerpress::graph {

/// The meaning of a value's rows. Their number depends on the batch.
enum class Rows {
  kTokens,       ///< the batch's tokens
  kSelected,     ///< the tokens that an expert gets
  kIllustrated,  ///< tokens of samples with images
  kPatches,      ///< patches of images with all padding, as the vision encoder computes them
  kVision,       ///< patches of images, as text attends to them
};

/// "tokens", "selected", "illustrated", "patches" or "vision".
const char* rows_name(Rows rows);

}  // namespace layerpress::graph
