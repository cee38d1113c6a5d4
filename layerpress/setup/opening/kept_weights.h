#pragma once

#include <string>
#include <vector>

#include "layerpress/compression/assignments.h"
#include "layerpress/setup/opening/open_model.h"
#include "layerpress/target/target.h"

namespace layerpress::setup {

/// Chooses what the output has for weights that are stored quantized and that the run leaves as they are: the same codes and scales
/// in the form of compressed-tensors, or values, where there is no such form, where engines run the weight as one with values, in
/// routers, which engines load plain, or where values are wanted. A target without a config.json, which says what codes mean, has
/// values. Sets `model.kept`.
void keep_quantized_weights(OpenedModel& model, const compression::Assignments& assignments,
                            const target::Target& target);

/// The weights that a run writes as values although they are stored quantized, in a line; or nothing.
std::string dequantized_text(const OpenedModel& model, const compression::Assignments& assignments);

/// A module whose second quantization adds a loss to the one that it has: it is stored in four bits or fewer, or in no more bits
/// than it gets. Those whose values the new blocks hold are not among them.
struct RequantizedModule {
  std::string name;
  bool may_be_exact =
      false;  ///< MXFP4 becomes NVFP4, which is exact unless scales are too far from each other, or blocks of a type become the same
};
std::vector<RequantizedModule> requantized_modules(const OpenedModel& model,
                                                   const compression::Assignments& assignments);

/// A module's scheme in the source in a few words, or "".
std::string source_scheme(const OpenedModel& model, const std::string& module);

}  // namespace layerpress::setup
