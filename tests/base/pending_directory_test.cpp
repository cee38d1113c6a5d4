#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "layerpress/base/error.h"
#include "layerpress/base/file.h"
#include "layerpress/base/progress.h"
#include "tests/base/child_process.h"
#include "tests/checkpoint/temporary_folder.h"

namespace layerpress {
namespace {

namespace fs = std::filesystem;
using test::ChildProcess;
using test::expect_says;
using test::kNotAllowed;
using test::message_of;
using test::TemporaryFolder;
using Options = PendingDirectory::Options;

const std::string kMarker = "journal.json";
const Options kResume{.resume = true, .marker = kMarker};
const Options kOverwrite{.overwrite = true, .marker = kMarker};
const Options kPlain{.marker = kMarker};

std::ptrdiff_t entries(const fs::path& folder) {
  return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
}

/// A run that is killed after it has written `names` into the pending folder of `target`.
void run_until_killed(const fs::path& target, const Options& options, const std::vector<std::string>& names) {
  ChildProcess child([&](ChildProcess&) {
    PendingDirectory pending(target, options);
    for (const std::string& name : names) write_text_file(pending.path() / name, "half");
    return ::raise(SIGKILL);
  });
  EXPECT_EQ(child.exit_code(), -SIGKILL);
}

TEST(PendingDirectory, SaysWhatToDoAboutAFolderThatCannotBeMade) {
  expect_says(message_of<IoError>([&] { PendingDirectory("/proc/no-such-folder/out", {}); }),
              {"/proc/no-such-folder", "cannot create the directory", "choose another --output"});
}

TEST(PendingDirectory, AppearsOnlyWhenCommitted) {
  const TemporaryFolder folder;
  const fs::path target = folder / "out";
  {
    const PendingDirectory pending(target, {});
    EXPECT_EQ(pending.path(), folder / ".out.unfinished");
    EXPECT_EQ(pending.path(), PendingDirectory::pending_path(target));
    EXPECT_EQ(pending.path(), PendingDirectory::pending_path(folder / "x" / ".." / "out" / ""));
    write_text_file(pending.path() / "a", "1");
    EXPECT_FALSE(fs::exists(target));
  }
  EXPECT_TRUE(fs::is_empty(folder.path()));
  PendingDirectory pending(target, {});
  write_text_file(pending.path() / "a", "1");
  pending.commit();
  EXPECT_EQ(read_text_file(target / "a"), "1");
  expect_says(message_of<UsageError>([&] { PendingDirectory(target, {}); }),
              {target.string(), "is not empty", "--overwrite"});
}

TEST(PendingDirectory, LeavesNoParentsBehind) {
  const TemporaryFolder folder;
  { const PendingDirectory pending(folder / "a" / "b" / "out", {}); }
  EXPECT_TRUE(fs::is_empty(folder.path()));
  fs::create_directory(folder / "a");
  { const PendingDirectory pending(folder / "a" / "b" / "out", {}); }
  EXPECT_TRUE(fs::exists(folder / "a"));
  EXPECT_FALSE(fs::exists(folder / "a" / "b"));
  {
    PendingDirectory pending(folder / "a" / "b" / "out", {});
    pending.keep();
  }
  EXPECT_TRUE(fs::exists(folder / "a" / "b" / ".out.unfinished"));
}

void expect_replaces_only_at_commit(const TemporaryFolder& folder) {
  const fs::path target = folder / "out";
  folder.write("out/old", "1");
  {
    PendingDirectory pending(target, kOverwrite);
    write_text_file(pending.path() / "new", "2");
    EXPECT_TRUE(fs::exists(target / "old"));
    pending.commit();
    EXPECT_FALSE(fs::exists(target / "old"));
    EXPECT_EQ(read_text_file(target / "new"), "2");
  }
  EXPECT_EQ(entries(folder.path()), 1);
  EXPECT_EQ(entries(target), 1);
}

TEST(PendingDirectory, ReplacesOnlyAtCommit) {
  const TemporaryFolder folder;
  expect_replaces_only_at_commit(folder);
}

TEST(PendingDirectory, ReplacesWhereFoldersCannotBeExchanged) {
  for (const int reason : {EINVAL, ENOSYS}) {
    const TemporaryFolder folder;
    ChildProcess child([&](ChildProcess&) {
      if (!test::deny_system_call(SYS_renameat2, reason)) return kNotAllowed;
      folder.write(".out.unfinished.old/rest", "of a run that was killed in commit()");
      expect_replaces_only_at_commit(folder);
      return ::testing::Test::HasFailure() ? 1 : 0;
    });
    const int code = child.exit_code();
    if (code == kNotAllowed) GTEST_SKIP() << "no system-call filters here";
    EXPECT_EQ(code, 0);
  }
}

TEST(PendingDirectory, DoesNotReplaceWhatAppearedMeanwhile) {
  const TemporaryFolder folder;
  PendingDirectory pending(folder / "out", kPlain);
  write_text_file(pending.path() / "new", "2");
  folder.write("out/theirs", "1");
  expect_says(message_of<IoError>([&] { pending.commit(); }), {(folder / "out").string(), "not empty"});
  EXPECT_EQ(read_text_file(folder / "out" / "theirs"), "1");
}

TEST(PendingDirectory, ASecondRunIsRefused) {
  const TemporaryFolder folder;
  const fs::path target = folder / "out";
  ChildProcess holder([&](ChildProcess& self) {
    PendingDirectory pending(target, kPlain);
    write_text_file(pending.path() / kMarker, "{}");
    self.say("ready");
    return ::pause();
  });
  ASSERT_EQ(holder.hear(), "ready");
  for (const Options& options : {kPlain, kOverwrite, kResume})
    expect_says(message_of<UsageError>([&] { PendingDirectory(target, options); }),
                {target.string(), "another run is writing it", "--output"});
  EXPECT_EQ(read_text_file(PendingDirectory::pending_path(target) / kMarker), "{}");
  holder.kill();
  EXPECT_TRUE(PendingDirectory(target, kResume).continued());
}

TEST(PendingDirectory, AnUnfinishedRunIsContinuedOrStartedOver) {
  const TemporaryFolder folder;
  const fs::path target = folder / "out", pending_path = PendingDirectory::pending_path(target);
  run_until_killed(target, kPlain, {"shard", kMarker});
  expect_says(message_of<UsageError>([&] { PendingDirectory(target, kPlain); }),
              {target.string(), "did not finish", "--resume", "--overwrite"});
  EXPECT_EQ(entries(pending_path), 2);
  {
    const PendingDirectory pending(target, kResume);
    EXPECT_TRUE(pending.continued());
    EXPECT_EQ(read_text_file(pending.path() / "shard"), "half");
  }
  EXPECT_EQ(entries(pending_path), 2);  // a continued run loses nothing when it fails
  {
    const PendingDirectory pending(target, kOverwrite);
    EXPECT_FALSE(pending.continued());
    EXPECT_TRUE(fs::is_empty(pending.path()));
  }
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(PendingDirectory, WithoutMarkerTheRestsOfARunAreRubbish) {
  const TemporaryFolder folder;
  for (const Options& options : {kPlain, kResume, kOverwrite}) {
    run_until_killed(folder / "out", kPlain, {"shard", "other"});
    const PendingDirectory pending(folder / "out", options);
    EXPECT_FALSE(pending.continued());
    EXPECT_TRUE(fs::is_empty(pending.path()));
  }
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(PendingDirectory, AResumedRunReplacesItsTarget) {
  const TemporaryFolder folder;
  const fs::path target = folder / "out";
  folder.write("out/old", "1");
  run_until_killed(target, kOverwrite, {kMarker});
  expect_says(message_of<UsageError>([&] { PendingDirectory(target, kResume); }), {"is not empty"});
  PendingDirectory pending(target, {.overwrite = true, .resume = true, .marker = kMarker});
  EXPECT_TRUE(pending.continued());
  pending.commit();
  EXPECT_TRUE(fs::exists(target / kMarker));
  EXPECT_FALSE(fs::exists(target / "old"));
}

TEST(PendingDirectory, NoLinkIsFollowed) {
  const TemporaryFolder folder;
  folder.write("precious/file", "1");
  fs::create_directory_symlink(folder / "precious", folder / ".out.unfinished");
  EXPECT_THROW(PendingDirectory(folder / "out", kOverwrite), IoError);
  EXPECT_EQ(read_text_file(folder / "precious" / "file"), "1");
}

/// A second run must not find the finished one's folder still locked, whose old name it takes for a moment.
TEST(PendingDirectory, ReplacesATargetWhoseWriterStillLives) {
  const TemporaryFolder folder;
  folder.write("out/old", "1");
  PendingDirectory first(folder / "out", kOverwrite);
  first.commit();
  PendingDirectory second(folder / "out", kOverwrite);
  write_text_file(second.path() / "b", "2");
  second.commit();
  EXPECT_EQ(read_text_file(folder / "out" / "b"), "2");
  EXPECT_EQ(entries(folder.path()), 1);
}

/// Another process that holds the old target for a moment delays the exchange, and is not overlooked.
TEST(PendingDirectory, WaitsForTheLockOfWhatItReplaces) {
  const TemporaryFolder folder;
  folder.write("out/old", "1");
  const int held = ::open((folder / "out").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_EQ(::flock(held, LOCK_EX | LOCK_NB), 0);
  std::atomic<bool> released = false;
  std::thread holder([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    released = true;
    ::close(held);
  });
  PendingDirectory pending(folder / "out", kOverwrite);
  pending.commit();
  EXPECT_TRUE(released);
  holder.join();
}

/// Commits again and again under one name while others do, too. Whoever has the folder has it alone. One that is always
/// too late has its turn when the others are done.
int compete(const fs::path& target, int number) {
  constexpr int kCommits = 15;
  const Timer timer;
  for (int commits = 0; commits < kCommits;) {
    if (timer.seconds() > 60) return 4;
    std::unique_ptr<PendingDirectory> pending;
    try {
      pending = std::make_unique<PendingDirectory>(target, kOverwrite);
    } catch (const UsageError&) {
      continue;  // another one has it
    }
    for (const char* name : {"a", "b", "c"}) {
      if (entries(pending->path()) != name[0] - 'a') return 2;
      write_text_file(pending->path() / name, std::to_string(number));
    }
    if (entries(pending->path()) != 3) return 3;
    pending->commit();
    ++commits;
  }
  return 0;
}

TEST(PendingDirectory, CompetingRunsNeverMix) {
  const TemporaryFolder folder;
  const fs::path target = folder / "out";
  folder.write("out/old", "1");
  std::vector<std::unique_ptr<ChildProcess>> children;
  for (int number = 0; number < 3; ++number)
    children.push_back(std::make_unique<ChildProcess>([&](ChildProcess&) { return compete(target, number); }));
  for (const auto& child : children) {
    const int code = child->exit_code();
    EXPECT_EQ(code, 0) << (code == 99 ? child->hear() : "");
  }
  EXPECT_EQ(entries(target), 3);
  EXPECT_EQ(read_text_file(target / "a"), read_text_file(target / "b"));
  EXPECT_EQ(read_text_file(target / "a"), read_text_file(target / "c"));
  EXPECT_EQ(entries(folder.path()), 1);
}

}  // namespace
}  // namespace layerpress
