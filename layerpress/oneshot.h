#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "layerpress/base/json.h"
#include "layerpress/base/progress.h"
#include "layerpress/model_graph_options.h"

namespace layerpress {

namespace dist {
class Group;
}
using Distributed = dist::Group;  // distributed.h
struct ModelInMemory;             // model_in_memory.h

/// All options of `layerpress oneshot`. The command line is derived from visit(), which gives each option's name, field
/// and help. An empty string, an empty list or zero selects the default that the help names.
struct OneshotOptions {
  std::string model;
  std::string output;
  std::string recipe;
  std::string algorithm = "gptq";
  std::string scheme = "W4A16";
  std::int64_t group_size = 0;
  std::string observer;
  std::string quality = "balanced";
  double target_bits = 0;
  std::string target_size;
  std::vector<std::string> schemes;
  std::vector<std::string> targets = {"Linear"};
  std::vector<std::string> ignore = {"lm_head"};
  std::string dataset;
  std::string dataset_split = "train";
  std::string text_column = "text";
  std::int64_t num_calibration_samples = 512;
  std::int64_t max_seq_length = 2048;
  bool shuffle = false;
  std::uint64_t seed = 0;
  bool concatenate = false;
  bool use_loss_mask = false;
  bool moe_calibrate_all_experts = true;
  std::int64_t min_tokens_per_expert = 0;
  std::string pipeline;
  std::vector<std::string> sequential_targets;
  std::int64_t sequential_targets_per_subgraph = 1;
  std::int64_t batch_tokens = 0;
  std::string memory_budget;
  std::string device_memory_budget;
  std::string sequential_offload_device = "auto";
  std::string offload_dir;
  std::string device = "auto";
  std::string dtype = "auto";
  int threads = 0;
  std::string max_shard_size = "5GB";
  std::string model_graph = "auto";
  bool trust_remote_code = false;
  bool download = false;
  std::string push;
  bool push_public = false;
  bool overwrite = false;
  bool resume = false;
  std::int64_t timeout = 600;
  std::string summary;
  std::string report;
  std::string imatrix;
  std::string from_imatrix;
  /// Names of options whose value the caller has stated, even where it is the default's: beside a recipe such options are
  /// refused, and what differs from its default counts as stated anyway. The command line fills it in.
  std::vector<std::string> given;
  bool is_given(std::string_view option) const { return std::find(given.begin(), given.end(), option) != given.end(); }
  /// The model itself, instead of a folder that `model` names; `model` then only says how the model card calls it. Its data
  /// must be tokenized, its architecture one that Layerpress knows, and the run one of a single rank.
  std::shared_ptr<const ModelInMemory> model_in_memory;
  /// Every rank has a dataset file of its own making, in which dataset_split names its slice, or which are copies of each other.
  /// Otherwise ranks must name the same dataset.
  bool own_dataset = false;

  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("output", self.output, "directory for the compressed checkpoint, or FILE.gguf for llama.cpp");
    field("recipe", self.recipe, "LLM Compressor recipe (YAML or JSON) instead of --algorithm, --scheme, ...");
    field("algorithm", self.algorithm, "gptq or rtn (round-to-nearest)");
    field("scheme", self.scheme,
          "preset such as W4A16, FP8_DYNAMIC, NVFP4, or nvfp4-fp8; for a GGUF, llama.cpp's such as Q4_K_M");
    field("group-size", self.group_size, "columns that share a scale (default: the preset's)");
    field("observer", self.observer,
          "minmax, mse, squared_error, hessian, or gptq (default: hessian for gptq, gptq with --quality best; mse for "
          "rtn, "
          "squared_error with NVFP4 and MX)");
    field("quality", self.quality,
          "fast (minmax observer), balanced, or best (gptq and pruning aim at the original model's outputs: twice the "
          "work), or max (after rotations, which untie embeddings, or smoothing); explicit observer or recipe values "
          "override it");
    field(
        "from-imatrix", self.from_imatrix,
        "importance file by which errors are weighed when a GGUF is rounded without data, as llama-quantize --imatrix "
        "does");
    field(
        "target-bits", self.target_bits,
        "choose a scheme of --schemes for every linear by measurements, with this many stored bits per weight at most");
    field("target-size", self.target_size,
          "the same with this size of the whole result at most; sizes as for --memory-budget");
    field(
        "schemes", self.schemes,
        "with --target-bits or --target-size: schemes to choose from, such as NVFP4,FP8_DYNAMIC,none (left as it is); "
        "for a GGUF, types such as Q4_K,Q6_K");
    field("targets", self.targets, "modules to compress: class names, module names, re:patterns");
    field("ignore", self.ignore, "modules to leave alone, instead of this default; overrides --targets");
    field("dataset", self.dataset, "calibration data: .jsonl .json .csv .parquet .txt .safetensors, or a datasets id");
    field("dataset-split", self.dataset_split, "split of a datasets id; train[a:b] takes a slice, of files too");
    field("text-column", self.text_column, "column that holds the text");
    field("num-calibration-samples", self.num_calibration_samples, "how many samples to use");
    field("max-seq-length", self.max_seq_length, "longest sample in tokens; longer ones are cut");
    field("shuffle", self.shuffle, "take samples in seeded random order");
    field("seed", self.seed, "seed of --shuffle");
    field("concatenate", self.concatenate, "join samples and cut them into pieces of --max-seq-length");
    field("use-loss-mask", self.use_loss_mask,
          "calibrate only on the assistant's tokens, as the chat template or a column loss_mask marks them");
    field("moe-calibrate-all-experts", self.moe_calibrate_all_experts,
          "calibrate every expert on all tokens, not only on those routed to it (default: yes)");
    field("min-tokens-per-expert", self.min_tokens_per_expert,
          "least tokens for each expert with --no-moe-calibrate-all-experts (0, the default: 4 x the group size, at "
          "least 256)");
    field("pipeline", self.pipeline,
          "sequential, two_pass, basic or datafree (default: sequential when data is needed)");
    field("sequential-targets", self.sequential_targets, "modules to cut the model at (default: its decoder layers)");
    field("sequential-targets-per-subgraph", self.sequential_targets_per_subgraph,
          "how many of them are loaded together");
    field("batch-tokens", self.batch_tokens, "tokens packed into one batch (default: chosen from the model's size)");
    field("memory-budget", self.memory_budget,
          "memory the run may take on this machine: 4G and 4GiB are 4 * 2^30 bytes, 4GB is 4 * 10^9 (default: what "
          "machine, container and ulimit leave)");
    field("device-memory-budget", self.device_memory_budget,
          "the same for the device's memory (default: nine tenths of what is free)");
    field("sequential-offload-device", self.sequential_offload_device,
          "where activations are kept between layers: cpu, disk, none (the computing device), or auto (the GPU if all "
          "fit, else cpu within the budget, then disk)");
    field("offload-dir", self.offload_dir, "folder for activations on disk (default: beside the output)");
    field("device", self.device, "cpu, cuda, cuda:1 (default: cuda where there is one)");
    field("dtype", self.dtype, "bf16, fp16 or fp32 to compute in (default: the checkpoint's)");
    field("threads", self.threads,
          "CPU threads (default: one per usable core, or OMP_NUM_THREADS; divided by the ranks of this node)");
    field("max-shard-size", self.max_shard_size,
          "largest weight file; a GGUF is divided only if this is given; sizes as for --memory-budget");
    field("model-graph", self.model_graph, model_graph_help());
    field("trust-remote-code", self.trust_remote_code, trust_remote_code_help());
    field("download", self.download, download_help());
    field("push", self.push, "ORG/NAME: upload the result to this repository of the hub, private if it is new");
    field("push-public", self.push_public, "with --push: make a new repository public");
    field("overwrite", self.overwrite,
          "replace the output directory if it is not empty; start over if it is unfinished, unless --resume is there");
    field("resume", self.resume, "continue an interrupted run; start from the beginning if there is none");
    field("timeout", self.timeout,
          "seconds without a sign of life after which a rank of a distributed run counts as lost");
    field("summary", self.summary, "write a JSON summary to this file");
    field("report", self.report,
          "draw time, memory and errors on a page: an .html file, or none (default: beside the summary's file)");
    field("imatrix", self.imatrix,
          "write the calibration data's importance file, as llama-imatrix does, for any run with data, of models that "
          "GGUF has names for");
  }
};

/// The result of a run. `details` is the JSON that --summary writes: seconds, predicted and measured memory, phases
/// (seconds, flops, peak memory); for each module the error, the fallback used and the tokens seen; for each rank its
/// time, memory and traffic (complete on rank 0).
struct OneshotSummary {
  bool already_complete = false;  ///< the output was complete before the run
  double seconds = 0;
  std::uint64_t output_bytes = 0;
  std::int64_t modules = 0;    ///< compressed modules
  std::int64_t fallbacks = 0;  ///< compressed modules that needed a fallback
  std::string output;
  std::string uploaded;  ///< the address of the repository, if there was an upload
  Json details;
};

/// Compresses a model in one shot: reads the checkpoint layer by layer, calibrates, compresses, and writes a
/// compressed-tensors checkpoint. The output directory appears complete at the end, or not at all. A run that ends
/// early leaves its finished work in a hidden folder beside the output; a run with `resume` continues from there and
/// produces the same bytes. Throws layerpress::Error (base/error.h): InterruptedError if `control` asks to stop,
/// MemoryError before any work if the memory budget is too small.
///
///   layerpress::OneshotOptions options;
///   options.model = "models/llama", options.output = "models/llama-w4a16", options.dataset = "calibration.jsonl";
///   const layerpress::OneshotSummary summary = layerpress::oneshot(options);
///
/// With `ranks` (distributed.h), all ranks of the group call oneshot() with the same options and write one output
/// together. Each calibrates on its share of the samples, compresses its share of the rows and writes its own files. If
/// the ranks name disjoint slices in dataset_split, each reads its own slice; otherwise all must name the same split,
/// which is divided. An error on one rank ends all of them: every rank throws, and ranks->failure() names the rank and
/// the cause.
///
/// With `download`, files of the model that are not in the local cache are fetched first. With `push`, the first rank
/// uploads the complete output; IoError if that fails, which leaves the output in place.
OneshotSummary oneshot(const OneshotOptions& options, const RunControl& control = {}, Distributed* ranks = nullptr);

/// The plan of oneshot() with these options: {"peak_bytes", "spare_bytes": of it, freed memory that stays at hand,
/// "budget_bytes", "smallest_budget_bytes", "batch_tokens", "batches", "samples", "tokens", "estimated_seconds",
/// "machine": {rates measured just now}, "subgraphs": [{"name", "mode", "weight_bytes", "onloaded_bytes",
/// "activation_bytes", "activation_disk_bytes", "transient_bytes", "statistics_bytes", "workspace_bytes", "peak_bytes",
/// "device_peak_bytes", "flops": {phase: number}, "read_bytes", "written_bytes", "seconds"}], "measurement":
/// null, or with target_bits or target_size what is measured before, [{"name", "peak_bytes", "device_peak_bytes", "smallest_budget_bytes",
/// "seconds"}]}; the plan's own peaks, budget and seconds count it, and its subgraphs are those of a choice that may follow. Without a dataset, every
/// sample is assumed to have the maximum length. With `ranks`, the plan is this rank's. Throws like oneshot().
Json plan_oneshot(const OneshotOptions& options, const RunControl& control = {}, Distributed* ranks = nullptr);

/// Chooses a scheme for every linear, as oneshot() does with target_bits or target_size, and compresses nothing: {"recipe": YAML for
/// OneshotOptions::recipe, "bits": stored bits of a weight, "predicted_kl": nats per token, "measured_kl": that of the choice rounded to
/// nearest, on some of the data, "schemes": [{"scheme", "modules", "share": of the weights}], "uniform": [{"scheme", "bits",
/// "predicted_kl"}], with "measured_kl" for the next smaller and the next larger scheme, "curve": [{"bits", "predicted_kl"}]: the choices
/// for other limits, "units": [{"targets", "modules", "weights", "scheme", "predicted_kl": {SCHEME: number}, "left_by_gptq": the share of
/// these losses that counts for the choice; 1 with algorithm rtn}]: linears that get one scheme, "slack_bits": by how much a better
/// choice would have to stay below the limit (0: there is none), "disturbed_by": the scheme whose divergences were measured, "request",
/// "samples", "tokens", "seconds"}. `output` only says whether the result will be a GGUF. Throws like oneshot().
Json mixed_precision(const OneshotOptions& options, const RunControl& control = {}, Distributed* ranks = nullptr);

/// The progress of an unfinished run with output `output`.
struct UnfinishedRun {
  std::size_t finished = 0;   ///< finished subgraphs
  std::size_t subgraphs = 0;  ///< all subgraphs
};
std::optional<UnfinishedRun> find_unfinished_run(const std::string& output);
/// Whether a run with output `output` has left subgraphs or measurements with which --resume goes on.
bool can_resume(const std::string& output);

}  // namespace layerpress
