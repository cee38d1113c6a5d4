#pragma once

#include "layerpress/graph/drawing/drawing_sheet.h"

namespace layerpress::graph {

/// Kinds of lines that the caption explains.
struct DrawnEdges {
  bool has_passing_values = false;  ///< values that wait while other boxes run
  bool has_shared_weights = false;  ///< a node reads a linear's weight
};

/// Draws the values between nodes, shared weights, and the invisible edges that keep the boxes in order. REQUIRES: draw_boxes()
/// has drawn them.
DrawnEdges draw_edges(DrawingSheet& sheet, int boxes);

}  // namespace layerpress::graph
