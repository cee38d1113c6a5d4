#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "layerpress/base/json.h"
#include "layerpress/quant/scheme.h"
#include "layerpress/quant/targets/matching.h"

namespace layerpress::quant {

/// config.json's quantization_config in typed form.
struct QuantizationConfig {
  std::vector<std::pair<std::string, QuantizationScheme>> groups;  ///< name ("group_0") and scheme, in order
  std::vector<std::string> ignore;
  std::optional<QuantizationArgs> kv_cache_scheme{};  ///< of all attentions' keys and values
};

/// The complete quantization_config object with sorted keys: quant_method, status "compressed", every key present, a
/// format per group, and "mixed-precision" at the top level if the groups' formats differ.
Json to_json(const QuantizationConfig& config);

/// Reads a compressed checkpoint's quantization_config, as far as it concerns weights. Throws CheckpointError for another
/// quant_method, a status other than compressed, or an unsupported format.
QuantizationConfig parse_quantization_config(const Json& object, const std::string& where);

/// The scheme of each module by the rules of compressed-tensors: ignored modules have none; otherwise exact name, then
/// regex, then class name. Returns an index into `groups`, or -1.
std::vector<int> assign_groups(const QuantizationConfig& config, const std::vector<ModuleName>& modules);

}  // namespace layerpress::quant
