#pragma once

#include <cstdint>
#include <string>

#include "layerpress/base/progress.h"
#include "layerpress/model_graph_options.h"

namespace layerpress {

struct PrepareOptions {
  std::string model;
  std::string dataset;
  std::string output;
  std::string dataset_split = "train";
  std::string text_column = "text";
  std::int64_t num_calibration_samples = 512;
  std::int64_t max_seq_length = 2048;
  bool shuffle = false;
  std::uint64_t seed = 0;
  bool concatenate = false;
  bool use_loss_mask = false;
  std::int64_t generate = 0;
  std::string model_graph = "auto";
  bool trust_remote_code = false;
  bool download = false;

  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("dataset", self.dataset, "data to tokenize: .jsonl .json .csv .parquet .txt, or a datasets id");
    field("output", self.output, "token file to write (.safetensors)");
    field("dataset-split", self.dataset_split, "split of a datasets id; train[a:b] takes a slice, of files too");
    field("text-column", self.text_column, "column that holds the text");
    field("num-calibration-samples", self.num_calibration_samples, "how many samples to use");
    field("max-seq-length", self.max_seq_length, "longest sample in tokens; longer ones are cut");
    field("shuffle", self.shuffle, "take samples in seeded random order");
    field("seed", self.seed, "seed of --shuffle and --generate");
    field("concatenate", self.concatenate, "join samples and cut them into pieces of --max-seq-length");
    field("use-loss-mask", self.use_loss_mask,
          "store which tokens are the assistant's, as the chat template or a column loss_mask marks them");
    field("generate", self.generate,
          "add this many samples that the model itself writes, by continuing parts of the others to the length of the "
          "longest; needs transformers, and memory for the whole model");
    field("model-graph", self.model_graph, model_graph_help());
    field("trust-remote-code", self.trust_remote_code, trust_remote_code_help());
    field("download", self.download, download_help());
  }
};

struct Prepared {
  std::int64_t samples = 0;
  std::int64_t tokens = 0;
};

/// Tokenizes calibration data with a model's tokenizer into a token file that oneshot and eval read without Python. The samples that
/// the model writes (`generate`) are the last ones.
Prepared prepare(const PrepareOptions& options, const RunControl& control = {});

}  // namespace layerpress
