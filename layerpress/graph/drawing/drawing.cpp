#include "layerpress/graph/drawing/drawing.h"

#include "layerpress/graph/drawing/drawing_boxes.h"
#include "layerpress/graph/drawing/drawing_edges.h"
#include "layerpress/graph/drawing/drawing_sheet.h"
#include "layerpress/graph/drawing/labels.h"

namespace layerpress::graph {
namespace {

void open_picture(DrawingSheet& sheet) {
  sheet.line("digraph model {{");
  sheet.line(
      "graph [rankdir=TB, newrank=true, fontname=\"Arial\", fontsize=13, labelloc=t, labeljust=l, ranksep=0.3, "
      "nodesep=0.25, pad=0.2, bgcolor=white];");
  sheet.line(
      "node [fontname=\"Arial\", fontsize=12, shape=box, style=\"rounded,filled\", fillcolor=white, "
      "color=\"#555555\", margin=\"0.12,0.05\", height=0.3];");
  sheet.line("edge [fontname=\"Arial\", fontsize=10, color=\"#444444\", arrowsize=0.6];");
}

/// The caption above the picture: its subject and how to read it.
void draw_caption(DrawingSheet& sheet, const DrawnEdges& edges) {
  std::string lines = "<B>" + escaped(sheet.options.title) + "</B>";
  const auto add = [&](const char* text) { lines += std::string("<BR ALIGN=\"LEFT\"/>") + text; };
  add("Boxes are onloaded one after the other, from top to bottom.");
  add("Linears of one colour and number read one value and share its statistics.");
  if (edges.has_passing_values) add("Green lines: values that wait while other boxes run.");
  if (edges.has_shared_weights) add("Dotted lines: an expert reads a linear's weight.");
  sheet.line("label=<{}<BR ALIGN=\"LEFT\"/> <BR ALIGN=\"LEFT\"/>>;", lines);
}

}  // namespace

std::string to_dot(const Graph& graph, const std::vector<Subgraph>& subgraphs, const DrawingOptions& options) {
  DrawingSheet sheet(graph, subgraphs, options);
  open_picture(sheet);
  const int boxes = draw_boxes(sheet);
  const DrawnEdges edges = draw_edges(sheet, boxes);
  draw_caption(sheet, edges);
  return sheet.text + "}\n";
}

}  // namespace layerpress::graph
