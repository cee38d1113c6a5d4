#include "layerpress/base/files/scratch_file.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "layerpress/base/error.h"
#include "tests/base/child_process.h"
#include "tests/base/file_size_limit.h"
#include "tests/checkpoint/temporary_folder.h"

namespace layerpress {
namespace {

using test::ChildProcess;
using test::expect_says;
using test::kNotAllowed;
using test::message_of;
using test::TemporaryFolder;
using Extent = ScratchFile::Extent;

constexpr std::uint64_t kPageBytes = 4096;
constexpr std::uint64_t kMebibyte = 1u << 20;

std::string content(const ScratchFile& file, const Extent& extent) {
  const auto bytes = file.map(extent);
  return std::string(reinterpret_cast<const char*>(bytes.get()), extent.length);
}

TEST(ScratchFile, FreedSpaceIsUsedAgainAndMerges) {
  const TemporaryFolder folder;
  ScratchFile file(folder / "scratch", false);
  const Extent first = file.allocate(1), second = file.allocate(kPageBytes + 1), third = file.allocate(kPageBytes),
               fourth = file.allocate(7);
  EXPECT_EQ(first.offset, 0u);
  EXPECT_EQ(second.offset, kPageBytes);
  EXPECT_EQ(third.offset, 3 * kPageBytes);
  EXPECT_EQ(fourth.offset, 4 * kPageBytes);
  file.free(second);
  EXPECT_EQ(file.allocate(2 * kPageBytes + 1).offset, 5 * kPageBytes);  // does not fit into the hole
  EXPECT_EQ(file.allocate(kPageBytes).offset, kPageBytes);              // the first that fits
  file.free({kPageBytes, kPageBytes});
  file.free(first);
  file.free(third);  // one hole of four pages now
  EXPECT_EQ(file.allocate(4 * kPageBytes).offset, 0u);
}

TEST(ScratchFile, DoesNotGrowByMoreThanItsContent) {
  const TemporaryFolder folder;
  ScratchFile file(folder / "scratch", false);
  for (int round = 0; round < 20; ++round) {
    const Extent a = file.allocate(10 * kMebibyte), b = file.allocate(kMebibyte), c = file.allocate(90 * kMebibyte);
    file.free(b);
    file.free(c);
    file.free(a);
  }
  EXPECT_LE(std::filesystem::file_size(folder / "scratch"), 101 * kMebibyte + 64 * kMebibyte);
}

TEST(ScratchFile, WhatIsWrittenIsReadBack) {
  const TemporaryFolder folder;
  ScratchFile file(folder / "scratch", false);
  file.allocate(3 * kPageBytes);
  std::string bytes(17 * kMebibyte + 77, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 2654435761u >> 24);
  const Extent extent = file.allocate(bytes.size());
  file.write(extent, bytes.data());
  file.read_ahead(extent);
  auto mapped = file.map(extent);
  EXPECT_EQ(std::memcmp(mapped.get(), bytes.data(), bytes.size()), 0);
  const std::byte* address = mapped.get();
  EXPECT_STREQ(mapped_file_at(address + bytes.size() - 1), file.path().c_str());
  const auto copy = mapped;
  mapped.reset();
  EXPECT_STREQ(mapped_file_at(address), file.path().c_str());  // the copy still holds it
}

TEST(ScratchFile, EmptyExtentsAreLegal) {
  const TemporaryFolder folder;
  ScratchFile file(folder / "scratch", false);
  const Extent nothing = file.allocate(0);
  file.write(nothing, nullptr);
  file.read_ahead(nothing);
  EXPECT_EQ(file.map(nothing), nullptr);
  EXPECT_TRUE(file.claim(nothing));
  file.free(nothing);
  EXPECT_EQ(file.allocate(1).offset, 0u);
}

TEST(ScratchFile, RandomUseNeverOverlaps) {
  const TemporaryFolder folder;
  ScratchFile file(folder / "scratch", false);
  std::mt19937 random(7);
  std::vector<std::pair<Extent, std::string>> live;
  for (int step = 0; step < 600; ++step) {
    if (live.size() < 3 || (live.size() < 40 && random() % 2 == 0)) {
      const std::string bytes(random() % (5 * kPageBytes), static_cast<char>(random()));
      const Extent extent = file.allocate(bytes.size());
      file.write(extent, bytes.data());
      live.emplace_back(extent, bytes);
    } else {
      std::swap(live[random() % live.size()], live.back());
      ASSERT_EQ(content(file, live.back().first), live.back().second) << step;
      file.free(live.back().first);
      live.pop_back();
    }
  }
  for (const auto& [extent, bytes] : live) EXPECT_EQ(content(file, extent), bytes);
}

TEST(ScratchFile, ClaimsExtentsOfAnEarlierRun) {
  const TemporaryFolder folder;
  Extent kept;
  {
    ScratchFile file(folder / "scratch", false);
    file.allocate(kPageBytes);
    kept = file.allocate(5);
    file.write(kept, "hello");
  }
  ScratchFile file(folder / "scratch", true);
  const std::uint64_t size = std::filesystem::file_size(folder / "scratch");
  EXPECT_TRUE(file.claim(kept));
  EXPECT_EQ(content(file, kept), "hello");
  constexpr std::uint64_t kHuge = std::numeric_limits<std::uint64_t>::max();
  for (const Extent wrong : std::vector<Extent>{kept,
                                                {0, kPageBytes + 1},
                                                {3, 1},
                                                {size, 1},
                                                {size - kPageBytes, kPageBytes + 1},
                                                {2 * kPageBytes, kHuge},
                                                {kHuge - kPageBytes + 1, 1},
                                                {2 * kPageBytes, kHuge - kPageBytes}})
    EXPECT_FALSE(file.claim(wrong)) << wrong.offset << " + " << wrong.length;
  EXPECT_EQ(file.allocate(2 * kPageBytes).offset, 2 * kPageBytes);  // between what is claimed
  EXPECT_EQ(file.allocate(kPageBytes).offset, 0u);
  const ScratchFile emptied(folder / "scratch", false);
  EXPECT_EQ(std::filesystem::file_size(folder / "scratch"), 0u);
}

TEST(ScratchFile, FreeingTwiceIsOurMistake) {
  const TemporaryFolder folder;
  ScratchFile file(folder / "scratch", false);
  const Extent extent = file.allocate(2 * kPageBytes);
  file.free(extent);
  EXPECT_THROW(file.free(extent), InternalError);
  EXPECT_THROW(file.free({kPageBytes, 1}), InternalError);
  EXPECT_THROW(file.free({1ull << 40, 1}), InternalError);
}

/// Expects that 2 MiB do not fit into `folder` and that one does, also after the failure.
int use_up(const TemporaryFolder& folder, const char* reason) {
  ScratchFile file(folder / "scratch", false);
  const Extent small = file.allocate(kMebibyte / 2);
  expect_says(message_of<MemoryError>([&] { file.allocate(2 * kMebibyte); }),
              {(folder / "scratch").string(), "cannot reserve 2097152 bytes", reason, "choose another --offload-dir"});
  const std::string bytes(kMebibyte / 2, 'x');
  file.write(small, bytes.data());
  const Extent other = file.allocate(kMebibyte / 4);
  file.write(other, bytes.data());
  EXPECT_EQ(content(file, small), bytes);
  return ::testing::Test::HasFailure() ? 1 : 0;
}

TEST(ScratchFile, FileSizeLimitsAreErrors) {
  const TemporaryFolder folder;
  ChildProcess child([&](ChildProcess&) {
    const test::FileSizeLimit limit(kMebibyte);
    return use_up(folder, "File too large");
  });
  EXPECT_EQ(child.exit_code(), 0);
}

TEST(ScratchFile, FullDisksAreErrors) {
  const TemporaryFolder folder;
  ChildProcess child([&](ChildProcess&) {
    return test::mount_small_disk(folder.path(), kMebibyte) ? use_up(folder, "No space left") : kNotAllowed;
  });
  const int code = child.exit_code();
  if (code == kNotAllowed) GTEST_SKIP() << "no file systems can be mounted here";
  EXPECT_EQ(code, 0);
}

TEST(ScratchFile, WorksWhereSpaceCannotBeReserved) {
  const TemporaryFolder folder;
  ChildProcess child([&](ChildProcess&) {
    if (!test::deny_system_call(SYS_fallocate, EOPNOTSUPP)) return kNotAllowed;
    ScratchFile file(folder / "scratch", false);
    const Extent extent = file.allocate(5);
    file.write(extent, "hello");
    EXPECT_EQ(content(file, extent), "hello");
    const test::FileSizeLimit limit(kPageBytes);
    const Extent beyond = file.allocate(kPageBytes);
    expect_says(message_of<MemoryError>([&] { file.write(beyond, std::string(kPageBytes, 'x').data()); }),
                {"cannot be written", "File too large", "--offload-dir"});
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  const int code = child.exit_code();
  if (code == kNotAllowed) GTEST_SKIP() << "no system-call filters here";
  EXPECT_EQ(code, 0);
}

TEST(ScratchFile, FoldersThatAreNotThereAreNamed) {
  const TemporaryFolder folder;
  expect_says(message_of<MemoryError>([&] { ScratchFile(folder / "none" / "scratch", false); }),
              {"none/scratch", "cannot be opened", "--offload-dir"});
}

}  // namespace
}  // namespace layerpress
