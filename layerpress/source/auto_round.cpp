
#include "layerpress/base/json.h"
#include "layerpress/source/source_format.h"

namespace layerpress::source {

std::unique_ptr<SourceFormat> awq(const Json& config, const std::string& where);
std::unique_ptr<SourceFormat> gptq(const Json& config, const std::string& where);

/// AutoRound packs integers as GPTQ or AWQ does; `extra_config` has settings of its own for some modules, as GPTQ's `dynamic` has.
std::unique_ptr<SourceFormat> auto_round(const Json& config, const std::string& where) {
  const auto refuse_other = [&](const std::string& key, const std::string& value, const std::string& only) {
    throw UnsupportedError("[source.auto-round] {}: {} '{}' is not supported; only {}", where, key, value, only);
  };
  const auto type = json_get_or<std::string>(config, "data_type", where, "int");
  if (type != "int") refuse_other("data_type", type, "int is");
  if (const int bits = json_get_or<int>(config, "act_bits", where, 16); bits < 16)
    refuse_other("act_bits", std::to_string(bits), "weights alone are");
  const auto packing = json_get_or<std::string>(config, "packing_format", where, "auto_round:auto_gptq");
  Json changed = config;
  if (packing == "auto_round:auto_awq") {
    changed["zero_point"] = !json_get_or<bool>(config, "sym", where, true);
    return awq(changed, where);
  }
  if (packing != "auto_round" && packing != "auto_round:auto_gptq" && packing != "auto_round:gptqmodel")
    refuse_other("packing_format", packing,
                 "auto_round, auto_round:auto_gptq, auto_round:gptqmodel and auto_round:auto_awq are");
  changed["checkpoint_format"] = packing == "auto_round:auto_gptq" ? "gptq" : "gptq_v2";
  return gptq(changed, where);
}

}  // namespace layerpress::source
