#pragma once

#include <filesystem>

namespace layerpress {

/// A fresh folder in the system's folder for temporary files (TMPDIR), removed with all it holds. Only this user may
/// read it. Throws DataError when it cannot be made.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace layerpress
