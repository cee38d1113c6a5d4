#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "layerpress/graph/graph.h"

namespace layerpress::graph {

/// The residual stream: the values between a model's embeddings and its head that are sums of rows which embeddings, linears and
/// experts write, and that linears read directly or through a norm of whole rows. If all writers turn their rows by one
/// orthogonal matrix and all readers turn them back, nothing else in the model changes, provided that the norms' weights are
/// moved into the readers.
struct ResidualStream {
  struct Writer {
    NodeId node = -1;  ///< an Embedding, a Linear or an Expert
    std::string weight;
    std::string bias;
  };
  struct Reader {
    NodeId node = -1;  ///< a Linear, or operators that read the rows by a linear alone
    std::string weight;
    NodeId norm = -1;  ///< that the rows pass; -1: none
  };
  std::int64_t width = 0;
  std::vector<Writer> writers;
  std::vector<Reader> readers;
  std::set<NodeId> norms;   ///< that readers read the stream through
  std::set<NodeId> images;  ///< MergeImages and AddImages, which put rows into it that the graph does not compute
  /// Why the rows cannot be turned, naming a module; "": they can.
  std::string hindrance;
};

/// The stream of the graph's first embedding.
ResidualStream residual_stream(const Graph& graph);

}  // namespace layerpress::graph
