#include "layerpress/setup/opening/kept_weights.h"

#include <cmath>
#include <optional>
#include <set>

#include "layerpress/graph/facts/expert_inputs.h"
#include "layerpress/graph/weight_matrix.h"
#include "layerpress/model/blocks/architecture.h"
#include "layerpress/quant/block_scheme.h"
#include "layerpress/quant/weight_numbers.h"

namespace layerpress::setup {
namespace {

/// Weights of `quantized` that the run neither compresses nor changes after its rewrites.
std::vector<std::string> left_as_they_are(const OpenedModel& model,
                                          const std::map<std::string, source::StoredWeight>& quantized,
                                          const compression::Assignments& assignments) {
  const graph::Graph& graph = model.traced.graph;
  std::set<std::string> replaced;
  for (const auto& [n, assignment] : assignments.linears)
    replaced.insert(graph::weight_matrix(graph.nodes[n].operation)->weight);
  for (const std::string& weight : assignments.read_plain(graph))
    replaced.erase(weight);  // a compressed head may share it
  for (const std::string& name : assignments.changed_plain(graph)) replaced.insert(name);
  std::vector<std::string> names;
  for (const auto& [name, weight] : quantized)
    if (replaced.count(name) == 0 && model.checkpoint->contains(name)) names.push_back(name);
  return names;
}

/// The quantized weights of linears that engines run as one with a linear whose weight is written as values.
std::set<std::string> beside_values(const OpenedModel& model, const compression::Assignments& assignments) {
  const graph::Graph& graph = model.traced.graph;
  const std::set<std::string> changed = assignments.changed_plain(graph);
  std::set<std::string> names;
  for (graph::NodeId n = 0; n < static_cast<graph::NodeId>(graph.nodes.size()); ++n) {
    const std::optional<graph::WeightMatrix> matrix = graph::weight_matrix(graph.nodes[n].operation);
    if (!matrix || model.quantized.count(matrix->weight) == 0) continue;
    const auto assigned = assignments.linears.find(n);
    if (changed.count(matrix->weight) == 0 &&
        (assigned == assignments.linears.end() || !quant::is_dense(*assigned->second.scheme)))
      continue;
    for (const model::FusedModules& together : model::fused_with(model.traced, graph.module_name(graph.nodes[n])))
      for (const std::string& sibling : together.names) names.insert(sibling + ".weight");
  }
  return names;
}

/// What the source stores quantized, also where a recipe changes it; null: something else.
const source::StoredWeight* stored_quantized(const OpenedModel& model, const std::string& weight) {
  for (const auto* all : {&model.quantized, &model.rewritten_quantized})
    if (const auto found = all->find(weight); found != all->end()) return &found->second;
  return nullptr;
}

/// Of a weight; with scales in the case of blocks.
double bits_of(const quant::QuantizationScheme& scheme) {
  const gguf::BlockType* type = quant::block_type(scheme);
  return type == nullptr ? scheme.weights->num_bits : type->bits_per_value();
}

/// MXFP4 in NVFP4 or in blocks of it, or blocks of one type again.
bool may_be_exact(const quant::QuantizationScheme& stored, const compression::Assignment& assignment) {
  const gguf::BlockType* type = quant::block_type(*assignment.scheme);
  if (type != nullptr) return type == quant::block_type(stored) || (assignment.from_mxfp4 && type->name() == "MXFP4");
  return assignment.from_mxfp4 && quant::has_global_scale(*assignment.scheme->weights);
}

}  // namespace

void keep_quantized_weights(OpenedModel& model, const compression::Assignments& assignments,
                            const target::Target& target) {
  if (!model.keeps_codes || !target.has_config()) return;
  std::set<std::string> values = beside_values(model, assignments);
  const graph::Graph& graph = model.traced.graph;
  for (const graph::NodeId n : graph::weighing_linears(graph))
    if (const auto matrix = graph::weight_matrix(graph.nodes[n].operation)) values.insert(matrix->weight);
  for (const std::string& name : left_as_they_are(model, model.quantized, assignments))
    if (model.quantized.at(name).can_be_kept() && values.count(name) == 0) model.kept.insert(name);
}

std::string dequantized_text(const OpenedModel& model, const compression::Assignments& assignments) {
  std::vector<std::string> names = left_as_they_are(model, model.rewritten_quantized, assignments);
  for (const std::string& name : left_as_they_are(model, model.quantized, assignments))
    if (model.kept.count(name) == 0) names.push_back(name);
  for (const auto& [node, assignment] : assignments.linears) {
    const std::string weight = graph::weight_matrix(model.traced.graph.nodes[node].operation).value().weight;
    if (quant::is_dense(*assignment.scheme) && model.quantized.contains(weight)) names.push_back(weight);
  }
  if (names.empty()) return "";
  return fmt::format("{} weights that stay uncompressed are written as {}, not as they are stored ({}): {}{}",
                     names.size(), dtype_word(model.checkpoint->spec(names.front()).dtype), model.source_format,
                     names.front(), names.size() > 1 ? ", ..." : "");
}

std::vector<RequantizedModule> requantized_modules(const OpenedModel& model,
                                                   const compression::Assignments& assignments) {
  constexpr double kFewBits = 5, kFloatBits = 16;
  std::vector<RequantizedModule> modules;
  for (const auto& [n, assignment] : assignments.linears) {
    const graph::Node& node = model.traced.graph.nodes[n];
    const std::string name = graph::weight_matrix(node.operation)->weight;
    const source::StoredWeight* stored = stored_quantized(model, name);
    if (stored == nullptr || quant::is_dense(*assignment.scheme) || assignment.stored) continue;
    const double bits = bits_of(stored->scheme), wanted = std::floor(bits_of(*assignment.scheme));
    if (wanted >= kFloatBits || (bits >= kFewBits && bits > wanted)) continue;
    modules.push_back({model.traced.graph.module_name(node),
                       model.rewritten_quantized.count(name) == 0 && may_be_exact(stored->scheme, assignment)});
  }
  return modules;
}

std::string source_scheme(const OpenedModel& model, const std::string& module) {
  const source::StoredWeight* stored = stored_quantized(model, module + ".weight");
  if (stored == nullptr) return "";
  if (const gguf::BlockType* type = quant::block_type(stored->scheme)) return type->name();
  const quant::QuantizationArgs& weights = *stored->scheme.weights;
  std::string size = weights.group_size ? fmt::format(" {}", *weights.group_size) : "";
  if (weights.block_structure)
    size = fmt::format(" {} x {}", (*weights.block_structure)[0], (*weights.block_structure)[1]);
  return fmt::format("{}-bit {} {}{}", weights.num_bits, quant::name_of(weights.type), quant::name_of(weights.strategy),
                     size);
}

}  // namespace layerpress::setup
