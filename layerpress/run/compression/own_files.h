#pragma once

#include <string>
#include <string_view>

#include "layerpress/oneshot.h"

namespace layerpress::run {

/// Throws UsageError if a file that a run writes beside its result, which `name` names, is one that the run reads, or the result.
void require_own_file(const OneshotOptions& options, std::string_view name, const std::string& path);

/// The same for all files that the options name.
void require_own_files(const OneshotOptions& options);

}  // namespace layerpress::run
