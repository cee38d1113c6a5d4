#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "layerpress/base/files/descriptor.h"
#include "layerpress/base/json.h"

namespace layerpress::output {

/// The progress of a run: an append-only file of JSON lines. Each record is on disk when append() returns, so the data
/// that it names must be synced before.
///
/// If several ranks write one output, each has a journal in the output's folder. The first line is the header, the same
/// in all of them; every other line says what a rank did for one subgraph:
///   {"record": "subgraph", "index", "name", "boundary", "ranks", "sets", "tensors": {name: checksum}, "modules"}
/// `sets` are the sets of tensors that the rank wrote, of the header's "shard_sets". Every line ends with a member "checksum" of all before it.
class Journal {
 public:
  static constexpr const char* kFileName =
      ".layerpress-journal.jsonl";  ///< rank 0's journal, which must exist for a run
  static std::string file_name(int rank);
  static bool is_file_name(const std::string& name);

  /// The journals of all ranks, joined: rank 0's header, then one record for every subgraph whose sets were all
  /// written, in the order of their indices. A joined record has the sets, tensors and modules of all ranks, and
  /// "boundaries" {rank: boundary} instead of "boundary"; it is empty if the ranks' records disagree about the number
  /// of ranks. Without a journal of rank 0 there are no records.
  static std::vector<Json> read_all(const std::filesystem::path& directory);

  /// "shard_sets" of a header, 1 if missing. Throws CheckpointError if it is not a plausible number.
  static int shard_sets(const Json& header);
  /// Whether a record's "sets" include all of `shard_sets`.
  static bool has_all_sets(const Json& record, int shard_sets);

  /// Removes the journals of all ranks except the first. Throws IoError.
  static void remove_others(const std::filesystem::path& directory);
  /// Removes all journals, that of rank 0 last, so that an interruption leaves a run or none. Ignores failures.
  static void remove_all(const std::filesystem::path& directory) noexcept;

  /// The records of a journal. Skips a last line that was truncated by a crash, and everything after an unreadable
  /// line or one whose checksum differs. Without a file there are no records.
  static std::vector<Json> read(const std::filesystem::path& path);

  /// A record's text as a line, with its checksum.
  static std::string line_of(const std::string& record);

  /// Starts a journal with `records`, written atomically as a new file; later records are appended.
  Journal(std::filesystem::path path, const std::vector<Json>& records);

  /// Adds a record and waits until it is on disk. Throws IoError.
  void append(const Json& record);

 private:
  std::filesystem::path path_;
  Descriptor descriptor_;
  std::uint64_t end_ = 0;  // size of the file
};

}  // namespace layerpress::output
