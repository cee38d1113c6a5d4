#include "layerpress/graph/drawing/drawing_edges.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <variant>

#include "layerpress/graph/drawing/labels.h"

namespace layerpress::graph {
namespace {

class EdgeDrawing {
 public:
  explicit EdgeDrawing(DrawingSheet& sheet) : sheet_(sheet), consumers_(sheet.graph.consumers()) {}

  DrawnEdges draw(int boxes) {
    for (ValueId value = 0; value < static_cast<ValueId>(sheet_.graph.values.size()); ++value) draw_value(value);
    draw_counted_edges();
    draw_weights();
    keep_order(boxes);
    return drawn_;
  }

 private:
  /// A value between two nodes of a box is an edge. A value that crosses a cut, is an input or is the output is drawn
  /// between the boxes.
  void draw_value(ValueId value) {
    const NodeId producer = sheet_.graph.values[value].producer;
    const int home = producer < 0 ? -1 : sheet_.box_of[producer];
    std::set<std::string> inside, outside;
    int last = home;
    for (const NodeId reader : consumers_[value]) {
      (sheet_.box_of[reader] == home ? inside : outside).insert(sheet_.shown[reader].enter);
      last = std::max(last, sheet_.box_of[reader]);
    }
    if (producer >= 0) {
      inside.erase(sheet_.shown[producer].enter);
      for (const std::string& reader : inside) ++edges_[{sheet_.shown[producer].leave, reader}];
    }
    if (outside.empty() && value != sheet_.graph.output) return;
    draw_crossing(value, outside, last - home > 1 && producer >= 0);
  }

  void draw_counted_edges() {
    for (const auto& [edge, count] : edges_)
      sheet_.line("{} -> {} [label=\"{}\"];", edge.first, edge.second,
                  count > 1 ? fmt::format("   {} values", count) : "");
  }

  void draw_crossing(ValueId value, const std::set<std::string>& readers, bool passes_boxes) {
    drawn_.has_passing_values = drawn_.has_passing_values || passes_boxes;
    const char* colour = passes_boxes ? "#00695c" : "#444444";
    const double width = passes_boxes ? 2 : 1;
    sheet_.line("value_{} [shape=box, style=\"\", color=\"{}\", penwidth={}, fontsize=10, label=<{}>];", value, colour,
                passes_boxes ? 1.4 : 0.6, value_label(sheet_.graph, value, sheet_.options.value_bytes));
    const NodeId producer = sheet_.graph.values[value].producer;
    if (producer >= 0)
      sheet_.line("{} -> value_{} [weight=4, color=\"{}\", penwidth={}, arrowhead=none];", sheet_.shown[producer].leave,
                  value, colour, width);
    for (const std::string& reader : readers)
      sheet_.line("value_{} -> {} [color=\"{}\", penwidth={}];", value, reader, colour, width);
  }

  /// A dotted line from a linear to another node that reads its weight.
  void draw_weights() {
    std::map<std::string, NodeId> owners;
    for (NodeId n = 0; n < static_cast<NodeId>(sheet_.graph.nodes.size()); ++n)
      if (const auto* linear = std::get_if<Linear>(&sheet_.graph.nodes[n].operation)) owners.emplace(linear->weight, n);
    for (NodeId n = 0; n < static_cast<NodeId>(sheet_.graph.nodes.size()); ++n)
      for (const WeightUse& use : weights_of(sheet_.graph.nodes[n].operation)) {
        const auto owner = owners.find(use.name);
        if (owner == owners.end() || sheet_.shown[owner->second].enter == sheet_.shown[n].enter) continue;
        if (sheet_.box_of[owner->second] != sheet_.box_of[n])
          continue;  // a tied weight, which the node's label mentions
        drawn_.has_shared_weights = true;
        sheet_.line("{} -> {} [style=dotted, arrowhead=none];", sheet_.shown[owner->second].leave,
                    sheet_.shown[n].enter);
      }
  }

  /// Invisible edges from the end of each box to the beginning of the next one, which keep the boxes in order.
  void keep_order(int boxes) {
    std::vector<std::set<std::string>> begins(boxes), ends(boxes);
    for (std::size_t n = 0; n < sheet_.graph.nodes.size(); ++n) {
      const int box = sheet_.box_of[n];
      const Node& node = sheet_.graph.nodes[n];
      const auto elsewhere = [&](NodeId other) { return other < 0 || sheet_.box_of[other] != box; };
      if (std::all_of(node.inputs.begin(), node.inputs.end(),
                      [&](ValueId input) { return elsewhere(sheet_.graph.values[input].producer); }))
        begins[box].insert(sheet_.shown[n].enter);
      const auto& readers = consumers_[node.output];
      if (std::all_of(readers.begin(), readers.end(), elsewhere)) ends[box].insert(sheet_.shown[n].enter);
    }
    for (int box = 1; box < boxes; ++box)
      for (const std::string& end : ends[box - 1])
        for (const std::string& begin : begins[box]) sheet_.line("{} -> {} [style=invis, weight=0];", end, begin);
  }

  DrawingSheet& sheet_;
  std::vector<std::vector<NodeId>> consumers_;
  std::map<std::pair<std::string, std::string>, int> edges_;  // values between two nodes of a box
  DrawnEdges drawn_;
};

}  // namespace

DrawnEdges draw_edges(DrawingSheet& sheet, int boxes) { return EdgeDrawing(sheet).draw(boxes); }

}  // namespace layerpress::graph
