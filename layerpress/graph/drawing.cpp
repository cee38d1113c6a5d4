#include "layerpress/graph/drawing.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "layerpress/base/text.h"
#include "layerpress/graph/folding.h"
#include "layerpress/graph/labels.h"
#include "layerpress/graph/module_parts.h"

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

class Drawing {
 public:
  Drawing(const Graph& graph, const std::vector<Subgraph>& subgraphs, const DrawingOptions& options)
      : graph_(graph),
        subgraphs_(subgraphs),
        options_(options),
        consumers_(graph.consumers()),
        shown_(graph.nodes.size()),
        box_of_(graph.nodes.size()) {
    number_groups();
  }

  std::string text() {
    open();
    const std::vector<Folded> boxes = folded(subgraph_nodes(), 1);
    for (std::size_t b = 0; b < boxes.size(); ++b) draw_box(boxes[b], static_cast<int>(b));
    for (ValueId value = 0; value < static_cast<ValueId>(graph_.values.size()); ++value) draw_value(value);
    draw_edges();
    draw_weights();
    keep_order(static_cast<int>(boxes.size()));
    draw_caption();
    return text_ + "}\n";
  }

 private:
  /// The Graphviz names at which lines to and from a node end.
  struct Shown {
    std::string enter;
    std::string leave;
  };

  template <typename... Arguments>
  void line(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    text_ += fmt::format(format, std::forward<Arguments>(arguments)...) + "\n";
  }

  void open() {
    line("digraph model {{");
    line(
        "graph [rankdir=TB, newrank=true, fontname=\"Arial\", fontsize=13, labelloc=t, labeljust=l, ranksep=0.3, "
        "nodesep=0.25, pad=0.2, bgcolor=white];");
    line(
        "node [fontname=\"Arial\", fontsize=12, shape=box, style=\"rounded,filled\", fillcolor=white, "
        "color=\"#555555\", margin=\"0.12,0.05\", height=0.3];");
    line("edge [fontname=\"Arial\", fontsize=10, color=\"#444444\", arrowsize=0.6];");
  }

  /// The caption above the picture: its subject and how to read it.
  void draw_caption() {
    std::string lines = "<B>" + escaped(options_.title) + "</B>";
    const auto add = [&](const char* text) { lines += std::string("<BR ALIGN=\"LEFT\"/>") + text; };
    add("Boxes are onloaded one after the other, from top to bottom.");
    add("Linears of one colour and number read one value and share its statistics.");
    if (has_passing_values_) add("Green lines: values that wait while other boxes run.");
    if (has_shared_weights_) add("Dotted lines: an expert reads a linear's weight.");
    line("label=<{}<BR ALIGN=\"LEFT\"/> <BR ALIGN=\"LEFT\"/>>;", lines);
  }

  /// Numbers the linear groups of the whole model in the order of their inputs.
  void number_groups() {
    Subgraph all{"", {}};
    for (NodeId n = 0; n < static_cast<NodeId>(graph_.nodes.size()); ++n) all.nodes.push_back(n);
    for (const LinearGroup& group : linear_groups(graph_, all, [](const Node&) { return true; }))
      group_of_.emplace(group.input, group_of_.size() + 1);
  }

  std::vector<std::vector<NodeId>> subgraph_nodes() const {
    std::vector<std::vector<NodeId>> blocks;
    for (const Subgraph& subgraph : subgraphs_) blocks.push_back(subgraph.nodes);
    return blocks;
  }

  std::vector<Folded> folded(const std::vector<std::vector<NodeId>>& blocks, std::size_t least_nodes) const {
    if (!options_.full) return fold(graph_, blocks, least_nodes);
    std::vector<Folded> all(blocks.size());
    for (std::size_t b = 0; b < blocks.size(); ++b) all[b].first = b;
    return all;
  }

  std::string sizes_of(const std::vector<NodeId>& nodes) const {
    return options_.weight_bytes ? "weights " + format_bytes(options_.weight_bytes(nodes)) : "";
  }

  // --- boxes ---

  void draw_box(const Folded& box, int index) {
    for (std::size_t s = box.first; s < box.first + box.count; ++s)
      for (const NodeId n : subgraphs_[s].nodes) box_of_[n] = index;
    if (box.period > 0) return draw_hidden_subgraphs(box);
    const Subgraph& subgraph = subgraphs_[box.first];
    line("subgraph cluster_subgraph_{} {{", box.first);
    line("style=\"filled\"; color=\"#222222\"; fillcolor=\"#f7f7f7\"; penwidth=1.4; margin=10;");
    line("label=\"\";");
    draw_parts(subgraph.nodes, -1, module_named(subgraph.name), {subgraph_label(box.first), 13});
    line("}}");
  }

  std::string subgraph_label(std::size_t index) const {
    const Subgraph& subgraph = subgraphs_[index];
    const ModuleId module = module_named(subgraph.name);
    constexpr const char* kBreak = "<BR ALIGN=\"LEFT\"/>";
    std::string label = fmt::format("<B>{} &#160;{}</B>{}", index + 1, escaped(subgraph.name), kBreak);
    std::string more;
    if (module >= 0) more += escaped(graph_.modules[module].class_name) + kBreak;
    const std::string sizes = sizes_of(subgraph.nodes);
    if (!sizes.empty()) more += sizes + kBreak;
    return more.empty() ? label : label + "<FONT POINT-SIZE=\"10\">" + more + "</FONT>";
  }

  /// A box's title is a node beside the box's first node (above it, if that node has its own box), because lines avoid
  /// nodes but would cross a cluster's label.
  void draw_title(const Title& title, const Part& first) {
    if (title.label.empty()) return;
    const std::string id = fmt::format("title_{}", titles_++);
    line("{} [shape=plaintext, style=\"\", margin=\"0.04,0.02\", fontsize={}, label=<{}>];", id, title.size,
         title.label);
    const std::string edge = fmt::format("{} -> {} [style=invis];", id, shown_[first.nodes[0]].enter);
    line("{}", first.nodes.size() < kLeastModuleNodes ? "{rank=same; " + edge + "}" : edge);
  }

  /// Whether two modules begin with the same input values, as experts do.
  bool begin_alike(const Part& a, const Part& b) const {
    return std::min(a.nodes.size(), b.nodes.size()) >= kLeastModuleNodes &&
           graph_.nodes[a.nodes[0]].inputs == graph_.nodes[b.nodes[0]].inputs;
  }

  /// The module's name inside `around`; a bare number also gets the name of its parent.
  std::string name_beside(ModuleId module, ModuleId around) const {
    const std::string outer = around < 0 ? "" : graph_.modules[around].name;
    const std::string name = escaped(name_inside(graph_.modules[module].name, outer));
    const bool is_number = !name.empty() && name.find_first_not_of("0123456789") == std::string::npos;
    return is_number && !outer.empty() ? escaped(last_part(outer)) + "." + name : name;
  }

  ModuleId module_named(const std::string& name) const {
    for (std::size_t m = 0; m < graph_.modules.size(); ++m)
      if (!name.empty() && graph_.modules[m].name == name) return static_cast<ModuleId>(m);
    return -1;
  }

  void draw_hidden_subgraphs(const Folded& box) {
    std::vector<std::string> names;
    for (const Subgraph& subgraph : subgraphs_) names.push_back(subgraph.name);
    std::string order = fmt::format("{}", box.first + 1);
    if (box.count > 1) order += fmt::format("&#8211;{}", box.first + box.count);
    std::vector<NodeId> nodes;
    for (std::size_t s = box.first; s < box.first + box.count; ++s)
      nodes.insert(nodes.end(), subgraphs_[s].nodes.begin(), subgraphs_[s].nodes.end());
    draw_hidden(nodes, fmt::format("<B>{}</B> &#160;{}", order, fold_label(box, names, sizes_of(nodes))), true);
  }

  void draw_hidden(const std::vector<NodeId>& nodes, const std::string& label, bool subgraphs) {
    const std::string id = fmt::format("fold_{}", nodes.front());
    line(
        "{} [shape=box, peripheries={}, style=\"filled\", fillcolor=\"{}\", color=\"#222222\", margin=\"0.25,0.12\", "
        "label=<{}>];",
        id, subgraphs ? 2 : 1, subgraphs ? "#ececec" : "#f3f3f3", label);
    for (const NodeId n : nodes) shown_[n] = {id, id};
  }

  /// Draws the nodes of module `around` (-1: any) as parts, with names relative to module `named`.
  void draw_parts(const std::vector<NodeId>& nodes, ModuleId around, ModuleId named, const Title& title) {
    const std::vector<Part> parts = parts_of(graph_, nodes, around);
    if (parts.size() == 1 && parts[0].module >= 0 && nodes.size() > 1)
      return draw_parts(nodes, parts[0].module, named, title);
    std::vector<std::vector<NodeId>> blocks;
    std::vector<std::string> names;
    for (const Part& part : parts) {
      blocks.push_back(part.nodes);
      names.push_back(part.module < 0 ? "" : name_beside(part.module, named));
    }
    const std::map<ValueId, std::vector<NodeId>> rows = group_rows(parts);
    const Part* before = nullptr;
    for (const Folded& piece : folded(blocks, kLeastModuleNodes)) {
      const Part& part = parts[piece.first];
      if (piece.period == 0) {
        draw_part(part, named, rows);
        if (before != nullptr && begin_alike(*before, part))
          line("{{rank=same; {} -> {} [style=invis];}}", shown_[before->nodes[0]].enter, shown_[part.nodes[0]].enter);
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

  /// The parallel linears that read one value.
  std::map<ValueId, std::vector<NodeId>> group_rows(const std::vector<Part>& parts) const {
    std::map<ValueId, std::vector<NodeId>> rows;
    for (const Part& part : parts)
      if (part.nodes.size() == 1 && is_linear(part.nodes[0]))
        rows[graph_.nodes[part.nodes[0]].inputs[0]].push_back(part.nodes[0]);
    return rows;
  }

  bool is_linear(NodeId n) const { return std::holds_alternative<Linear>(graph_.nodes[n].operation); }

  void draw_part(const Part& part, ModuleId named, const std::map<ValueId, std::vector<NodeId>>& rows) {
    const NodeId first = part.nodes[0];
    if (part.nodes.size() == 1) {
      if (!is_linear(first)) return draw_node(first, named);
      const std::vector<NodeId>& row = rows.at(graph_.nodes[first].inputs[0]);
      if (row[0] == first) draw_linears(row, named);
      return;
    }
    if (part.nodes.size() < kLeastModuleNodes) return draw_parts(part.nodes, part.module, named, {});
    // A module that contains only one other module shares its box.
    ModuleId inner = part.module;
    for (std::vector<Part> parts = parts_of(graph_, part.nodes, inner); parts.size() == 1 && parts[0].module >= 0;
         parts = parts_of(graph_, part.nodes, inner))
      inner = parts[0].module;
    line("subgraph cluster_module_{}_{} {{", inner, part.nodes.front());
    line("style=\"rounded\"; color=\"#999999\"; penwidth=0.8; margin=8;");
    line("label=\"\";");
    draw_parts(part.nodes, inner, inner, {name_beside(inner, named), 11});
    line("}}");
  }

  void draw_node(NodeId n, ModuleId named) {
    const Node& node = graph_.nodes[n];
    const std::string id = fmt::format("node_{}", n);
    shown_[n] = {id, id};
    if (std::holds_alternative<Add>(node.operation)) {
      line("{} [shape=circle, label=\"+\", width=0.25, fixedsize=true, margin=0];", id);
      return;
    }
    line("{} [label=<{}>];", id, node_label(graph_, node, named < 0 ? "" : graph_.modules[named].name));
  }

  /// The linears of a group that are in one module, side by side.
  void draw_linears(const std::vector<NodeId>& row, ModuleId named) {
    const std::size_t group = group_of_.at(graph_.nodes[row[0]].inputs[0]);
    const Colour& colour = kGroupColours[(group - 1) % kGroupColours.size()];
    const std::string id = fmt::format("linears_{}", row[0]);
    std::string cells;
    for (const NodeId n : row) {
      cells += fmt::format("<TD PORT=\"n{}\">{}</TD>", n,
                           node_label(graph_, graph_.nodes[n], named < 0 ? "" : graph_.modules[named].name));
      shown_[n] = {id, fmt::format("{}:n{}:s", id, n)};
    }
    line(
        "{} [shape=plain, style=\"\", label=<<TABLE BORDER=\"0\" CELLBORDER=\"1\" CELLSPACING=\"0\" CELLPADDING=\"5\" "
        "COLOR=\"{}\" BGCOLOR=\"{}\"><TR><TD COLSPAN=\"{}\" CELLPADDING=\"2\"><FONT POINT-SIZE=\"10\">group "
        "{}</FONT></TD></TR>"
        "<TR>{}</TR></TABLE>>];",
        id, colour.border, colour.fill, row.size(), group, cells);
  }

  // --- edges ---

  /// A value between two nodes of a box is an edge. A value that crosses a cut, is an input or is the output is drawn
  /// between the boxes.
  void draw_value(ValueId value) {
    const NodeId producer = graph_.values[value].producer;
    const int home = producer < 0 ? -1 : box_of_[producer];
    std::set<std::string> inside, outside;
    int last = home;
    for (const NodeId reader : consumers_[value]) {
      (box_of_[reader] == home ? inside : outside).insert(shown_[reader].enter);
      last = std::max(last, box_of_[reader]);
    }
    if (producer >= 0) {
      inside.erase(shown_[producer].enter);
      for (const std::string& reader : inside) ++edges_[{shown_[producer].leave, reader}];
    }
    if (outside.empty() && value != graph_.output) return;
    draw_crossing(value, outside, last - home > 1 && producer >= 0);
  }

  void draw_edges() {
    for (const auto& [edge, count] : edges_)
      line("{} -> {} [label=\"{}\"];", edge.first, edge.second, count > 1 ? fmt::format("   {} values", count) : "");
  }

  void draw_crossing(ValueId value, const std::set<std::string>& readers, bool passes_boxes) {
    has_passing_values_ = has_passing_values_ || passes_boxes;
    const char* colour = passes_boxes ? "#00695c" : "#444444";
    const double width = passes_boxes ? 2 : 1;
    line("value_{} [shape=box, style=\"\", color=\"{}\", penwidth={}, fontsize=10, label=<{}>];", value, colour,
         passes_boxes ? 1.4 : 0.6, value_label(graph_, value, options_.value_bytes));
    const NodeId producer = graph_.values[value].producer;
    if (producer >= 0)
      line("{} -> value_{} [weight=4, color=\"{}\", penwidth={}, arrowhead=none];", shown_[producer].leave, value,
           colour, width);
    for (const std::string& reader : readers)
      line("value_{} -> {} [color=\"{}\", penwidth={}];", value, reader, colour, width);
  }

  /// A dotted line from a linear to another node that reads its weight.
  void draw_weights() {
    std::map<std::string, NodeId> owners;
    for (NodeId n = 0; n < static_cast<NodeId>(graph_.nodes.size()); ++n)
      if (const auto* linear = std::get_if<Linear>(&graph_.nodes[n].operation)) owners.emplace(linear->weight, n);
    for (NodeId n = 0; n < static_cast<NodeId>(graph_.nodes.size()); ++n)
      for (const WeightUse& use : weights_of(graph_.nodes[n].operation)) {
        const auto owner = owners.find(use.name);
        if (owner == owners.end() || shown_[owner->second].enter == shown_[n].enter) continue;
        if (box_of_[owner->second] != box_of_[n]) continue;  // a tied weight, which the node's label mentions
        has_shared_weights_ = true;
        line("{} -> {} [style=dotted, arrowhead=none];", shown_[owner->second].leave, shown_[n].enter);
      }
  }

  /// Invisible edges from the end of each box to the beginning of the next one, which keep the boxes in order.
  void keep_order(int boxes) {
    std::vector<std::set<std::string>> begins(boxes), ends(boxes);
    for (std::size_t n = 0; n < graph_.nodes.size(); ++n) {
      const int box = box_of_[n];
      const Node& node = graph_.nodes[n];
      const auto elsewhere = [&](NodeId other) { return other < 0 || box_of_[other] != box; };
      if (std::all_of(node.inputs.begin(), node.inputs.end(),
                      [&](ValueId input) { return elsewhere(graph_.values[input].producer); }))
        begins[box].insert(shown_[n].enter);
      const auto& readers = consumers_[node.output];
      if (std::all_of(readers.begin(), readers.end(), elsewhere)) ends[box].insert(shown_[n].enter);
    }
    for (int box = 1; box < boxes; ++box)
      for (const std::string& end : ends[box - 1])
        for (const std::string& begin : begins[box]) line("{} -> {} [style=invis, weight=0];", end, begin);
  }

  const Graph& graph_;
  const std::vector<Subgraph>& subgraphs_;
  const DrawingOptions& options_;
  std::vector<std::vector<NodeId>> consumers_;
  std::vector<Shown> shown_;                                  // of each node
  std::vector<int> box_of_;                                   // of each node: index of its box or fold
  std::map<ValueId, std::size_t> group_of_;                   // number of the linear group that reads a value
  std::map<std::pair<std::string, std::string>, int> edges_;  // values between two nodes of a box
  bool has_passing_values_ = false;
  bool has_shared_weights_ = false;
  int titles_ = 0;
  std::string text_;
};

}  // namespace

std::string to_dot(const Graph& graph, const std::vector<Subgraph>& subgraphs, const DrawingOptions& options) {
  return Drawing(graph, subgraphs, options).text();
}

}  // namespace layerpress::graph
