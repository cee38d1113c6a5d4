#pragma once

#include <memory>
#include <string>
#include <vector>

#include "layerpress/checkpoint/checkpoint.h"
#include "layerpress/source/stored_weight.h"

namespace layerpress::source {

using CheckpointPointer = std::shared_ptr<const checkpoint::Checkpoint>;

/// A form in which checkpoints are stored quantized. Each is a file of its own, and source_formats.cpp lists them.
class SourceFormat {
 public:
  virtual ~SourceFormat() = default;

  /// The format in a few words, for people.
  virtual std::string description() const = 0;

  /// All weights that are stored in this form, whether or not a model's graph reads them. Reads no weights. Throws CheckpointError
  /// for tensors that are missing or have another dtype or shape than the others imply.
  virtual std::vector<StoredWeight> weights(const CheckpointPointer& stored) const = 0;

  /// Whether the configuration is about something else than weights, so that there may be none.
  virtual bool may_be_without_weights() const { return false; }
};

/// The format that the checkpoint's quantization_config names; null for a plain checkpoint. Throws CheckpointError for one that is
/// not supported.
std::unique_ptr<SourceFormat> source_format(const checkpoint::Checkpoint& stored);

/// Whether a tensor tells how the source's activations or cached keys and values are quantized. Such a tensor belongs to no weight
/// and has no meaning in another checkpoint.
bool describes_activations(const std::string& tensor);

}  // namespace layerpress::source
