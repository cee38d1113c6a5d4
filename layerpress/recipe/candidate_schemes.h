#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layerpress/base/json.h"
#include "layerpress/oneshot.h"
#include "layerpress/recipe/recipe.h"

namespace layerpress::recipe {

/// The candidate that leaves weights as they are.
inline constexpr const char* kLeftAlone = "none";

/// Checks the values of --schemes, and --group-size beside them: presets, or llama.cpp's types if the output is a GGUF. `takes_none`: "none" is a candidate, too.
/// Throws UsageError.
void check_candidates(const OneshotOptions& options, const std::vector<std::string>& names, bool takes_none);

/// Whether --group-size says how large the scheme's groups are.
bool has_free_groups(const std::string& name, const OneshotOptions& options);

/// The recipe that rounds the options' targets to a candidate.
Recipe rounding_to(const std::string& name, const OneshotOptions& options);

/// The modules that get a candidate: names, or patterns that match nothing else.
struct CandidateTargets {
  std::string name;
  std::vector<std::string> targets;
};

/// The recipe that compresses modules in several schemes, with the options' algorithm, group size, observer and modules to ignore.
/// `vocabulary`: embeddings and the output, which are then not ignored; without a name: none.
/// REQUIRES: none of the candidates is kLeftAlone.
Recipe mixed_recipe(const std::vector<CandidateTargets>& candidates, const OneshotOptions& options,
                    const CandidateTargets& vocabulary = {});

}  // namespace layerpress::recipe
