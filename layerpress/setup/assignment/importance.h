#pragma once

#include <memory>
#include <string>
#include <vector>

#include "layerpress/compression/assignments.h"
#include "layerpress/gguf/importance.h"
#include "layerpress/oneshot.h"
#include "layerpress/setup/assignment/assignment.h"
#include "layerpress/setup/opening/open_model.h"

namespace layerpress::setup {

/// A linear, and where an importance file has the figures about its inputs.
struct MeasuredInputs {
  std::string module;
  gguf::InputPlace place;
};

/// The file that --from-imatrix names, or null. Throws UsageError where the options give it nothing to do, and CheckpointError for
/// what is no such file.
std::shared_ptr<const gguf::ImportanceFile> importance_file(const OneshotOptions& options);

/// Gives the assigned linears the figures of the file. Returns the names of the tensors without any. Throws UsageError for modifiers that
/// measure inputs themselves or change them, and if the file has nothing of the model.
std::vector<std::string> take_importance(const gguf::ImportanceFile& file, const OpenedModel& model,
                                         const Modifiers& modifiers, compression::Assignments& assignments);

/// Lets the assigned linears measure their inputs for --imatrix. Returns their places in the file, each once. Throws UsageError for
/// modifiers that change inputs, and CheckpointError for a model that llama.cpp does not know.
std::vector<MeasuredInputs> measure_inputs(const OpenedModel& model, compression::Assignments& assignments);

}  // namespace layerpress::setup
