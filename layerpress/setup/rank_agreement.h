#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "layerpress/data/shared_loading.h"
#include "layerpress/dist/group.h"
#include "layerpress/setup/run_identity.h"
#include "layerpress/setup/run_setup.h"

namespace layerpress::setup {

/// Makes sure that all ranks were asked for the same: options, recipe, model, dataset, program. Throws DistributedError on all
/// ranks, naming the first difference. Collective.
void require_same_request(const OneshotOptions& options, const RunSetup& setup, dist::Group& group);

/// Which rows the ranks read.
struct DataDivision {
  bool own_slices = false;  ///< every rank named a slice of its own; else the run divides what all named
  std::string split;        ///< what all ranks together read, as one process would name it
};
/// Throws DistributedError when ranks name different splits, or slices that overlap. Collective.
DataDivision agree_on_data(const std::string& split, dist::Group& group);

/// Makes sure that all ranks see one and the same folder, which rank 0 has made. Throws DistributedError on all ranks naming one
/// that does not. Collective.
void require_shared_folder(const std::filesystem::path& folder, dist::Group& group);

/// The same number on all ranks: the least.
std::int64_t agree_on_least(std::int64_t own, dist::Group& group);

/// Loaders that divide a dataset as the group's ranks.
class RankLoaders : public data::LoaderGroup {
 public:
  explicit RankLoaders(dist::Group& group) : group_(group) {}
  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  std::vector<std::vector<std::int64_t>> all_gather(const std::vector<std::int64_t>& own) override;

 private:
  dist::Group& group_;
};

}  // namespace layerpress::setup
