#pragma once

#include <string>
#include <vector>

#include "layerpress/setup/open_model.h"
#include "layerpress/verification/findings.h"

namespace layerpress::verification {

/// How far a run was allowed to change weights beside rounding them.
enum class Changes {
  kNone,    ///< plain tensors are the source's
  kScaled,  ///< SmoothQuant, AWQ and pruning change channels and zeros, but no row's direction altogether
  kRotated  ///< SpinQuant changes all of them; values cannot be compared
};

/// What the recipe beside the checkpoint (recipe.yaml) allows; without one, nothing.
Changes allowed_changes(const checkpoint::Checkpoint& stored);

/// ‖W - Ŵ‖ / ‖W‖ of a quantized weight.
struct WeightError {
  std::string module;
  double error = 0;
};

struct Comparison {
  std::int64_t tensors = 0;  ///< of the source, all of which are accounted for or a fault
  std::vector<WeightError> errors;
};

/// Compares a checkpoint with the one that it was made of, tensor by tensor: each is there, in its shape, and a quantized one is
/// within its scheme's error of the source's in every group of columns.
Comparison compare(const setup::OpenedModel& result, const setup::OpenedModel& source, Changes changes,
                   const RunControl& control, Findings& findings);

}  // namespace layerpress::verification
