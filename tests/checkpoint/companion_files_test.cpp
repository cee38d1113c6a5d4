#include "layerpress/checkpoint/companion_files.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <set>

#include "layerpress/base/error.h"
#include "layerpress/checkpoint/safetensors.h"
#include "tests/checkpoint/temporary_folder.h"

namespace layerpress::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::expect_says;
using test::message_of;
using test::read_bytes;
using test::TemporaryFolder;

TEST(WriteCompanions, CopiesWhatBelongsToTheModel) {
  const TemporaryFolder source;
  const TemporaryFolder target;
  write_safetensors(source / "model.safetensors", {{"a", at::zeros({1})}});
  source.write("config.json", R"({"model_type":"llama"})");
  source.write("empty.txt", "");
  source.write("recipe.yaml", "old");
  source.write("additional_chat_templates/rag.jinja", "{{ documents }}");
  const auto blob = source.write("blobs/tokenizer", "{\"tokens\":[]}");
  fs::create_symlink(blob, source / "tokenizer.json");
  fs::permissions(blob, fs::perms::owner_read);
  const auto checkpoint = Checkpoint::open(source.path());
  write_companions(*checkpoint, {{"z", 1}, {"a", {{"b", 2}}}}, target.path(), {"recipe.yaml"});

  EXPECT_EQ(read_bytes(target / "config.json"), "{\n  \"a\": {\n    \"b\": 2\n  },\n  \"z\": 1\n}\n");
  EXPECT_EQ(read_bytes(target / "tokenizer.json"), "{\"tokens\":[]}");
  EXPECT_FALSE(fs::is_symlink(target / "tokenizer.json"));
  EXPECT_TRUE(fs::exists(target / "empty.txt"));
  EXPECT_EQ(read_bytes(target / "additional_chat_templates/rag.jinja"), "{{ documents }}");
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(target.path())) names.insert(entry.path().filename());
  EXPECT_EQ(names, (std::set<std::string>{"additional_chat_templates", "config.json", "empty.txt", "tokenizer.json"}));
}

TEST(RequireCompanions, NamesWhatNoReaderCanParse) {
  const TemporaryFolder source;
  write_safetensors(source / "model.safetensors", {{"a", at::zeros({1})}});
  source.write("config.json", "{}");
  source.write("tokenizer.json", R"({"version": "1.0"})");
  source.write("trainer_state.json", R"({"loss": NaN})");  // as Python writes it; no engine reads it
  require_companions(*Checkpoint::open(source.path()));
  source.write("tokenizer.json", R"({"version": "1.)");
  const auto checkpoint = Checkpoint::open(source.path());
  EXPECT_EQ(damaged_companions(*checkpoint), std::vector<fs::path>{"tokenizer.json"});
  expect_says(message_of<CheckpointError>([&] { require_companions(*checkpoint); }),
              {"tokenizer.json", "is no JSON", "fetch it again"});
}

}  // namespace
}  // namespace layerpress::checkpoint
