#include "layerpress/importer/region_program.h"

#include <c10/core/ScalarType.h>

#include <algorithm>

#include "layerpress/base/error.h"
#include "layerpress/importer/kept_rows.h"
#include "layerpress/importer/workspace.h"
#include "layerpress/kernels/program/tensor_program.h"

namespace layerpress::importer {
namespace {

/// Writes the program's text with numbers of its own, so that equal regions of different layers have equal programs.
class ProgramWriter {
 public:
  ProgramWriter(const ExportedGraph& graph, const Layouts& layouts, const Regions& regions, const Region& region,
                const std::map<std::int64_t, std::int64_t>& constants)
      : graph_(graph), layouts_(layouts), regions_(regions), region_(region), constants_(constants) {}

  RegionNode write() {
    for (const ExportedNode* node : region_.nodes) {
      Json arguments = moved(node->arguments);
      name_gate(*node, arguments);
      steps_.push_back({node->op, std::move(arguments), number_of(node->out)});
      if (node_.operation.mixes.empty()) node_.operation.mixes = node->mixes;
    }
    const Json program = {{"inputs", inputs_},
                          {"weights", weight_types_},
                          {"constants", node_.operation.constants.size()},
                          {"steps", steps_},
                          {"result", {{"v", number_of(region_.root)}}},
                          {"axis", layouts_.axis(region_.root)}};
    node_.operation.program = program.dump();
    kernels::TensorProgram::compile(node_.operation.program);
    describe();
    return std::move(node_);
  }

 private:
  std::int64_t number_of(std::int64_t value) {
    return numbers_.emplace(value, next_).second ? next_++ : numbers_.at(value);
  }

  /// The gate of experts that has no name is a program of its own.
  void name_gate(const ExportedNode& node, Json& arguments) const {
    if (node.op != "layerpress.experts.default" || arguments.empty() || !arguments.back().is_string()) return;
    const auto gate = graph_.gates.find(arguments.back().get<std::string>());
    if (gate != graph_.gates.end()) arguments.back() = gate->second.program;
  }

  Json moved(const Json& argument) {
    return with_replaced(argument, [&](const Json& object) {
      return object.contains("v") ? reference(json_integer(object["v"])) : object;
    });
  }

  Json reference(std::int64_t value) {
    if (value == graph_.token_ids) return {{"token_ids", 1}};
    if (value == graph_.positions) return {{"positions", 1}};
    if (const auto constant = graph_.constants.find(value); constant != graph_.constants.end())
      return {{"c", place_of(node_.operation.constants, constants_.at(value))}};
    if (const auto parameter = graph_.parameters.find(value); parameter != graph_.parameters.end())
      return parameter_reference(value, parameter->second);
    const std::int64_t from = regions_.outside(value, region_);
    if (from < 0) return {{"v", number_of(value)}};
    return input_reference(value, from);
  }

  static std::int64_t place_of(std::vector<std::int64_t>& list, std::int64_t item) {
    const auto found = std::find(list.begin(), list.end(), item);
    if (found != list.end()) return found - list.begin();
    list.push_back(item);
    return static_cast<std::int64_t>(list.size()) - 1;
  }

  /// One input for each shape in which a value is read.
  Json input_reference(std::int64_t value, std::int64_t from) {
    const ValueType& type = layouts_.type(value);
    Json shape = Json::array();
    for (const Size& size : type.shape) shape.push_back(size.power != 0 ? -1 : size.factor);
    Json input = {{"shape", std::move(shape)}, {"dtype", type.dtype}};
    for (std::size_t i = 0; i < inputs_.size(); ++i)
      if (node_.inputs[i] == from && inputs_[i] == input) return {{"i", i}};
    inputs_.push_back(std::move(input));
    node_.inputs.push_back(from);
    return {{"i", inputs_.size() - 1}};
  }

  Json weight_reference(const ExportedParameter::Source& source, const std::string& dtype) {
    auto& weights = node_.operation.weight_names;
    for (std::size_t w = 0; w < weights.size(); ++w)
      if (weights[w] == source.name && weight_types_[w] == dtype) return {{"w", w}};
    weights.push_back(source.name);
    node_.operation.shapes.push_back(source.shape);
    weight_types_.push_back(dtype);
    return {{"w", weights.size() - 1}};
  }

  /// A tensor of the checkpoint, or what the recorded operations make of several.
  Json parameter_reference(std::int64_t value, const ExportedParameter& parameter) {
    if (const auto known = made_parameters_.find(value); known != made_parameters_.end()) return known->second;
    const std::string& dtype = layouts_.type(value).dtype;
    std::map<std::int64_t, std::int64_t> outs;  // of the recorded operations
    const auto reference_to = [&](const Json& object) -> Json {
      if (object.contains("source"))
        return weight_reference(parameter.sources.at(static_cast<std::size_t>(json_integer(object["source"]))), dtype);
      if (!object.contains("made")) return object;
      const auto out = outs.find(json_integer(object["made"]));
      if (out == outs.end())
        throw CheckpointError("[importer.program] parameter '{}': its conversion is damaged; export the graph again",
                              parameter.name);
      return {{"v", out->second}};
    };
    for (const Json& step : parameter.steps) {
      const std::int64_t own = next_++;
      steps_.push_back({step.at("op"), with_replaced(step.at("args"), reference_to), own});
      if (!step.at("several").get<bool>()) {
        outs[json_integer(step.at("outs").at(0))] = own;
        continue;
      }
      std::int64_t place = 0;
      for (const Json& out : step.at("outs")) {
        steps_.push_back({"sym.getitem", Json::array({Json{{"v", own}}, place++}), next_});
        outs[json_integer(out)] = next_++;
      }
    }
    return made_parameters_[value] = with_replaced(parameter.result, reference_to);
  }

  void describe() {
    graph::Aten& operation = node_.operation;
    operation.features =
        layouts_.features(region_.root) *
        static_cast<std::int64_t>(c10::elementSize(kernels::dtype_of_name(layouts_.type(region_.root).dtype)) /
                                  c10::elementSize(kernels::dtype_of_name(graph_.dtype)));
    operation.least_tokens = graph_.least_tokens, operation.most_tokens = graph_.most_tokens;
    const graph::TokenBytes workspace = region_workspace(graph_, region_);
    operation.fixed_bytes = workspace.fixed, operation.token_bytes = workspace.per_token;
    operation.pair_bytes = workspace.per_pair;
    const std::set<std::int64_t> kept = kept_rows(graph_, layouts_, regions_, region_);
    for (std::size_t i = 0; i < node_.inputs.size(); ++i)
      if (kept.count(node_.inputs[i]) != 0) operation.kept_inputs.push_back(static_cast<std::int64_t>(i));
    for (const auto& [value, weight] : values_of_linears(graph_, layouts_, regions_, region_)) {
      const auto found = std::find(node_.inputs.begin(), node_.inputs.end(), value);
      if (found == node_.inputs.end()) continue;
      operation.linear_inputs.push_back(found - node_.inputs.begin());
      operation.linear_weights.push_back(weight);
    }
    if (node_.inputs.empty()) node_.inputs.push_back(graph_.token_ids);
  }

  const ExportedGraph& graph_;
  const Layouts& layouts_;
  const Regions& regions_;
  const Region& region_;
  const std::map<std::int64_t, std::int64_t>& constants_;
  RegionNode node_;
  Json inputs_ = Json::array(), steps_ = Json::array();
  std::vector<std::string> weight_types_;
  std::map<std::int64_t, std::int64_t> numbers_;
  std::map<std::int64_t, Json> made_parameters_;
  std::int64_t next_ = 0;
};

}  // namespace

RegionNode region_node(const ExportedGraph& graph, const Layouts& layouts, const Regions& regions, const Region& region,
                       const std::map<std::int64_t, std::int64_t>& constants) {
  return ProgramWriter(graph, layouts, regions, region, constants).write();
}

}  // namespace layerpress::importer
