#include "layerpress/runtime/journal.h"

#include <gtest/gtest.h>

#include "tests/checkpoint/temporary_folder.h"

namespace layerpress::runtime {
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
    folder.write("journal", "{\"record\": \"header\"}\n{\"index\": 0}\n" + end);
    EXPECT_EQ(Journal::read(folder / "journal").size(), 2u) << end;
  }
}

TEST(Journal, StopsAtWhatCannotBeRead) {
  const test::TemporaryFolder folder;
  for (const std::string damage : {"\x01\x02", "{]}", "[1]", "7"}) {
    folder.write("journal", "{\"record\": \"header\"}\n" + damage + "\n{\"index\": 1}\n");
    EXPECT_EQ(Journal::read(folder / "journal").size(), 1u) << damage;
  }
}

}  // namespace
}  // namespace layerpress::runtime
