#pragma once

#include <string>

#include "layerpress/oneshot.h"
#include "layerpress/setup/run_setup.h"

namespace layerpress::run {

/// The README.md of an output: what was compressed, how, with which data, and how to serve it. Its front matter is the
/// hub's metadata; license, languages and task are those of the original model's card if it has one that can be read.
/// Contains nothing of this machine, such as paths, and nothing of the
/// output's place or of time: the same run gives the same card.
std::string model_card(const OneshotOptions& options, const setup::RunSetup& setup, const OneshotSummary& summary);

}  // namespace layerpress::run
