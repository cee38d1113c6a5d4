#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "layerpress/base/descriptor.h"
#include "layerpress/base/json.h"

namespace layerpress::runtime {

/// What a run has done so far: a file of JSON lines that only grows. Each record is on disk when append() returns, so what
/// it names must have been synced before.
class Journal {
 public:
  static constexpr const char* kFileName = ".layerpress-journal.jsonl";

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

}  // namespace layerpress::runtime
