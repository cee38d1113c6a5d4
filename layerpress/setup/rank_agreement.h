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

/// Checks that all ranks have the same options; the first that ranks do together, because options decide what else they do together. Throws
/// DistributedError on all ranks, naming the first difference. Collective.
void require_same_start(const OneshotOptions& options, bool is_plan, dist::Group& group);

/// Checks that all ranks have the same recipe, model, dataset and program. Throws DistributedError on all ranks, naming the first
/// difference. Collective.
void require_same_request(const OneshotOptions& options, const RunSetup& setup, dist::Group& group);

/// The rows that the ranks read.
struct DataDivision {
  bool own_slices = false;  ///< every rank names its own slice; otherwise all name one split, which is divided
  std::string split;        ///< the rows of all ranks together, as a single process would name them
};
/// Throws DistributedError if ranks name different splits, or overlapping slices. Collective.
DataDivision agree_on_data(const std::string& split, dist::Group& group);

/// Checks that all ranks see the same folder, which rank 0 has created. Throws DistributedError on all ranks, naming a
/// rank that does not. Collective.
void require_shared_folder(const std::filesystem::path& folder, dist::Group& group);

/// The minimum over all ranks.
std::int64_t agree_on_least(std::int64_t own, dist::Group& group);

/// Lets the group's ranks divide a dataset.
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
