#pragma once

#include <cstdint>
#include <string>

#include "layerpress/evaluate.h"
#include "layerpress/run/compression/model_name.h"

namespace layerpress::run {

constexpr const char* kCardName = "README.md";
constexpr std::uintmax_t kLongestCard = 4 << 20;  ///< that is read

/// The card's section about quality before anybody has measured it: how to do that. Two comments enclose it, which no
/// reader sees.
std::string unmeasured_quality(const ModelName& original);

/// Throws UsageError if the figures could not be written later: MODEL has no card with such a section.
void check_card(const EvaluateOptions& options);

/// Writes the figures into the card of the model that was measured, in place of those that are there. Nothing else of it
/// changes.
void add_to_card(const EvaluateOptions& options, const Evaluation& evaluation);

}  // namespace layerpress::run
