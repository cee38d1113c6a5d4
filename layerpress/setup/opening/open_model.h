#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "layerpress/base/progress.h"
#include "layerpress/checkpoint/checkpoint.h"
#include "layerpress/data/calibration_set.h"
#include "layerpress/execution/batch.h"
#include "layerpress/gguf/container/metadata.h"
#include "layerpress/graph/partition.h"
#include "layerpress/model/blocks/architecture.h"
#include "layerpress/model_in_memory.h"
#include "layerpress/quant/quantization_config.h"
#include "layerpress/residency/weight_source.h"
#include "layerpress/rewrite/rewrite.h"
#include "layerpress/source/stored_weight.h"

namespace layerpress::setup {

/// An attention whose keys and values are served quantized.
struct StoredAttention {
  quant::QuantizationArgs args;
  /// That of its queries, if they are quantized, too; one object for all attentions of the group.
  std::shared_ptr<const quant::QuantizationScheme> group{};
};

/// A model folder opened, traced and checked. Weights that are stored quantized appear in `checkpoint` with their values, which are
/// computed when they are loaded.
struct OpenedModel : rewrite::Model {
  std::shared_ptr<const checkpoint::Checkpoint> stored;  ///< the checkpoint with its tensors as they are
  std::string architecture;
  std::vector<std::string> rewrites{};  ///< what was changed before any data, one line each, for people
  std::set<std::string> rewritten{};    ///< the tensors that a recipe has changed so
  std::map<std::string, source::StoredWeight>
      rewritten_quantized{};                              ///< those of them that the source stores quantized
  std::string source_format;                              ///< a few words for people; "" for a plain checkpoint
  std::optional<gguf::Metadata> file_metadata{};          ///< of a model that is a GGUF
  std::map<std::string, source::StoredWeight> quantized;  ///< by weight name; empty for a plain checkpoint
  std::set<std::string>
      kept;  ///< quantized weights that the output has with the same codes (kept_weights.h), if not compressed
  /// Weights that the output has in stacked or fused tensors of `checkpoint`, which nothing reads (stacked_experts.h).
  std::set<std::string> written_stacked{};
  /// The stacked weights that linears of experts in `quantized` were taken out of, by name.
  std::map<std::string, source::StoredWeight> stacked_quantized{};
  std::map<std::string, StoredAttention> quantized_attentions{};  ///< by name; of a source of compressed-tensors
  at::ScalarType stored_dtype = at::kBFloat16;                    ///< dtype of the first plain weight
  bool has_tokenizer = true;                                      ///< false for a GGUF whose tokenizer is none
  bool keeps_codes = true;  ///< quantized weights that stay are not to be written as values

  std::unique_ptr<residency::WeightSource> weights() const;
};

/// The tokens that the experts of a mixture are calibrated on. The model's output is the same.
enum class ExpertTokens { kAll, kRouted };

/// How a model is opened.
struct ModelChoice {
  ExpertTokens tokens = ExpertTokens::kAll;
  std::string graph = "auto";                           ///< --model-graph
  bool trust_remote_code = false;                       ///< for an exported graph
  std::string device = "auto", dtype = "auto";          ///< as choose_placement takes them
  std::shared_ptr<const ModelInMemory> in_memory = {};  ///< instead of the named model
  /// Round dequantized weights to the computing dtype only, not to the dtype of the other weights first, if `dtype` is auto.
  bool dequantize_for_computing = false;
  std::string exported_graph{};    ///< folder of the model's graph, if it is there already
  bool config_is_changed = false;  ///< the checkpoint's config is not that of its folder
};

/// Opens `model` (a folder, a GGUF file, or an id in the local Hugging Face cache). Throws CheckpointError, and UsageError for an
/// unknown choice.
OpenedModel open_model(const std::string& model, const ModelChoice& choice = {}, const RunControl& control = {});

/// The config.json of `model`, or what a GGUF file says in its place.
Json config_of(const std::string& model);

/// The device ("auto", "cpu", "cuda", "cuda:1") and the computing dtype ("auto", "bf16" or "bfloat16", "fp16", "fp32"). On
/// a CPU, fp16 checkpoints are computed in fp32. Throws UsageError.
residency::Placement choose_placement(const std::string& device, const std::string& dtype, at::ScalarType stored);

/// The arithmetic of products, such as "float32 on avx2".
std::string arithmetic_words(const residency::Placement& placement);

/// Sets the number of CPU threads; 0 means one per usable core, or OMP_NUM_THREADS. Returns the number. Call it before the first
/// computation: results of several threads are the same in each process only after it. Throws UsageError when negative.
int set_threads(int threads);

/// Tokens per batch: as requested, or such that a layer's widest activations stay near 32 MB, on a GPU near 256 MB.
std::int64_t choose_batch_tokens(std::int64_t asked, const graph::Graph& graph, at::Device device);

/// Packs the samples, with their images, into batches for the model. Throws DataError naming the sample if the model
/// cannot use its images.
std::vector<execution::Batch> make_batches(const data::CalibrationSet& set, std::int64_t batch_tokens,
                                           const graph::Graph& graph);

/// Cuts the model at the named targets, or at its decoder layers if `targets` is empty, with `targets_per_subgraph` of
/// them in each subgraph. Throws UsageError if a target matches no module or the number is not positive.
std::vector<graph::Subgraph> cut_model(const model::TracedModel& model, const std::vector<std::string>& targets,
                                       std::int64_t targets_per_subgraph = 1);

/// The name of a dtype on the command line and in config.json.
std::string dtype_word(at::ScalarType dtype);

}  // namespace layerpress::setup
