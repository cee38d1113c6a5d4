#include "layerpress/cli/text/parse_errors.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "layerpress/base/text.h"

namespace layerpress::cli {
namespace {

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(command->get_name());
  return names;
}

std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

std::string unknown_command(const CLI::App& app, const std::string& name) {
  return fmt::format("unknown command '{}'; {}", name, nearest_or_all(name, command_names(app)));
}

/// `command`: the one whose options may be meant. A letter says too little to find it.
std::string unknown_option(const CLI::App& command, const std::string& argument) {
  const std::string name = argument.substr(0, argument.find('='));
  if (command.get_option_no_throw(name) != nullptr)
    return fmt::format("{} stands before the command; write it behind it", name);
  const std::string nearest = name.size() < 4 ? "" : did_you_mean(name, option_names(command));
  return fmt::format("unknown option {}; {}", name, nearest.empty() ? "see --help" : nearest);
}

}  // namespace

std::string explain(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<std::string> unknown = app.remaining(/*recurse=*/true);
  const auto commands = app.get_subcommands();
  if (commands.empty() && !unknown.empty() && !unknown.front().starts_with('-'))
    return unknown_command(app, unknown.front());
  const auto option = std::find_if(unknown.begin(), unknown.end(),
                                   [](const std::string& argument) { return argument.starts_with('-'); });
  if (option != unknown.end()) return unknown_option(commands.empty() ? app : *commands.front(), *option);
  if (!unknown.empty())
    return fmt::format("unexpected argument '{}'; {} takes one MODEL and options, see --help", unknown.front(),
                       commands.front()->get_name());
  if (commands.empty()) return fmt::format("a command is required; {}", nearest_or_all("", command_names(app)));
  const std::string said = error.what();
  if (said.find("At Most 1 required") != std::string::npos)
    return said.substr(0, said.find(':')) + " is given more than once; give it once";
  constexpr std::string_view kNoNumber = "Could not convert: ";
  if (said.starts_with(kNoNumber))
    return fmt::format("{} is no such number as this option takes; see --help", said.substr(kNoNumber.size()));
  return said + "; see --help";
}

}  // namespace layerpress::cli
