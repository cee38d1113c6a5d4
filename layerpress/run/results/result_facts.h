#pragma once

#include <string>

#include "layerpress/oneshot.h"
#include "layerpress/setup/run_setup.h"

namespace layerpress::run {

/// The schemes of the compressed modules by name: "W4A16 (group 64)", "NVFP4 and FP8".
std::string scheme_names(const setup::RunSetup& setup);

/// "2.38 times smaller", "1.11 times larger" or "the same size".
std::string size_change(std::uint64_t before, std::uint64_t after);

/// {"command": what serves the result, "hardware": what that needs}.
Json serving(const std::string& output, const setup::RunSetup& setup);

/// Of a summary's "modules" those with the greatest relative errors, at most `count`, worst first: [{"modules": names that have one
/// error, "relative_output_error": it}], or with "weight_error" where nothing was measured with data.
Json worst_modules(const Json& modules, std::size_t count = 3);

/// Of a summary's "modules" those whose error is greater than what it is an error of, so that zeros would do as well: [{"module",
/// "relative_output_error" or "weight_error"}], worst first.
Json outsized_errors(const Json& modules);

}  // namespace layerpress::run
