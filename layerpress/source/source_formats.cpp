#include <algorithm>
#include <array>

#include "layerpress/base/text.h"
#include "layerpress/source/source_format.h"

namespace layerpress::source {

// Each is defined in the file with its name; `where` names the configuration.
using Maker = std::unique_ptr<SourceFormat> (*)(const Json& config, const std::string& where);
std::unique_ptr<SourceFormat> auto_round(const Json& config, const std::string& where);
std::unique_ptr<SourceFormat> awq(const Json& config, const std::string& where);
std::unique_ptr<SourceFormat> compressed_tensors(const Json& config, const std::string& where);
std::unique_ptr<SourceFormat> fp8(const Json& config, const std::string& where);
std::unique_ptr<SourceFormat> gptq(const Json& config, const std::string& where);
std::unique_ptr<SourceFormat> modelopt(const Json& config, const std::string& where);
std::unique_ptr<SourceFormat> mxfp4(const Json& config, const std::string& where);

namespace {

struct Known {
  const char* method;  ///< config.json's quant_method
  Maker make;
};
constexpr std::array kKnown = {Known{"fp8", fp8},
                               Known{"compressed-tensors", compressed_tensors},
                               Known{"mxfp4", mxfp4},
                               Known{"modelopt", modelopt},
                               Known{"gptq", gptq},
                               Known{"awq", awq},
                               Known{"auto-round", auto_round}};

}  // namespace

std::unique_ptr<SourceFormat> source_format(const checkpoint::Checkpoint& stored) {
  const Json& config = stored.quantization_config();
  if (config.is_null()) return nullptr;
  const std::string where = "config.json: quantization_config";
  if (!config.is_object()) throw CheckpointError("[source.format] {}: is not an object; fetch the file again", where);
  if (!json_has(config, "quant_method"))
    throw CheckpointError(
        "[source.format] {}: quant_method is missing, so nothing says how weights are stored; fetch config.json again, "
        "or remove quantization_config if they are plain",
        where);
  const auto method = json_get<std::string>(config, "quant_method", where);
  std::vector<std::string> names;
  for (const Known& known : kKnown) {
    if (known.method == method) return known.make(config, where);
    names.emplace_back(known.method);
  }
  throw UnsupportedError("[source.format] {}: quant_method '{}' is not supported; supported: {}", where, method,
                         join(names));
}

bool describes_activations(const std::string& tensor) {
  const std::string last = last_part(tensor);
  constexpr std::array kNames = {
      "k_scale",           "v_scale",         "q_scale",      "k_zero_point", "v_zero_point",       "q_zero_point",
      "prob_scale",        "kv_scale",        "output_scale", "input_scale",  "input_global_scale", "input_zero_point",
      "output_zero_point", "activation_scale"};
  return std::find(kNames.begin(), kNames.end(), last) != kNames.end();
}

}  // namespace layerpress::source
