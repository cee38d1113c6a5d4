#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "layerpress/checkpoint/file_layout.h"
#include "layerpress/setup/run_setup.h"

namespace layerpress::output {

/// Tensors that one rank writes together: the replacement of a linear's weight, or a copied tensor.
struct OutputPart {
  std::size_t subgraph;                 ///< the first subgraph that reads it, or the number of subgraphs
  std::optional<graph::NodeId> linear;  ///< the compressed linear whose weight it is
  std::vector<checkpoint::TensorSpec> tensors;
  bool made = false;       ///< not copied, but computed during the run
  std::string original{};  ///< the copied tensor's name in the original
  std::uint64_t bytes = 0;
  int set = 0;  ///< of the sets of files
};

/// How the output is divided into sets of files.
struct SetDivision {
  int sets = 1;
  /// Divide linears evenly before copied tensors, because ranks compress what they write. Otherwise all bytes are
  /// divided.
  bool linears_first = false;
};

/// All tensors of the output in the order of the graph, then those that the graph does not read, then the target's own.
std::vector<OutputPart> output_parts(const setup::RunSetup& setup, const SetDivision& division);

/// The files of these parts.
checkpoint::CheckpointLayout layout_of(const setup::RunSetup& setup, const std::vector<OutputPart>& parts,
                                       std::uint64_t max_shard_bytes, int sets);

}  // namespace layerpress::output
