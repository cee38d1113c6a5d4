#pragma once

#include "layerpress/oneshot.h"
#include "layerpress/recipe/recipe.h"

namespace layerpress::recipe {

/// Whether the options ask for a GGUF file: the output's name ends in .gguf.
bool asks_for_gguf(const OneshotOptions& options);

/// Whether such options ask for a folder with parts: a largest size is given.
bool divides_gguf(const OneshotOptions& options);

/// The arguments of a quantizing modifier for such options: --scheme, or Q4_K_M, names llama.cpp's mixture of types. Throws UsageError for
/// another scheme and for options that the mixture decides.
OrderedJson gguf_arguments(const OneshotOptions& options);

/// The mixture that a modifier's scheme names; "": none. A name that compressed-tensors has, too (NVFP4), means the mixture only if the
/// result is a GGUF.
std::string mixture_of(const ModifierEntry& entry, bool for_gguf);

/// The arguments of a modifier whose scheme names a mixture, with groups of types in its place. Throws RecipeError for targets
/// that are not all linears, because a mixture chooses a type for every tensor.
OrderedJson with_groups_of_mixture(const ModifierEntry& entry, OrderedJson groups);

/// Whether a modifier's scheme names a mixture, whose types depend on the model.
bool names_mixture(const Recipe& recipe, bool for_gguf);

}  // namespace layerpress::recipe
