#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "layerpress/base/json.h"
#include "layerpress/dist/group.h"
#include "layerpress/output/journal.h"
#include "layerpress/setup/run_identity.h"

namespace layerpress::output {

/// What was measured before a run that writes an output, so that an interrupted measurement goes on with --resume: a file of JSON lines beside the
/// output (".NAME.measured"). It appears with the first record and goes when the output is complete. Rank 0 has it. The first line is the
/// identity of the measurement; every other line is a record with the "part" of the measurement that it belongs to.
class MeasurementLog {
 public:
  /// Keeps and finds nothing.
  explicit MeasurementLog(dist::Group& group) : group_(group) {}
  /// Reads what an earlier measurement left, if --resume is there. Throws UsageError if that was another one. Collective.
  MeasurementLog(const OneshotOptions& options, const setup::RunIdentity& identity, dist::Group& group);

  /// Records of an earlier measurement, in their order; the same on all ranks.
  std::vector<Json> found(const std::string& part) const;
  /// Rank 0's record is on disk when it returns; others' are ignored. Throws IoError.
  void add(const std::string& part, Json record);
  /// For records that cannot be what add() got. Throws CheckpointError, naming the file.
  [[noreturn]] void refuse(const std::string& fault) const;
  /// Whether a measurement that stops now can continue.
  bool keeps_any() const { return journal_.has_value(); }

  static bool is_there(const std::string& output);
  static void remove(const std::string& output) noexcept;

 private:
  void read(const std::string& output, const setup::RunIdentity& identity);

  dist::Group& group_;
  std::filesystem::path path_;  // empty: nothing is kept
  std::vector<Json> records_;   // the header first
  std::optional<Journal> journal_;
};

}  // namespace layerpress::output
