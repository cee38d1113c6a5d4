// Prints docs/options.md from the lists of fields that the command line's options and --help are made from.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <string>
#include <type_traits>
#include <vector>

#include "layerpress/evaluate.h"
#include "layerpress/inspect.h"
#include "layerpress/oneshot.h"
#include "layerpress/prepare.h"

namespace {

template <typename Field>
std::string default_text(const Field& value) {
  if constexpr (std::is_same_v<Field, bool>)
    return value ? "on" : "off";
  else if constexpr (std::is_same_v<Field, std::vector<std::string>>)
    return fmt::format("{}", fmt::join(value, ", "));
  else if constexpr (std::is_same_v<Field, std::string>)
    return value;
  else
    return value == Field{} ? "" : fmt::format("{}", value);
}

template <typename Field>
std::string option_text(const std::string& name, const Field&) {
  if constexpr (std::is_same_v<Field, bool>)
    return "--" + name;
  else if constexpr (std::is_same_v<Field, std::vector<std::string>>)
    return "--" + name + " A,B";
  else if constexpr (std::is_same_v<Field, std::string>)
    return "--" + name + " TEXT";
  else
    return "--" + name + " N";
}

/// In a table a vertical bar ends a cell.
std::string cell(const std::string& text) {
  std::string result;
  for (const char c : text) result += c == '|' ? std::string("\\|") : std::string(1, c);
  return result;
}

template <typename Options>
void print_table(const char* command, const char* purpose) {
  fmt::print("\n## layerpress {}\n\n{}\n\n| option | default | meaning |\n|---|---|---|\n", command, purpose);
  const Options options;
  Options::visit(options, [](const char* name, const auto& value, const char* help) {
    fmt::print("| `{}` | {} | {} |\n", cell(option_text(name, value)), cell(default_text(value)), cell(help));
  });
}

}  // namespace

int main() {
  fmt::print(
      "# Options\n\n"
      "`scripts/option_tables` writes this page from the lists that the command line is made from.\n"
      "A list is written with commas or by repeating the option. A flag `--name` has a counterpart `--no-name`.\n"
      "Every command also takes `--no-progress` and `--log-level debug|info|warning|error`.\n");
  print_table<layerpress::OneshotOptions>(
      "oneshot MODEL", "Compresses a model. `--dry-run` shows the plan and stops; `--json` prints it as JSON.");
  print_table<layerpress::EvaluateOptions>("eval MODEL",
                                           "Measures a plain or compressed model and prints JSON; "
                                           "`--table` prints the error of each layer as text.");
  print_table<layerpress::InspectOptions>("inspect MODEL",
                                          "Describes a model. `--json` prints JSON; `--architectures` lists the "
                                          "supported model families and takes no MODEL.");
  print_table<layerpress::PrepareOptions>("prepare MODEL", "Tokenizes calibration data into a token file.");
}
