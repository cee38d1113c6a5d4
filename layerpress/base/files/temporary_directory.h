#pragma once

#include <filesystem>

#include "layerpress/base/files/descriptor.h"

namespace layerpress {

/// A new folder in `parent`, or in the system's temporary directory (TMPDIR), removed with its contents by the destructor. Only this
/// user can read it. It is locked as long as it exists; making one removes those beside it whose process was killed. Throws IoError if
/// it cannot be created.
class TemporaryDirectory {
 public:
  explicit TemporaryDirectory(std::filesystem::path parent = {});
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  Descriptor lock_;
};

}  // namespace layerpress
