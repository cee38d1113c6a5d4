#include "layerpress/base/text.h"
#include "layerpress/cli/commands.h"
#include "layerpress/cli/option_parser.h"
#include "layerpress/cli/plan_text.h"
#include "layerpress/inspect.h"

namespace layerpress::cli {
namespace {

/// "model.layers.0.self_attn.q_proj, ..." without the prefix that all names share with the subgraph's name.
std::string short_names(const Json& modules, const std::string& subgraph) {
  std::vector<std::string> names;
  for (const Json& module : modules) {
    const auto name = module.get<std::string>();
    const bool inside = name.rfind(subgraph + ".", 0) == 0;
    names.push_back(inside ? name.substr(subgraph.size() + 1) : name);
  }
  return join(names);
}

void print_text(const Json& model) {
  fmt::print("{}\n{}: {} parameters, {}{}\n\n", model["model"].get<std::string>(),
             model["architecture"].get<std::string>(), model["parameters"].get<std::int64_t>(),
             format_bytes(model["bytes"].get<std::uint64_t>()),
             model["quantization"].is_null() ? "" : ", " + model["quantization"].get<std::string>());
  for (const Json& subgraph : model["subgraphs"]) {
    const auto name = subgraph["name"].get<std::string>();
    fmt::print("{:<32} {:>3} nodes  {:>12} parameters  {:>9}\n", name, subgraph["nodes"].get<std::size_t>(),
               subgraph["parameters"].get<std::int64_t>(), format_bytes(subgraph["bytes"].get<std::uint64_t>()));
    for (const Json& group : subgraph["linear_groups"])
      fmt::print("    {:>6} -> {:<18} {}\n", group["in_features"].get<std::int64_t>(),
                 fmt::format("{}", fmt::join(group["out_features"].get<std::vector<std::int64_t>>(), ", ")),
                 short_names(group["modules"], name));
  }
}

void print_architectures(const Json& list) {
  for (const Json& entry : list)
    fmt::print("{:<14} {:<32} {}\n", entry["model_type"].get<std::string>(), entry["class"].get<std::string>(),
               entry["special"].get<std::string>());
}

void print_pictures(const Json& drawn) {
  for (const Json& file : drawn["pictures"])
    fmt::print("{}: {} subgraphs, {} nodes\n", file.get<std::string>(), drawn["subgraphs"].get<std::size_t>(),
               drawn["nodes"].get<std::size_t>());
}

/// Prints the result of `inspect` in the form that the options request.
void print_result(const Json& result, const InspectOptions& options) {
  if (options.plan)
    fmt::print("{}", plan_text(result["plan"]));
  else if (options.graph)
    fmt::print("{}", result["graph"].get<std::string>());
  else if (result.contains("pictures"))
    print_pictures(result);
  else
    print_text(result);
}

/// An option that only a plan looks at is refused without one, instead of being ignored.
void require_plan(CLI::App& command) {
  for (CLI::Option* option : command.get_options())
    if (option->get_description().rfind("with --plan", 0) == 0) option->needs("--plan");
}

}  // namespace

void add_inspect(CLI::App& app, CommonOptions& common, Action& action) {
  auto options = std::make_shared<InspectOptions>();
  auto as_json = std::make_shared<bool>(false);
  auto architectures = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("inspect", "List a model's subgraphs and linear groups, or draw its graph");
  CLI::Option* model = command->add_option("MODEL", options->run.model,
                                           "model directory, or the id of a model in the local Hugging Face cache");
  add_options(*command, *options);
  require_plan(*command);
  command->add_flag("--json", *as_json, "print JSON");
  command->add_flag("--architectures", *architectures, "list the supported model families; takes no MODEL");
  add_common_options(*command, common);
  command->callback([options, as_json, architectures, model, &action] {
    if (model->empty() != *architectures)
      throw CLI::ValidationError(*architectures ? "--architectures takes no MODEL" : "MODEL is required");
    action = [options, as_json, architectures](const RunControl& control) {
      const Json result = *architectures ? list_architectures() : inspect(*options, control);
      if (*as_json)
        fmt::print("{}\n", (options->plan ? result["plan"] : result).dump(2));
      else if (*architectures)
        print_architectures(result);
      else
        print_result(result, *options);
      return 0;
    };
  });
}

}  // namespace layerpress::cli
