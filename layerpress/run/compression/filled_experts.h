#pragma once

#include <cstdint>
#include <string>

#include "layerpress/base/json.h"

namespace layerpress::run {

/// Experts that were calibrated on more tokens than the router gave them, because these were too few.
struct FilledExperts {
  std::size_t experts = 0;
  std::size_t layers = 0;  ///< layers with such experts
  /// "12 experts of 3 layers had fewer than 256 tokens and were filled up".
  std::string text(std::int64_t min_tokens) const;
};

/// Counts them in a summary's module reports (fields module, tokens, routed_tokens).
FilledExperts filled_experts(const Json& modules);

}  // namespace layerpress::run
