#include "layerpress/base/text.h"
#include "layerpress/cli/commands.h"
#include "layerpress/cli/option_parser.h"
#include "layerpress/cli/plan_text.h"
#include "layerpress/inspect.h"

namespace layerpress::cli {
namespace {

/// "model.layers.0.self_attn.q_proj, ..." without the part that all share with the subgraph's name.
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

}  // namespace

void add_inspect(CLI::App& app, CommonOptions& common, Action& action) {
  auto options = std::make_shared<InspectOptions>();
  auto as_json = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("inspect", "List a model's subgraphs and linear groups");
  add_model_argument(*command, options->model);
  add_options(*command, *options);
  command->add_flag("--json", *as_json, "print JSON");
  add_common_options(*command, common);
  command->callback([options, as_json, &action] {
    action = [options, as_json](const RunControl&) {
      const Json model = inspect(*options);
      if (*as_json)
        fmt::print("{}\n", (options->plan ? model["plan"] : model).dump(2));
      else if (options->plan)
        fmt::print("{}", plan_text(model["plan"]));
      else if (options->graph)
        fmt::print("{}", model["graph"].get<std::string>());
      else
        print_text(model);
      return 0;
    };
  });
}

}  // namespace layerpress::cli
