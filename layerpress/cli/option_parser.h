#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <string>
#include <system_error>
#include <type_traits>
#include <vector>

#include "layerpress/cli/command_line.h"
#include "layerpress/cli/option_groups.h"

namespace layerpress::cli {

/// What the parser would take without a word: no value, as of an unset variable, and numbers that do not fit, which it would change.
template <typename Field>
std::string fault_of_value(const std::string& text) {
  if (text.empty()) return "the value is empty";
  if constexpr (std::is_integral_v<Field>) {
    if (std::is_unsigned_v<Field> && text.starts_with('-')) return text + " is negative";
    Field number{};
    if (std::from_chars(text.data(), text.data() + text.size(), number).ec == std::errc::result_out_of_range)
      return text + " is too large a number";
  }
  return "";
}

/// Adds a command-line option with its help and default for each field that Options::visit lists.
template <typename Options>
void add_options(CLI::App& command, Options& options) {
  Options::visit(options, [&](const char* name, auto& value, const char* help) {
    using Field = std::remove_reference_t<decltype(value)>;
    const std::string option = std::string("--") + name;
    const std::string group = group_of(name).empty() ? "Options" : group_of(name);
    if constexpr (std::is_same_v<Field, bool>) {
      command.add_flag(option + ",!--no-" + name, value, help)->group(group);
    } else if constexpr (std::is_same_v<Field, std::vector<std::string>>) {
      const std::string shown = value.empty() ? help : fmt::format("{} [{}]", help, fmt::join(value, ", "));
      command.add_option(option, value, shown)->delimiter(',')->type_name("TEXT ...")->group(group);
    } else {
      CLI::Option* added = command.add_option(option, value, help)->group(group);
      added->check(fault_of_value<Field>, "");
      if constexpr (std::is_same_v<Field, std::string>) {
        if (!value.empty()) added->capture_default_str();
      } else if (value != Field{}) {
        added->capture_default_str();
      }
    }
  });
}

inline void add_common_options(CLI::App& command, CommonOptions& common) {
  command.add_flag("--no-progress", common.no_progress, "no progress bars");
  command.add_option("--log-level", common.log_level, "debug, info, warning or error")
      ->capture_default_str()
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}));
}

inline void add_model_argument(CLI::App& command, std::string& model) {
  command.add_option("MODEL", model, "model directory, GGUF file, or the id of a model on the Hugging Face hub")
      ->required();
}

}  // namespace layerpress::cli
