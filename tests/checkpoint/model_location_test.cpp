#include "layerpress/checkpoint/model_location.h"

#include <gtest/gtest.h>

#include "tests/checkpoint/temporary_folder.h"

namespace layerpress::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::expect_says;
using test::message_of;
using test::ScopedVariable;
using test::TemporaryFolder;

constexpr const char* kCommit = "0123456789abcdef0123456789abcdef01234567";

/// A cache with org/name (main) and org/name@v2, both at their own commits.
class ModelLocationTest : public testing::Test {
 protected:
  ModelLocationTest() {
    cache_.write("models--org--name/refs/main", kCommit);
    cache_.write("models--org--name/refs/refs/pr/1", std::string(kCommit) + "\n");
    cache_.write(std::string("models--org--name/snapshots/") + kCommit + "/config.json", "{}");
    cache_.write("models--gpt/refs/main", "abc");
    cache_.write("models--gpt/snapshots/abc/config.json", "{}");
  }

  std::string error(const std::string& model) {
    return message_of<CheckpointError>([&] { locate_model(model); });
  }

  TemporaryFolder cache_;
  ScopedVariable hub_{"HF_HUB_CACHE", cache_.path().c_str()};
};

TEST_F(ModelLocationTest, DirectoriesAreThemselves) {
  EXPECT_EQ(locate_model(cache_.path().string()), cache_.path());
  const auto file = cache_.write("file", "x");
  expect_says(error(file.string()), {"is a file", "directory"});
  expect_says(error((cache_ / "none/at/all").string()), {"no such folder", "none/at/all", "none/at does not exist"});
  expect_says(error(""), {"empty"});
}

TEST_F(ModelLocationTest, AFolderOfOneGgufIsThatFile) {
  const auto folder = cache_.write("one/README.md", "x").parent_path();
  EXPECT_EQ(locate_model(folder.string()), folder);
  const auto later = cache_.write("one/m-00002-of-00002.GGUF", "x");
  expect_says(error(folder.string()), {"later parts", "not the first"});
  const auto first = cache_.write("one/m-00001-of-00002.GGUF", "x");
  EXPECT_EQ(locate_model(folder.string()), first);
  EXPECT_EQ(locate_model(later.string()), later);
  cache_.write("one/n.gguf", "x");
  expect_says(error(folder.string()), {"several GGUF files", "m-00001-of-00002.GGUF"});
  cache_.write("one/config.json", "{}");
  EXPECT_EQ(locate_model(folder.string()), folder);
}

TEST_F(ModelLocationTest, MissingFoldersHaveTheNearestName) {
  cache_.write("models/smollm2-135m/config.json", "{}");
  cache_.write("models/qwen3/config.json", "{}");
  const std::string models = (cache_ / "models/").string();
  for (const char* name : {"smolm2", "smollm2-136m", "SmolLM2", "smolm2/"})
    expect_says(error(models + name), {"no such folder", "did you mean smollm2-135m?"});
  expect_says(error(models + "entirely-different"), {"no such folder", "or a model id (org/name"});
}

TEST_F(ModelLocationTest, IdsAreFoundInTheCache) {
  const fs::path snapshot = cache_ / "models--org--name" / "snapshots" / kCommit;
  EXPECT_EQ(locate_model("org/name"), snapshot);
  EXPECT_EQ(locate_model("org/name@main"), snapshot);
  EXPECT_EQ(locate_model("org/name@refs/pr/1"), snapshot);
  EXPECT_EQ(locate_model(std::string("org/name@") + kCommit), snapshot);
  EXPECT_EQ(locate_model("gpt"), cache_ / "models--gpt/snapshots/abc");
}

TEST_F(ModelLocationTest, WhatIsNotThereSaysHowToFetchIt) {
  expect_says(error("org/other"), {"[checkpoint.locate] 'org/other' is neither a directory nor in the local",
                                   cache_.path().string(), "add --download, or: hf download org/other"});
  const std::string with_revision = error("org/name@v9");
  expect_says(with_revision, {"'org/name@v9'", "hf download org/name --revision v9"});
}

TEST_F(ModelLocationTest, IdsCannotLeaveTheCache) {
  for (const char* model : {"org/name@../../x", "org/name@/etc", "org/name@.", "org/name@", "...", "org/..",
                            "org/na--me", "-org/name", "org/name.", "or g/name", "org/"})
    expect_says(error(model), {"is neither a directory nor a model id"});
  for (const char* model : {"../name", "a/b/c", "/etc/../name"}) expect_says(error(model), {"no such folder"});
  // A commit that points elsewhere is refused; a path of several parts below snapshots is no revision.
  cache_.write("models--org--name/refs/evil", "../../..");
  expect_says(error("org/name@evil"), {"refs/evil", "not a commit"});
  expect_says(error(std::string("org/name@") + kCommit + "/config"), {"neither"});
}

TEST_F(ModelLocationTest, TheCacheIsWhereHuggingFaceKeepsIt) {
  const TemporaryFolder home;
  const ScopedVariable no_hub("HF_HUB_CACHE", nullptr);
  const ScopedVariable home_variable("HOME", home.path().c_str());
  {
    const ScopedVariable variable("HF_HOME", "~/hf");
    expect_says(error("org/name"), {(home / "hf/hub").string()});
  }
  const ScopedVariable no_hf_home("HF_HOME", nullptr);
  {
    const ScopedVariable variable("XDG_CACHE_HOME", (home / "xdg").c_str());
    expect_says(error("org/name"), {(home / "xdg/huggingface/hub").string()});
  }
  const ScopedVariable no_xdg("XDG_CACHE_HOME", nullptr);
  expect_says(error("org/name"), {(home / ".cache/huggingface/hub").string()});
}

}  // namespace
}  // namespace layerpress::checkpoint
