#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "layerpress/dist/group.h"

namespace layerpress {

/// The processes of one run, made by init_dist and handed to oneshot().
using Distributed = dist::Group;

/// Joins the processes that torchrun (or Slurm, or mpirun) has started together; alone, without such an environment, a group
/// of one. The thread count becomes this node's usable cores divided by its processes. Throws DistributedError when ranks do
/// not come within the time-out.
///
///   const auto ranks = layerpress::init_dist();
///   options.dataset_split = layerpress::get_rank_partition(*ranks, "train", 512);
///   layerpress::oneshot(options, control, ranks.get());
std::unique_ptr<Distributed> init_dist(std::chrono::seconds timeout = std::chrono::seconds(600));

/// The slice of `split` that is this rank's part of its first `samples` rows: "train[128:256]". Ranks' slices are disjoint
/// and together those rows; a rank may get none ("train[0:0]"). Throws UsageError for a split that is a slice already.
std::string get_rank_partition(const Distributed& ranks, const std::string& split, std::int64_t samples);

}  // namespace layerpress
