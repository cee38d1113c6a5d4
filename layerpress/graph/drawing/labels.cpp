#include "layerpress/graph/drawing/labels.h"

#include <fmt/format.h>

#include <algorithm>
#include <variant>

#include "layerpress/base/text.h"

namespace layerpress::graph {
namespace {

constexpr const char* kArrow = "&#8594;";
constexpr const char* kDash = "&#8211;";
constexpr const char* kBreak = "<BR/>";

std::string bold(const std::string& text) { return "<B>" + text + "</B>"; }

std::string small(const std::string& text) { return "<FONT POINT-SIZE=\"10\">" + text + "</FONT>"; }

/// Escaped, with "→" as an entity.
std::string escaped_line(std::string line) {
  constexpr std::string_view kArrowText = "→";
  const auto arrow = line.find(kArrowText);
  if (arrow == std::string::npos) return escaped(line);
  return escaped(line.substr(0, arrow)) + kArrow + escaped(line.substr(arrow + kArrowText.size()));
}

/// The lines that distinguish a node from others of its kind.
std::string details_of(const Graph& graph, const Node& node) {
  const auto lines = [&](const auto& kind) -> std::vector<std::string> {
    if constexpr (requires { kind.details(std::string()); }) return kind.details(graph.module_name(node));
    const std::int64_t in = graph.values[node.inputs.at(0)].features, out = graph.values[node.output].features;
    if (in == out || in == 0) return {};
    return {sizes_text(in, out)};
  };
  std::vector<std::string> html;
  for (const std::string& line : std::visit(lines, node.operation)) html.push_back(escaped_line(line));
  return join(html, kBreak);
}

std::string row_word(Rows rows) {
  switch (rows) {
    case Rows::kTokens:
      return "token";
    case Rows::kPatches:
      return "patch";
    case Rows::kSelected:
      return "selected token";
    case Rows::kIllustrated:
      return "illustrated token";
    case Rows::kVision:
      return "vision row";
  }
  return "row";
}

}  // namespace

std::string escaped(const std::string& text) {
  std::string html;
  for (const char c : text) {
    if (c == '&')
      html += "&amp;";
    else if (c == '<')
      html += "&lt;";
    else if (c == '>')
      html += "&gt;";
    else if (c == '"')
      html += "&quot;";
    else
      html += c >= ' ' && c <= '~' ? c : '?';
  }
  return html;
}

std::string name_inside(const std::string& name, const std::string& around) {
  if (around.empty()) return name;
  if (name == around) return "";
  return name.rfind(around + ".", 0) == 0 ? name.substr(around.size() + 1) : name;
}

std::string node_label(const Graph& graph, const Node& node, const std::string& around) {
  std::string kind = kind_name(node.operation);
  std::replace(kind.begin(), kind.end(), '_', ' ');
  const std::string name = escaped(name_inside(graph.module_name(node), around));
  std::string label = name.empty() ? bold(kind) : kind + " &#160;" + bold(name);
  const std::string details = details_of(graph, node);
  if (!details.empty()) label += kBreak + small(details);
  return label;
}

std::string value_label(const Graph& graph, ValueId id, std::int64_t element_bytes) {
  const Value& value = graph.values[id];
  if (id == Graph::kInput) return "token ids [tokens]";
  const auto bytes = static_cast<std::uint64_t>(value.features * element_bytes);
  return fmt::format("[{}, {}]{}{} per {}", rows_name(value.rows), value.features, kBreak, format_bytes(bytes),
                     row_word(value.rows));
}

std::string name_range(const std::string& first, const std::string& last) {
  if (first == last) return escaped(first);
  std::vector<std::string> from = name_parts(first);
  const std::vector<std::string> to = name_parts(last);
  int different = 0;
  bool numbers = from.size() == to.size();
  for (std::size_t i = 0; numbers && i < from.size(); ++i) {
    if (from[i] == to[i]) continue;
    ++different;
    numbers = all_digits(from[i]) && all_digits(to[i]);
    from[i] += kDash + to[i];
  }
  if (numbers && different == 1) return join(from, ".");
  return fmt::format("{} &#8230; {}", escaped(first), escaped(last));
}

std::string fold_label(const Folded& folded, const std::vector<std::string>& names, const std::string& sizes) {
  const std::string like = name_range(names[folded.like], names[folded.like + folded.period - 1]);
  std::string label = bold(name_range(names[folded.first], names[folded.first + folded.count - 1]));
  label += kBreak;
  if (folded.count == 1)
    label += "as " + like;
  else if (folded.period == 1)
    label += fmt::format("{} like {}", folded.count, like);
  else
    label += fmt::format("{} times as {}", folded.count / folded.period, like);
  return sizes.empty() ? label : label + kBreak + small(sizes);
}

}  // namespace layerpress::graph
