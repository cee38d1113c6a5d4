#include "layerpress/data/load_samples.h"

#include <gtest/gtest.h>

#include "tests/checkpoint/temporary_folder.h"
#include "tests/data/loaded_samples.h"

namespace layerpress::data {
namespace {

using test::expect_says;
using test::message_of;
using test::Messages;
using test::Samples;
using test::samples_of;
using test::ScopedVariable;
using test::TemporaryFolder;

/// Token ids are read here: a helper that is asked after all would fail.
class LoadSamplesTest : public testing::Test {
 protected:
  Samples load(DatasetOptions options) {
    return samples_of(load_samples(options, folder_.path(), 100, {&messages_, nullptr}));
  }
  std::string error(DatasetOptions options) {
    return message_of<DataError>([&] { load(options); });
  }
  DatasetOptions file(std::string_view name, std::string_view content) {
    DatasetOptions options;
    options.dataset = folder_.write(name, content).string();
    return options;
  }
  /// Ten rows: row i holds i+1 times the id i; row 3 holds none.
  DatasetOptions ten_rows() {
    std::string text;
    for (int i = 0; i < 10; ++i) {
      text += "{\"input_ids\":[";
      for (int j = 0; j <= i && i != 3; ++j) text += (j ? "," : "") + std::to_string(i);
      text += "]}\n";
    }
    return file("ten.jsonl", text);
  }

  TemporaryFolder folder_;
  Messages messages_;
  ScopedVariable no_interpreter_{"LAYERPRESS_PYTHON", "/nonexistent/python"};
};

TEST_F(LoadSamplesTest, JsonLines) {
  DatasetOptions options =
      file("x.jsonl", "\xef\xbb\xbf\n{\"input_ids\":[1,2,3],\"text\":\"a\"}\r\n  \n{\"input_ids\": [4]}");
  EXPECT_EQ(load(options), (Samples{{1, 2, 3}, {4}}));
  ASSERT_EQ(messages_.warnings.size(), 1u);
  expect_says(messages_.warnings[0], {"512 samples were requested, but only 2 exist"});
}

TEST_F(LoadSamplesTest, TokenFilesHaveTheNumberThatWasAskedFor) {
  CalibrationSet set;
  set.tokens = {1, 2, 3};
  set.sample_offsets = {0, 2, 3};
  DatasetOptions options = file("x.safetensors", "");
  write_token_file(options.dataset, set);
  EXPECT_EQ(load(options), (Samples{{1, 2}, {3}}));
  EXPECT_TRUE(messages_.warnings.empty());
  options.num_samples = 3;
  EXPECT_EQ(load(options), (Samples{{1, 2}, {3}}));
  ASSERT_EQ(messages_.warnings.size(), 1u);
  expect_says(messages_.warnings[0], {"3 samples were requested, but only 2 exist"});
}

TEST_F(LoadSamplesTest, JsonList) {
  EXPECT_EQ(load(file("x.json", "[{\"input_ids\":[1,2]},\n{\"input_ids\":[3]}]")), (Samples{{1, 2}, {3}}));
  expect_says(error(file("y.json", "[{\"input_ids\":[1]},{\"input_ids\":\"a\"}]")),
              {"y.json, row 2", "expected an object with a list"});
}

TEST_F(LoadSamplesTest, TokenFile) {
  write_token_file(folder_ / "t.safetensors", {{1, 2, 3, 4, 5, 6}, {0, 2, 5, 6}});
  DatasetOptions options;
  options.dataset = (folder_ / "t.safetensors").string();
  EXPECT_EQ(load(options), (Samples{{1, 2}, {3, 4, 5}, {6}}));
  options.split = "train[1:]";
  options.max_seq_length = 2;
  options.num_samples = 1;
  EXPECT_EQ(load(options), (Samples{{3, 4}}));
}

TEST_F(LoadSamplesTest, LimitsSkipsAndCuts) {
  DatasetOptions options = ten_rows();
  options.num_samples = 4;
  options.max_seq_length = 3;
  EXPECT_EQ(load(options), (Samples{{0}, {1, 1}, {2, 2, 2}, {4, 4, 4}}));
  EXPECT_TRUE(messages_.warnings.empty());
}

TEST_F(LoadSamplesTest, Slices) {
  DatasetOptions options = ten_rows();
  options.max_seq_length = 1;
  for (const auto& [split, expected] : std::map<std::string, Samples>{
           {"train[2:6]", {{2}, {4}, {5}}}, {"[8:]", {{8}, {9}}}, {"test[:2]", {{0}, {1}}}, {"x[8:100]", {{8}, {9}}}}) {
    options.split = split;
    EXPECT_EQ(load(options), expected) << split;
  }
  for (const char* split : {"train[3:4]", "train[5:5]", "train[6:2]", "train[50:]"}) {
    options.split = split;
    expect_says(error(options), {"ten.jsonl", split, "gives no samples"});
  }
  for (const char* split : {"train[-3:]", "train[:10%]", "train[a:b]", "train[1]", "train[1:2", "a+b", "train[1:2]x",
                            "train[1:99999999999999999999]", "train[1:2:3]", "train]"}) {
    options.split = split;
    expect_says(error(options), {split, "train[10:50]"});
  }
}

TEST_F(LoadSamplesTest, ShuffleTakesTheKnownOrder) {
  DatasetOptions options = ten_rows();
  options.shuffle = true;
  options.seed = 42;
  options.max_seq_length = 1;
  options.num_samples = 5;
  EXPECT_EQ(load(options), (Samples{{0}, {9}, {5}, {8}, {6}}));
  options.num_samples = 9;  // row 3 is empty; the order of 10 rows is 0 9 5 8 6 4 7 2 1 3
  EXPECT_EQ(load(options), (Samples{{0}, {9}, {5}, {8}, {6}, {4}, {7}, {2}, {1}}));
  options.split = "train[3:]";  // the order of 7 rows with this seed, moved by 3
  const auto order = shuffled_order(7, 42);
  Samples expected;
  for (const std::int64_t i : order)
    if (i != 0) expected.push_back({static_cast<std::int32_t>(i + 3)});
  EXPECT_EQ(load(options), expected);
}

TEST_F(LoadSamplesTest, ConcatenateCutsOneStream) {
  DatasetOptions options = file("x.jsonl",
                                "{\"input_ids\":[1,2,3]}\n{\"input_ids\":[]}\n{\"input_ids\":[4,5,6,7,8]}\n"
                                "{\"input_ids\":[9]}\n{\"input_ids\":[10,11]}\n");
  options.concatenate = true;
  options.max_seq_length = 4;
  EXPECT_EQ(load(options), (Samples{{1, 2, 3, 4}, {5, 6, 7, 8}}));
  expect_says(messages_.warnings.at(0), {"one row without tokens was skipped"});
  options.num_samples = 1;
  EXPECT_EQ(load(options), (Samples{{1, 2, 3, 4}}));
  options.max_seq_length = 12;
  expect_says(error(options), {"fewer than 12 tokens", "--max-seq-length"});
}

TEST_F(LoadSamplesTest, ReadsNoFurtherThanNeeded) {
  DatasetOptions options = file("x.jsonl", "{\"input_ids\":[1]}\n{\"input_ids\":[2]}\nbroken\n");
  options.num_samples = 2;
  EXPECT_EQ(load(options), (Samples{{1}, {2}}));
  options.num_samples = 3;
  expect_says(error(options), {"x.jsonl, line 3", "not JSON"});
}

TEST_F(LoadSamplesTest, FaultyRowsNameTheLine) {
  const auto second_row = [&](const std::string& row) {
    return error(file("x.jsonl", "\n{\"input_ids\":[1]}\n" + row));
  };
  expect_says(second_row("{\"input_ids\":[1"), {"x.jsonl, line 3", "not JSON"});
  expect_says(second_row("{\"input_ids\":[1e999]}"), {"line 3", "not JSON"});
  expect_says(second_row(std::string(1000000, '[')), {"line 3", "not JSON"});
  expect_says(second_row(std::string(500000, '[') + std::string(500000, ']')), {"line 3", "list 'input_ids'"});
  expect_says(second_row("{\"text\":\"a\"}"), {"line 3", "list 'input_ids'"});
  expect_says(second_row("[1]"), {"line 3", "list 'input_ids'"});
  expect_says(second_row("{\"input_ids\":null}"), {"line 3", "list 'input_ids'"});
  expect_says(second_row("{\"input_ids\":[5,-1]}"), {"line 3", "entry 1 is -1"});
  expect_says(second_row("{\"input_ids\":[1.5]}"), {"line 3", "entry 0 is 1.5"});
  expect_says(second_row("{\"input_ids\":[true]}"), {"line 3", "entry 0 is true"});
  expect_says(second_row("{\"input_ids\":[2147483648]}"), {"line 3", "2147483648"});
}

TEST_F(LoadSamplesTest, TokenIdsAreCheckedAgainstTheVocabulary) {
  expect_says(error(file("x.jsonl", "{\"input_ids\":[1,2]}\n{\"input_ids\":[99,100]}\n")),
              {"x.jsonl", "sample 2", "token id 100", "vocabulary has 100"});
}

TEST_F(LoadSamplesTest, NothingToLoad) {
  expect_says(error(file("x.jsonl", "{\"input_ids\":[]}\n")),
              {"x.jsonl", "gives no samples", "one row without tokens"});
  DatasetOptions missing;
  for (const char* name : {"none.jsonl", "none.json", "none.safetensors"}) {
    missing.dataset = (folder_ / name).string();
    expect_says(error(missing), {name, "no such file"});
  }
  DatasetOptions bad;
  message_of<UsageError>([&] { load(bad); });
  bad = ten_rows();
  bad.num_samples = 0;
  expect_says(message_of<UsageError>([&] { load(bad); }), {"--num-samples must be at least 1, got 0"});
  bad = ten_rows();
  bad.max_seq_length = -1;
  expect_says(message_of<UsageError>([&] { load(bad); }), {"--max-seq-length must be at least 1, got -1"});
}

TEST_F(LoadSamplesTest, StopsWhenAsked) {
  const std::atomic<bool> stop = true;
  message_of<InterruptedError>([&] { load_samples(ten_rows(), folder_.path(), 100, {nullptr, &stop}); });
}

TEST_F(LoadSamplesTest, OtherFilesGoToTheHelper) {
  for (const auto& [name, content] :
       std::map<std::string, std::string>{{"a.jsonl", "{\"text\":\"input_ids\"}\n"},
                                          {"b.jsonl", ""},
                                          {"c.json", "[{\"text\":\"\\\"input_ids\\\"\"}]"},
                                          {"d.json", "{\"input_ids\":[[1]]}"},
                                          {"e.txt", "x"}})
    expect_says(error(file(name, content)), {"/nonexistent/python", "No such file", "set LAYERPRESS_PYTHON"});
}

}  // namespace
}  // namespace layerpress::data
