#include "layerpress/checkpoint/quantization_files.h"

#include <system_error>

namespace layerpress::checkpoint {
namespace {

struct QuantizationFile {
  const char* name;
  const char* method;
  const char* section;  ///< of the object that has the settings; "": the object itself
};
constexpr QuantizationFile kFiles[] = {{"hf_quant_config.json", "modelopt", "quantization"},
                                       {"quantize_config.json", "gptq", ""},
                                       {"quant_config.json", "awq", ""}};

Json read(const std::filesystem::path& path, const QuantizationFile& file) {
  constexpr std::uint64_t kLargest = 16u << 20;
  Json object = read_json_file(path, kLargest);
  if (object.is_object() && *file.section != 0) object = object.value(file.section, Json());
  if (!object.is_object())
    throw CheckpointError("[checkpoint.open] {}: does not describe a quantization; fetch the file again",
                          path.string());
  if (!object.contains("quant_method")) object["quant_method"] = file.method;
  return object;
}

}  // namespace

Json read_quantization_file(const std::filesystem::path& directory) {
  std::error_code ignored;
  for (const QuantizationFile& file : kFiles)
    if (const auto path = directory / file.name; std::filesystem::exists(path, ignored)) return read(path, file);
  return nullptr;
}

bool is_quantization_file(const std::string& name) {
  for (const QuantizationFile& file : kFiles)
    if (name == file.name) return true;
  return false;
}

}  // namespace layerpress::checkpoint
