#include "layerpress/base/files/temporary_directory.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

namespace layerpress {
namespace {

namespace fs = std::filesystem;

std::set<fs::path> folders_in(const fs::path& parent) {
  std::set<fs::path> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(parent)) found.insert(entry.path());
  return found;
}

TEST(TemporaryDirectory, IsRemovedWithItsContents) {
  const TemporaryDirectory parent;
  {
    const TemporaryDirectory folder(parent.path());
    std::ofstream(folder.path() / "file") << "text";
    EXPECT_EQ(folders_in(parent.path()), std::set<fs::path>{folder.path()});
  }
  EXPECT_TRUE(folders_in(parent.path()).empty());
}

TEST(TemporaryDirectory, KeepsThoseOfLiveProcessesAndYoungOnes) {
  const TemporaryDirectory parent;
  const TemporaryDirectory live(parent.path());
  const fs::path young = parent.path() / "layerpress-work-abcdef", other = parent.path() / "other-work-abcdef";
  fs::create_directory(young);
  fs::create_directory(other);
  const TemporaryDirectory next(parent.path());
  EXPECT_EQ(folders_in(parent.path()), (std::set<fs::path>{live.path(), next.path(), young, other}));
}

TEST(TemporaryDirectory, RemovesThoseOfKilledProcesses) {
  const TemporaryDirectory parent;
  const fs::path abandoned = parent.path() / "layerpress-work-abcdef", outside = parent.path() / "outside";
  fs::create_directory(abandoned);
  fs::create_directory(outside);
  std::ofstream(abandoned / "samples") << "text";
  fs::create_directory_symlink(outside, parent.path() / "layerpress-work-link");
  for (const fs::path& folder : {abandoned, outside})
    fs::last_write_time(folder, fs::file_time_type::clock::now() - std::chrono::minutes(5));
  const TemporaryDirectory next(parent.path());
  EXPECT_FALSE(fs::exists(abandoned));
  EXPECT_TRUE(fs::exists(outside));
}

}  // namespace
}  // namespace layerpress
