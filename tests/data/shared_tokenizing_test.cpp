// Division of what the Python helper tokenizes, with the helper itself and a tokenizer that gives the word wN the token
// N.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <sstream>

#include "layerpress/base/json.h"
#include "layerpress/base/system/child_process.h"
#include "layerpress/data/load_samples.h"
#include "layerpress/data/shared_loading.h"
#include "tests/checkpoint/temporary_folder.h"
#include "tests/data/thread_group.h"

namespace layerpress::data {
namespace {

namespace fs = std::filesystem;
using test::expect_says;
using test::Samples;
using test::samples_of;
using test::ScopedVariable;
using test::TemporaryFolder;
using test::ThreadGroup;

constexpr int kWords = 1000;

bool has_packages(const std::string& interpreter) {
  try {
    return run_child({{interpreter, "-c", "import numpy, safetensors, tokenizers"}}, {}).exit_code == 0;
  } catch (const DataError&) {
    return false;  // no such program
  }
}

class SharedTokenizingTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string interpreter = helper_interpreter();
    if (!has_packages(interpreter)) GTEST_SKIP() << interpreter << " lacks the packages of requirements.txt";
    Json vocabulary = {{"<unk>", 0}};
    for (int word = 1; word < kWords; ++word) vocabulary[fmt::format("w{}", word)] = word;
    const Json tokenizer = {{"version", "1.0"},
                            {"added_tokens", Json::array()},
                            {"pre_tokenizer", {{"type", "WhitespaceSplit"}}},
                            {"model", {{"type", "WordLevel"}, {"vocab", vocabulary}, {"unk_token", "<unk>"}}}};
    folder_.write("model/tokenizer.json", tokenizer.dump());
    folder_.write("model/tokenizer_config.json", "{\"tokenizer_class\":\"PreTrainedTokenizerFast\"}");
    folder_.write("model/config.json", "{\"model_type\":\"llama\"}");
    write_interpreter(interpreter);
    options_.max_seq_length = 4;
  }

  /// The interpreter behind a script that keeps each request.
  void write_interpreter(const std::string& interpreter) {
    const std::string requests = (folder_ / "requests").string();
    const fs::path script =
        folder_.write("interpreter", "#!/bin/sh\nrequest=$(cat)\nprintf '%s\\n' \"$request\" >> '" + requests +
                                         "'\nprintf '%s' \"$request\" | '" + interpreter + "' \"$@\"\n");
    fs::permissions(script, fs::perms::owner_all);
    interpreter_.emplace("LAYERPRESS_PYTHON", script.c_str());
  }

  /// Row i has `lengths[i]` words, among them none of another row.
  void write_rows(const std::vector<int>& lengths) {
    std::string text;
    int word = 1;
    for (const int length : lengths) {
      text += "{\"text\":\" ";
      for (int i = 0; i < length; ++i) text += fmt::format("w{} ", word++);
      text += "\"}\n";
    }
    ASSERT_LE(word, kWords);
    options_.dataset = folder_.write("rows.jsonl", text).string();
  }

  std::vector<ThreadGroup::Outcome> share(int size) {
    fs::remove(folder_ / "requests");
    return ThreadGroup(size).run(
        [&](LoaderGroup& member) { return load_partition(options_, folder_ / "model", kWords, member, {}); });
  }

  /// The `rows` of the helpers that were started, in ascending order.
  std::vector<std::pair<int, int>> requested_rows() {
    std::vector<std::pair<int, int>> found;
    std::istringstream lines(test::read_bytes(folder_ / "requests"));
    for (std::string line; std::getline(lines, line);)
      found.push_back(Json::parse(line).at("rows").get<std::pair<int, int>>());
    std::sort(found.begin(), found.end());
    return found;
  }

  void expect_same(int size) {
    Samples expected = samples_of(load_samples(options_, folder_ / "model", kWords, {}));
    Samples found;
    for (const auto& rank : share(size)) {
      EXPECT_EQ(rank.error, "");
      for (auto& sample : samples_of(rank.set)) found.push_back(std::move(sample));
    }
    std::sort(expected.begin(), expected.end());
    std::sort(found.begin(), found.end());
    EXPECT_EQ(found, expected);
  }

  TemporaryFolder folder_;
  DatasetOptions options_;
  std::optional<ScopedVariable> interpreter_;
};

TEST_F(SharedTokenizingTest, EachRankTokenizesItsRows) {
  write_rows({1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  options_.num_samples = 7;
  expect_same(3);
  EXPECT_EQ(requested_rows(), (std::vector<std::pair<int, int>>{{0, 2}, {2, 4}, {4, 7}}));
}

TEST_F(SharedTokenizingTest, EmptyRowsNeedASecondRoundOfTheirNumber) {
  write_rows({1, 0, 3, 0, 5, 6, 0, 8, 9, 10});
  options_.num_samples = 6;
  expect_same(2);
  EXPECT_EQ(requested_rows(), (std::vector<std::pair<int, int>>{{0, 3}, {3, 6}, {6, 7}, {7, 8}, {8, 9}}));
}

TEST_F(SharedTokenizingTest, RanksWithoutRowsStartNoHelper) {
  write_rows({2, 3});
  options_.num_samples = 1;
  expect_same(4);
  EXPECT_EQ(requested_rows(), (std::vector<std::pair<int, int>>{{0, 1}}));
}

TEST_F(SharedTokenizingTest, ShuffledSlicesFromTheEnd) {
  std::vector<int> lengths;
  for (int i = 0; i < 30; ++i) lengths.push_back(i % 6);
  write_rows(lengths);
  options_.split = "train[-25:-2]";
  options_.shuffle = true;
  options_.seed = 11;
  options_.num_samples = 12;
  expect_same(4);
}

TEST_F(SharedTokenizingTest, Concatenate) {
  std::vector<int> lengths;
  for (int i = 0; i < 120; ++i) lengths.push_back(i % 9);
  write_rows(lengths);
  options_.concatenate = true;
  options_.max_seq_length = 7;
  options_.num_samples = 40;
  options_.split = "train[3:]";
  expect_same(3);
  options_.num_samples = 512;  // more than there are
  expect_same(2);
}

TEST_F(SharedTokenizingTest, FaultsAndEmptyDatasets) {
  write_rows({1, 1, 1});
  folder_.write("rows.jsonl", test::read_bytes(folder_ / "rows.jsonl") + "broken\n");
  options_.num_samples = 4;
  const auto ranks = share(2);
  EXPECT_TRUE(ranks[0].abandoned);
  expect_says(ranks[1].error, {"[data.prepare]", "rows.jsonl, line 4", "not JSON"});
  write_rows({0, 0, 0});
  for (const auto& rank : share(3)) expect_says(rank.error, {"rows.jsonl", "gives no samples (3 rows without tokens"});
}

}  // namespace
}  // namespace layerpress::data
