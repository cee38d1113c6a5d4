#pragma once

#include <optional>
#include <string>
#include <vector>

#include "layerpress/quant/quantization_config.h"

namespace layerpress::target {

/// Modules by all names that readers know them by, and the group that each belongs to, or -1.
struct GroupedModules {
  std::vector<quant::ModuleName> modules;
  std::vector<int> groups;
  std::vector<std::string> head{};  ///< the names of the linear that makes logits, if it is among them
  /// No part of the model that readers build is missing here, such as a vision part with embeddings of its own.
  bool is_whole = true;
  bool gpt_oss = false;  ///< vLLM renames this model's modules and targets: `.self_attn.`, and what experts end with
};

/// What a result holds compressed, as its readers know it.
struct CompressedModules {
  std::vector<quant::QuantizationScheme> schemes;
  GroupedModules modules;                                    ///< groups are places among the schemes
  std::vector<std::string> ignored;                          ///< names that readers could take for more of them
  std::optional<quant::QuantizationArgs> kv_cache_scheme{};  ///< of all attentions' keys and values
};

/// Groups for a quantization_config, with names. Their targets are the schemes' own where compressed-tensors and vLLM, which
/// decide overlaps by different rules, both find the group that every module belongs to; where they would not, as few groups as
/// possible list their modules' names instead. Groups are in the order given, or in one that makes more of them keep their
/// targets, and so that transformers takes the group of the experts for them. Heads and embeddings also have targets by which vLLM finds them,
/// and attentions are named by their classes, each in a group of its own, because vLLM skips no other groups without weights. `ignore` holds the modules without a group, and a pattern in place
/// of gpt-oss's experts.
quant::QuantizationConfig with_targets(const std::vector<quant::QuantizationScheme>& schemes,
                                       const GroupedModules& grouped);

}  // namespace layerpress::target
