#pragma once

#include <string>
#include <vector>

#include "layerpress/setup/opening/open_model.h"
#include "layerpress/verification/findings.h"

namespace layerpress::verification {

/// How far a run was allowed to change weights beside rounding them and what is already done to the source.
struct Changes {
  bool scales = false;   ///< SmoothQuant and AWQ multiply rows and columns by positive numbers
  bool prunes = false;   ///< elements become zero, and others make up for it
  bool unknown = false;  ///< values cannot be compared

  /// Plain tensors are the source's.
  bool none() const { return !scales && !prunes && !unknown; }
};

/// ‖W - Ŵ‖ / ‖W‖ of a quantized weight, W with its scaled rows and columns.
struct WeightError {
  std::string module;
  double error = 0;
};

struct Comparison {
  std::int64_t tensors = 0;  ///< of the source, all of which are accounted for or a fault
  std::vector<WeightError> errors;
};

/// Compares a checkpoint with the one that it was made of, tensor by tensor: each is there, in its shape, and a quantized one is
/// within its scheme's error of the source's in every group of columns. Where rows and columns may be scaled, the scales are those
/// that fit best; where elements may be pruned, those that are zero are not compared.
Comparison compare(const setup::OpenedModel& result, const setup::OpenedModel& source, const Changes& changes,
                   const RunControl& control, Findings& findings);

}  // namespace layerpress::verification
