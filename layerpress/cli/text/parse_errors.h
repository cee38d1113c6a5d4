#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace layerpress::cli {

/// What is wrong with a command line, and the command or option that was probably meant.
std::string explain(const CLI::App& app, const CLI::ParseError& error);

}  // namespace layerpress::cli
