#pragma once

#include <filesystem>

namespace layerpress {

/// A new folder in `parent`, or in the system's temporary directory (TMPDIR), removed with its contents by the destructor. Only this
/// user can read it. Throws IoError if it cannot be created.
class TemporaryDirectory {
 public:
  explicit TemporaryDirectory(std::filesystem::path parent = {});
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace layerpress
