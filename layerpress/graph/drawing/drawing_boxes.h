#pragma once

#include "layerpress/graph/drawing/drawing_sheet.h"

namespace layerpress::graph {

/// Draws the subgraphs as boxes, in order, with their modules and nodes; repeated ones are drawn once. Records in the sheet
/// where each node is shown. Returns the number of boxes and folds.
int draw_boxes(DrawingSheet& sheet);

}  // namespace layerpress::graph
