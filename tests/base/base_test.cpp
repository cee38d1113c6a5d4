#include <gtest/gtest.h>

#include <fstream>

#include "layerpress/base/error.h"
#include "layerpress/base/file.h"
#include "layerpress/base/json.h"
#include "layerpress/base/machine.h"
#include "layerpress/base/phase_times.h"
#include "layerpress/base/text.h"

namespace layerpress {
namespace {

namespace fs = std::filesystem;

class FolderTest : public ::testing::Test {
 protected:
  FolderTest() : folder_(fs::temp_directory_path() / fmt::format("layerpress_base_{}", ::getpid())) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~FolderTest() override { fs::remove_all(folder_); }
  fs::path folder_;
};

TEST_F(FolderTest, PendingDirectoryAppearsOnlyWhenCommitted) {
  const fs::path target = folder_ / "out";
  {
    const PendingDirectory pending(target, false);
    write_text_file(pending.path() / "a", "1");
    EXPECT_FALSE(fs::exists(target));
  }
  EXPECT_TRUE(fs::is_empty(folder_));
  PendingDirectory pending(target, false);
  write_text_file(pending.path() / "a", "1");
  pending.commit();
  EXPECT_EQ(read_text_file(target / "a"), "1");
  EXPECT_THROW(PendingDirectory(target, false), UsageError);
}

TEST_F(FolderTest, PendingDirectoryLeavesNoParentsBehind) {
  { const PendingDirectory pending(folder_ / "a" / "b" / "out", false); }
  EXPECT_TRUE(fs::is_empty(folder_));
  fs::create_directory(folder_ / "a");
  { const PendingDirectory pending(folder_ / "a" / "b" / "out", false); }
  EXPECT_TRUE(fs::exists(folder_ / "a"));
  EXPECT_FALSE(fs::exists(folder_ / "a" / "b"));
}

TEST_F(FolderTest, PendingDirectoryReplacesOnlyAtCommit) {
  const fs::path target = folder_ / "out";
  fs::create_directory(target);
  write_text_file(target / "old", "1");
  PendingDirectory pending(target, true);
  write_text_file(pending.path() / "new", "2");
  EXPECT_TRUE(fs::exists(target / "old"));
  pending.commit();
  EXPECT_FALSE(fs::exists(target / "old"));
  EXPECT_EQ(read_text_file(target / "new"), "2");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
}

TEST_F(FolderTest, FilesThatCannotBeReadAreNamed) {
  EXPECT_THROW(MappedFile::open(folder_ / "missing"), CheckpointError);
  EXPECT_THROW(MappedFile::open(folder_), CheckpointError);
  write_text_file(folder_ / "long", std::string(100, 'x'));
  EXPECT_THROW(read_text_file(folder_ / "long", 99), CheckpointError);
}

TEST(Json, FaultsNameTheirPlace) {
  for (const char* text : {"{", "{\"a\": 1e999}", "[1,]", "\xff"}) try {
      parse_json(text, "some.json");
      FAIL() << text;
    } catch (const CheckpointError& error) {
      EXPECT_NE(std::string(error.what()).find("some.json"), std::string::npos);
    }
  EXPECT_THROW(parse_json(std::string(100'000, '['), "deep.json"), CheckpointError);
  const Json object = {{"n", 3}, {"s", "x"}, {"null", nullptr}};
  EXPECT_EQ(json_get<int>(object, "n", "here"), 3);
  EXPECT_EQ(json_get_or<int>(object, "null", "here", 7), 7);
  EXPECT_THROW(json_get<int>(object, "s", "here"), CheckpointError);
  EXPECT_THROW(json_get<int>(object, "missing", "here"), CheckpointError);
}

TEST(Text, ParsesSizes) {
  EXPECT_EQ(parse_bytes("5GB", "--x"), 5'000'000'000u);
  EXPECT_EQ(parse_bytes("4GiB", "--x"), 4ull << 30);
  EXPECT_EQ(parse_bytes("1.5kb", "--x"), 1500u);
  EXPECT_EQ(parse_bytes("77", "--x"), 77u);
  for (const char* wrong : {"", "GB", "-1GB", "5XB", "1e99GB", "5 GB", "0"})
    EXPECT_THROW(parse_bytes(wrong, "--x"), UsageError) << wrong;
}

TEST(Text, FindsNearestNames) {
  EXPECT_EQ(nearest_name("W4A61", {"W8A8", "W4A16", "FP8"}), "W4A16");
  EXPECT_EQ(nearest_name("completely different", {"W8A8", "FP8"}), "");
  EXPECT_EQ(format_bytes(113'100'000), "113.1 MB");
  EXPECT_EQ(format_bytes(999), "999 B");
}

TEST(Machine, KnowsItself) {
  EXPECT_GE(usable_cores(), 1);
  EXPECT_GT(peak_resident_bytes(), 1'000'000u);
  EXPECT_GT(available_memory(), 1'000'000u);
}

TEST(PhaseTimes, InnerPhasesPauseOuterOnes) {
  PhaseTimes times;
  {
    const auto outer = times.measure("outer");
    const auto inner = times.measure("inner");
    const Timer timer;
    while (timer.seconds() < 0.02) {
    }
  }
  EXPECT_GE(times.phases().at("inner").seconds, 0.02);
  EXPECT_LT(times.phases().at("outer").seconds, 0.02);
}

}  // namespace
}  // namespace layerpress
