#include "layerpress/output/journal.h"

#include <gtest/gtest.h>

#include "layerpress/base/error.h"
#include "tests/checkpoint/temporary_folder.h"

namespace layerpress::output {
namespace {

TEST(Journal, KeepsWhatWasAppended) {
  const test::TemporaryFolder folder;
  EXPECT_TRUE(Journal::read(folder / "journal").empty());
  {
    Journal journal(folder / "journal", {{{"record", "header"}}});
    journal.append({{"index", 0}, {"name", "a \"quoted\"\nname"}});
    journal.append({{"index", 1}});
  }
  const std::vector<Json> records = Journal::read(folder / "journal");
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[0]["record"], "header");
  EXPECT_EQ(records[1]["name"], "a \"quoted\"\nname");
  EXPECT_EQ(records[2]["index"], 1);
}

TEST(Journal, LeavesOutALineThatWasCutShort) {
  const test::TemporaryFolder folder;
  for (const std::string end : {"", "{", "{\"index\": 1", "{\"index\": 1}"}) {
    folder.write("journal", Journal::line_of("{\"record\": \"header\"}") + Journal::line_of("{\"index\": 0}") + end);
    EXPECT_EQ(Journal::read(folder / "journal").size(), 2u) << end;
  }
}

TEST(Journal, StopsAtWhatCannotBeRead) {
  const test::TemporaryFolder folder;
  for (const std::string damage : {"\x01\x02", "{]}", "[1]", "7"}) {
    folder.write("journal",
                 Journal::line_of("{\"record\": \"header\"}") + damage + "\n" + Journal::line_of("{\"index\": 1}"));
    EXPECT_EQ(Journal::read(folder / "journal").size(), 1u) << damage;
  }
}

TEST(Journal, StopsAtALineThatWasChanged) {
  const test::TemporaryFolder folder;
  const std::string header = Journal::line_of("{\"record\":\"header\"}"), record = Journal::line_of("{\"index\":16}");
  for (std::size_t i = 0; i + 1 < record.size(); ++i) {
    std::string changed = record;
    changed[i] ^= 1;
    folder.write("journal", header + changed + record);
    EXPECT_EQ(Journal::read(folder / "journal").size(), 1u) << changed;
  }
  folder.write("journal", header + record);
  EXPECT_EQ(Journal::read(folder / "journal").at(1), (Json{{"index", 16}}));
}

/// What rank `rank` of `ranks` records of subgraph `index` when it writes the sets `sets`.
Json record_of(int rank, int ranks, int index, const std::vector<int>& sets) {
  return {{"record", "subgraph"},
          {"index", index},
          {"boundary", {{"at", rank}}},
          {"ranks", ranks},
          {"sets", sets},
          {"tensors", {{fmt::format("tensor {} of {}", index, rank), "00"}}},
          {"modules", {fmt::format("module {} of {}", index, rank)}}};
}

/// Writes the journal of a rank: a header for `sets` sets, then `records`.
void write_journal(const test::TemporaryFolder& folder, int rank, int sets, std::vector<Json> records) {
  records.insert(records.begin(), Json{{"record", "header"}, {"by", rank}, {"shard_sets", sets}});
  const Journal journal(folder / Journal::file_name(rank), records);
}

TEST(Journal, JoinsTheRecordsOfAllRanks) {
  const test::TemporaryFolder folder;
  EXPECT_TRUE(Journal::read_all(folder.path()).empty());
  write_journal(folder, 10, 3, {record_of(10, 3, 1, {2}), record_of(10, 3, 0, {2})});
  write_journal(folder, 2, 3, {record_of(2, 3, 0, {1}), record_of(2, 3, 1, {1})});
  EXPECT_TRUE(Journal::read_all(folder.path()).empty());  // the first rank's makes a run
  write_journal(folder, 0, 3, {record_of(0, 3, 0, {0}), record_of(0, 3, 1, {0})});
  const std::vector<Json> records = Journal::read_all(folder.path());
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[0]["by"], 0);
  EXPECT_EQ(Journal::shard_sets(records[0]), 3);
  for (int index = 0; index < 2; ++index) {
    const Json& record = records[index + 1];
    EXPECT_EQ(record["index"], index);
    EXPECT_EQ(record["sets"], (Json{0, 1, 2}));
    EXPECT_EQ(record["tensors"].size(), 3u);
    EXPECT_TRUE(record["tensors"].contains(fmt::format("tensor {} of 10", index)));
    EXPECT_EQ(record["modules"].size(), 3u);
    EXPECT_EQ(record["ranks"], 3);
    EXPECT_EQ(record["boundaries"], (Json{{"0", {{"at", 0}}}, {"2", {{"at", 2}}}, {"10", {{"at", 10}}}}));
    EXPECT_FALSE(record.contains("boundary"));
  }
}

TEST(Journal, ASubgraphIsFinishedWhenAllSetsAre) {
  const test::TemporaryFolder folder;
  write_journal(folder, 0, 2, {record_of(0, 2, 0, {0}), record_of(0, 2, 1, {0}), record_of(0, 2, 2, {0, 1})});
  write_journal(folder, 1, 2, {record_of(1, 2, 1, {1}), record_of(1, 2, 3, {1})});
  const std::vector<Json> records = Journal::read_all(folder.path());
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[1]["index"], 1);
  EXPECT_EQ(records[2]["index"], 2);
  EXPECT_FALSE(Journal::has_all_sets(record_of(0, 1, 0, {0, 2}), 2));
  EXPECT_FALSE(Journal::has_all_sets({{"sets", "all"}}, 1));
}

/// Rank 0 wrote what it had taken over and was killed before it removed the others' journals.
TEST(Journal, CountsNothingTwice) {
  const test::TemporaryFolder folder;
  write_journal(folder, 0, 2, {record_of(0, 2, 0, {0})});
  write_journal(folder, 1, 2, {record_of(1, 2, 0, {1})});
  const std::vector<Json> once = Journal::read_all(folder.path());
  const Journal taken_over(folder / Journal::file_name(0), once);
  EXPECT_EQ(Journal::read_all(folder.path()), once);
  EXPECT_EQ(once[1]["modules"].size(), 2u);
}

TEST(Journal, NoBoundaryWhenRanksWereOthers) {
  const test::TemporaryFolder folder;
  write_journal(folder, 0, 2, {record_of(0, 2, 0, {0})});
  write_journal(folder, 1, 2, {record_of(1, 4, 0, {1})});
  const std::vector<Json> records = Journal::read_all(folder.path());
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[1]["boundaries"], Json::object());
}

TEST(Journal, DamagedRecordsProveNothing) {
  for (const char* key : {"sets", "tensors", "modules"}) {
    const test::TemporaryFolder folder;
    Json damaged = record_of(1, 2, 0, {1});
    damaged[key] = "x";
    write_journal(folder, 0, 2, {record_of(0, 2, 0, {0})});
    write_journal(folder, 1, 2, {damaged, 17, record_of(1, 2, 1, {0, 1})});
    const std::vector<Json> records = Journal::read_all(folder.path());
    if (std::string(key) == "sets") {
      EXPECT_EQ(records.size(), 1u);
    } else {
      ASSERT_EQ(records.size(), 2u) << key;
      EXPECT_TRUE(records[1][key].is_null()) << key;
    }
  }
  for (const Json& index : {Json(-1), Json(1.5), Json("0"), Json()}) {
    const test::TemporaryFolder folder;
    Json record = record_of(0, 1, 0, {0});
    record["index"] = index;
    write_journal(folder, 0, 1, {record});
    EXPECT_EQ(Journal::read_all(folder.path()).size(), 1u) << index;
  }
}

TEST(Journal, NumberOfSetsIsChecked) {
  EXPECT_EQ(Journal::shard_sets({{"record", "header"}}), 1);
  for (const Json& sets : {Json(0), Json(-1), Json(1e9), Json(std::uint64_t{1} << 62), Json("2")})
    test::expect_says(test::message_of<CheckpointError>([&] {
                        Journal::shard_sets({{"shard_sets", sets}});
                      }),
                      {"'shard_sets'", sets.dump()});
}

TEST(Journal, KnowsItsFiles) {
  const test::TemporaryFolder folder;
  EXPECT_EQ(Journal::file_name(0), Journal::kFileName);
  EXPECT_EQ(Journal::file_name(12), ".layerpress-journal-12.jsonl");
  const std::vector<std::string> others = {".layerpress-journal-0.jsonl",  ".layerpress-journal-01.jsonl",
                                           ".layerpress-journal--1.jsonl", ".layerpress-journal-1x.jsonl",
                                           ".layerpress-journal-.jsonl",   ".layerpress-journal-99999999999.jsonl",
                                           ".layerpress-journal-1.jsonl~"};
  for (const std::string& name : others) {
    EXPECT_FALSE(Journal::is_file_name(name)) << name;
    folder.write(name, "kept");
  }
  for (const int rank : {0, 1, 12}) {
    EXPECT_TRUE(Journal::is_file_name(Journal::file_name(rank)));
    folder.write(Journal::file_name(rank), "{}\n");
  }
  Journal::remove_others(folder.path());
  EXPECT_TRUE(std::filesystem::exists(folder / Journal::file_name(0)));
  EXPECT_FALSE(std::filesystem::exists(folder / Journal::file_name(1)));
  EXPECT_FALSE(std::filesystem::exists(folder / Journal::file_name(12)));
  folder.write(Journal::file_name(3), "{}\n");
  Journal::remove_all(folder.path());
  for (const int rank : {0, 3}) EXPECT_FALSE(std::filesystem::exists(folder / Journal::file_name(rank)));
  for (const std::string& name : others) EXPECT_TRUE(std::filesystem::exists(folder / name)) << name;
  Journal::remove_all(folder / "not there");
}

}  // namespace
}  // namespace layerpress::output
