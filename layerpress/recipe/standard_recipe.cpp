#include "layerpress/recipe/standard_recipe.h"

#include <cctype>

#include "layerpress/quant/scheme.h"

namespace layerpress::recipe {
namespace {

/// By the last parts of names, so that dense layers, experts and shared experts match, and routers do not.
constexpr const char* kFeedForward = "re:.*\\.(gate_proj|up_proj|down_proj|gate_up_proj|w1|w2|w3|fc1|fc2)$";
/// Of linear attention only the large projections.
constexpr const char* kAttention =
    "re:.*(attn|attention)\\.(q_proj|k_proj|v_proj|o_proj|qkv_proj|q_a_proj|q_b_proj|kv_a_proj_with_mqa|kv_b_proj|"
    "in_proj_qkv|in_proj_z|out_proj)$";
constexpr const char* kEncoders = "re:.*(vision|visual|audio|multi_modal|multimodal).*";
constexpr const char* kPredictors = "re:^mtp.*";

OrderedJson group(const char* preset, const char* target) {
  const quant::QuantizationScheme scheme = quant::preset_scheme(preset);
  OrderedJson group = {{"targets", {target}}, {"weights", quant::to_json(*scheme.weights)}};
  group["input_activations"] = quant::to_json(*scheme.input_activations);
  return group;
}

}  // namespace

bool is_standard_recipe(const std::string& scheme) {
  std::string lower = scheme;
  for (char& c : lower) c = c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower == "nvfp4-fp8";
}

bool is_standard_pattern(const std::string& entry) { return entry == kEncoders || entry == kPredictors; }

OrderedJson standard_arguments(const std::vector<std::string>& ignore, bool caches_heads) {
  OrderedJson arguments;
  arguments["ignore"] = ignore;
  for (const char* pattern : {kEncoders, kPredictors}) arguments["ignore"].push_back(pattern);
  arguments["config_groups"]["group_0"] = group("NVFP4", kFeedForward);
  arguments["config_groups"]["group_1"] = group("FP8_DYNAMIC", kAttention);
  if (caches_heads) {
    quant::QuantizationArgs cache;
    cache.type = quant::NumberType::kFloat;
    cache.observer = "static_minmax";
    arguments["kv_cache_scheme"] = quant::to_json(cache);
  }
  return arguments;
}

}  // namespace layerpress::recipe
