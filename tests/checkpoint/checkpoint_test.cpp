#include "layerpress/checkpoint/checkpoint.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "tests/checkpoint/temporary_folder.h"

namespace layerpress::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::expect_says;
using test::message_of;
using test::TemporaryFolder;

/// A folder with config.json and two shards: 'a' in the first, 'b' and 'c' in the second.
class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest() {
    folder_.write("config.json", R"({"model_type":"llama","hidden_size":4})");
    write_safetensors(folder_ / kFirst, {{"a", at::arange(4, at::kFloat)}});
    write_safetensors(folder_ / kSecond, {{"b", at::full({2, 2}, 3, at::kBFloat16)}, {"c", at::empty({0}, at::kInt)}});
    write_index(R"({"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors",)"
                R"("c":"model-00002-of-00002.safetensors"})");
  }

  void write_index(const std::string& weight_map) {
    folder_.write(kIndex, R"({"metadata":{"total_size":24},"weight_map":)" + weight_map + "}");
  }

  std::string open_error() {
    const std::string message = message_of<CheckpointError>([&] { Checkpoint::open(folder_.path()); });
    expect_says(message, {folder_.path().string()});
    return message;
  }

  static constexpr const char* kFirst = "model-00001-of-00002.safetensors";
  static constexpr const char* kSecond = "model-00002-of-00002.safetensors";
  static constexpr const char* kIndex = "model.safetensors.index.json";
  TemporaryFolder folder_;
};

TEST_F(CheckpointTest, OpensAllShardsOfTheIndex) {
  const auto checkpoint = Checkpoint::open(folder_.path());
  EXPECT_EQ(checkpoint->names(), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(checkpoint->total_bytes(), 16u + 8u);
  EXPECT_EQ(checkpoint->config().at("model_type"), "llama");
  EXPECT_TRUE(checkpoint->quantization_config().is_null());
  EXPECT_EQ(checkpoint->tensor("b").to(at::kFloat).sum().item<float>(), 12.0f);
  EXPECT_EQ(checkpoint->spec("b").dtype, at::kBFloat16);
  EXPECT_EQ(checkpoint->tensor("c").numel(), 0);
  EXPECT_TRUE(checkpoint->contains("a"));
  EXPECT_FALSE(checkpoint->contains("z"));
  expect_says(message_of<CheckpointError>([&] { checkpoint->tensor("z"); }), {folder_.path().string(), "'z'"});
  expect_says(message_of<CheckpointError>([&] { checkpoint->spec("z"); }), {"'z'"});
  checkpoint->fetch("b");
  expect_says(message_of<CheckpointError>([&] { checkpoint->fetch("z"); }), {"'z'"});
}

TEST_F(CheckpointTest, MembersTakeThePlaceOfAFusedTensor) {
  const TemporaryFolder folder;
  const at::Tensor whole = at::arange(24, at::kFloat).view({2, 3, 4});
  write_safetensors(folder / "model.safetensors", {{"other", at::ones({2})}, {"whole", whole}});
  folder.write("config.json", "{}");
  const auto stored = Checkpoint::open(folder.path());
  const FusedTensor fused{"whole", {2, 3, 4}, {{"e0", {1, 4}}, {"e1", {2, 4}}, {"e2", {3, 4}}}};
  const auto checkpoint = stored->unfused({fused, {"absent", {1}, {{"part", {1}}}}});
  EXPECT_EQ(checkpoint->names(), (std::vector<std::string>{"e0", "e1", "e2", "other"}));
  EXPECT_TRUE(at::equal(checkpoint->tensor("e1"), whole.view({6, 4}).slice(0, 1, 3)));
  EXPECT_TRUE(at::equal(checkpoint->tensor("e2"), whole[1]));
  EXPECT_EQ(checkpoint->total_bytes(), stored->total_bytes());
  checkpoint->fetch("e1");

  const FusedTensor other_shape{"whole", {3, 2, 4}, fused.members};
  expect_says(message_of<CheckpointError>([&] { stored->unfused({other_shape}); }),
              {"'whole'", "[2, 3, 4]", "[3, 2, 4]"});
  const FusedTensor twice{"whole", {2, 3, 4}, {{"other", {6, 4}}}};
  expect_says(message_of<CheckpointError>([&] { stored->unfused({twice}); }), {"'other'", "inside 'whole'"});
}

TEST_F(CheckpointTest, SingleFileNeedsNoIndex) {
  fs::remove(folder_ / kIndex);
  fs::rename(folder_ / kFirst, folder_ / "model.safetensors");
  EXPECT_EQ(Checkpoint::open(folder_.path())->names(), std::vector<std::string>{"a"});
}

TEST_F(CheckpointTest, FollowsLinksAsADownloadCacheHasThem) {
  const TemporaryFolder blobs;
  for (const char* name : {kFirst, kSecond, kIndex, "config.json"}) {
    fs::rename(folder_ / name, blobs / name);
    fs::create_symlink(blobs / name, folder_ / name);
  }
  EXPECT_EQ(Checkpoint::open(folder_.path())->names().size(), 3u);
  fs::remove(blobs / kSecond);
  expect_says(open_error(), {"1 of the 2", kSecond, "download"});
}

TEST_F(CheckpointTest, FindsTheQuantizationSectionWhereReadersLook) {
  const auto section = [&](const std::string& config) {
    folder_.write("config.json", config);
    return Checkpoint::open(folder_.path())->quantization_config();
  };
  EXPECT_EQ(section(R"({"quantization_config":{"bits":4}})"), Json({{"bits", 4}}));
  EXPECT_EQ(section(R"({"compression_config":{"bits":5}})"), Json({{"bits", 5}}));
  EXPECT_EQ(section(R"({"text_config":{"quantization_config":{"bits":6}}})"), Json({{"bits", 6}}));
  EXPECT_TRUE(section(R"({"text_config":{}})").is_null());
}

TEST_F(CheckpointTest, FaultyFolderOrConfig) {
  expect_says(message_of<CheckpointError>([&] { Checkpoint::open(folder_ / "none"); }), {"none", "no such directory"});
  folder_.write("config.json", "[1]");
  expect_says(open_error(), {"config.json", "array, not an object"});
  folder_.write("config.json", "{\"a\":");
  expect_says(open_error(), {"config.json", "not valid JSON"});
  folder_.write("config.json", "{\"a\":1e999}");
  expect_says(open_error(), {"config.json"});
  folder_.write("config.json", std::string((16u << 20) + 1, ' '));
  expect_says(message_of<IoError>([&] { Checkpoint::open(folder_.path()); }), {"config.json", "16777217 bytes"});
  fs::remove(folder_ / "config.json");
  expect_says(open_error(), {"has no config.json"});
  fs::create_symlink("config.json", folder_ / "config.json");
  expect_says(message_of<IoError>([&] { Checkpoint::open(folder_.path()); }), {"config.json", "symbolic links"});
}

TEST_F(CheckpointTest, FoldersWithoutUsableWeights) {
  fs::remove(folder_ / kIndex);
  expect_says(open_error(), {kFirst, "neither model.safetensors nor model.safetensors.index.json"});
  fs::remove(folder_ / kFirst);
  fs::remove(folder_ / kSecond);
  expect_says(open_error(), {"has no weights"});
  folder_.write("pytorch_model.bin", "x");
  expect_says(open_error(), {"pytorch_model.bin", "convert them to safetensors"});
  folder_.write("model.gguf", "x");
  expect_says(open_error(), {"model.gguf", "name that file: " + (folder_ / "model.gguf").string()});
}

TEST_F(CheckpointTest, IndexNamesNothingOutsideTheFolder) {
  for (const char* name : {"/etc/model.safetensors", "../model.safetensors", "sub/model.safetensors", "..",
                           "a..safetensors/x", "model.bin", "", "sub\\\\model.safetensors", "a\\u0000.safetensors"}) {
    write_index(std::string(R"({"a":")") + name + "\"}");
    expect_says(open_error(), {kIndex, "tensor 'a'", "plain names"});
  }
}

TEST_F(CheckpointTest, FaultyIndex) {
  folder_.write(kIndex, "no json");
  expect_says(open_error(), {kIndex, "not valid JSON"});
  folder_.write(kIndex, "[]");
  expect_says(open_error(), {kIndex, "weight_map"});
  folder_.write(kIndex, "{}");
  expect_says(open_error(), {kIndex, "weight_map"});
  write_index("[]");
  expect_says(open_error(), {kIndex, "weight_map"});
  write_index("{}");
  expect_says(open_error(), {kIndex, "weight_map"});
  write_index(R"({"a":5})");
  expect_says(open_error(), {kIndex, "'a'", "'5'"});
  write_index(R"({"a":"x.safetensors","a":"y.safetensors"})");
  expect_says(open_error(), {kIndex, "'a' appears twice"});
  write_index(R"({"a":"absent.safetensors"})");
  expect_says(open_error(), {"absent.safetensors", "missing"});
  write_index(R"({"a":"model-00001-of-00002.safetensors","d":"model-00001-of-00002.safetensors"})");
  expect_says(open_error(), {kFirst, "lacks tensor 'd'"});
}

TEST_F(CheckpointTest, DamagedShardsAreNamed) {
  fs::resize_file(folder_ / kSecond, fs::file_size(folder_ / kSecond) - 2);
  expect_says(open_error(), {kSecond, "'b'", "cut off"});
  write_safetensors(folder_ / kSecond, {{"a", at::zeros({1})}, {"b", at::zeros({1})}, {"c", at::zeros({1})}});
  expect_says(open_error(), {kSecond, "'a' is also in", kFirst});
}

TEST_F(CheckpointTest, CompanionsAreThePlainFilesThatAreNoWeights) {
  for (const char* name :
       {"tokenizer.json", "LICENSE", "chat_template.jinja", "additional_chat_templates/rag.jinja", ".gitattributes",
        "additional_chat_templates/.hidden.jinja", "additional_chat_templates/notes.txt", "pytorch_model.bin",
        "pytorch_model.bin.index.json", "consolidated.safetensors", "original/params.json", "adapter_config.json",
        "rust_model.ot", "model.onnx_data", "openvino_model.xml"})
    folder_.write(name, "x");
  fs::create_symlink(folder_ / "LICENSE", folder_ / "NOTICE");
  fs::create_symlink(folder_ / "nowhere", folder_ / "dangling.json");
  const auto checkpoint = Checkpoint::open(folder_.path());
  EXPECT_EQ(checkpoint->companion_files(),
            (std::vector<fs::path>{"LICENSE", "NOTICE", "additional_chat_templates/rag.jinja", "chat_template.jinja",
                                   "tokenizer.json"}));
  EXPECT_EQ(checkpoint->other_entries(),
            (std::vector<std::string>{"adapter_config.json", "consolidated.safetensors", "dangling.json/",
                                      "model.onnx_data", "openvino_model.xml", "original/", "pytorch_model.bin",
                                      "pytorch_model.bin.index.json", "rust_model.ot"}));
}

}  // namespace
}  // namespace layerpress::checkpoint
