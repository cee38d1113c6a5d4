#include "layerpress/run/results/result_facts.h"

#include <algorithm>
#include <vector>

#include "layerpress/base/text.h"
#include "layerpress/graph/weight_matrix.h"
#include "layerpress/model/blocks/decoder_config.h"
#include "layerpress/modifier/quantizing/quantizing_modifier.h"
#include "layerpress/quant/scheme_name.h"
#include "layerpress/setup/assignment/compressed_modules.h"

namespace layerpress::run {
namespace {

/// The schemes and shapes of all modules that the result has compressed, each once.
std::vector<target::CompressedShape> shapes_of(const setup::RunSetup& setup) {
  std::vector<target::CompressedShape> shapes;
  const auto add = [&](const quant::QuantizationScheme& scheme, std::int64_t rows, std::int64_t columns) {
    target::CompressedShape shape{scheme, rows, columns};
    if (std::find(shapes.begin(), shapes.end(), shape) == shapes.end()) shapes.push_back(std::move(shape));
  };
  for (const auto& [node, assignment] : setup.assignments.linears) {
    if (quant::is_dense(*assignment.scheme)) continue;
    const auto matrix = graph::weight_matrix(setup.model.traced.graph.nodes[node].operation);
    add(*assignment.scheme, matrix->rows, matrix->columns);
  }
  for (const std::string& name : setup.model.kept) {
    const source::StoredWeight& weight = setup.model.quantized.at(name);
    add(weight.scheme, weight.shape.at(weight.shape.size() - 2), weight.shape.back());
  }
  return shapes;
}

std::string name_of(const quant::QuantizationScheme& scheme) {
  const std::string name = scheme.weights ? quant::scheme_name(scheme) : scheme.format;
  return name.empty() ? modifier::describe(scheme) : name;
}

}  // namespace

std::string scheme_names(const setup::RunSetup& setup) {
  std::vector<std::string> names;
  for (const target::CompressedShape& shape : shapes_of(setup)) {
    std::string name = name_of(shape.scheme);
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(std::move(name));
  }
  if (!setup.assignments.attentions.empty()) names.emplace_back("scales of keys and values");
  if (names.empty())
    return setup.assignments.edited.empty() && setup.model.rewrites.empty() ? "no scheme" : "dense weights";
  const std::string last = names.back();
  names.pop_back();
  return names.empty() ? last : join(names) + " and " + last;
}

std::string size_change(std::uint64_t before, std::uint64_t after) {
  const double least = static_cast<double>(std::min(before, after)),
               most = static_cast<double>(std::max(before, after));
  const std::string times = fmt::format("{:.2f}", most / std::max(least, 1.0));
  if (times == "1.00") return "the same size";
  return fmt::format("{} times {}", times, after < before ? "smaller" : "larger");
}

Json serving(const std::string& output, const setup::RunSetup& setup) {
  if (model::has_layer_experts(setup.model.checkpoint->config()))
    return {{"command", "no engine loads layers with different numbers of experts"},
            {"hardware", "what layerpress eval needs"}};
  const target::Serving serving =
      setup.target->serving(output, shapes_of(setup), setup::compressed_parts(setup.model, setup.assignments));
  return {{"command", serving.command}, {"hardware", serving.hardware}};
}

Json worst_modules(const Json& modules, std::size_t count) {
  const bool measured = std::any_of(modules.begin(), modules.end(),
                                    [](const Json& module) { return module.contains("relative_output_error"); });
  const char* key = measured ? "relative_output_error" : "weight_error";
  std::vector<Json> groups;
  for (const Json& module : modules) {
    if (!module.contains(key)) continue;
    const auto name = module["module"].get<std::string>();
    // Linears that are solved together have one error.
    if (measured && !groups.empty() && groups.back()[key] == module[key] &&
        parent_name(groups.back()["modules"].back().get<std::string>()) == parent_name(name))
      groups.back()["modules"].push_back(name);
    else
      groups.push_back({{"modules", {name}}, {key, module[key]}});
  }
  std::stable_sort(groups.begin(), groups.end(), [&](const Json& a, const Json& b) { return a[key] > b[key]; });
  if (groups.size() > count) groups.resize(count);
  return groups;
}

Json outsized_errors(const Json& modules) {
  std::vector<Json> found;
  for (const Json& module : modules) {
    const char* key = module.contains("relative_output_error") ? "relative_output_error" : "weight_error";
    if (!module.contains(key) || !module[key].is_number() || !(module[key].get<double>() > 1)) continue;
    found.push_back({{"module", module["module"]}, {key, module[key]}});
  }
  const auto error = [](const Json& module) {
    return module.value("relative_output_error", module.value("weight_error", 0.0));
  };
  std::stable_sort(found.begin(), found.end(), [&](const Json& a, const Json& b) { return error(a) > error(b); });
  return found;
}

}  // namespace layerpress::run
