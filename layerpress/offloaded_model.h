#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "layerpress/base/json.h"

namespace layerpress {

/// How load_offloaded_model keeps parameters, with LLM Compressor's words.
struct OffloadOptions {
  /// "auto_offload": modified parameters in memory until the budget is used, then in offload_dir; "cpu": always in memory;
  /// "disk": always in offload_dir. Unmodified ones stay mapped from the checkpoint in every case.
  std::string device_map = "auto_offload";
  std::string offload_dir;    ///< folder for modified parameters on disk; empty: none
  std::string memory_budget;  ///< for modified parameters, such as "4GiB"; empty: half of what is free
};

/// A model of any size, of which only what is used is in memory.
///
///   auto model = layerpress::load_offloaded_model("models/llama", {.offload_dir = "scratch"});
///   {
///     const std::string name = "model.layers.0.self_attn.q_proj.weight";
///     const auto layer = model.onload({name}, at::kCPU);  // there while `layer` lives
///     model.update(name, 0.5 * layer.parameter(name));
///   }
///   model.save("models/llama-halved");
class OffloadedModel {
 public:
  enum class Place { kMapped, kMemory, kDisk };

  /// Parameters on a device, until the object goes.
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
  /// A parameter where it lies: a view of mapped memory, or the modified value. Do not write into it.
  at::Tensor parameter(const std::string& name) const;
  Place place(const std::string& name) const;
  /// Gives a parameter a new value of any shape and dtype. Tensors got before keep the old one. Throws CheckpointError for a
  /// name that the model lacks, MemoryError when neither memory nor disk is left for it.
  void update(const std::string& name, const at::Tensor& value);
  /// Brings parameters to a device, each in its own dtype. On a CPU nothing is copied.
  Onloaded onload(const std::vector<std::string>& names, at::Device device) const;
  /// Writes a plain checkpoint with the present values and the companion files. The folder appears complete or not at all.
  void save(const std::string& directory, const std::string& max_shard_size = "5GB") const;

 private:
  friend OffloadedModel load_offloaded_model(const std::string& model, const OffloadOptions& options);
  struct State;
  explicit OffloadedModel(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// Opens a model (a folder, or an id in the local Hugging Face cache) without reading its weights. Processes on one node that
/// open the same model share one copy of what is unmodified; nothing has to be agreed on between them. Throws
/// layerpress::Error.
OffloadedModel load_offloaded_model(const std::string& model, const OffloadOptions& options);
inline OffloadedModel load_offloaded_model(const std::string& model) { return load_offloaded_model(model, {}); }

}  // namespace layerpress
