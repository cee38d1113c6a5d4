#pragma once

#include "layerpress/gguf/container/metadata.h"
#include "layerpress/verification/findings.h"

namespace layerpress::verification {

/// The keys of a GGUF against those that the source makes, without what tools say of the file itself: other numbers, switches and words of
/// the architecture or the vocabulary are faults; token ids, kinds of tokens, templates and keys that are missing are warnings.
void compare_keys(const gguf::Metadata& result, const gguf::Metadata& expected, Findings& findings);

}  // namespace layerpress::verification
