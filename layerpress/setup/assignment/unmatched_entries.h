#pragma once

#include <string>
#include <vector>

#include "layerpress/setup/assignment/assignment.h"

namespace layerpress::setup {

/// An entry of a recipe's lists of modules that matches no module of the model.
struct UnmatchedEntry {
  std::string list;   ///< "targets" or "ignore"; of a mapping its place, such as "SmoothQuantModifier.mappings[0]"
  std::string entry;  ///< as it is written
  std::string hint;   ///< what was probably meant: "did you mean lm_head?", or ""
};

/// Each such entry once. Modules are those that recipes reach, those of linears that have no node, and those that only the
/// checkpoint knows.
std::vector<UnmatchedEntry> unmatched_entries(const OpenedModel& model, const Modifiers& modifiers);

}  // namespace layerpress::setup
