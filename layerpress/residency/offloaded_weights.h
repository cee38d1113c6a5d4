#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "layerpress/base/files/scratch_file.h"
#include "layerpress/residency/weight_source.h"

namespace layerpress::residency {

/// The parameters of a checkpoint, some of which have new values. Unmodified parameters stay mapped, so that all
/// processes of a node share one copy. Modified parameters are in memory until the budget is used, then in a file of
/// this process.
class OffloadedWeights : public WeightSource {
  struct OffloadFile;

 public:
  enum class Place { kMapped, kMemory, kDisk };

  /// `offload_folder` is for modified parameters beyond `memory_budget` bytes; empty: none may exceed it.
  OffloadedWeights(std::shared_ptr<const checkpoint::Checkpoint> checkpoint, std::uint64_t memory_budget,
                   std::filesystem::path offload_folder);
  ~OffloadedWeights() override;  ///< removes the file

  at::Tensor load(const std::string& name) const override;
  void will_need(const std::string& name) const override;
  void fetch(const std::string& name) const override;
  void release(const std::string& name) const override;

  /// Sets a parameter to a new value of any dtype and shape, from any device. Tensors from earlier load() calls keep
  /// the old value. Throws CheckpointError if the checkpoint has no parameter `name`, MemoryError if neither memory nor
  /// disk has room.
  void update(const std::string& name, const at::Tensor& value);

  Place place(const std::string& name) const;

 private:
  /// An extent of the scratch file, freed when the value and all its views are destroyed.
  struct OnDisk;
  struct Modified {
    at::Tensor tensor;  // in memory, or undefined
    std::shared_ptr<const OnDisk> disk;
    std::vector<std::int64_t> shape;
    at::ScalarType dtype = at::kFloat;
  };
  std::shared_ptr<const checkpoint::Checkpoint> checkpoint_;
  std::uint64_t budget_;
  std::filesystem::path folder_;
  mutable std::mutex mutex_;
  std::shared_ptr<OffloadFile> scratch_;
  std::map<std::string, Modified> modified_;
  std::uint64_t memory_bytes_ = 0;
};

}  // namespace layerpress::residency
