#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "layerpress/base/json.h"
#include "layerpress/checkpoint/checkpoint.h"
#include "layerpress/checkpoint/file_layout.h"
#include "layerpress/quant/scheme.h"
#include "layerpress/target/written_targets.h"

namespace layerpress::target {

/// What a finished run has besides tensors.
struct Finished {
  const checkpoint::Checkpoint& source;
  std::string recipe;                 ///< as YAML
  std::function<Json()> config;       ///< config.json
  std::function<std::string()> card;  ///< the model card
};

/// What of a model is compressed besides linears.
struct CompressedParts {
  bool experts = false;
  bool embeddings = false;
  std::optional<quant::QuantizationArgs> cache{};  ///< of keys and values
};

/// The scheme of some compressed modules and the shape of their weights.
struct CompressedShape {
  quant::QuantizationScheme scheme;
  std::int64_t rows = 0, columns = 0;
  bool operator==(const CompressedShape&) const = default;
};

/// How a result is served.
struct Serving {
  std::string command;
  std::string hardware;  ///< follows "needs"
};

/// What is written where, for some engines: the names and forms of tensors, the files, and what the engines can run. A run's tensors have
/// the model's names everywhere but in the files.
class Target {
 public:
  Target() = default;
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;
  virtual ~Target() = default;

  /// "in ..."; for people.
  virtual std::string format() const = 0;
  /// The engines that run it; for people.
  virtual std::string engines() const = 0;

  /// Why it cannot hold weights of a scheme; "": it can.
  virtual std::string refusal(const quant::QuantizationScheme& scheme) const = 0;

  /// Whether it has a place for scales of inputs, keys and values.
  virtual bool holds_activation_scales() const = 0;

  /// Whether its engines run some linears as one, which then need one scheme and common parameters.
  virtual bool fuses_linears() const = 0;
  /// Whether a head that shares the embedding's weight has none of its own in the result, even if the embedding is compressed.
  virtual bool keeps_ties() const = 0;

  /// Whether its engines read a factor beside a weight in blocks (quant::with_scaled_blocks).
  virtual bool reads_scale_of_blocks(const std::string& weight) const = 0;

  /// What its engines compute otherwise than the model does; for people.
  virtual std::vector<std::string> notes() const { return {}; }
  /// Why a tensor of the model is not in the result; nothing: it is. Throws CheckpointError naming a tensor that the result cannot hold.
  virtual std::optional<std::string> left_out(const std::string& tensor) const = 0;
  /// The forms of a tensor that is not compressed: one under its own name, or several parts under names of their own.
  virtual std::vector<checkpoint::TensorSpec> plain_forms(const checkpoint::TensorSpec& original) const = 0;
  /// A tensor, compressed or not, as it is stored, and back.
  virtual at::Tensor stored(const std::string& name, const at::Tensor& value) const = 0;
  virtual at::Tensor restored(const std::string& name, const at::Tensor& stored) const = 0;
  /// Tensors that the result has besides the model's.
  virtual std::vector<std::pair<checkpoint::TensorSpec, at::Tensor>> own_tensors() const = 0;

  /// The scheme of a compressed tensor; null: it is plain.
  using SchemeOf = std::function<const quant::QuantizationScheme*(const std::string& tensor)>;
  /// The files of tensors in the forms above.
  virtual checkpoint::CheckpointLayout layout(const std::vector<checkpoint::TensorSpec>& specs,
                                              const checkpoint::FileDivision& division,
                                              const SchemeOf& scheme_of) const = 0;

  /// Whether a config.json belongs to it. If not, the first bytes of its files say all that one would.
  virtual bool has_config() const = 0;
  /// What config.json says of the compressed modules: the name of a member and its value. REQUIRES: has_config().
  virtual std::pair<std::string, Json> config_of(const CompressedModules& compressed) const = 0;
  /// Writes what the folder of the result holds besides weight files.
  virtual void write_others(const Finished& finished, const std::filesystem::path& folder) const = 0;
  /// The file that is the whole result; "": the folder is.
  virtual std::string only_file() const = 0;

  /// Why its engines cannot run modules of this scheme fast, or at all; nothing: they can.
  virtual std::optional<std::string> kernel_gap(const quant::QuantizationScheme& scheme, std::int64_t rows,
                                                std::int64_t columns, bool is_embedding) const = 0;
  /// Why its engines do not read a cache of keys and values with these scales; nothing: they do.
  virtual std::optional<std::string> cache_gap(const quant::QuantizationArgs& cache) const = 0;
  /// What its engines do not do with weights of which `pruned` of each `group` of a row are zero; "": nothing is lost.
  virtual std::string sparsity_gap(std::int64_t pruned, std::int64_t group) const = 0;
  /// What its engines do otherwise with models of this type whose heads or embeddings a run has changed; for people. `unties`: the head has a weight
  /// apart from the embedding's only in the result.
  virtual std::vector<std::string> vocabulary_gaps(const std::string& model_type, bool unties,
                                                   bool compresses_embeddings) const = 0;
  /// `modules`: all schemes and shapes that are compressed.
  virtual Serving serving(const std::string& output, const std::vector<CompressedShape>& modules,
                          const CompressedParts& parts) const = 0;
};

/// A folder in the format of compressed-tensors, for vLLM and transformers.
std::unique_ptr<Target> compressed_tensors_target();

}  // namespace layerpress::target
