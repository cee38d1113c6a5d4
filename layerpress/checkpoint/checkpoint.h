#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "layerpress/base/files/temporary_directory.h"
#include "layerpress/base/json.h"
#include "layerpress/checkpoint/safetensors.h"

namespace layerpress::checkpoint {

/// A tensor that is a concatenation of others, such as all experts of a layer.
struct FusedTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  struct Member {
    std::string name;
    std::vector<std::int64_t> shape;
  };
  std::vector<Member> members;  ///< in the order of their bytes; together they fill the tensor
};

/// A tensor that is computed from stored ones whenever it is loaded, such as a weight from its codes and scales.
struct ComputedTensor {
  TensorSpec spec;
  std::vector<std::string> parts;       ///< the tensors that it stands for, stored or computed themselves
  std::function<at::Tensor()> compute;  ///< gives a tensor of the spec's dtype and shape on the CPU; thread-safe
  std::uint64_t workspace_bytes = 0;    ///< beside its result
  /// If the parts hold such tensors for every expert: the expert, whose place in their first dimension alone is read. -1: they are
  /// read whole.
  std::int64_t expert = -1;
  std::int64_t sharers = 1;  ///< tensors of equal size that are computed from the same places
};

/// A Hugging Face model folder opened for reading: config.json and the memory-mapped tensors of all shards, never
/// loaded as a whole. Thread-safe. Opening checks every header and the index: each file must have a plain name inside
/// the folder (symbolic links are followed), every tensor in the index must be present, and no tensor may occur twice.
class Checkpoint {
 public:
  /// Throws CheckpointError if the folder, config.json or the weights are missing (for a folder with only *.bin / *.pth
  /// / *.gguf files, the message says to convert to safetensors), or if a shard named by the index is missing or
  /// damaged.
  static std::shared_ptr<const Checkpoint> open(const std::filesystem::path& directory);

  /// A model in memory, whose tensors stay where they are. Nothing may write to them while they are read. Throws CheckpointError
  /// naming a tensor that is not contiguous, not on the CPU, or of a dtype that a checkpoint cannot have.
  static std::shared_ptr<const Checkpoint> in_memory(Json config, const std::map<std::string, at::Tensor>& tensors);

  /// Tensors of another kind of file, whose positions lie in it.
  struct OtherFile {
    std::shared_ptr<const MappedFile> file;
    std::vector<StoredTensor> tensors;
  };
  /// A model in such files, of which the first is its location. `folder` holds what a model folder has besides weights.
  static std::shared_ptr<const Checkpoint> of_files(const std::vector<OtherFile>& files,
                                                    std::shared_ptr<const TemporaryDirectory> folder, Json config);

  /// The same checkpoint, with each tensor of `fused` that it contains replaced by its members. Throws CheckpointError
  /// if such a tensor has another shape.
  std::shared_ptr<const Checkpoint> unfused(const std::vector<FusedTensor>& fused) const;

  /// The same checkpoint with computed tensors in place of those that are their parts. Throws CheckpointError if it has
  /// another tensor of such a name.
  std::shared_ptr<const Checkpoint> with_computed(const std::vector<ComputedTensor>& tensors) const;

  /// The same checkpoint with tensors of another one. Throws CheckpointError if it has one of such a name.
  std::shared_ptr<const Checkpoint> with_tensors_of(const Checkpoint& other,
                                                    const std::vector<std::string>& names) const;

  /// A tensor that is also there under another name.
  struct Copy {
    std::string name, of;
  };
  /// The same checkpoint with tensors also under other names; a tensor that has such a name itself is hidden, but may be copied.
  /// Throws CheckpointError if `of` is absent.
  std::shared_ptr<const Checkpoint> with_copies(const std::vector<Copy>& copies) const;

  /// The same checkpoint with a patch merged into its config (RFC 7386).
  std::shared_ptr<const Checkpoint> with_config(const Json& patch) const;

  /// The same checkpoint without these tensors.
  std::shared_ptr<const Checkpoint> without(const std::vector<std::string>& names) const;

  /// The folder with config.json, tokenizer and the other files; empty for a model in memory.
  const std::filesystem::path& directory() const { return directory_; }
  /// What the user named: the folder, or a file that is the whole model or its first part.
  const std::filesystem::path& location() const { return location_; }
  const Json& config() const { return config_; }
  /// config.json's quantization_config, or what stands for it in one of the other places where engines look: null if there is
  /// none. Older and separate files are brought into the form of config.json, with a quant_method.
  const Json& quantization_config() const { return quantization_config_; }

  bool contains(const std::string& name) const { return places_.count(name) != 0; }
  bool is_computed(const std::string& name) const { return place(name).computed != nullptr; }
  /// The stored tensors, or places in them, that a tensor consists of; of one that is not computed, itself.
  std::vector<StoredTensor> stored_parts(const std::string& name) const;
  /// Its share of them, if other tensors are computed from the same ones.
  std::uint64_t stored_bytes(const std::string& name) const;
  /// Memory that tensor() takes besides its result.
  std::uint64_t workspace_bytes(const std::string& name) const;
  /// Throws CheckpointError if there is no such tensor. Of a computed one there is no offset.
  const StoredTensor& spec(const std::string& name) const;
  /// A view of mapped memory, see SafetensorsFile::tensor; a new tensor if it is computed.
  at::Tensor tensor(const std::string& name) const;
  void will_need(const std::string& name) const;
  /// Reads the tensor's bytes into memory and returns when they are there, see MappedFile::fetch.
  void fetch(const std::string& name) const;
  void release(const std::string& name) const;

  /// All tensor names, sorted.
  std::vector<std::string> names() const;
  std::uint64_t total_bytes() const;
  /// Of all files with tensors, with what is beside these.
  std::uint64_t file_bytes() const;
  /// The files that contain the tensors, sorted.
  std::vector<std::filesystem::path> weight_files() const;
  /// What belongs to the model beside weights, index, config.json and what older tools wrote instead of its quantization_config:
  /// tokenizer, generation settings, licence..., regular files at the top level, and the templates in kTemplatesFolder. Relative to
  /// directory(), sorted.
  std::vector<std::filesystem::path> companion_files() const;
  /// Everything else in the folder that is not hidden: other folders ("onnx/"), weights in other formats, an adapter. Sorted.
  std::vector<std::string> other_entries() const;

 private:
  Checkpoint() = default;
  struct Computation;
  struct Place {
    std::shared_ptr<const MappedTensors> file;  // null: in memory
    StoredTensor tensor;
    at::Tensor memory = {};                         // that `tensor` is, or is a part of
    std::shared_ptr<const Computation> computed{};  // neither file nor memory then
  };
  const Place& place(const std::string& name) const;
  template <typename Function>
  void for_each_part(const std::string& name, Function&& function) const;
  std::filesystem::path directory_, location_;
  std::optional<std::vector<std::filesystem::path>> companions_;  // found when a folder was opened
  std::shared_ptr<const TemporaryDirectory> folder_;              // that `directory_` is, if the model is no folder
  Json config_;
  Json quantization_config_;
  std::map<std::string, Place> places_;
};

}  // namespace layerpress::checkpoint
