#include <gtest/gtest.h>

#include <algorithm>

#include "layerpress/base/error.h"
#include "layerpress/base/files/checksum.h"
#include "layerpress/base/json.h"
#include "layerpress/base/system/phase_times.h"
#include "layerpress/base/text.h"

namespace layerpress {
namespace {

TEST(ErrorMessage, IsTextWhateverItNames) {
  const std::string said = CheckpointError(
                               "[a.b] a\xfa"
                               "b\n: \xc3\xa4; c")
                               .what();
  EXPECT_EQ(said,
            "[a.b] a\xef\xbf\xbd"
            "b?: \xc3\xa4; c");
  const std::string cut = CheckpointError("{}x", std::string(4001, 'y').replace(3999, 2, "\xc3\xa4")).what();
  EXPECT_TRUE(cut.ends_with("yy..."));
  EXPECT_LT(std::string_view(CheckpointError("{}", std::string(4000, '\xfa')).what()).size(), 4010);
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
  const Json numbers = {{"whole", 3.0},   {"part", 3.5},
                        {"huge", 1e308},  {"large", std::int64_t{1} << 40},
                        {"negative", -1}, {"top", ~std::uint64_t{0}}};
  EXPECT_EQ(json_get<int>(numbers, "whole", "here"), 3);
  EXPECT_EQ(json_get<std::int64_t>(numbers, "large", "here"), std::int64_t{1} << 40);
  for (const char* key : {"part", "huge", "large", "top"})
    EXPECT_THROW(json_get<int>(numbers, key, "here"), CheckpointError) << key;
  EXPECT_THROW(json_get<std::size_t>(numbers, "negative", "here"), CheckpointError);
}

TEST(Text, ParsesSizes) {
  EXPECT_EQ(parse_bytes("5GB", "--x"), 5'000'000'000u);
  EXPECT_EQ(parse_bytes("4GiB", "--x"), 4ull << 30);
  EXPECT_EQ(parse_bytes("1.5kb", "--x"), 1500u);
  for (const char* gibibytes : {"4G", "4g", "4 G", "4 GiB", "4096M", "4096 MiB"})
    EXPECT_EQ(parse_bytes(gibibytes, "--x"), 4ull << 30) << gibibytes;
  EXPECT_EQ(parse_bytes("5 GB", "--x"), 5'000'000'000u);
  EXPECT_EQ(parse_bytes("2TB", "--x"), 2'000'000'000'000u);
  EXPECT_EQ(parse_bytes("2T", "--x"), 2ull << 40);
  EXPECT_EQ(parse_bytes("3K", "--x"), 3072u);
  EXPECT_EQ(parse_bytes("77", "--x"), 77u);
  for (const char* wrong : {"", "GB", "-1GB", "5XB", "1e99GB", "5 G B", "0", "4Gi", "4iB", "4GiBs", "1.2.3G", " 4G"})
    EXPECT_THROW(parse_bytes(wrong, "--x"), UsageError) << wrong;
}

TEST(Text, FindsNearestNames) {
  EXPECT_EQ(nearest_name("W4A61", {"W8A8", "W4A16", "FP8"}), "W4A16");
  EXPECT_EQ(nearest_name("completely different", {"W8A8", "FP8"}), "");
  EXPECT_EQ(nearest_name("gpt", {"rtn", "gptq"}), "gptq");
  EXPECT_EQ(nearest_name("awq", {"rtn", "gptq"}), "");
  EXPECT_EQ(nearest_name("--max_seq_lenght", {"--max-shard-size", "--max-seq-length"}), "--max-seq-length");
  EXPECT_EQ(nearest_name("smolm2", {"tinyllama", "smollm2-135m"}), "smollm2-135m");
  EXPECT_EQ(nearest_name("--num-samples", {"--num-calibration-samples"}), "--num-calibration-samples");
  EXPECT_EQ(did_you_mean("onshot", {"eval", "oneshot"}), "did you mean oneshot?");
  EXPECT_EQ(did_you_mean("train", {"eval", "oneshot"}), "");
  EXPECT_EQ(nearest_or_all("train", {"eval", "oneshot"}), "choose from eval, oneshot");
}

TEST(Text, ShowsSizes) {
  EXPECT_EQ(format_bytes(999), "999 B");
  EXPECT_EQ(format_bytes(1000), "0.98 KiB");
  EXPECT_EQ(format_bytes(113'100'000), "107.9 MiB");
  EXPECT_EQ(format_bytes(1300ull << 20), "1.27 GiB");
  EXPECT_EQ(format_bytes(10ull << 30), "10.0 GiB");
  EXPECT_EQ(format_bytes(5000ull << 40), "5000.0 TiB");
}

TEST(Duration, ShowsWhatMatters) {
  EXPECT_EQ(format_duration(0), "0.0 s");
  EXPECT_EQ(format_duration(59.94), "59.9 s");
  EXPECT_EQ(format_duration(59.96), "1 min 0 s");
  EXPECT_EQ(format_duration(754.6), "12 min 35 s");
  EXPECT_EQ(format_duration(3599.6), "1 h 00 min");
  EXPECT_EQ(format_duration(7510), "2 h 05 min");
}

TEST(ShellWord, QuotesWhatAShellWouldTakeApart) {
  EXPECT_EQ(shell_word("models/SmolLM2-135M"), "models/SmolLM2-135M");
  EXPECT_EQ(shell_word("my model"), "'my model'");
  EXPECT_EQ(shell_word("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_word(""), "''");
}

TEST(Text, SplitsDottedNames) {
  EXPECT_EQ(parent_name("model.layers.3.mlp.weight"), "model.layers.3.mlp");
  EXPECT_EQ(parent_name("lm_head"), "lm_head");
  EXPECT_EQ(last_part("model.layers.3"), "3");
  EXPECT_EQ(last_part("lm_head"), "lm_head");
}

TEST(Checksum, PiecesGiveTheSameAsTheWhole) {
  std::string bytes(100'000, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * i >> 3);
  Checksum pieces;
  for (std::size_t at = 0, length = 0; at < bytes.size(); at += length, length = length * 2 + 1)
    pieces.add(bytes.data() + at, std::min(length, bytes.size() - at));
  EXPECT_EQ(pieces.text(), checksum_of(bytes.data(), bytes.size()));
  bytes[50'000] ^= 1;
  EXPECT_NE(pieces.text(), checksum_of(bytes.data(), bytes.size()));
  // What the XXH3 specification gives for no bytes: journals of other builds stay readable.
  EXPECT_EQ(checksum_of(nullptr, 0), "2d06800538d394c2");
  EXPECT_EQ(Checksum().text(), "2d06800538d394c2");
}

TEST(PhaseTimes, InnerPhasesPauseOuterOnes) {
  const Timer whole;
  PhaseTimes times;
  {
    const auto outer = times.measure("outer");
    const auto inner = times.measure("inner");
    const Timer timer;
    while (timer.seconds() < 0.02) {
    }
  }
  const double inner = times.phases().at("inner").seconds;
  EXPECT_GE(inner, 0.02);
  EXPECT_LE(times.phases().at("outer").seconds, whole.seconds() - inner);
}

TEST(Text, PartsOfNames) {
  EXPECT_EQ(name_parts("layers.3.mlp"), (std::vector<std::string>{"layers", "3", "mlp"}));
  EXPECT_EQ(name_parts("lm_head"), std::vector<std::string>{"lm_head"});
  EXPECT_EQ(name_parts("a."), (std::vector<std::string>{"a", ""}));
  EXPECT_TRUE(all_digits("0123456789"));
  for (const char* text : {"", "-1", "1a", "a1"}) EXPECT_FALSE(all_digits(text)) << text;
  EXPECT_EQ(upper_case("q4_K_m"), "Q4_K_M");
  EXPECT_EQ(join_both("a", "b"), "a, b");
  EXPECT_EQ(join_both("", "b"), "b");
  EXPECT_EQ(join_both("a", ""), "a");
}

}  // namespace
}  // namespace layerpress
