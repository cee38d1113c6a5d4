#include "layerpress/data/shared_loading.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <limits>

#include "layerpress/data/load_samples.h"
#include "tests/checkpoint/temporary_folder.h"
#include "tests/data/thread_group.h"

namespace layerpress::data {
namespace {

using test::expect_says;
using test::message_of;
using test::Messages;
using test::Samples;
using test::samples_of;
using test::ScopedVariable;
using test::TemporaryFolder;
using test::ThreadGroup;

constexpr std::int64_t kVocabulary = 1000000;
constexpr int kGroupSizes[] = {1, 2, 3, 4, 8};

/// What `size` ranks did together.
struct Shared {
  std::vector<ThreadGroup::Outcome> ranks;
  std::vector<Messages> messages;
  int gathers = 0;

  Samples samples() const {
    Samples all;
    for (const auto& rank : ranks)
      for (auto& sample : samples_of(rank.set)) all.push_back(std::move(sample));
    return all;
  }
};

/// Token ids are read here: a helper that is asked after all would fail.
class SharedLoadingTest : public testing::Test {
 protected:
  Shared share(const DatasetOptions& options, int size) {
    Shared shared;
    shared.messages.resize(static_cast<std::size_t>(size));
    ThreadGroup group(size);
    shared.ranks = group.run([&](LoaderGroup& member) {
      Messages& messages = shared.messages[static_cast<std::size_t>(member.rank())];
      return load_partition(options, folder_.path(), kVocabulary, member, {.events = &messages});
    });
    shared.gathers = group.gathers();
    return shared;
  }

  CalibrationSet whole(const DatasetOptions& options, Messages& messages) {
    return load_samples(options, folder_.path(), kVocabulary, {.events = &messages});
  }

  /// All ranks together have what one has, and only rank 0 says what one says.
  void expect_same(const DatasetOptions& options, int size) {
    SCOPED_TRACE(fmt::format("{} ranks, {} samples of {}, {}, shuffle {}, concatenate {}", size, options.num_samples,
                             options.max_seq_length, options.split, options.shuffle, options.concatenate));
    Messages messages;
    Samples expected = samples_of(whole(options, messages));
    const Shared shared = share(options, size);
    Samples found = shared.samples();
    for (std::size_t rank = 0; rank < shared.ranks.size(); ++rank) {
      EXPECT_EQ(shared.ranks[rank].error, "");
      EXPECT_EQ(shared.messages[rank].warnings, rank == 0 ? messages.warnings : std::vector<std::string>{});
      expect_in_order(samples_of(shared.ranks[rank].set), expected);
    }
    if (size == 1) {
      EXPECT_EQ(found, expected);
    }
    std::sort(expected.begin(), expected.end());
    std::sort(found.begin(), found.end());
    EXPECT_EQ(found, expected);
  }

  /// Samples differ from each other in these tests, so each has one place in the whole.
  static void expect_in_order(const Samples& part, const Samples& all) {
    auto from = all.begin();
    for (const auto& sample : part) {
      from = std::find(from, all.end(), sample);
      ASSERT_NE(from, all.end());
      ++from;
    }
  }

  DatasetOptions file(std::string_view name, std::string_view content) {
    DatasetOptions options;
    options.dataset = folder_.write(name, content).string();
    return options;
  }

  /// Row i has `lengths[i]` tokens that no other row has.
  DatasetOptions rows(const std::vector<int>& lengths) {
    std::string text;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      text += "{\"input_ids\":[";
      for (int j = 0; j < lengths[i]; ++j) text += fmt::format("{}{}", j ? "," : "", 100 * i + j);
      text += "]}\n";
    }
    return file("rows.jsonl", text);
  }

  DatasetOptions token_file(const std::vector<int>& lengths) {
    CalibrationSet set;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      for (int j = 0; j < lengths[i]; ++j) set.tokens.push_back(static_cast<std::int32_t>(100 * i) + j);
      set.sample_offsets.push_back(static_cast<std::int64_t>(set.tokens.size()));
    }
    write_token_file(folder_ / "tokens.safetensors", set);
    DatasetOptions options;
    options.dataset = (folder_ / "tokens.safetensors").string();
    return options;
  }

  TemporaryFolder folder_;
  ScopedVariable no_interpreter_{"LAYERPRESS_PYTHON", "/nonexistent/python"};
};

std::vector<int> mixed_lengths(int count) {
  std::vector<int> lengths;
  for (int i = 0; i < count; ++i) lengths.push_back(1 + i * 37 % 23);
  return lengths;
}

TEST_F(SharedLoadingTest, PartsAreTheWhole) {
  DatasetOptions options = rows(mixed_lengths(40));
  options.max_seq_length = 9;
  for (const int size : kGroupSizes)
    for (const std::int64_t count : {1, 3, 8, 39, 40, 41, 512}) {
      options.num_samples = count;
      expect_same(options, size);
    }
}

/// Each sample's tokens, those that count as they are and the others negative.
Samples marked_samples(const CalibrationSet& set) {
  CalibrationSet marked = set;
  EXPECT_EQ(set.loss_mask.size(), set.tokens.size());
  for (std::size_t i = 0; i < set.loss_mask.size(); ++i)
    if (set.loss_mask[i] == 0) marked.tokens[i] = -1 - marked.tokens[i];
  return samples_of(marked);
}

TEST_F(SharedLoadingTest, LossMasksTravelWithTheirTokens) {
  std::string text;
  CalibrationSet stored;
  const std::vector<int> lengths = mixed_lengths(30);
  for (int i = 0; i < 30; ++i) {
    std::string ids, mask;
    for (int j = 0; j < lengths[static_cast<std::size_t>(i)]; ++j) {
      stored.tokens.push_back(100 * i + j);
      stored.loss_mask.push_back(static_cast<std::uint8_t>((i + j) % 3 == 0));
      ids += fmt::format("{}{}", j ? "," : "", stored.tokens.back());
      mask += fmt::format("{}{}", j ? "," : "", stored.loss_mask.back());
    }
    stored.sample_offsets.push_back(static_cast<std::int64_t>(stored.tokens.size()));
    text += fmt::format("{{\"input_ids\":[{}],\"loss_mask\":[{}]}}\n", ids, mask);
  }
  write_token_file(folder_ / "masked.safetensors", stored);
  DatasetOptions of_lines = file("masked.jsonl", text), of_tokens = of_lines;
  of_tokens.dataset = (folder_ / "masked.safetensors").string();
  for (DatasetOptions options : {of_lines, of_tokens})
    for (const bool concatenate : {false, true}) {
      options.use_loss_mask = true;
      options.concatenate = concatenate;
      options.max_seq_length = 9;
      Messages messages;
      const CalibrationSet all = whole(options, messages);
      Samples expected = marked_samples(all);
      std::sort(expected.begin(), expected.end());
      ASSERT_GT(expected.size(), 4u);
      EXPECT_GT(all.counted_tokens(), 0);
      EXPECT_LT(all.counted_tokens(), all.token_count());
      for (const int size : {2, 3, 8}) {
        Samples found;
        for (const auto& rank : share(options, size).ranks) {
          EXPECT_EQ(rank.error, "");
          for (auto& sample : marked_samples(rank.set)) found.push_back(std::move(sample));
        }
        std::sort(found.begin(), found.end());
        EXPECT_EQ(found, expected) << size << " ranks";
      }
      options.use_loss_mask = false;
      EXPECT_TRUE(whole(options, messages).loss_mask.empty());
    }
}

TEST_F(SharedLoadingTest, FaultyLossMasksAreNamed) {
  const auto fault = [&](std::string_view name, std::string_view content) {
    DatasetOptions options = file(name, content);
    options.use_loss_mask = true;
    Messages messages;
    return message_of<DataError>([&] { whole(options, messages); });
  };
  expect_says(fault("a.jsonl", R"({"input_ids":[1,2]})"), {"line 1", "loss_mask", "--use-loss-mask"});
  expect_says(fault("b.jsonl", R"({"input_ids":[1,2],"loss_mask":[1]})"), {"2 token ids"});
  expect_says(fault("c.jsonl", R"({"input_ids":[1,2],"loss_mask":[1,3]})"), {"entry 1 is 3"});
  expect_says(fault("d.json", R"([{"input_ids":[1,2],"loss_mask":[0,false]}])"), {"excludes every token"});
  DatasetOptions unmasked = token_file({3, 4});
  unmasked.use_loss_mask = true;
  Messages messages;
  expect_says(message_of<DataError>([&] { whole(unmasked, messages); }),
              {"has no loss mask", "prepare --use-loss-mask"});
}

TEST_F(SharedLoadingTest, RowsAreDividedBeforeTheyAreRead) {
  DatasetOptions options = rows(std::vector<int>(20, 1));
  options.num_samples = 10;
  const Shared shared = share(options, 4);  // floor(10 r / 4): 0 2 5 7 10
  EXPECT_EQ(samples_of(shared.ranks[0].set), (Samples{{0}, {100}}));
  EXPECT_EQ(samples_of(shared.ranks[1].set), (Samples{{200}, {300}, {400}}));
  EXPECT_EQ(samples_of(shared.ranks[3].set), (Samples{{700}, {800}, {900}}));
  EXPECT_EQ(shared.gathers, 1);
}

TEST_F(SharedLoadingTest, TokensAreBalanced) {
  DatasetOptions options = rows({40, 38, 36, 35, 1, 2, 3, 4, 20});
  const Shared shared = share(options, 3);  // 512 are asked for: rank 0 reads all
  for (const auto& rank : shared.ranks) {
    EXPECT_EQ(rank.set.sample_count(), 3);
    EXPECT_NEAR(static_cast<double>(rank.set.token_count()), 179.0 / 3, 15);  // rank 0 would have had all
  }
  EXPECT_EQ(shared.gathers, 2);
}

TEST_F(SharedLoadingTest, OneSampleOnFourRanks) {
  DatasetOptions options = rows({3, 4, 5});
  options.num_samples = 1;
  const Shared shared = share(options, 4);
  for (std::size_t rank = 0; rank < 4; ++rank) EXPECT_EQ(shared.ranks[rank].set.sample_count(), rank == 3 ? 1 : 0);
  EXPECT_EQ(shared.samples(), (Samples{{0, 1, 2}}));
}

TEST_F(SharedLoadingTest, EmptyRowsAreMadeGoodFor) {
  std::vector<int> lengths = mixed_lengths(60);
  for (const std::size_t empty : {0, 3, 4, 5, 6, 7, 20, 21, 22, 23, 24, 25, 26, 40, 57, 58, 59}) lengths[empty] = 0;
  DatasetOptions options = rows(lengths);
  for (const int size : kGroupSizes)
    for (const std::int64_t count : {1, 4, 8, 25, 42, 43, 44, 60, 100}) {
      options.num_samples = count;
      expect_same(options, size);
    }
  options.num_samples = 8;                  // rows 0 to 7 hold 2 samples, 8 to 13 the 6 that are missing
  EXPECT_EQ(share(options, 3).gathers, 3);  // and samples are dealt anew
}

TEST_F(SharedLoadingTest, SlicesAndShuffle) {
  std::vector<int> lengths = mixed_lengths(50);
  for (const std::size_t empty : {2, 11, 12, 30, 49}) lengths[empty] = 0;
  DatasetOptions options = rows(lengths);
  for (const int size : kGroupSizes)
    for (const char* split : {"train", "train[10:30]", "x[45:]", "train[:7]", "train[40:400]"})
      for (const bool shuffle : {false, true})
        for (const std::int64_t count : {2, 7, 30}) {
          options.split = split;
          options.shuffle = shuffle;
          options.seed = static_cast<std::uint64_t>(count);
          options.num_samples = count;
          expect_same(options, size);
        }
}

TEST_F(SharedLoadingTest, Concatenate) {
  std::vector<int> lengths = mixed_lengths(200);
  for (const std::size_t empty : {0, 1, 2, 50, 51, 198, 199}) lengths[empty] = 0;
  DatasetOptions options = rows(lengths);
  options.concatenate = true;
  for (const int size : kGroupSizes)
    for (const std::int64_t length : {1, 7, 64, 1000})
      for (const std::int64_t count : {1, 3, 30, 512})
        for (const bool shuffle : {false, true}) {
          options.split = count == 30 ? "train[1:150]" : "train";
          options.shuffle = shuffle;
          options.max_seq_length = length;
          options.num_samples = count;
          expect_same(options, size);
        }
}

TEST_F(SharedLoadingTest, ConcatenateReadsLittleMoreThanItNeeds) {
  DatasetOptions options = rows(std::vector<int>(900, 20));
  options.concatenate = true;
  options.max_seq_length = 100;
  options.num_samples = 30;  // 150 rows; short rows are the case that needs a second round
  const Shared shared = share(options, 2);
  EXPECT_EQ(shared.samples().size(), 30u);
  EXPECT_EQ(shared.ranks[0].set.sample_count(), 15);
  EXPECT_EQ(shared.gathers, 2);
  folder_.write("rows.jsonl", test::read_bytes(folder_ / "rows.jsonl") + "broken\n");
  EXPECT_EQ(share(options, 2).samples(), shared.samples());
}

TEST_F(SharedLoadingTest, ConcatenatePassesManyEmptyRows) {
  std::vector<int> lengths(1500, 0);
  lengths[1400] = 5;
  lengths[1499] = 4;
  DatasetOptions options = rows(lengths);
  options.concatenate = true;
  options.max_seq_length = 3;
  expect_same(options, 3);
}

TEST_F(SharedLoadingTest, HugeRequestsDoNotOverflow) {
  DatasetOptions options = rows(mixed_lengths(10));
  options.num_samples = std::numeric_limits<std::int64_t>::max();
  options.max_seq_length = std::numeric_limits<std::int64_t>::max();
  for (const int size : {2, 3}) expect_same(options, size);
  options.concatenate = true;
  options.max_seq_length = 2;
  for (const int size : {2, 3}) expect_same(options, size);
}

TEST_F(SharedLoadingTest, NoRowIsReadThatOneRankWouldNotRead) {
  DatasetOptions options =
      file("x.jsonl", "{\"input_ids\":[1]}\n{\"input_ids\":[]}\n{\"input_ids\":[2]}\n{\"input_ids\":[3]}\nbroken\n");
  options.num_samples = 3;
  for (const int size : kGroupSizes) expect_same(options, size);
  options.num_samples = 4;
  const Shared shared = share(options, 4);
  int faults = 0;
  for (const auto& rank : shared.ranks) {
    if (rank.abandoned) continue;
    expect_says(rank.error, {"x.jsonl, line 5", "not JSON"});
    ++faults;
  }
  EXPECT_EQ(faults, 1);
}

TEST_F(SharedLoadingTest, WhatConcernsTheWholeSetIsSaidByAll) {
  const auto expect_all_say = [&](const DatasetOptions& options, std::string_view part) {
    Messages ignored;
    const std::string expected = message_of<Error>([&] { whole(options, ignored); });
    expect_says(expected, {part});
    for (const int size : kGroupSizes)
      for (const auto& rank : share(options, size).ranks) EXPECT_EQ(rank.error, expected);
  };
  DatasetOptions options = rows({0, 0, 0, 2});
  options.split = "train[:3]";
  expect_all_say(options, "3 rows without tokens");
  options.split = "train[7:9]";
  expect_all_say(options, "gives no samples");
  options.split = "train[-3:]";
  expect_all_say(options, "train[10:50]");
  options.split = "train";
  options.concatenate = true;
  options.max_seq_length = 3;
  expect_all_say(options, "fewer than 3 tokens (3 rows without tokens");
  options.num_samples = 0;
  expect_all_say(options, "--num-samples must be at least 1, got 0");
  options = token_file({});
  expect_all_say(options, "gives no samples");
  options.dataset = (folder_ / "none.jsonl").string();
  expect_all_say(options, "no such file");
}

TEST_F(SharedLoadingTest, EachRankChecksItsOwnTokens) {
  DatasetOptions options = file("x.jsonl",
                                "{\"input_ids\":[]}\n{\"input_ids\":[1]}\n{\"input_ids\":[2]}\n"
                                "{\"input_ids\":[3,999999,1000000]}\n");
  const auto expect_fault_of = [&](const Shared& shared, std::size_t guilty) {
    for (std::size_t rank = 0; rank < shared.ranks.size(); ++rank)
      if (rank != guilty) {
        EXPECT_EQ(shared.ranks[rank].error, "");
      }
    expect_says(shared.ranks[guilty].error,
                {"x.jsonl", "sample 3 (from 1)", "token id 1000000", "vocabulary has 1000000"});
  };
  expect_fault_of(share(options, 4), 0);  // the longest sample is dealt first
  options.num_samples = 3;
  expect_fault_of(share(options, 3), 0);  // one is missing after the first round
  options.concatenate = true;
  options.max_seq_length = 1;
  options.num_samples = 5;
  const Shared shared = share(options, 2);  // samples 1 2 | 3 999999 1000000
  EXPECT_EQ(samples_of(shared.ranks[0].set), (Samples{{1}, {2}}));
  expect_says(shared.ranks[1].error, {"sample 5 (from 1)", "token id 1000000"});
}

TEST_F(SharedLoadingTest, TokenFiles) {
  DatasetOptions options = token_file(mixed_lengths(40));
  for (const int size : kGroupSizes)
    for (const char* split : {"train", "train[5:28]", "train[38:]"})
      for (const std::int64_t count : {1, 7, 100})
        for (const bool concatenate : {false, true}) {
          options.split = split;
          options.num_samples = count;
          options.shuffle = count == 7;
          options.concatenate = concatenate;
          options.max_seq_length = concatenate ? 5 : 11;
          expect_same(options, size);
        }
}

TEST_F(SharedLoadingTest, TokenFilesAreDividedByTokens) {
  std::vector<int> lengths;
  for (int i = 1; i <= 64; ++i) lengths.push_back(i);  // in order, halves would differ by a factor of three
  for (const int size : {2, 3, 4, 8})
    for (const std::int64_t limit : {40, 2048}) {
      DatasetOptions options = token_file(lengths);
      options.max_seq_length = limit;
      const Shared shared = share(options, size);
      std::vector<std::int64_t> samples, tokens;
      for (const auto& rank : shared.ranks) {
        samples.push_back(rank.set.sample_count());
        tokens.push_back(rank.set.token_count());
      }
      const auto [fewest, most] = std::minmax_element(samples.begin(), samples.end());
      EXPECT_LE(*most - *fewest, 1);
      const auto [least, largest] = std::minmax_element(tokens.begin(), tokens.end());
      EXPECT_LE(*largest - *least, 40) << size;
      EXPECT_EQ(shared.gathers, 0) << "lengths are known without asking";
    }
}

TEST_F(SharedLoadingTest, RanksReadOnlyTheirSamplesOfATokenFile) {
  CalibrationSet set{{1, 2, 3, 4, -5, 6}, {0, 1, 2, 3, 4, 5, 6}};
  write_token_file(folder_ / "tokens.safetensors", set);
  DatasetOptions options;
  options.dataset = (folder_ / "tokens.safetensors").string();
  const Shared shared = share(options, 3);  // equal lengths, dealt in order: 0 1 2 0 1 2
  EXPECT_EQ(samples_of(shared.ranks[0].set), (Samples{{1}, {4}}));
  expect_says(shared.ranks[1].error, {"tokens.safetensors", "entry 4", "-5"});
  EXPECT_EQ(samples_of(shared.ranks[2].set), (Samples{{3}, {6}}));
}

TEST_F(SharedLoadingTest, AnswersOfOtherRanksAreChecked) {
  struct Strange : LoaderGroup {
    int rank() const override { return 0; }
    int size() const override { return 2; }
    std::vector<std::vector<std::int64_t>> all_gather(const std::vector<std::int64_t>&) override { return answer; }
    std::vector<std::vector<std::int64_t>> answer;
  } group;
  DatasetOptions options = rows({1, 2, 3});
  const auto expect_refused = [&](std::vector<std::vector<std::int64_t>> answer) {
    group.answer = std::move(answer);
    expect_says(message_of<DistributedError>([&] { load_partition(options, folder_.path(), kVocabulary, group, {}); }),
                {"[data.partition]", "start the same program on all"});
  };
  expect_refused({});
  expect_refused({{1, 1, 0, 2}});
  expect_refused({{1, 1, 0, 2}, {1}});
  expect_refused({{1, 1, 0, 2}, {1, 2, 0, 1, 1}});
  expect_refused({{1, 1, 0, 2}, {1, -1, 0}});
  expect_refused({{1, 1, 0, 2}, {1, 1, 0}});
  options.concatenate = true;
  expect_refused({{1, 1, 0, 7}, {1, 1, 0, -7}});
  expect_refused({{1, 1, 0, 7}, {1, 1, 0, std::int64_t{1} << 31}});
}

TEST_F(SharedLoadingTest, StopsWhenAsked) {
  const DatasetOptions options = rows({1, 2, 3});
  const std::atomic<bool> stop = true;
  ThreadGroup group(3);
  const auto ranks = group.run([&](LoaderGroup& member) {
    return load_partition(options, folder_.path(), kVocabulary, member, {.stop_requested = &stop});
  });
  EXPECT_TRUE(
      std::any_of(ranks.begin(), ranks.end(), [](const auto& rank) { return !rank.error.empty() && !rank.abandoned; }));
}

}  // namespace
}  // namespace layerpress::data
