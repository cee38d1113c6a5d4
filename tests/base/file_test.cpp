#include "layerpress/base/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <fstream>
#include <vector>

#include "layerpress/base/error.h"
#include "layerpress/base/files/descriptor.h"
#include "layerpress/base/files/temporary_directory.h"
#include "layerpress/base/system/process_status.h"
#include "tests/base/child_process.h"
#include "tests/base/file_size_limit.h"
#include "tests/checkpoint/temporary_folder.h"

namespace layerpress {
namespace {

namespace fs = std::filesystem;
using test::ChildProcess;
using test::expect_says;
using test::FileSizeLimit;
using test::kNotAllowed;
using test::message_of;
using test::read_bytes;
using test::ScopedVariable;
using test::TemporaryFolder;

constexpr std::uint64_t kPage = 4096;

TEST(File, FilesThatCannotBeReadAreNamed) {
  const TemporaryFolder folder;
  EXPECT_THROW(MappedFile::open(folder / "missing"), IoError);
  EXPECT_THROW(MappedFile::open(folder.path()), IoError);
  write_text_file(folder / "long", std::string(100, 'x'));
  EXPECT_THROW(read_text_file(folder / "long", 99), IoError);
}

TEST(File, LinksAndPipesAreWrittenThrough) {
  const TemporaryFolder folder;
  write_text_file(folder / "file", "old");
  fs::create_symlink("file", folder / "link");
  write_text_file(folder / "link", "new");
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_EQ(read_bytes(folder / "file"), "new");

  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  const Descriptor reader(::open((folder / "pipe").c_str(), O_RDONLY | O_NONBLOCK));
  write_text_file(folder / "pipe", "text");
  EXPECT_TRUE(fs::is_fifo(folder / "pipe"));
  std::string read(8, '\0');
  EXPECT_EQ(::read(reader.value(), read.data(), read.size()), 4);
  EXPECT_EQ(read.substr(0, 4), "text");
}

TEST(TemporaryDirectory, IsRemovedWithAllItHolds) {
  const TemporaryFolder folder;
  const ScopedVariable variable("TMPDIR", folder.path().c_str());
  {
    const TemporaryDirectory first, second;
    EXPECT_NE(first.path(), second.path());
    EXPECT_EQ(first.path().parent_path(), folder.path());
    fs::create_directory(first.path() / "inside");
    write_text_file(first.path() / "inside" / "file", "text");
  }
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(TemporaryDirectory, NeedsAFolder) {
  const TemporaryFolder folder;
  for (const fs::path& wrong : {folder / "missing", folder.write("file", "")}) {
    const ScopedVariable variable("TMPDIR", wrong.c_str());
    expect_says(message_of<IoError>([] { TemporaryDirectory(); }), {"[file.temporary]", "TMPDIR"});
  }
}

/// Pages of files that are in this process's page tables.
std::uint64_t mapped_bytes() {
  std::ifstream file("/proc/self/status");
  const std::string status{std::istreambuf_iterator<char>(file), {}};
  return status_bytes(status, "RssFile").value_or(0) + status_bytes(status, "RssShmem").value_or(0);
}

TEST(MappedFile, FetchBringsTheRangeInAndReleaseDropsIt) {
  const TemporaryFolder folder;
  constexpr std::uint64_t kSize = (24u << 20) + 123;
  const auto file = MappedFile::open(folder.write("f", std::string(kSize, 'x')));
  file->will_need(0, kSize);
  const std::uint64_t before = mapped_bytes();
  file->fetch(1000, kSize);  // what lies beyond the end is nothing to fetch
  EXPECT_GE(mapped_bytes(), before + kSize * 9 / 10);
  file->release(0, kSize);
  EXPECT_LT(mapped_bytes(), before + kSize / 10);
  file->fetch(kSize, 10);
  file->fetch(0, 0);
  MappedFile::open(folder.write("empty", ""))->fetch(0, 10);
}

void expect_truncation_is_told(const TemporaryFolder& folder) {
  constexpr std::uint64_t kSize = 20u << 20;
  const fs::path path = folder.write("model.safetensors", std::string(kSize, 'x'));
  const auto file = MappedFile::open(path);
  for (const std::uint64_t left : {kSize - 1, kSize - 5 * kPage, kPage + 1, std::uint64_t{0}}) {
    fs::resize_file(path, left);
    expect_says(message_of<IoError>([&] { file->fetch(kPage, kSize - kPage); }),
                {path.string(), "truncated while in use", std::to_string(kSize), std::to_string(left)});
    file->fetch(0, left);  // what is left can be had
  }
}

TEST(MappedFile, FetchTellsOfTruncation) {
  const TemporaryFolder folder;
  expect_truncation_is_told(folder);
}

TEST(MappedFile, FetchTellsOfTruncationOnOldKernels) {
  const TemporaryFolder folder;
  ChildProcess child([&](ChildProcess& self) {
    constexpr std::uint32_t kPopulateRead = 22;
    if (!test::deny_system_call(SYS_madvise, EINVAL, 2, kPopulateRead)) return kNotAllowed;
    expect_truncation_is_told(folder);
    const auto whole = MappedFile::open(folder.write("whole", std::string(1u << 20, 'x')));
    const std::uint64_t before = mapped_bytes();
    whole->fetch(0, 1u << 20);
    if (mapped_bytes() < before + (900u << 10)) self.say("nothing was fetched");
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  const int code = child.exit_code();
  if (code == kNotAllowed) GTEST_SKIP() << "no system-call filters here";
  EXPECT_EQ(code, 0);
}

TEST(MappedFile, AReplacedOrDeletedFileIsStillThere) {
  const TemporaryFolder folder;
  const fs::path path = folder.write("f", std::string(3 * kPage, 'x'));
  const auto file = MappedFile::open(path);
  fs::rename(folder.write("shorter", "y"), path);
  file->fetch(0, 3 * kPage);
  fs::remove(path);
  file->fetch(0, 3 * kPage);
  EXPECT_EQ(static_cast<char>(file->data()[3 * kPage - 1]), 'x');
}

TEST(MappedFile, IsKnownByItsAddressesWhileItIsMapped) {
  const TemporaryFolder folder;
  const fs::path path = folder.write("f", std::string(kPage + 5, 'x'));
  auto file = MappedFile::open(path);
  const std::byte* data = file->data();
  ASSERT_STREQ(mapped_file_at(data), path.c_str());
  EXPECT_STREQ(mapped_file_at(data + kPage + 4), path.c_str());
  int on_stack = 0;
  EXPECT_EQ(mapped_file_at(&on_stack), nullptr);
  file.reset();
  EXPECT_EQ(mapped_file_at(data), nullptr);
}

TEST(MappedFile, MoreFilesThanTheTableHoldsDoNoHarm) {
  const TemporaryFolder folder;
  const fs::path path = folder.write("f", "x");
  std::vector<std::shared_ptr<const MappedFile>> files;
  for (int i = 0; i < 4200; ++i) files.push_back(MappedFile::open(path));
  EXPECT_EQ(mapped_file_at(files.back()->data()), nullptr);
  EXPECT_EQ(static_cast<char>(*files.back()->data()), 'x');
  files.clear();
  const auto again = MappedFile::open(path);
  EXPECT_STREQ(mapped_file_at(again->data()), path.c_str());
}

TEST(MappedFile, ASignalHandlerCanNameTheFile) {
  const TemporaryFolder folder;
  const fs::path path = folder.write("model.safetensors", std::string(4 * kPage, 'x'));
  static ChildProcess* child_itself = nullptr;
  ChildProcess child([&](ChildProcess& self) {
    child_itself = &self;
    struct sigaction action {};
    action.sa_flags = SA_SIGINFO;
    action.sa_sigaction = [](int, siginfo_t* info, void*) {
      const char* name = mapped_file_at(info->si_addr);
      child_itself->say(name == nullptr ? "unknown" : name);
      ::_exit(3);
    };
    ::sigaction(SIGBUS, &action, nullptr);
    const auto file = MappedFile::open(path);
    fs::resize_file(path, 0);
    return static_cast<int>(*const_cast<const volatile std::byte*>(file->data() + 2 * kPage));
  });
  EXPECT_EQ(child.exit_code(), 3);
  EXPECT_EQ(child.hear(), path.string());
}

TEST(OutputFile, IsReopenedAndReadBack) {
  const TemporaryFolder folder;
  const fs::path path = folder / "f";
  {
    OutputFile file(path, 10);
    file.write_at(2, "abc", 3);
    file.sync();
  }
  EXPECT_THROW(OutputFile(path, 10), IoError);
  OutputFile file(path, 10, OutputFile::Mode::kReopen);
  std::string bytes(5, '?');
  file.read_at(1, bytes.data(), bytes.size());
  EXPECT_EQ(bytes, std::string("\0abc\0", 5));
  expect_says(message_of<IoError>([&] { file.read_at(8, bytes.data(), bytes.size()); }),
              {path.string(), "ends before byte 13"});
  file.write_at(9, "z", 1);
  file.sync_and_close();
  EXPECT_EQ(read_bytes(path), std::string("\0\0abc\0\0\0\0z", 10));
}

TEST(OutputFile, AnotherSizeIsNotReopened) {
  const TemporaryFolder folder;
  const fs::path path = folder.write("f", "12345");
  const auto reopen = [&](const fs::path& name, std::uint64_t size) {
    return message_of<IoError>([&] { OutputFile(name, size, OutputFile::Mode::kReopen); });
  };
  expect_says(reopen(path, 6), {path.string(), "5 bytes instead of 6"});
  expect_says(reopen(folder / "missing", 6), {"missing", "No such file"});
  EXPECT_FALSE(fs::exists(folder / "missing"));
}

TEST(OutputFile, FullDisksAreToldAtTheStart) {
  const TemporaryFolder folder;
  const auto create = [&] { return message_of<IoError>([&] { OutputFile(folder / "f", 1u << 20); }); };
  {
    const FileSizeLimit limit(64 << 10);
    expect_says(create(), {"cannot reserve 1048576 bytes", "File too large", "choose another --output"});
  }
  ChildProcess child([&](ChildProcess&) {
    if (!test::mount_small_disk(folder.path(), 256 << 10)) return kNotAllowed;
    expect_says(create(), {"cannot reserve 1048576 bytes", "No space left", "choose another --output"});
    EXPECT_TRUE(fs::is_empty(folder.path()));
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  const int code = child.exit_code();
  EXPECT_TRUE(fs::is_empty(folder.path()));
  if (code == kNotAllowed) GTEST_SKIP() << "no file systems can be mounted here";
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace layerpress
