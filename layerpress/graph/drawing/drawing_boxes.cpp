#include "layerpress/graph/drawing/drawing_boxes.h"

#include <algorithm>
#include <array>
#include <map>
#include <variant>

#include "layerpress/base/text.h"
#include "layerpress/graph/drawing/labels.h"
#include "layerpress/graph/facts/module_parts.h"
#include "layerpress/graph/folding.h"
#include "layerpress/graph/weight_matrix.h"

namespace layerpress::graph {
namespace {

/// Light enough for black text on paper, with a border of the same hue; groups use them in turn.
struct Colour {
  const char* fill;
  const char* border;
};
constexpr std::array kGroupColours = {Colour{"#cfe2f3", "#1f5c99"}, Colour{"#fde3c0", "#b35c00"},
                                      Colour{"#d5ecd0", "#2e7d32"}, Colour{"#e6d8f0", "#6a3d9a"},
                                      Colour{"#f8d3d3", "#a61c1c"}, Colour{"#f5f0b5", "#7a6a00"}};
constexpr std::size_t kLeastModuleNodes = 3;  // smaller modules get no box

struct Title {
  std::string label{};
  int size = 0;  ///< font size
};

/// Whether two modules begin with the same input values, as experts do.
bool begin_alike(const Graph& graph, const Part& a, const Part& b) {
  return std::min(a.nodes.size(), b.nodes.size()) >= kLeastModuleNodes &&
         graph.nodes[a.nodes[0]].inputs == graph.nodes[b.nodes[0]].inputs;
}

/// The module's name inside `around`; a bare number also gets the name of its parent.
std::string name_beside(const Graph& graph, ModuleId module, ModuleId around) {
  const std::string outer = around < 0 ? "" : graph.modules[around].name;
  const std::string name = escaped(name_inside(graph.modules[module].name, outer));
  return all_digits(name) && !outer.empty() ? escaped(last_part(outer)) + "." + name : name;
}

ModuleId module_named(const Graph& graph, const std::string& name) {
  for (std::size_t m = 0; m < graph.modules.size(); ++m)
    if (!name.empty() && graph.modules[m].name == name) return static_cast<ModuleId>(m);
  return -1;
}

bool is_linear(const Graph& graph, NodeId n) { return graph::is_linear(graph.nodes[n].operation); }

/// The parallel linears that read one value.
std::map<ValueId, std::vector<NodeId>> group_rows(const Graph& graph, const std::vector<Part>& parts) {
  std::map<ValueId, std::vector<NodeId>> rows;
  for (const Part& part : parts)
    if (part.nodes.size() == 1 && is_linear(graph, part.nodes[0]))
      rows[graph.nodes[part.nodes[0]].inputs[0]].push_back(part.nodes[0]);
  return rows;
}

class BoxDrawing {
 public:
  explicit BoxDrawing(DrawingSheet& sheet) : sheet_(sheet) { number_groups(); }

  int draw() {
    const std::vector<Folded> boxes = folded(subgraph_nodes(), 1);
    for (std::size_t b = 0; b < boxes.size(); ++b) draw_box(boxes[b], static_cast<int>(b));
    return static_cast<int>(boxes.size());
  }

 private:
  /// Numbers the linear groups of the whole model in the order of their inputs.
  void number_groups() {
    Subgraph all{"", {}};
    for (NodeId n = 0; n < static_cast<NodeId>(sheet_.graph.nodes.size()); ++n) all.nodes.push_back(n);
    const auto linear = [](const Node& node) { return graph::is_linear(node.operation); };
    for (const LinearGroup& group : linear_groups(sheet_.graph, all, linear))
      group_of_.emplace(group.input, group_of_.size() + 1);
  }

  std::vector<std::vector<NodeId>> subgraph_nodes() const {
    std::vector<std::vector<NodeId>> blocks;
    for (const Subgraph& subgraph : sheet_.subgraphs) blocks.push_back(subgraph.nodes);
    return blocks;
  }

  std::vector<Folded> folded(const std::vector<std::vector<NodeId>>& blocks, std::size_t least_nodes) const {
    if (!sheet_.options.full) return fold(sheet_.graph, blocks, least_nodes);
    std::vector<Folded> all(blocks.size());
    for (std::size_t b = 0; b < blocks.size(); ++b) all[b].first = b;
    return all;
  }

  std::string sizes_of(const std::vector<NodeId>& nodes) const {
    return sheet_.options.weight_bytes ? "weights " + format_bytes(sheet_.options.weight_bytes(nodes)) : "";
  }

  void draw_box(const Folded& box, int index) {
    for (std::size_t s = box.first; s < box.first + box.count; ++s)
      for (const NodeId n : sheet_.subgraphs[s].nodes) sheet_.box_of[n] = index;
    if (box.period > 0) return draw_hidden_subgraphs(box);
    const Subgraph& subgraph = sheet_.subgraphs[box.first];
    sheet_.line("subgraph cluster_subgraph_{} {{", box.first);
    sheet_.line("style=\"filled\"; color=\"#222222\"; fillcolor=\"#f7f7f7\"; penwidth=1.4; margin=10;");
    sheet_.line("label=\"\";");
    draw_parts(subgraph.nodes, -1, module_named(sheet_.graph, subgraph.name), {subgraph_label(box.first), 13});
    sheet_.line("}}");
  }

  std::string subgraph_label(std::size_t index) const {
    const Subgraph& subgraph = sheet_.subgraphs[index];
    const ModuleId module = module_named(sheet_.graph, subgraph.name);
    constexpr const char* kBreak = "<BR ALIGN=\"LEFT\"/>";
    std::string label = fmt::format("<B>{} &#160;{}</B>{}", index + 1, escaped(subgraph.name), kBreak);
    std::string more;
    if (module >= 0) more += escaped(sheet_.graph.modules[module].class_name) + kBreak;
    const std::string sizes = sizes_of(subgraph.nodes);
    if (!sizes.empty()) more += sizes + kBreak;
    return more.empty() ? label : label + "<FONT POINT-SIZE=\"10\">" + more + "</FONT>";
  }

  /// A box's title is a node beside the box's first node (above it, if that node has its own box), because lines avoid
  /// nodes but would cross a cluster's label.
  void draw_title(const Title& title, const Part& first) {
    if (title.label.empty()) return;
    const std::string id = fmt::format("title_{}", titles_++);
    sheet_.line("{} [shape=plaintext, style=\"\", margin=\"0.04,0.02\", fontsize={}, label=<{}>];", id, title.size,
                title.label);
    const std::string edge = fmt::format("{} -> {} [style=invis];", id, sheet_.shown[first.nodes[0]].enter);
    sheet_.line("{}", first.nodes.size() < kLeastModuleNodes ? "{rank=same; " + edge + "}" : edge);
  }

  void draw_hidden_subgraphs(const Folded& box) {
    std::vector<std::string> names;
    for (const Subgraph& subgraph : sheet_.subgraphs) names.push_back(subgraph.name);
    std::string order = fmt::format("{}", box.first + 1);
    if (box.count > 1) order += fmt::format("&#8211;{}", box.first + box.count);
    std::vector<NodeId> nodes;
    for (std::size_t s = box.first; s < box.first + box.count; ++s)
      nodes.insert(nodes.end(), sheet_.subgraphs[s].nodes.begin(), sheet_.subgraphs[s].nodes.end());
    draw_hidden(nodes, fmt::format("<B>{}</B> &#160;{}", order, fold_label(box, names, sizes_of(nodes))), true);
  }

  void draw_hidden(const std::vector<NodeId>& nodes, const std::string& label, bool subgraphs) {
    const std::string id = fmt::format("fold_{}", nodes.front());
    sheet_.line(
        "{} [shape=box, peripheries={}, style=\"filled\", fillcolor=\"{}\", color=\"#222222\", margin=\"0.25,0.12\", "
        "label=<{}>];",
        id, subgraphs ? 2 : 1, subgraphs ? "#ececec" : "#f3f3f3", label);
    for (const NodeId n : nodes) sheet_.shown[n] = {id, id};
  }

  /// Draws the nodes of module `around` (-1: any) as parts, with names relative to module `named`.
  void draw_parts(const std::vector<NodeId>& nodes, ModuleId around, ModuleId named, const Title& title) {
    const std::vector<Part> parts = parts_of(sheet_.graph, nodes, around);
    if (parts.size() == 1 && parts[0].module >= 0 && nodes.size() > 1)
      return draw_parts(nodes, parts[0].module, named, title);
    std::vector<std::vector<NodeId>> blocks;
    std::vector<std::string> names;
    for (const Part& part : parts) {
      blocks.push_back(part.nodes);
      names.push_back(part.module < 0 ? "" : name_beside(sheet_.graph, part.module, named));
    }
    const std::map<ValueId, std::vector<NodeId>> rows = group_rows(sheet_.graph, parts);
    const Part* before = nullptr;
    for (const Folded& piece : folded(blocks, kLeastModuleNodes)) {
      const Part& part = parts[piece.first];
      if (piece.period == 0) {
        draw_part(part, named, rows);
        if (before != nullptr && begin_alike(sheet_.graph, *before, part))
          sheet_.line("{{rank=same; {} -> {} [style=invis];}}", sheet_.shown[before->nodes[0]].enter,
                      sheet_.shown[part.nodes[0]].enter);
        before = &part;
        continue;
      }
      before = nullptr;
      std::vector<NodeId> hidden;
      for (std::size_t b = piece.first; b < piece.first + piece.count; ++b)
        hidden.insert(hidden.end(), blocks[b].begin(), blocks[b].end());
      draw_hidden(hidden, fold_label(piece, names, sizes_of(hidden)), false);
    }
    draw_title(title, parts[0]);
  }

  void draw_part(const Part& part, ModuleId named, const std::map<ValueId, std::vector<NodeId>>& rows) {
    const NodeId first = part.nodes[0];
    if (part.nodes.size() == 1) {
      if (!is_linear(sheet_.graph, first)) return draw_node(first, named);
      const std::vector<NodeId>& row = rows.at(sheet_.graph.nodes[first].inputs[0]);
      if (row[0] == first) draw_linears(row, named);
      return;
    }
    if (part.nodes.size() < kLeastModuleNodes) return draw_parts(part.nodes, part.module, named, {});
    // A module that contains only one other module shares its box.
    ModuleId inner = part.module;
    for (std::vector<Part> parts = parts_of(sheet_.graph, part.nodes, inner); parts.size() == 1 && parts[0].module >= 0;
         parts = parts_of(sheet_.graph, part.nodes, inner))
      inner = parts[0].module;
    sheet_.line("subgraph cluster_module_{}_{} {{", inner, part.nodes.front());
    sheet_.line("style=\"rounded\"; color=\"#999999\"; penwidth=0.8; margin=8;");
    sheet_.line("label=\"\";");
    draw_parts(part.nodes, inner, inner, {name_beside(sheet_.graph, inner, named), 11});
    sheet_.line("}}");
  }

  void draw_node(NodeId n, ModuleId named) {
    const Node& node = sheet_.graph.nodes[n];
    const std::string id = fmt::format("node_{}", n);
    sheet_.shown[n] = {id, id};
    if (std::holds_alternative<Add>(node.operation)) {
      sheet_.line("{} [shape=circle, label=\"+\", width=0.25, fixedsize=true, margin=0];", id);
      return;
    }
    sheet_.line("{} [label=<{}>];", id,
                node_label(sheet_.graph, node, named < 0 ? "" : sheet_.graph.modules[named].name));
  }

  /// The linears of a group that are in one module, side by side.
  void draw_linears(const std::vector<NodeId>& row, ModuleId named) {
    const std::size_t group = group_of_.at(sheet_.graph.nodes[row[0]].inputs[0]);
    const Colour& colour = kGroupColours[(group - 1) % kGroupColours.size()];
    const std::string id = fmt::format("linears_{}", row[0]);
    std::string cells;
    for (const NodeId n : row) {
      cells += fmt::format(
          "<TD PORT=\"n{}\">{}</TD>", n,
          node_label(sheet_.graph, sheet_.graph.nodes[n], named < 0 ? "" : sheet_.graph.modules[named].name));
      sheet_.shown[n] = {id, fmt::format("{}:n{}:s", id, n)};
    }
    sheet_.line(
        "{} [shape=plain, style=\"\", label=<<TABLE BORDER=\"0\" CELLBORDER=\"1\" CELLSPACING=\"0\" CELLPADDING=\"5\" "
        "COLOR=\"{}\" BGCOLOR=\"{}\"><TR><TD COLSPAN=\"{}\" CELLPADDING=\"2\"><FONT POINT-SIZE=\"10\">group "
        "{}</FONT></TD></TR>"
        "<TR>{}</TR></TABLE>>];",
        id, colour.border, colour.fill, row.size(), group, cells);
  }

  DrawingSheet& sheet_;
  std::map<ValueId, std::size_t> group_of_;  // number of the linear group that reads a value
  int titles_ = 0;
};

}  // namespace

int draw_boxes(DrawingSheet& sheet) { return BoxDrawing(sheet).draw(); }

}  // namespace layerpress::graph
