#pragma once

#include <string>

#include "layerpress/base/json.h"
#include "layerpress/base/progress.h"
#include "layerpress/model_graph_options.h"

namespace layerpress {

/// The options of `layerpress verify`.
struct VerifyOptions {
  std::string model;
  std::string source;
  int threads = 0;
  std::string model_graph = "auto";
  bool trust_remote_code = false;
  bool download = false;

  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("source", self.source, "the model that MODEL was made of; its weights are compared with it");
    field("threads", self.threads, "CPU threads (default: one per usable core, or OMP_NUM_THREADS)");
    field("model-graph", self.model_graph, model_graph_help());
    field("trust-remote-code", self.trust_remote_code, trust_remote_code_help());
    field("download", self.download, download_help());
  }
};

/// Checks a checkpoint, plain or quantized, of any tool: {"model", "faults": [...], "warnings": [...], "tensors", "bytes",
/// "quantized", "seconds", and with a source "worst": [{"module", "error"}], "compared"}. A fault or warning is {"check",
/// "where", "what"}; a checkpoint with a fault gives wrong results or cannot be loaded. "error" is ‖W - Ŵ‖ / ‖W‖ against the source.
/// A damaged file is a fault, too; UsageError and IoError are for wrong options. Reads one tensor at a time.
Json verify(const VerifyOptions& options, const RunControl& control = {});

}  // namespace layerpress
