#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "layerpress/base/json.h"

namespace layerpress {

/// Where load_offloaded_model keeps parameters. The names are those of LLM Compressor.
struct OffloadOptions {
  /// "auto_offload": modified parameters in memory until the budget is used, then in offload_dir; "cpu": always in
  /// memory; "disk": always in offload_dir. Unmodified ones stay mapped from the checkpoint in every case.
  std::string device_map = "auto_offload";
  std::string offload_dir;    ///< existing folder for modified parameters on disk; empty: no disk
  std::string memory_budget;  ///< of "auto_offload", such as "4GiB"; empty: half of what is free
};

/// A model of any size, which keeps in memory only the parameters in use.
///
///   auto model = layerpress::load_offloaded_model("models/llama", {.offload_dir = "scratch"});
///   {
///     const std::string name = "model.layers.0.self_attn.q_proj.weight";
///     const auto layer = model.onload({name}, at::kCPU);  // valid while `layer` exists
///     model.update(name, 0.5 * layer.parameter(name));
///   }
///   model.save("models/llama-halved");
class OffloadedModel {
 public:
  enum class Place { kMapped, kMemory, kDisk };

  /// Parameters on a device, for the lifetime of the object.
  class Onloaded {
   public:
    Onloaded(Onloaded&&) noexcept;
    ~Onloaded();
    /// Throws InternalError for a name that was not onloaded.
    const at::Tensor& parameter(const std::string& name) const;

   private:
    friend class OffloadedModel;
    struct State;
    explicit Onloaded(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
  };

  OffloadedModel(OffloadedModel&&) noexcept;
  ~OffloadedModel();

  /// config.json.
  const Json& config() const;
  /// All parameters, sorted.
  std::vector<std::string> names() const;
  /// The parameter where it is stored: a view of mapped memory, or the modified value. Do not write to it.
  at::Tensor parameter(const std::string& name) const;
  /// Throws CheckpointError if the model has no parameter `name`.
  Place place(const std::string& name) const;
  /// Sets a parameter to a new value of any shape and dtype. Tensors obtained earlier keep the old value. Throws
  /// CheckpointError if the model has no parameter `name` or no checkpoint can hold the value, MemoryError if neither memory nor
  /// disk has room for it.
  void update(const std::string& name, const at::Tensor& value);
  /// Copies parameters to a device, each in its own dtype. On a CPU nothing is copied. A later update() does not change them. Throws
  /// UsageError for a device that is not there.
  Onloaded onload(const std::vector<std::string>& names, at::Device device) const;
  /// Writes a plain checkpoint with the current values and the companion files. The folder appears complete or not at
  /// all.
  void save(const std::string& directory, const std::string& max_shard_size = "5GB") const;

 private:
  friend OffloadedModel load_offloaded_model(const std::string& model, const OffloadOptions& options);
  struct State;
  explicit OffloadedModel(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// Opens a model (a folder, or an id in the local Hugging Face cache) without reading its weights. Processes on one
/// node that open the same model share one copy of the unmodified parameters, without coordination. Throws
/// layerpress::Error.
OffloadedModel load_offloaded_model(const std::string& model, const OffloadOptions& options);
inline OffloadedModel load_offloaded_model(const std::string& model) { return load_offloaded_model(model, {}); }

}  // namespace layerpress
