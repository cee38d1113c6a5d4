#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "layerpress/graph/drawing/drawing.h"

namespace layerpress::graph {

/// The state that the parts of a drawing share: the model, the names under which its nodes are shown, and the text so
/// far.
struct DrawingSheet {
  /// The Graphviz names at which lines to and from a node end.
  struct Shown {
    std::string enter;
    std::string leave;
  };

  DrawingSheet(const Graph& model, const std::vector<Subgraph>& cuts, const DrawingOptions& how)
      : graph(model), subgraphs(cuts), options(how), shown(model.nodes.size()), box_of(model.nodes.size()) {}

  const Graph& graph;
  const std::vector<Subgraph>& subgraphs;
  const DrawingOptions& options;
  std::vector<Shown> shown;  ///< of each node
  std::vector<int> box_of;   ///< of each node: index of its box or fold
  std::string text;

  template <typename... Arguments>
  void line(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    text += fmt::format(format, std::forward<Arguments>(arguments)...) + "\n";
  }
};

}  // namespace layerpress::graph
