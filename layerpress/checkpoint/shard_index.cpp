#include "layerpress/checkpoint/shard_index.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <system_error>

#include "layerpress/base/file.h"
#include "layerpress/base/text.h"
#include "layerpress/checkpoint/strict_json.h"

namespace layerpress::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSafetensorsEnding = ".safetensors";
constexpr std::array<std::string_view, 18> kOtherWeightEndings = {
    ".bin", ".pth", ".pt",     ".gguf", ".h5",  ".msgpack", ".ckpt",  ".onnx",    ".onnx_data",
    ".ot",  ".npz", ".tflite", ".pkl",  ".tar", ".tar.gz",  ".keras", ".mlmodel", ".nemo"};

bool ends_like_other_weights(const std::string& name) {
  return std::any_of(kOtherWeightEndings.begin(), kOtherWeightEndings.end(),
                     [&](std::string_view ending) { return name.ends_with(ending); });
}

/// At most a few names, and the number of the others.
std::string shortened(std::vector<std::string> names) {
  constexpr std::size_t kMost = 4;
  std::sort(names.begin(), names.end());
  const std::size_t rest = names.size() > kMost ? names.size() - kMost : 0;
  names.resize(names.size() - rest);
  return join(names) + (rest > 0 ? fmt::format(" and {} more", rest) : "");
}

[[noreturn]] void report_no_weights(const fs::path& directory) {
  std::vector<std::string> safetensors;
  std::vector<std::string> others;
  std::error_code failure;
  for (const auto& entry : fs::directory_iterator(directory, failure)) {
    const std::string name = entry.path().filename().string();
    if (std::error_code dangling; name.ends_with(kSafetensorsEnding) && !entry.exists(dangling))
      throw CheckpointError("[checkpoint.open] {}: is a link to a file that is not there; download the model again",
                            entry.path().string());
    if (name.ends_with(kSafetensorsEnding)) safetensors.push_back(name);
    if (ends_like_other_weights(name)) others.push_back(name);
  }
  const std::string where = directory.string();
  if (!safetensors.empty())
    throw CheckpointError("[checkpoint.open] {}: has {}, but neither {} nor {}; download the folder again", where,
                          shortened(safetensors), kSingleFileName, kIndexName);
  const auto gguf =
      std::find_if(others.begin(), others.end(), [](const auto& name) { return name.ends_with(".gguf"); });
  if (gguf != others.end())
    throw CheckpointError("[checkpoint.open] {}: its weights are in {}; name that file: {}", where, shortened(others),
                          (directory / *gguf).string());
  if (!others.empty())
    throw CheckpointError(
        "[checkpoint.open] {}: its weights are in {}; convert them to safetensors first "
        "(transformers: from_pretrained, then save_pretrained)",
        where, shortened(others));
  throw CheckpointError("[checkpoint.open] {}: has no weights ({} or {}); download the folder again", where,
                        kSingleFileName, kIndexName);
}

void check_shard_name(const std::string& shard, const std::string& tensor, const std::string& index) {
  const bool plain = shard.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos &&
                     shard.find("..") == std::string::npos && shard.ends_with(kSafetensorsEnding);
  if (!plain)
    throw CheckpointError(
        "[checkpoint.open] {}: places tensor {} in {}; only plain names of .safetensors files in the "
        "same folder are allowed",
        index, in_quotes(tensor), in_quotes(shard));
}

ShardIndex read_index(const fs::path& path) {
  constexpr std::uint64_t kLargestIndex = 256u << 20;
  const std::string where = path.string();
  const Json document = parse_strict_json(read_text_file(path, kLargestIndex), where);
  const auto weight_map = document.is_object() ? document.find("weight_map") : document.end();
  if (weight_map == document.end() || !weight_map->is_object() || weight_map->empty())
    throw CheckpointError("[checkpoint.open] {}: has no 'weight_map' object that maps tensors to files", where);
  ShardIndex index;
  for (const auto& [tensor, shard] : weight_map->items()) {
    if (!shard.is_string())
      throw CheckpointError("[checkpoint.open] {}: tensor {} is mapped to {}, not to a file name", where,
                            in_quotes(tensor), in_quotes(shard.dump()));
    check_shard_name(shard.get<std::string>(), tensor, where);
    index.shards[shard.get<std::string>()].push_back(tensor);
  }
  return index;
}

void check_shards_exist(const ShardIndex& index, const fs::path& directory) {
  std::vector<std::string> missing;
  std::error_code failure;
  for (const auto& [shard, tensors] : index.shards)
    if (!fs::exists(directory / shard, failure)) missing.push_back(shard);
  if (!missing.empty())
    throw CheckpointError(
        "[checkpoint.open] {}: {} of the {} weight files that {} names are missing: {}; download them "
        "again",
        directory.string(), missing.size(), index.shards.size(), kIndexName, shortened(missing));
}

}  // namespace

ShardIndex find_shards(const fs::path& directory) {
  std::error_code failure;
  if (fs::exists(directory / kSingleFileName, failure)) return {{{kSingleFileName, {}}}};
  if (!fs::exists(directory / kIndexName, failure)) report_no_weights(directory);
  ShardIndex index = read_index(directory / kIndexName);
  check_shards_exist(index, directory);
  return index;
}

bool is_weights_name(const std::string& name) {
  constexpr std::string_view kIndexEnding = ".index.json";
  const bool says_how = name == kAdapterConfigName || (name.starts_with("openvino_") && name.ends_with(".xml"));
  return says_how || name.ends_with(kSafetensorsEnding) || name.ends_with(kIndexEnding) ||
         ends_like_other_weights(name);
}

}  // namespace layerpress::checkpoint
