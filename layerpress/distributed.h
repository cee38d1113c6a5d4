#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "layerpress/dist/group.h"

namespace layerpress {

/// The ranks of one run. init_dist() creates them; oneshot() takes them.
using Distributed = dist::Group;

/// Joins the processes that torchrun, Slurm or mpirun started together. Without such an environment, returns a group of
/// one rank. Sets the thread count to this rank's share of the machine's cores. oneshot() must run on the calling
/// thread: the rank counts as alive while this thread computes, reports progress or waits. Throws DistributedError if a
/// rank does not join within `timeout`, and InterruptedError if `control` asks to stop.
///
/// After a failure of the group, threads that wait for lost ranks may remain. A program should then end with
/// std::_Exit.
///
///
///   const auto ranks = layerpress::init_dist();
///   options.dataset_split = layerpress::get_rank_partition(*ranks, "train", 512);
///   layerpress::oneshot(options, control, ranks.get());
std::unique_ptr<Distributed> init_dist(std::chrono::seconds timeout = std::chrono::seconds(600),
                                       const RunControl& control = {});

/// This rank's slice of the first `samples` rows of `split`, such as "train[128:256]". The ranks' slices are disjoint
/// and together cover these rows; a slice may be empty ("train[0:0]"). Throws UsageError if `split` is already a slice.
std::string get_rank_partition(const Distributed& ranks, const std::string& split, std::int64_t samples);

}  // namespace layerpress
