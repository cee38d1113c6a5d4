#pragma once

#include "layerpress/gguf/container/metadata.h"
#include "layerpress/verification/findings.h"

namespace layerpress::verification {

/// The tokens of a GGUF, for an embedding of so many rows.
void check_vocabulary(const gguf::Metadata& keys, std::int64_t rows, Findings& findings);

/// The keys of a GGUF against those that the source makes, without what tools say of the file itself: other numbers, switches and words of
/// the architecture or the vocabulary are faults, and so is another way to cut words; token ids, kinds of tokens, templates and keys that are missing are warnings.
void compare_keys(const gguf::Metadata& result, const gguf::Metadata& expected, Findings& findings);

}  // namespace layerpress::verification
