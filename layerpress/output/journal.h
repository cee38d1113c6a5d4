#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "layerpress/base/descriptor.h"
#include "layerpress/base/json.h"

namespace layerpress::output {

/// What a run has done so far: a file of JSON lines that only grows. Each record is on disk when append() returns, so what
/// it names must have been synced before.
///
/// Several processes (ranks) that write one output have a journal each in its folder. The first line is the header, the same
/// in all; every other is what a rank did for one subgraph:
///   {"record": "subgraph", "index", "name", "boundary", "ranks", "sets", "tensors": {name: checksum}, "modules"}
/// `sets` are the sets of tensors that the rank wrote, of the header's "shard_sets".
class Journal {
 public:
  static constexpr const char* kFileName = ".layerpress-journal.jsonl";  ///< of rank 0, whose journal makes a run
  static std::string file_name(int rank);
  static bool is_file_name(const std::string& name);

  /// The journals of all ranks as one: the header of rank 0's, then for every subgraph of which all sets were written one
  /// record, in the order of their indices. In it sets, tensors and modules are joined, and "boundaries" {rank: boundary}
  /// has taken the place of "boundary"; it is empty where ranks disagree about how many they were. No journal of rank 0
  /// gives no records.
  static std::vector<Json> read_all(const std::filesystem::path& directory);

  /// "shard_sets" of a header, 1 without. Throws CheckpointError when it is no sensible number.
  static int shard_sets(const Json& header);
  /// Whether a record's "sets" are all of `shard_sets`.
  static bool has_all_sets(const Json& record, int shard_sets);

  /// Removes the journals of all ranks but the first. Throws CheckpointError.
  static void remove_others(const std::filesystem::path& directory);
  /// Removes all journals, that of rank 0 last, so that an interruption leaves a run or none. Ignores failures.
  static void remove_all(const std::filesystem::path& directory) noexcept;

  /// The records of a journal. A last line that a crash cut short is left out, and so is everything behind a line that
  /// cannot be read; no file gives no records.
  static std::vector<Json> read(const std::filesystem::path& path);

  /// Starts a journal with `records` (written anew, atomically), or with those and what comes later.
  Journal(std::filesystem::path path, const std::vector<Json>& records);

  /// Adds a record and waits until it is on disk. Throws CheckpointError.
  void append(const Json& record);

 private:
  std::filesystem::path path_;
  Descriptor descriptor_;
  std::uint64_t end_ = 0;  // size of the file
};

}  // namespace layerpress::output
