#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "layerpress/compression/modifier.h"
#include "layerpress/graph/stages.h"
#include "layerpress/graph/weight_matrix.h"
#include "layerpress/run/compression/rank.h"
#include "layerpress/setup/run_setup.h"

namespace layerpress::run {

/// Modules whose weights are rounded.
struct Disturbance {
  std::vector<std::string> modules;
  const compression::Quantizer* rounding;  ///< has one scheme and needs no data
};

/// Models that differ from the measured one in what is rounded.
struct Disturbances {
  const setup::RunSetup& setup;   ///< of the measured model; it knows which linears engines fuse
  const setup::RunSetup& served;  ///< served_setup of it
  std::vector<std::vector<Disturbance>> models;
};

/// The model as it is served, with its experts on their own tokens alone, in fp32 where its graph allows that. Nothing of it is compressed.
setup::RunSetup served_setup(const Rank& rank, const setup::RunSetup& measured);

/// The modules of the linears among these nodes.
std::set<std::string> linear_modules(const graph::Graph& graph, const std::vector<graph::NodeId>& nodes);

/// The modules that a disturbed model rounds among `here`, each with its rounding.
std::vector<std::pair<std::string, const compression::Quantizer*>> modules_of(const std::set<std::string>& here,
                                                                              const std::vector<Disturbance>& model);

/// The linears of a graph by module.
std::map<std::string, graph::WeightMatrix> matrices_of(const graph::Graph& graph);

inline constexpr std::int64_t kDivergenceSample = 256;                   ///< tokens of a sample at most
inline constexpr std::int64_t kDivergenceBatch = std::int64_t{1} << 40;  ///< all samples at once

/// For how many tokens logits are made at once; four tensors of their size are in memory.
std::int64_t divergence_chunk(const graph::Graph& graph);

}  // namespace layerpress::run
