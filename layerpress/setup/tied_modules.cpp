#include "layerpress/setup/tied_modules.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "layerpress/base/text.h"

namespace layerpress::setup {
namespace {

/// The uniform module that a linear belongs to; "": none.
std::string uniform_module_of(const model::TracedModel& model, const std::string& linear) {
  for (const std::string& module : model.uniform_modules)
    if (linear.starts_with(module + ".")) return module;
  return "";
}

/// A pattern for the linear and those that differ in numbers behind `prefix`.
std::string pattern_for(const std::string& linear, const std::string& prefix) {
  std::string pattern;
  std::size_t begin = 0;  // of the part
  for (const std::string& part : name_parts(linear)) {
    pattern += begin == 0 ? "re:^" : "\\.";
    pattern += all_digits(part) && begin > prefix.size() ? "\\d+" : part;
    begin += part.size() + 1;
  }
  return pattern + "$";
}

/// Sets with a representative each, the first member.
class Unions {
 public:
  explicit Unions(std::size_t count) : parents_(count) { std::iota(parents_.begin(), parents_.end(), 0); }
  std::size_t first(std::size_t member) const {
    while (parents_[member] != member) member = parents_[member];
    return member;
  }
  void join(std::size_t a, std::size_t b) {
    const auto [low, high] = std::minmax({first(a), first(b)});
    parents_[high] = low;
  }

 private:
  std::vector<std::size_t> parents_;
};

}  // namespace

std::vector<TiedModules> tied_modules(const RunSetup& setup) {
  const graph::Graph& graph = setup.model.traced.graph;
  std::vector<std::string> names;
  std::map<graph::NodeId, std::size_t> place;
  for (const auto& [n, assignment] : setup.assignments.linears) {
    place[n] = names.size();
    names.push_back(graph.module_name(graph.nodes[n]));
  }
  Unions unions(names.size());
  for (const auto& [n, assignment] : setup.assignments.linears)
    for (const graph::NodeId fused : assignment.fused) unions.join(place[n], place[fused]);
  std::map<std::string, std::size_t> uniform;  // the first linear of each
  std::vector<std::string> parents;
  for (std::size_t i = 0; i < names.size(); ++i) {
    parents.push_back(uniform_module_of(setup.model.traced, names[i]));
    if (!parents[i].empty()) unions.join(i, uniform.try_emplace(parents[i], i).first->second);
  }
  std::map<std::size_t, TiedModules> tied;  // by the first
  for (std::size_t i = 0; i < names.size(); ++i) {
    TiedModules& own = tied[unions.first(i)];
    own.modules.push_back(names[i]);
    const std::string target = parents[i].empty() ? names[i] : pattern_for(names[i], parents[i]);
    if (std::find(own.targets.begin(), own.targets.end(), target) == own.targets.end()) own.targets.push_back(target);
  }
  std::vector<TiedModules> list;
  for (auto& [first, own] : tied) list.push_back(std::move(own));
  return list;
}

}  // namespace layerpress::setup
