#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "layerpress/base/json.h"
#include "layerpress/base/progress.h"
#include "layerpress/model_graph_options.h"

namespace layerpress {

/// The options of `layerpress eval`.
struct EvaluateOptions {
  std::string model;
  std::string dataset;
  std::string reference;
  std::vector<std::string> tasks;
  std::string task_folder;
  std::string engine = "transformers";
  std::int64_t limit = 0;
  std::string dataset_split = "train";
  std::string text_column = "text";
  std::int64_t num_samples = 512;
  std::int64_t max_seq_length = 2048;
  std::int64_t batch_tokens = 0;
  bool quantize_activations = false;
  std::string device = "auto";
  std::string dtype = "auto";
  int threads = 0;
  std::string model_graph = "auto";
  bool trust_remote_code = false;
  bool download = false;
  std::string report;
  bool card = false;

  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("dataset", self.dataset, "evaluation data: .jsonl .json .csv .parquet .txt .safetensors, or a datasets id");
    field("reference", self.reference, "model to compare with, usually the uncompressed one");
    field("tasks", self.tasks, "tasks of lm-evaluation-harness to run, such as gsm8k; with or without --dataset");
    field("task-folder", self.task_folder, "folder with further tasks (YAML)");
    field("engine", self.engine, "engine that runs the tasks: transformers or vllm");
    field("limit", self.limit, "documents of each task (default: 0, which is all)");
    field("dataset-split", self.dataset_split, "split of a datasets id; train[a:b] takes a slice, of files too");
    field("text-column", self.text_column, "column that holds the text");
    field("num-samples", self.num_samples, "how many samples to use");
    field("max-seq-length", self.max_seq_length, "longest sample in tokens; longer ones are cut");
    field("batch-tokens", self.batch_tokens, "tokens packed into one batch (default: chosen from the model's size)");
    field("quantize-activations", self.quantize_activations,
          "round the inputs of linears by the checkpoint's scheme, as an engine that serves it does");
    field("device", self.device, "cpu, cuda, cuda:1 (default: cuda where there is one)");
    field("dtype", self.dtype, "bf16, fp16 or fp32 to compute in (default: the checkpoint's)");
    field("threads", self.threads, "CPU threads (default: one per usable core, or OMP_NUM_THREADS)");
    field("model-graph", self.model_graph, model_graph_help());
    field("trust-remote-code", self.trust_remote_code, trust_remote_code_help());
    field("download", self.download, download_help());
    field("report", self.report, "add the figures to a page that oneshot --report has drawn");
    field("card", self.card, "write the figures into the model card (README.md) of MODEL, which oneshot wrote");
  }
};

struct Evaluation {
  double perplexity = 0;    ///< exp of the mean negative log-likelihood over all predicted tokens
  std::int64_t tokens = 0;  ///< predicted tokens; 0 without a dataset
  double seconds = 0;
  std::optional<std::int64_t> rounded_linears;  ///< linears whose inputs were rounded; empty if that was not asked for
  std::optional<double> reference_perplexity;   ///< that of `reference`, on the same tokens
  std::optional<double> kl_divergence;          ///< mean over all tokens of KL(reference || model), natural logarithm
  /// A token of the text, and the divergence of what the models expect behind it.
  struct WorstToken {
    double kl_divergence = 0;
    std::int64_t sample = 0, position = 0;  ///< its sample and its place in it, both from 0
    std::int64_t id = 0;
    std::string text, before;  ///< its text, and that of the tokens before it; empty without a tokenizer
  };
  std::optional<double> kl_median, kl_percentile_99;  ///< of the tokens' divergences
  std::vector<WorstToken> worst_tokens;               ///< the five with the greatest divergence, in descending order
  std::optional<double> top1_agreement;  ///< share of tokens at which both models rank the same token first
  /// Relative error of the residual stream after a layer: the mean over all tokens of ‖x - x̃‖ / ‖x̃‖, where x̃ is the
  /// stream of the `reference` model.
  struct LayerError {
    std::string name;
    double relative_error = 0;
  };
  /// In order; empty without `reference`, or if its layers or the basis of its stream (SpinQuant's R1) differ.
  std::vector<LayerError> layers;
  /// With tasks: {"engine", "eval_time", "tasks": {name: {"metrics": {name: value}, "flex_extract", and with a
  /// reference "reference": its metrics, "recovery": their quotients}}}.
  Json tasks;
  Json to_json() const;
};

/// Measures a plain or compressed checkpoint on text, or on benchmarks. Each sample is run alone, with its special tokens. Activations
/// are quantized only with `quantize_activations`, and never those of `reference`. Throws layerpress::Error; with
/// `quantize_activations` UsageError if no scheme of the model quantizes activations.
Evaluation evaluate(const EvaluateOptions& options, const RunControl& control = {});

}  // namespace layerpress
