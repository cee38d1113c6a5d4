#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "layerpress/graph/facts/scale_absorbers.h"
#include "layerpress/setup/opening/open_model.h"
#include "layerpress/verification/findings.h"

namespace layerpress::verification {

/// A norm whose weight was divided by numbers that multiply columns of a weight.
struct DividedNorm {
  std::string weight;
  double offset = 0;  ///< added to that weight
  std::vector<graph::ChannelRun> columns;
};

/// How a run was allowed to change a tensor beside rounding it and what is already done to the source.
struct Change {
  std::optional<double> divided{};   ///< of a norm or a bias: its elements plus this were divided by positive numbers
  std::vector<DividedNorm> norms{};  ///< that say by what columns were multiplied
  /// SmoothQuant and AWQ may have multiplied rows and columns by positive numbers that nothing else tells.
  bool scales_rows = false, scales_columns = false;
  bool prunes = false;  ///< elements become zero
  bool moves = false;   ///< the others make up for them
};

struct Changes {
  std::map<std::string, Change> tensors{};  ///< by name; others are the source's, or rounded
  bool follow_original = false;             ///< quantized weights were moved towards the original model's outputs
  bool only_rounds = false;                 ///< quantized weights have the nearest codes
  bool unknown = false;                     ///< values cannot be compared
};

/// ‖W - Ŵ‖ / ‖W‖ of a quantized weight, W with its scaled rows and columns.
struct WeightError {
  std::string module;
  double error = 0;
};

struct Comparison {
  /// Of the source, as far as the result's format has a place for them; each is there, or a fault.
  std::int64_t tensors = 0;
  std::vector<WeightError> errors;
};

/// Compares a checkpoint with the one that it was made of, tensor by tensor: each is there, in its shape, and a quantized one is
/// within its scheme's error of the source's in every group of columns. Scales of columns are those that a norm was divided by, else,
/// as those of rows, the ones that fit best; where elements may be pruned, those that are zero are not compared.
Comparison compare(const setup::OpenedModel& result, const setup::OpenedModel& source, const Changes& changes,
                   const RunControl& control, Findings& findings);

/// Whether tokens see the tokens that they see in the source, in each module that both have, and positions have the source's angles, in tables
/// or as constants of imported graphs, where both have the same of these; a fault "config" otherwise. That an imported module computes
/// something else is a warning. `of_file`: the result is a GGUF, which has no part that sees images.
void compare_attention(const model::TracedModel& compressed, const graph::Graph& source, bool of_file,
                       Findings& findings);

}  // namespace layerpress::verification
