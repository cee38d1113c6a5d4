#include "layerpress/cli/text/model_tree.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "layerpress/base/text.h"

namespace layerpress::cli {
namespace {

constexpr std::size_t kColumns = 100;

/// A name with at most one number that may stand for several: "mlp.experts.", 0 to 7, ".up_proj".
struct NumberedName {
  std::string before, after;
  std::optional<std::int64_t> first, last;

  std::string text() const {
    if (!first) return before;
    return before + (*first == *last ? fmt::format("{}", *first) : fmt::format("{}–{}", *first, *last)) + after;
  }
  /// Takes the next name in, if it differs only by having the next number.
  bool takes(const NumberedName& next) {
    if (!first || !next.first || before != next.before || after != next.after || *next.first != *last + 1) return false;
    last = next.last;
    return true;
  }
};

/// The last component that is a number is the one that may vary.
NumberedName numbered(const std::string& name) {
  for (std::size_t end = name.size(); end > 0;) {
    const std::size_t dot = name.rfind('.', end - 1), begin = dot == std::string::npos ? 0 : dot + 1;
    if (const auto part = std::string_view(name).substr(begin, end - begin); part.size() < 10 && all_digits(part)) {
      const std::int64_t number = std::stoll(std::string(part));
      return {name.substr(0, begin), name.substr(end), number, number};
    }
    if (dot == std::string::npos) break;
    end = dot;
  }
  return {name, "", {}, {}};
}

/// Names in their order, each with the following ones that only count on. Names with other endings may stand between, as an
/// expert's up_proj between two gate_proj.
std::vector<NumberedName> folded(const std::vector<std::string>& names) {
  std::vector<NumberedName> folds;
  for (const std::string& name : names) {
    const NumberedName own = numbered(name);
    const std::size_t look = std::min<std::size_t>(folds.size(), 8);
    const auto same = std::find_if(folds.end() - static_cast<std::ptrdiff_t>(look), folds.end(),
                                   [&](NumberedName& fold) { return fold.takes(own); });
    if (same == folds.end()) folds.push_back(own);
  }
  return folds;
}

/// The modules' names without the subgraph's.
std::vector<std::string> own_names(const Json& modules, const std::string& subgraph) {
  std::vector<std::string> names;
  for (const Json& module : modules) {
    const auto name = module.get<std::string>();
    names.push_back(name.rfind(subgraph + ".", 0) == 0 ? name.substr(subgraph.size() + 1) : name);
  }
  return names;
}

/// "self_attn: q_proj, k_proj; mlp: gate_proj".
std::vector<std::string> module_words(const std::vector<std::string>& names) {
  std::vector<std::string> words;
  std::string parent;
  for (const NumberedName& fold : folded(names)) {
    const std::string text = fold.text();
    const std::size_t dot = text.rfind('.');
    const std::string own_parent = dot == std::string::npos ? "" : text.substr(0, dot);
    if (!words.empty()) words.back() += own_parent == parent ? "," : ";";
    if (!own_parent.empty() && (words.empty() || own_parent != parent)) words.push_back(own_parent + ":");
    words.push_back(dot == std::string::npos ? text : text.substr(dot + 1));
    parent = own_parent;
  }
  return words;
}

/// "768, 768" or, of many alike, "128 x 768".
std::string feature_text(const Json& features) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < features.size();) {
    std::size_t end = i;
    while (end < features.size() && features[end] == features[i]) ++end;
    const auto size = features[i].get<std::int64_t>();
    if (end - i > 3)
      parts.push_back(fmt::format("{} × {}", end - i, size));
    else
      parts.insert(parts.end(), end - i, fmt::format("{}", size));
    i = end;
  }
  return parts.size() > 4 ? fmt::format("{} sizes", parts.size()) : join(parts);
}

std::size_t width(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

/// Words after `head`; further lines begin with `indent`, padded to the head's width.
std::string wrapped(const std::string& head, const std::string& indent, const std::vector<std::string>& words) {
  std::string text = head;
  std::size_t column = width(head);
  bool first = true;
  for (const std::string& word : words) {
    if (!first && column + 1 + width(word) > kColumns) {
      text += fmt::format("\n{:<{}}", indent, width(head));
      column = width(head);
      first = true;
    }
    text += (first ? "" : " ") + word;
    column += width(word) + (first ? 0 : 1);
    first = false;
  }
  return text + "\n";
}

/// Subgraphs in a row that are alike but for their numbers.
struct Branch {
  NumberedName name;
  const Json* first;
  std::size_t count = 1;
  Json likeness;
};

/// What must be equal for two subgraphs to be alike: sizes, and the groups without the subgraph's name.
Json likeness_of(const Json& subgraph) {
  Json groups = Json::array();
  for (const Json& group : subgraph["linear_groups"])
    groups.push_back({group["in_features"], group["out_features"],
                      own_names(group["modules"], subgraph["name"].get<std::string>())});
  return {subgraph["nodes"], subgraph["parameters"], subgraph["bytes"], groups};
}

std::vector<Branch> branches_of(const Json& subgraphs) {
  std::vector<Branch> branches;
  for (const Json& subgraph : subgraphs) {
    const NumberedName name = numbered(subgraph["name"].get<std::string>());
    Json likeness = likeness_of(subgraph);
    if (!branches.empty() && branches.back().likeness == likeness && branches.back().name.takes(name))
      ++branches.back().count;
    else
      branches.push_back({name, &subgraph, 1, std::move(likeness)});
  }
  return branches;
}

/// Linear groups in a row that are alike: of equal sizes, each of one module, which differ in their number.
struct Leaf {
  const Json* first;
  std::vector<std::string> names;
  std::size_t count = 1;

  bool takes(const Json& group, const std::vector<std::string>& others) {
    if (others.size() != 1 || group["in_features"] != (*first)["in_features"] ||
        group["out_features"] != (*first)["out_features"])
      return false;
    NumberedName own = numbered(names.front());
    for (std::size_t n = 1; n < names.size(); ++n) own.last = numbered(names[n]).last;
    if (names.size() != count || !own.takes(numbered(others.front()))) return false;
    names.push_back(others.front());
    ++count;
    return true;
  }
  std::string sizes() const {
    const std::string out = feature_text((*first)["out_features"]);
    return count == 1 ? out : fmt::format("{}, {} groups", out, count);
  }
};

std::vector<Leaf> leaves_of(const Json& subgraph) {
  std::vector<Leaf> leaves;
  for (const Json& group : subgraph["linear_groups"]) {
    const std::vector<std::string> names = own_names(group["modules"], subgraph["name"].get<std::string>());
    if (leaves.empty() || !leaves.back().takes(group, names)) leaves.push_back({&group, names});
  }
  return leaves;
}

std::string branch_text(const Branch& branch, bool is_last) {
  const Json& subgraph = *branch.first;
  const std::string times = branch.count == 1 ? "" : fmt::format("{} ×", branch.count);
  std::string text =
      fmt::format("{} {:<30} {:>6} {:>13} parameters {:>9} {:>5} nodes\n", is_last ? "└─" : "├─", branch.name.text(),
                  times, subgraph["parameters"].get<std::int64_t>(),
                  format_bytes(subgraph["bytes"].get<std::uint64_t>()), subgraph["nodes"].get<std::size_t>());
  const std::vector<Leaf> leaves = leaves_of(subgraph);
  const std::string stem = is_last ? "   " : "│  ";
  for (std::size_t l = 0; l < leaves.size(); ++l) {
    const bool last_leaf = l + 1 == leaves.size();
    const std::string head = fmt::format("{}{} {:>6} → {:<20} ", stem, last_leaf ? "└─" : "├─",
                                         (*leaves[l].first)["in_features"].get<std::int64_t>(), leaves[l].sizes());
    text += wrapped(head, stem + (last_leaf ? "" : "│"), module_words(leaves[l].names));
  }
  return text;
}

}  // namespace

std::string model_tree(const Json& subgraphs) {
  const std::vector<Branch> branches = branches_of(subgraphs);
  std::string text;
  for (std::size_t b = 0; b < branches.size(); ++b) text += branch_text(branches[b], b + 1 == branches.size());
  return text;
}

}  // namespace layerpress::cli
