// Prints docs/options.md from the lists of fields that the command line's options and --help are made from.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <map>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "layerpress/cli/option_groups.h"
#include "layerpress/evaluate.h"
#include "layerpress/inspect.h"
#include "layerpress/oneshot.h"
#include "layerpress/prepare.h"
#include "layerpress/verify.h"

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

/// Whether `inspect` takes an option of `oneshot` only to plan a run; one that it leaves out may be its own under the same name.
template <typename Options>
bool repeats_oneshot(const std::string& name) {
  if (!std::is_same_v<Options, layerpress::InspectOptions> || layerpress::InspectOptions::describes_model(name) ||
      layerpress::InspectOptions::is_left_out(name))
    return false;
  bool known = false;
  const layerpress::OneshotOptions options;
  layerpress::OneshotOptions::visit(options, [&](const char* own, const auto&, const char*) { known |= name == own; });
  return known;
}

/// The rows of a command's options, by the title of their group.
template <typename Options>
std::map<std::string, std::string> rows_by_group() {
  std::map<std::string, std::string> rows;
  const Options options;
  Options::visit(options, [&](const char* name, const auto& value, const char* help) {
    if (repeats_oneshot<Options>(name)) return;
    const std::string group = layerpress::cli::group_of(name);
    if (group.empty())
      throw std::invalid_argument(fmt::format("--{} is in no group of layerpress/cli/option_groups.h", name));
    rows[group] +=
        fmt::format("| `{}` | {} | {} |\n", cell(option_text(name, value)), cell(default_text(value)), cell(help));
  });
  return rows;
}

template <typename Options>
void print_tables(const std::string& command, const char* purpose) {
  fmt::print("\n## layerpress {}\n\n{}\n", command, purpose);
  const std::map<std::string, std::string> rows = rows_by_group<Options>();
  for (const layerpress::cli::OptionGroup& group : layerpress::cli::option_groups()) {
    const auto found = rows.find(group.title);
    if (found == rows.end()) continue;
    fmt::print("\n### {}: {}\n", command.substr(0, command.find(' ')), group.title);
    if (command.rfind("oneshot", 0) == 0) fmt::print("\n    {}\n", group.example);
    fmt::print("\n| option | default | meaning |\n|---|---|---|\n{}", found->second);
  }
}

void print_page() {
  fmt::print(
      "# Options\n\n"
      "`layerpress COMMAND --help` prints the same lists. A list is written with commas or by repeating the option. A "
      "flag `--name`\n"
      "has a counterpart `--no-name`. Sizes are written as `4GiB` or `5GB`. Every command also takes `--no-progress` "
      "and\n"
      "`--log-level debug|info|warning|error`.\n");
  print_tables<layerpress::OneshotOptions>("oneshot MODEL",
                                           "Compresses a model. `--dry-run` shows memory, disk and time of the run and "
                                           "stops; with `--json` it prints them as JSON.");
  print_tables<layerpress::EvaluateOptions>(
      "eval MODEL",
      "Measures a plain or compressed model and prints JSON; `--table` prints a table with the error of each layer.\n\n"
      "    layerpress eval out --reference MODEL --dataset other.jsonl --table\n"
      "    layerpress eval out --reference MODEL --tasks gsm8k --engine vllm");
  print_tables<layerpress::InspectOptions>(
      "inspect MODEL",
      "Describes a model. `--json` prints JSON; `--architectures` lists the supported model families and takes no "
      "MODEL. With\n"
      "`--plan`, `inspect` also takes the options of `oneshot` that describe a run: those about compression, data, "
      "experts, memory and\n"
      "speed. With `--sensitivity`, it takes those about data, experts, memory and speed, `--targets`, `--ignore`, "
      "`--group-size` and\n"
      "`--summary` ([sensitivity](sensitivity.md)).\n\n"
      "    layerpress inspect MODEL\n"
      "    layerpress inspect MODEL --plan --scheme NVFP4 --num-calibration-samples 128\n"
      "    layerpress inspect MODEL --sensitivity --schemes NVFP4,W4A16 --dataset data.jsonl\n"
      "    layerpress inspect MODEL --svg graph.svg");
  print_tables<layerpress::VerifyOptions>(
      "verify MODEL",
      "Checks a checkpoint, by itself or against the model that it was made of ([reliability](reliability.md)). "
      "`--json` prints JSON. The\n"
      "exit code is 1 if there is a fault.\n\n"
      "    layerpress verify out\n"
      "    layerpress verify out --source MODEL");
  print_tables<layerpress::PrepareOptions>(
      "prepare MODEL",
      "Tokenizes calibration data once into a token file, which `--dataset` of "
      "the other commands takes.\n\n"
      "    layerpress prepare MODEL --dataset data.jsonl --output data.safetensors");
}

}  // namespace

int main() {
  try {
    print_page();
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: [options] {}\n", error.what());
    return 1;
  }
}
