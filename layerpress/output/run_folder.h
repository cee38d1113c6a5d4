#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "layerpress/base/file.h"
#include "layerpress/dist/group.h"
#include "layerpress/setup/run_setup.h"

namespace layerpress::output {

/// The output folder of an unfinished run. Rank 0 creates, keeps and renames it; the other ranks write into it.
class RunFolder {
 public:
  /// Checks for errors that would otherwise only show at the end: outputs inside the model, summaries that cannot be
  /// written. Throws UsageError.
  RunFolder(const OneshotOptions& options, const setup::RunSetup& setup, dist::Group& group);

  /// Whether --resume finds a finished output of the same model and recipe. Throws UsageError for a finished output of
  /// another. Collective.
  bool is_complete() const;

  /// What finished outputs say of their run, for another run with --resume.
  static constexpr const char* kRunFileName = ".layerpress-run.json";
  /// Writes it into the folder. A GGUF has no place for it.
  void write_run(const Json& identity) const;
  /// The finished output's; null if it says nothing.
  static Json run_of_output(const std::string& output);

  /// Creates the unfinished folder, or opens that of an earlier run and reads its journals. Throws UsageError if it may
  /// not be used, and DistributedError if a rank does not see it. Collective.
  void open();

  const std::filesystem::path& path() const { return path_; }
  bool continued() const { return continued_; }
  /// Records of the resumed run, the header first (Journal::read_all); empty for a new run.
  const std::vector<Json>& journal() const { return journal_; }
  /// This rank's file for activations on disk; empty if none may be used.
  std::filesystem::path scratch() const;

  /// Throws UsageError for an unfinished run that is neither continued nor overwritten.
  [[noreturn]] static void refuse_unfinished(const std::string& output, const UnfinishedRun& found);

  /// Moves the folder to the output's path. Called by rank 0.
  void commit();
  /// Removes from a finished output what an interruption right after commit() leaves.
  static void remove_leftovers(const std::filesystem::path& output) noexcept;
  /// Leaves the folder to be resumed. Has an effect only on rank 0.
  void keep();
  /// Removes scratch files outside the folder.
  void remove_scratch() const;

 private:
  bool is_file() const { return !setup_.target->only_file().empty(); }
  bool has_these_headers() const;
  bool holds_this_output() const;
  void refuse_unfinished_replacement() const;
  void read_journal();
  const OneshotOptions& options_;
  const setup::RunSetup& setup_;
  dist::Group& group_;
  std::unique_ptr<PendingDirectory> pending_;  // rank 0's
  std::filesystem::path path_;
  bool continued_ = false;
  std::vector<Json> journal_;
};

/// The original config.json with what the target says of the compressed modules.
Json output_config(const setup::RunSetup& setup);

}  // namespace layerpress::output
