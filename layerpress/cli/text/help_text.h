#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace layerpress::cli {

/// --help within the width of the terminal, 80 columns elsewhere, with "--[no-]name" for a flag that can be switched off.
class HelpText : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool is_positional) const override;
  std::string make_subcommand(const CLI::App* command) const override;
  std::string make_description(const CLI::App* app) const override;
};

}  // namespace layerpress::cli
