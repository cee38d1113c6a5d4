#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "layerpress/dist/division.h"
#include "layerpress/oneshot.h"
#include "layerpress/recipe/recipe.h"
#include "layerpress/schedule/pipelines.h"
#include "layerpress/setup/assignment/assignment.h"
#include "layerpress/setup/assignment/importance.h"
#include "layerpress/setup/opening/open_model.h"
#include "layerpress/setup/opening/source_tensors.h"
#include "layerpress/target/target.h"

namespace layerpress::setup {

inline constexpr std::uint64_t kUnlimited =
    std::numeric_limits<std::uint64_t>::max();  ///< a budget that nothing exceeds

/// The place of values between stages: on the computing device if all of them fit there, otherwise in host memory
/// within the budget and then on disk (kAuto); in host memory (kCpu), in the scratch file (kDisk), on the computing
/// device (kNone).
enum class ActivationPlace { kAuto, kCpu, kDisk, kNone };

/// Whether values between stages may go to the scratch file.
inline bool may_use_disk(ActivationPlace place) {
  return place == ActivationPlace::kAuto || place == ActivationPlace::kDisk;
}

ActivationPlace parse_activation_place(const std::string& name);

/// Everything that oneshot's options determine before any data is read. It is checked; nothing is written yet. run::settle adds what the
/// machine determines; nothing changes it afterwards.
struct RunSetup {
  int threads = 1;
  recipe::Recipe recipe;
  Json
      decision;  ///< what the recipe was chosen by, as layerpress::mixed_precision returns it (oneshot.h); null: it was given
  Modifiers modifiers;
  const schedule::Pipeline* pipeline = &schedule::kPipelines.front();
  OpenedModel model;
  std::shared_ptr<const target::Target> target;
  compression::Assignments assignments;
  SourceTensors source;
  std::vector<graph::Subgraph> subgraphs;
  std::vector<MeasuredInputs> measured_inputs{};  ///< for the file of --imatrix; empty: none is written
  std::vector<std::string> without_importance{};  ///< tensors of the GGUF that --from-imatrix's file does not know
  std::int64_t min_tokens_per_expert = 0;         ///< used if experts do not see all tokens
  residency::Placement placement;
  ActivationPlace place = ActivationPlace::kAuto;
  int ranks = 1;
  std::uint64_t budget = 0;  ///< host memory: this rank's part of its machine's
  std::uint64_t device_budget = 0;
  dist::DivisionRates division_rates{};  ///< the same on all ranks; plan/division_rates.h
};

/// What of a recipe's modifiers and the options needs calibration data, for messages; "": nothing.
std::string data_use(const OneshotOptions& options, const Modifiers& modifiers);

/// The recipe of a setup, whose model is open and not changed yet, with all that data decides. Collective.
using Decide = std::function<recipe::Recipe(const RunSetup& setup)>;

/// Throws layerpress::Error for options that cannot be satisfied. Sets the number of threads. Default threads, and
/// default or given memory, are divided among the ranks of this machine. `decide`: needed where a recipe leaves a choice to data.
/// `decision`: as RunSetup::decision.
RunSetup set_up(const OneshotOptions& options, const dist::Group& group, const RunControl& control,
                const Decide& decide = {}, Json decision = nullptr);

/// The same for this recipe, which `modifiers` stand for, instead of the options'.
RunSetup set_up(const OneshotOptions& options, recipe::Recipe recipe, Modifiers modifiers, const dist::Group& group,
                const RunControl& control);

}  // namespace layerpress::setup
