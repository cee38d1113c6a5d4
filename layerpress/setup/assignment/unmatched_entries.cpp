#include "layerpress/setup/assignment/unmatched_entries.h"

#include <algorithm>
#include <set>

#include "layerpress/base/text.h"
#include "layerpress/graph/facts/attention_heads.h"
#include "layerpress/graph/weight_matrix.h"
#include "layerpress/model/blocks/weight_names.h"

namespace layerpress::setup {
namespace {

using Modules = std::vector<quant::ModuleName>;

Modules known_modules(const OpenedModel& model) {
  const graph::Graph& graph = model.traced.graph;
  Modules modules;
  for (const graph::Node& node : graph.nodes)
    if (graph::weight_matrix(node.operation) || graph::cached_attention(node.operation))
      modules.push_back({graph.module_name(node),
                         {graph.modules[node.module].class_name},
                         model::other_names(model.traced, graph.module_name(node))});
  for (const std::string& name : model.traced.left_out)
    modules.push_back({name, {"Linear"}, model::other_names(model.traced, name)});
  std::set<std::string> stored;
  for (const std::string& tensor : model.stored->names()) stored.insert(parent_name(tensor));
  for (const std::string& name : stored) modules.push_back({name, {}});
  return modules;
}

bool matches_any(const std::string& entry, const Modules& modules) {
  const quant::TargetList list({entry}, "targets");
  return std::any_of(modules.begin(), modules.end(), [&](const auto& module) { return list.matches(module); });
}

/// All names and classes.
std::vector<std::string> names_of(const Modules& modules) {
  std::set<std::string> names;
  for (const quant::ModuleName& module : modules) {
    names.insert(module.name);
    names.insert(module.other_names.begin(), module.other_names.end());
    names.insert(module.classes.begin(), module.classes.end());
  }
  return {names.begin(), names.end()};
}

/// "mlp.up_proj" of "model.layers.0.mlp.up_proj" for 2 parts; the whole name if it does not have more.
std::string last_parts(const std::string& name, std::ptrdiff_t parts) {
  std::size_t begin = name.size();
  for (; parts > 0 && begin != std::string::npos && begin > 0; --parts) begin = name.rfind('.', begin - 1);
  return begin == std::string::npos || begin == 0 ? name : name.substr(begin + 1);
}

std::string escaped(const std::string& name) {
  std::string expression;
  for (const char c : name) expression += c == '.' ? std::string("\\.") : std::string(1, c);
  return expression;
}

std::string hint_for_name(const std::string& entry, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (name.starts_with(entry + ".")) return fmt::format("for the modules in it write re:{}\\..*", escaped(entry));
    if (name.ends_with("." + entry))
      return fmt::format("names are full names; did you mean re:.*\\.{}$?", escaped(entry));
  }
  if (std::string text = did_you_mean(entry, names); !text.empty()) return text;
  std::set<std::string> ends;
  const auto parts = std::count(entry.begin(), entry.end(), '.') + 1;
  for (const std::string& name : names) ends.insert(last_parts(name, parts));
  const std::string nearest = nearest_name(entry, {ends.begin(), ends.end()});
  return nearest.empty() ? "" : fmt::format("did you mean re:.*\\.{}$?", escaped(nearest));
}

/// "self_attn", "q_porj" of ".*self_attn\.q_porj$".
std::vector<std::string> words_in_pattern(const std::string& expression) {
  std::vector<std::string> words(1);
  for (std::size_t i = 0; i < expression.size(); ++i) {
    const char c = expression[i];
    if (c == '\\') ++i;
    if (c != '\\' && (std::isalnum(static_cast<unsigned char>(c)) || c == '_'))
      words.back() += c;
    else if (!words.back().empty())
      words.emplace_back();
  }
  return words;
}

std::string hint_for_pattern(const std::string& expression, const Modules& modules,
                             const std::vector<std::string>& names) {
  if (!matches_any("re:" + expression, modules) && matches_any("re:.*(" + expression + ")", modules))
    return fmt::format("patterns match from the start of a name; did you mean re:.*{}?", expression);
  std::set<std::string> parts;
  for (const std::string& name : names)
    for (std::string& part : name_parts(name)) parts.insert(std::move(part));
  for (const std::string& word : words_in_pattern(expression)) {
    const auto has_word = [&](const std::string& name) { return name.find(word) != std::string::npos; };
    if (word.size() < 3 || std::any_of(names.begin(), names.end(), has_word)) continue;
    if (const std::string nearest = nearest_name(word, {parts.begin(), parts.end()}); !nearest.empty())
      return fmt::format("no name has {}; did you mean {}?", word, nearest);
  }
  return "";
}

}  // namespace

std::vector<UnmatchedEntry> unmatched_entries(const OpenedModel& model, const Modifiers& modifiers) {
  const Modules modules = known_modules(model);
  std::vector<UnmatchedEntry> unmatched;
  std::set<std::string> visited;
  const auto add_one = [&](const std::string& list, const std::string& entry) {
    if (!visited.insert(list + entry).second) return;
    const std::vector<std::string> names = names_of(modules);  // only here, because models have many
    const bool is_pattern = entry.starts_with("re:");
    unmatched.push_back(
        {list, entry, is_pattern ? hint_for_pattern(entry.substr(3), modules, names) : hint_for_name(entry, names)});
  };
  const auto add = [&](const char* list, const std::vector<std::string>& entries) {
    for (const std::string& entry : entries)
      if (!matches_any(entry, modules)) add_one(list, entry);
  };
  for (const auto& modifier : modifiers) {
    const auto* quantizer = dynamic_cast<const compression::Quantizer*>(modifier.get());
    for (const auto& [list, entry] : modifier->unmatched_entries())
      if (list != "ignore" || !matches_any(entry, modules)) add_one(list, entry);  // what no run changes may be ignored
    if (quantizer == nullptr) continue;
    for (const auto& group : quantizer->scheme_groups()) add("targets", group.scheme->targets);
    std::vector<std::string> ignored = quantizer->ignore_entries();
    std::erase(ignored, "");  // how a command line says "nothing"
    add("ignore", ignored);
  }
  return unmatched;
}

}  // namespace layerpress::setup
