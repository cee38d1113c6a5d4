#include "layerpress/verification/agreement.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "layerpress/base/text.h"
#include "layerpress/graph/facts/expert_inputs.h"
#include "layerpress/graph/weight_matrix.h"
#include "layerpress/model/blocks/weight_names.h"
#include "layerpress/quant/rounding/value_parameters.h"
#include "layerpress/quant/scheme_name.h"
#include "layerpress/quant/targets/group_targets.h"

namespace layerpress::verification {
namespace {

/// A linear or an embedding of the graph, and its weight if that is stored quantized.
struct Matrix {
  std::string module;
  quant::ModuleName name;
  const source::StoredWeight* quantized = nullptr;
};

std::vector<Matrix> matrices_of(const Subject& model) {
  const graph::Graph& graph = model.traced.graph;
  std::vector<Matrix> matrices;
  for (const graph::Node& node : graph.nodes) {
    const auto matrix = graph::weight_matrix(node.operation);
    if (!matrix) continue;
    const std::string& module = graph.module_name(node);
    const auto found = model.quantized.find(matrix->weight);
    // A head that reads the embedding's weight has none of its own.
    if (matrix->weight != module + ".weight" && found == model.quantized.end()) continue;
    matrices.push_back({module,
                        {module, {graph.modules[node.module].class_name}, model::other_names(model.traced, module)},
                        found == model.quantized.end() ? nullptr : &found->second});
  }
  return matrices;
}

std::optional<quant::QuantizationConfig> config_of(const Subject& model) {
  const Json& config = model.stored.quantization_config();
  if (!config.is_object() || config.value("quant_method", "") != "compressed-tensors") return std::nullopt;
  return quant::parse_quantization_config(config, "config.json: quantization_config");
}

void require_tensors(const checkpoint::Checkpoint& stored, const std::string& module, const quant::StoredValue& value,
                     Findings& findings) {
  for (const quant::NamedTensorSpec& spec : quant::parameter_layout(value))
    if (const std::string name = module + "." + spec.suffix; !stored.contains(name))
      findings.fault("config", name, "config.json says that it is stored, but the tensor is missing");
}

/// vLLM takes the first group that matches a module, compressed-tensors its name, then patterns, then classes.
void check_order_of_groups(const quant::QuantizationConfig& config, const std::vector<Matrix>& matrices,
                           Findings& findings) {
  std::vector<quant::GroupTargets::Group> groups;
  for (const auto& [name, scheme] : config.groups) groups.push_back({scheme.targets, name});
  const quant::GroupTargets targets(groups);
  for (const Matrix& matrix : matrices) {
    if (matrix.quantized == nullptr) continue;
    const int group = targets.group_of(matrix.name), first = targets.first_group_of(matrix.name);
    if (group >= 0 && first >= 0 && group != first &&
        !quant::same_numbers(config.groups[static_cast<std::size_t>(group)].second,
                             config.groups[static_cast<std::size_t>(first)].second))
      findings.warning(
          "config", matrix.module,
          fmt::format("compressed-tensors finds {} for it, vLLM finds {}; order the groups so that the right "
                      "one is first",
                      groups[static_cast<std::size_t>(group)].where, groups[static_cast<std::size_t>(first)].where));
  }
}

void check_pair(const Subject& model, const Matrix& first, const Matrix& other, const std::string& together,
                Findings& findings) {
  if ((first.quantized == nullptr) != (other.quantized == nullptr))
    return findings.fault("fused", other.quantized == nullptr ? other.module : first.module,
                          fmt::format("is plain, but {} is quantized; engines run {} as one",
                                      other.quantized == nullptr ? first.module : other.module, together));
  if (first.quantized == nullptr) return;
  if (!quant::same_numbers(first.quantized->scheme, other.quantized->scheme))
    return findings.fault("fused", other.module,
                          fmt::format("has another scheme than {}; engines run {} as one", first.module, together));
  for (const char* suffix : {".weight_global_scale", ".input_global_scale"}) {
    const std::string a = first.module + suffix, b = other.module + suffix;
    if (model.stored.contains(a) && model.stored.contains(b) &&
        !at::equal(model.stored.tensor(a).reshape({-1}), model.stored.tensor(b).reshape({-1})))
      findings.fault("fused", b, fmt::format("differs from {}; engines take one for both", a));
  }
}

/// "model.layers." and 3 for "model.layers.3.mlp.up_proj.weight"; nothing: the name has no number.
std::optional<std::pair<std::string, std::int64_t>> layer_of(const std::string& name) {
  constexpr std::size_t kMostDigits = 9;
  for (std::size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
    const std::size_t end = name.find('.', dot + 1);
    if (end == std::string::npos) break;
    const std::string part = name.substr(dot + 1, end - dot - 1);
    if (!part.empty() && part.size() <= kMostDigits && part.find_first_not_of("0123456789") == std::string::npos)
      return std::pair(name.substr(0, dot + 1), static_cast<std::int64_t>(std::stoll(part)));
  }
  return std::nullopt;
}

/// Whether there are layers for multi-token prediction, which are stored after the others and counted apart.
bool predicts_tokens(const Json& config) {
  if (!config.is_object()) return false;
  return std::any_of(config.items().begin(), config.items().end(), [](const auto& entry) {
    const std::string& key = entry.key();
    return (entry.value().is_number_integer() && entry.value() > 0 &&
            (key.find("nextn") != std::string::npos || key.find("mtp") != std::string::npos)) ||
           predicts_tokens(entry.value());
  });
}

}  // namespace

void check_config(const Subject& model, Findings& findings) {
  const auto config = config_of(model);
  if (!config) return;
  const std::vector<Matrix> matrices = matrices_of(model);
  std::vector<quant::ModuleName> names;
  for (const Matrix& matrix : matrices) names.push_back(matrix.name);
  const std::vector<int> groups = quant::assign_groups(*config, names);
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    if (groups[i] < 0) {
      if (matrices[i].quantized != nullptr)
        findings.fault("config", matrices[i].module,
                       "is stored quantized, but no group of config.json names it; readers take it for a plain weight");
      continue;
    }
    const auto& [group, scheme] = config->groups[static_cast<std::size_t>(groups[i])];
    if (!scheme.weights) continue;
    if (matrices[i].quantized == nullptr) {
      findings.fault("config", matrices[i].module,
                     fmt::format("{} of config.json says that it is quantized, but its weight is plain", group));
      continue;
    }
    if (quant::has_stored_inputs(scheme))
      require_tensors(model.stored, matrices[i].module, {"input", &*scheme.input_activations}, findings);
  }
  check_order_of_groups(*config, matrices, findings);
}

void check_attentions(const setup::OpenedModel& model, Findings& findings) {
  for (const auto& [name, attention] : model.quantized_attentions)
    if (quant::has_stored_parameters(attention.args))
      for (const char* value : {"k", "v"}) require_tensors(*model.stored, name, {value, &attention.args}, findings);
}

void check_fused(const Subject& model, Findings& findings) {
  std::map<std::string, Matrix> by_name;
  for (Matrix& matrix : matrices_of(model)) by_name[matrix.module] = std::move(matrix);
  for (const auto& [module, matrix] : by_name)
    for (const model::FusedModules& together : model::fused_with(model.traced, module)) {
      if (together.names.front() != module) continue;
      for (const std::string& sibling : together.names)
        if (const auto other = by_name.find(sibling); other != by_name.end() && other->first != module)
          check_pair(model, matrix, other->second, join(together.suffixes, ", "), findings);
    }
  for (const std::string& around : model.traced.uniform_modules) {
    const auto first = by_name.lower_bound(around + ".");
    for (auto other = first; other != by_name.end() && other->first.starts_with(around + "."); ++other)
      if ((first->second.quantized == nullptr) != (other->second.quantized == nullptr) ||
          (first->second.quantized != nullptr &&
           !quant::same_numbers(first->second.quantized->scheme, other->second.quantized->scheme)))
        findings.fault(
            "fused", other->first,
            fmt::format("is stored otherwise than {}; engines run all linears of {} as one", first->first, around));
  }
}

void check_doubles(const Subject& model, Findings& findings) {
  for (const auto& [name, weight] : model.quantized)
    if (model.stored.contains(name) && model.stored.contains(name + "_packed"))
      findings.fault("files", name, "is stored plain, too; readers take one of the two");
}

void check_head(const setup::OpenedModel& model, Findings& findings) {
  const auto ties = [](const Json& config) {
    const auto of = [](const Json& section) {
      return section.is_object() && section.value("tie_word_embeddings", Json()) == true;
    };
    return of(config) || (config.is_object() && of(config.value("text_config", Json())));
  };
  if (ties(model.stored->config()) && !ties(model.checkpoint->config()))
    findings.fault("config", "tie_word_embeddings",
                   "is true, but the head that is stored is not the embedding; engines may leave it out");
}

void check_layers(const Subject& model, Findings& findings) {
  if (predicts_tokens(model.stored.config())) return;
  std::map<std::string, std::int64_t> last;  // by the name of the list of layers
  for (const std::string& name : graph::weights_read(model.traced.graph))
    if (const auto layer = layer_of(name)) last[layer->first] = std::max(last[layer->first], layer->second);
  std::map<std::string, std::set<std::int64_t>> unread;
  for (const std::string& name : model.stored.names())
    if (const auto layer = layer_of(name))
      if (const auto list = last.find(layer->first); list != last.end() && layer->second > list->second)
        unread[layer->first].insert(layer->second);
  for (const auto& [list, layers] : unread)
    findings.warning(
        "config", fmt::format("{}{}", list, *layers.begin()),
        fmt::format("is stored{}, but config.json describes {} layers, and readers leave the others out",
                    layers.size() == 1 ? "" : fmt::format(", as {} layers after it are", layers.size() - 1),
                    last[list] + 1));
}

void check_routers(const Subject& model, Findings& findings) {
  const graph::Graph& graph = model.traced.graph;
  const auto config = config_of(model);
  for (const graph::NodeId n : graph::weighing_linears(graph)) {
    const auto matrix = graph::weight_matrix(graph.nodes[n].operation);
    if (!matrix) continue;
    const std::string& module = graph.module_name(graph.nodes[n]);
    if (model.quantized.count(matrix->weight) != 0)
      findings.fault("router", module, "is quantized; vLLM loads routers plain");
    else if (config && quant::assign_groups(*config, {{module, {"Linear"}}}).front() >= 0)
      findings.warning(
          "router", module,
          "is plain, but config.json does not ignore it; vLLM takes some models' routers for quantized then");
  }
}

}  // namespace layerpress::verification
