#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "layerpress/base/json.h"
#include "layerpress/checkpoint/safetensors.h"

namespace layerpress::checkpoint {

/// A tensor that holds others one after the other: experts of a layer stored as one, say.
struct FusedTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  struct Member {
    std::string name;
    std::vector<std::int64_t> shape;
  };
  std::vector<Member> members;  ///< in the order of their bytes, of which there are as many
};

/// A Hugging Face model folder opened for reading: config.json and the tensors of all shards, mapped, never loaded as a
/// whole. Thread-safe. Opening checks every header, the index (each file a plain name inside the folder; every tensor
/// it names present; symbolic links are followed) and that no tensor stands twice.
class Checkpoint {
 public:
  /// Throws CheckpointError: folder, config.json or weights missing (a folder with only *.bin / *.pth / *.gguf files is
  /// told apart and says to convert to safetensors), a shard named by the index missing or damaged.
  static std::shared_ptr<const Checkpoint> open(const std::filesystem::path& directory);

  /// The same checkpoint with the members in place of each of `fused` that it holds. Throws CheckpointError when one has
  /// another shape.
  std::shared_ptr<const Checkpoint> unfused(const std::vector<FusedTensor>& fused) const;

  const std::filesystem::path& directory() const { return directory_; }
  const Json& config() const { return config_; }
  /// config.json's quantization_config (or the places vLLM also reads), null when there is none.
  const Json& quantization_config() const { return quantization_config_; }

  bool contains(const std::string& name) const { return places_.count(name) != 0; }
  /// Throws CheckpointError when absent.
  const StoredTensor& spec(const std::string& name) const;
  /// A view of mapped memory, see SafetensorsFile::tensor.
  at::Tensor tensor(const std::string& name) const;
  void will_need(const std::string& name) const;
  /// Brings the tensor's bytes into memory and returns when they are there, see MappedFile::fetch.
  void fetch(const std::string& name) const;
  void release(const std::string& name) const;

  /// All tensor names, sorted.
  std::vector<std::string> names() const;
  std::uint64_t total_bytes() const;
  /// The files that hold the tensors, sorted.
  std::vector<std::filesystem::path> weight_files() const;
  /// Files of the folder that are no weights, no index and no config.json: tokenizer, templates, generation, licence...
  /// Only plain files at the top level.
  std::vector<std::filesystem::path> companion_files() const;

 private:
  Checkpoint() = default;
  struct Place {
    std::shared_ptr<const SafetensorsFile> file;
    StoredTensor tensor;
  };
  const Place& place(const std::string& name) const;
  std::filesystem::path directory_;
  Json config_;
  Json quantization_config_;
  std::map<std::string, Place> places_;
};

}  // namespace layerpress::checkpoint
