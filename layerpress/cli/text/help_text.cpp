#include "layerpress/cli/text/help_text.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "layerpress/cli/text/wrapped_text.h"

namespace layerpress::cli {
namespace {

constexpr std::size_t kIndent = 28, kNarrowest = 60, kWidest = 100;

/// COLUMNS, else the terminal's width, else 80.
std::size_t columns() {
  const char* wanted = std::getenv("COLUMNS");
  winsize size{};
  std::size_t width = wanted == nullptr ? 0 : static_cast<std::size_t>(std::strtoul(wanted, nullptr, 10));
  if (width == 0 && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0) width = size.ws_col;
  return std::clamp<std::size_t>(width == 0 ? 80 : width, kNarrowest, kWidest);
}

/// A name and its description, side by side if the name is short.
std::string row(const std::string& name, const std::string& description) {
  const std::string left = "  " + name;
  const bool beside = left.size() + 2 <= kIndent;
  return left + (beside ? "" : "\n") + wrapped_words(description, beside ? left.size() : 0, {kIndent, columns()});
}

std::string flag_name(const CLI::Option& flag) {
  const auto& names = flag.get_lnames();
  const bool both = std::find(names.begin(), names.end(), "no-" + names.front()) != names.end();
  return both ? "--[no-]" + names.front() : flag.get_name(false, true);
}

}  // namespace

std::string HelpText::make_option(const CLI::Option* option, bool is_positional) const {
  std::string name = is_positional ? option->get_name(true, false) : flag_name(*option);
  const std::string type = option->get_type_name();
  if (!is_positional && !type.empty()) name += " " + type.substr(0, type.find(':'));
  std::string description = option->get_description();
  if (!option->get_default_str().empty() && option->get_type_size() != 0)
    description += " [" + option->get_default_str() + "]";
  if (option->get_required()) description += " (required)";
  return row(name, description);
}

std::string HelpText::make_subcommand(const CLI::App* command) const {
  return row(command->get_name(), command->get_description());
}

std::string HelpText::make_description(const CLI::App* app) const {
  return app->get_description().empty() ? "" : wrapped_words(app->get_description(), 0, {0, columns()});
}

}  // namespace layerpress::cli
