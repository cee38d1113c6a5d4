#include "layerpress/recipe/name_roots.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "layerpress/base/text.h"

namespace layerpress::recipe {
namespace {

/// Whether a name is `root` or below it.
bool has_below(const std::set<std::string>& names, const std::string& root) {
  if (names.count(root) != 0) return true;
  const auto below = names.lower_bound(root + ".");
  return below != names.end() && below->starts_with(root + ".");
}

std::string root_of(const std::string& name, const std::set<std::string>& others) {
  for (std::size_t end = name.find('.'); end != std::string::npos; end = name.find('.', end + 1))
    if (const std::string root = name.substr(0, end); !has_below(others, root)) return root;
  return name;
}

/// Appends a character as a regular expression of it.
void append_escaped(std::string& expression, char c) {
  if (std::string_view("\\^$.*+?()[]{}|").find(c) != std::string_view::npos) expression += '\\';
  expression += c;
}

std::string escaped(std::string_view name) {
  std::string expression;
  for (const char c : name) append_escaped(expression, c);
  return expression;
}

/// The expression of a name, and of each of its beginnings, in which parts that are numbers stand for every number.
std::vector<std::string> shapes_of(const std::string& name) {
  std::vector<std::string> shapes;
  std::string shape;
  for (const std::string& part : name_parts(name)) {
    if (!shapes.empty()) shape += "\\.";
    shape += all_digits(part) ? "\\d+" : escaped(part);
    shapes.push_back(shape);
  }
  return shapes;
}

bool is_one_module(const NameRoot& root) { return root.names.size() == 1 && root.names.front() == root.root; }

/// The pattern for all roots that differ from this one in numbers only.
std::string numbered_pattern(const NameRoot& root) {
  return "re:^" + shapes_of(root.root).back() + (is_one_module(root) ? "$" : "\\..*");
}

bool any_begins(const std::set<std::string>& names, const std::string& beginning) {
  const auto first = names.lower_bound(beginning);
  return first != names.end() && first->starts_with(beginning);
}

std::string entry_of(const NameRoot& root, const std::set<std::string>& others) {
  if (is_one_module(root)) return root.root;
  const std::string wrapper = "model.";
  if (root.root.find('.') == std::string::npos)
    return "re:^" + escaped(root.root) + (any_begins(others, root.root) ? "\\..*" : ".*");
  if (root.root.starts_with(wrapper) && root.root.find('.', wrapper.size()) == std::string::npos)
    if (const std::string part = root.root.substr(wrapper.size()); !has_below(others, part))
      return "re:^(model\\.)?" + escaped(part) + "\\..*";
  return "re:^" + escaped(root.root) + "\\..*";
}

/// Patterns that stand for several roots and for none of `others`.
std::set<std::string> shared_patterns(const std::vector<NameRoot>& roots, const std::set<std::string>& others) {
  std::map<std::string, const NameRoot*> first;
  std::map<std::string, const NameRoot*> shared;
  for (const NameRoot& root : roots) {
    const std::string pattern = numbered_pattern(root);
    if (const auto [known, is_new] = first.emplace(pattern, &root); !is_new) shared.emplace(pattern, known->second);
  }
  if (shared.empty()) return {};
  std::set<std::string> taken;
  for (const std::string& other : others)
    for (std::string& shape : shapes_of(other)) taken.insert(std::move(shape));
  std::set<std::string> patterns;
  for (const auto& [pattern, root] : shared)
    if (taken.count(shapes_of(root->root).back()) == 0) patterns.insert(pattern);
  return patterns;
}

}  // namespace

std::vector<NameRoot> name_roots(const std::vector<std::string>& names, const std::set<std::string>& others) {
  std::vector<NameRoot> roots;
  std::map<std::string, std::size_t> known;
  for (const std::string& name : names) {
    const auto [place, is_new] = known.emplace(root_of(name, others), roots.size());
    if (is_new) roots.push_back({place->first, {}});
    roots[place->second].names.push_back(name);
  }
  return roots;
}

std::vector<std::string> ignore_entries(const std::vector<std::string>& modules, const std::set<std::string>& others) {
  const std::vector<NameRoot> roots = name_roots(modules, others);
  const std::set<std::string> shared = shared_patterns(roots, others);
  std::vector<std::string> entries;
  std::set<std::string> known;
  for (const NameRoot& root : roots) {
    std::string entry = numbered_pattern(root);
    if (shared.count(entry) == 0) entry = entry_of(root, others);
    if (known.insert(entry).second) entries.push_back(std::move(entry));
  }
  return entries;
}

}  // namespace layerpress::recipe
