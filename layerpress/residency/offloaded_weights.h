#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "layerpress/base/scratch_file.h"
#include "layerpress/residency/weight_source.h"

namespace layerpress::residency {

/// The parameters of a checkpoint, of which some have new values. Unmodified ones stay mapped, so that all processes of a
/// node share one copy; modified ones are held in memory until the budget is used and then in a file of this process.
class OffloadedWeights : public WeightSource {
  struct OffloadFile;

 public:
  enum class Place { kMapped, kMemory, kDisk };

  /// `offload_folder`: where modified parameters go beyond `memory_budget` bytes; empty: nowhere.
  OffloadedWeights(std::shared_ptr<const checkpoint::Checkpoint> checkpoint, std::uint64_t memory_budget,
                   std::filesystem::path offload_folder);
  ~OffloadedWeights() override;  ///< removes the file

  at::Tensor load(const std::string& name) const override;
  void will_need(const std::string& name) const override;
  void fetch(const std::string& name) const override;
  void release(const std::string& name) const override;

  /// Gives a parameter a new value, of any dtype and shape; from any device. Tensors from earlier load() calls keep the old
  /// one. Throws CheckpointError for a name that the checkpoint lacks, MemoryError when neither memory nor disk is left.
  void update(const std::string& name, const at::Tensor& value);

  Place place(const std::string& name) const;
  std::uint64_t memory_bytes() const;

 private:
  /// A piece of the scratch file, free again when the value and all views of it are gone.
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
