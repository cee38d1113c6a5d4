#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "layerpress/base/file.h"
#include "layerpress/dist/group.h"
#include "layerpress/setup/run_setup.h"

namespace layerpress::output {

/// The output folder of a run while it is unfinished. Rank 0 makes, keeps and names it, the others write into it.
class RunFolder {
 public:
  /// Refuses what can be known to fail at the end: outputs inside the model, summaries that cannot be written. Throws
  /// UsageError.
  RunFolder(const OneshotOptions& options, const setup::RunSetup& setup, dist::Group& group);

  /// Whether --resume finds the finished output of the same run. Throws UsageError for a finished one of another run.
  /// Collective.
  bool is_complete() const;

  /// Makes the unfinished folder, or opens one that an earlier run left, and reads its journals. Throws UsageError when it may not
  /// be used, DistributedError when a rank does not see it. Collective.
  void open();

  const std::filesystem::path& path() const { return path_; }
  bool continued() const { return continued_; }
  /// Records of the run that is continued, the header first (Journal::read_all); empty for a new one.
  const std::vector<Json>& journal() const { return journal_; }
  /// File for activations on disk, of this rank; empty when none may be used.
  std::filesystem::path scratch() const;

  /// Puts the folder in the output's place. Rank 0 does.
  void commit();
  /// Leaves it to be continued. Of use on rank 0.
  void keep();
  /// Removes scratch files that lie elsewhere.
  void remove_scratch() const;

 private:
  bool holds_this_output() const;
  void read_journal();
  const OneshotOptions& options_;
  const setup::RunSetup& setup_;
  dist::Group& group_;
  std::unique_ptr<PendingDirectory> pending_;  // rank 0's
  std::filesystem::path path_;
  bool continued_ = false;
  std::vector<Json> journal_;
};

/// The original config.json with the quantization_config.
Json output_config(const setup::RunSetup& setup);

}  // namespace layerpress::output
