#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "layerpress/oneshot.h"
#include "layerpress/recipe/recipe.h"
#include "layerpress/setup/assignment.h"
#include "layerpress/setup/open_model.h"

namespace layerpress::setup {

inline constexpr std::uint64_t kUnlimited =
    std::numeric_limits<std::uint64_t>::max();  ///< a budget that nothing exceeds

enum class Pipeline { kSequential, kBasic, kDatafree };

/// Where values between stages live: on the computing device if all of them fit there, else in host memory while the budget lasts
/// and then on disk (kAuto); in host memory (kCpu), in the scratch file (kDisk), on the computing device (kNone).
enum class ActivationPlace { kAuto, kCpu, kDisk, kNone };

ActivationPlace parse_activation_place(const std::string& name);

/// Everything that oneshot's options decide before any data is read: checked, nothing written.
struct RunSetup {
  int threads = 1;
  recipe::Recipe recipe;
  Modifiers modifiers;
  Pipeline pipeline = Pipeline::kSequential;
  OpenedModel model;
  compression::Assignments assignments;
  std::vector<graph::Subgraph> subgraphs;
  std::int64_t min_tokens_per_expert = 0;  ///< where experts do not see all tokens
  residency::Placement placement;
  ActivationPlace place = ActivationPlace::kAuto;
  int ranks = 1;
  std::uint64_t budget = 0;  ///< of host memory, this rank's part of its machine's
  std::uint64_t device_budget = 0;
};

/// Throws layerpress::Error for what cannot be done. Sets the number of threads; threads and memory that are not given, and
/// memory that is, are divided among the ranks of this machine.
RunSetup set_up(const OneshotOptions& options, const dist::Group& group);

/// Collective: lets what the ranks exchange travel between their GPUs where that is possible, and says how it travels. The
/// memory that it takes there is no longer in the budget.
void connect_devices(const OneshotOptions& options, RunSetup& setup, dist::Group& group, const RunControl& control);

}  // namespace layerpress::setup
