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
/// of one. The thread count becomes this process's part of the machine's cores. The calling thread is the one that has to run
/// oneshot(): while it computes, reports or waits, the rank counts as alive. Throws DistributedError when ranks do not come within
/// the time-out, InterruptedError when `control` asks to stop meanwhile.
///
/// After a failure of the group, threads may be left that wait for ranks which never come: a program then ends best with
/// std::_Exit.
///
///   const auto ranks = layerpress::init_dist();
///   options.dataset_split = layerpress::get_rank_partition(*ranks, "train", 512);
///   layerpress::oneshot(options, control, ranks.get());
std::unique_ptr<Distributed> init_dist(std::chrono::seconds timeout = std::chrono::seconds(600),
                                       const RunControl& control = {});

/// The slice of `split` that is this rank's part of its first `samples` rows: "train[128:256]". Ranks' slices are disjoint
/// and together those rows; a rank may get none ("train[0:0]"). Throws UsageError for a split that is a slice already.
std::string get_rank_partition(const Distributed& ranks, const std::string& split, std::int64_t samples);

}  // namespace layerpress
