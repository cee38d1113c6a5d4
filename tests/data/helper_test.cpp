#include "layerpress/data/helper.h"

#include <gtest/gtest.h>

#include "layerpress/base/json.h"
#include "layerpress/data/load_samples.h"
#include "layerpress/data/token_rows.h"
#include "tests/checkpoint/temporary_folder.h"

namespace layerpress::data {
namespace {

namespace fs = std::filesystem;
using test::expect_says;
using test::message_of;
using test::read_bytes;
using test::ScopedVariable;
using test::TemporaryFolder;

/// Runs with a shell script in the place of the Python interpreter.
class FakeHelperTest : public testing::Test {
 protected:
  FakeHelperTest() {
    options_.dataset = "some/dataset";
    options_.seed = 18446744073709551615u;
    options_.shuffle = true;
  }

  void interpreter_does(const std::string& script) {
    const fs::path path =
        folder_.write("interpreter", "#!/bin/sh\necho \"$@\" > '" + (folder_ / "arguments").string() + "'\ncat > '" +
                                         (folder_ / "request").string() + "'\n" + script);
    fs::permissions(path, fs::perms::owner_all);
  }
  /// Copies `tokens` to where the request wants the output.
  std::string copy_tokens() {
    write_token_file(folder_ / "tokens", {{7, 8, 9}, {0, 2, 3}});
    return "cp '" + (folder_ / "tokens").string() + "' \"$(sed 's/.*\"output\":\"\\([^\"]*\\)\".*/\\1/' '" +
           (folder_ / "request").string() + "')\"\n";
  }
  Selection prepare() { return prepare_with_helper(options_, folder_.path(), {}); }
  std::string error() {
    return message_of<DataError>([&] { prepare(); });
  }
  Json request() { return Json::parse(read_bytes(folder_ / "request")); }

  TemporaryFolder folder_;
  DatasetOptions options_;
  fs::path script_ = folder_.write("prepare.py", "");
  ScopedVariable interpreter_{"LAYERPRESS_PYTHON", (folder_ / "interpreter").c_str()};
  ScopedVariable helper_{"LAYERPRESS_HELPER", script_.c_str()};
};

TEST_F(FakeHelperTest, SendsTheRequestAndReadsTheTokens) {
  interpreter_does(copy_tokens() + "echo '{\"samples\":2,\"tokens\":3,\"skipped_empty\":5,\"requested\":512}'\n");
  const Selection selection = prepare();
  EXPECT_EQ(selection.set.tokens, (std::vector<std::int32_t>{7, 8, 9}));
  EXPECT_EQ(selection.set.sample_offsets, (std::vector<std::int64_t>{0, 2, 3}));
  EXPECT_EQ(selection.skipped_empty, 5);

  EXPECT_EQ(read_bytes(folder_ / "arguments"), "-s " + script_.string() + "\n");
  Json sent = request();
  const fs::path output = sent.at("output").get<std::string>();
  sent.erase("output");
  const Json expected = {{"model", folder_.path().string()},
                         {"dataset", "some/dataset"},
                         {"split", "train"},
                         {"text_column", "text"},
                         {"num_samples", 512},
                         {"max_seq_length", 2048},
                         {"shuffle", true},
                         {"concatenate", false},
                         {"use_loss_mask", false},
                         {"seed", options_.seed}};
  EXPECT_EQ(sent, expected);
  EXPECT_FALSE(fs::exists(output.parent_path())) << "the temporary folder is left behind";
}

TEST_F(FakeHelperTest, AsksForRowsAndCountsThem) {
  interpreter_does(copy_tokens() + "echo '{\"samples\":2,\"tokens\":3,\"skipped_empty\":5,\"rows\":7}'\n");
  const auto rows = [&](std::int64_t first, std::int64_t last) {
    return prepare_rows_with_helper(options_, folder_.path(), {first, last}, {});
  };
  const RowPart part = rows(10, 20);
  EXPECT_EQ(part.set.sample_offsets, (std::vector<std::int64_t>{0, 2, 3}));
  EXPECT_EQ(part.rows, 7);
  EXPECT_EQ(request().at("rows"), (Json{10, 20}));
  EXPECT_EQ(request().at("uncut"), false);

  options_.concatenate = true;  // rows are joined here, over several helpers
  rows(10, 20);
  EXPECT_EQ(request().at("uncut"), true);
  EXPECT_EQ(request().at("concatenate"), false);

  expect_says(message_of<DataError>([&] { rows(10, 16); }), {"no summary"});
  interpreter_does(copy_tokens() + "echo '{\"samples\":2,\"tokens\":3,\"skipped_empty\":0,\"rows\":1}'\n");
  expect_says(message_of<DataError>([&] { rows(10, 20); }), {"no summary"});
  interpreter_does(copy_tokens() + "echo '{\"samples\":2,\"tokens\":3,\"skipped_empty\":0}'\n");
  expect_says(message_of<DataError>([&] { rows(10, 20); }), {"no summary"});
}

TEST_F(FakeHelperTest, ItsErrorLineIsTheMessage) {
  interpreter_does("echo 'error: first' >&2; echo 'error: [data.prepare] x.jsonl, line 3: broken' >&2; exit 2\n");
  EXPECT_EQ(error(), "[data.prepare] x.jsonl, line 3: broken");
  EXPECT_FALSE(fs::exists(fs::path(request().at("output").get<std::string>()).parent_path()));
}

TEST_F(FakeHelperTest, OtherEndsAreExplained) {
  interpreter_does("echo 'Traceback:' >&2; echo 'No module named x' >&2; exit 1\n");
  expect_says(error(), {"ended with code 1", (folder_ / "interpreter").string(), "No module named x"});
  interpreter_does("kill -9 $$\n");
  expect_says(error(), {"signal 9", "memory"});
  interpreter_does("echo 'error: not at fault'\n");
  expect_says(error(), {"samples.safetensors"});
  interpreter_does(copy_tokens() + "echo nonsense\n");
  expect_says(error(), {"no summary", "LAYERPRESS_PYTHON"});
}

TEST_F(FakeHelperTest, RequestsMustBeUtf8) {
  interpreter_does("");
  options_.dataset = "bad\xff";
  expect_says(error(), {"not UTF-8"});
}

TEST_F(FakeHelperTest, InterpreterAndScriptComeFromTheEnvironment) {
  EXPECT_EQ(helper_interpreter(), (folder_ / "interpreter").string());
  EXPECT_EQ(helper_script(), script_);
  const ScopedVariable missing("LAYERPRESS_HELPER", "/nonexistent/prepare.py");
  expect_says(message_of<DataError>([] { helper_script(); }), {"/nonexistent/prepare.py", "LAYERPRESS_HELPER"});
}

TEST(HelperLocation, WithoutEnvironmentTheSourceTreeIsUsed) {
  const ScopedVariable no_interpreter("LAYERPRESS_PYTHON", nullptr);
  const ScopedVariable no_helper("LAYERPRESS_HELPER", nullptr);
  EXPECT_FALSE(helper_interpreter().empty());
  EXPECT_EQ(helper_script().filename(), "prepare.py");
  EXPECT_TRUE(fs::exists(helper_script()));
}

/// The helper itself, with a real tokenizer.
class RealHelperTest : public testing::Test {
 protected:
  void SetUp() override {
    const char* model = std::getenv("LAYERPRESS_TEST_MODEL");
    if (model == nullptr || !fs::exists(fs::path(model) / "tokenizer.json"))
      GTEST_SKIP() << "LAYERPRESS_TEST_MODEL names no model folder with a tokenizer.json";
    model_ = model;
  }
  fs::path model_;
  TemporaryFolder folder_;
};

TEST_F(RealHelperTest, TokenizesText) {
  DatasetOptions options;
  options.dataset =
      folder_.write("x.jsonl", "{\"text\":\"Hello world\"}\n{\"text\":\"\"}\n{\"text\":\"one two three\"}\n");
  const CalibrationSet set = load_samples(options, model_, 1 << 30, {});
  EXPECT_EQ(set.sample_count(), 2);
  EXPECT_GT(set.token_count(), 3);
}

TEST_F(RealHelperTest, ItsErrorsArrive) {
  DatasetOptions options;
  options.dataset = folder_.write("x.jsonl", "{\"text\":\"fine\"}\n{\"text\":\n");
  expect_says(message_of<DataError>([&] { load_samples(options, model_, 1 << 30, {}); }), {"x.jsonl", "line 2"});
}

TEST_F(RealHelperTest, SelectsTokenIdsExactlyAsTheLibraryDoes) {
  std::string text;
  for (int i = 0; i < 40; ++i) {
    text += "{\"input_ids\":[";
    for (int j = 0; j < i * 7 % 11; ++j) text += (j ? "," : "") + std::to_string(100 * i + j);
    text += "]}\n";
  }
  DatasetOptions plain;
  plain.dataset = folder_.write("x.jsonl", text);
  plain.num_samples = 12;
  plain.max_seq_length = 6;
  std::vector<DatasetOptions> cases(4, plain);
  cases[1].split = "train[5:30]";
  cases[1].concatenate = true;
  cases[2].shuffle = true;
  cases[2].seed = 99;
  cases[3].shuffle = true;
  cases[3].concatenate = true;
  cases[3].split = "train[3:]";
  for (const DatasetOptions& options : cases) {
    const auto rows = open_token_rows(options.dataset);
    ASSERT_NE(rows, nullptr);
    const Selection here = select_samples(*rows, options, {});
    const Selection there = prepare_with_helper(options, model_, {});
    EXPECT_EQ(here.set.tokens, there.set.tokens);
    EXPECT_EQ(here.set.sample_offsets, there.set.sample_offsets);
  }
}

}  // namespace
}  // namespace layerpress::data
