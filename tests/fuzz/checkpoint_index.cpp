#include "layerpress/checkpoint/checkpoint.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/targets.h"

namespace layerpress::fuzz {
namespace {

std::string shard(const std::string& tensor) {
  return safetensors_of(R"({")" + tensor + R"(":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})" + "\nab");
}

}  // namespace

void checkpoint_index(std::string_view input) {
  static const bool written = [] {
    write_input("config.json", R"({"model_type":"llama"})");
    write_input("model-00001-of-00002.safetensors", shard("a"));
    write_input("model-00002-of-00002.safetensors", shard("b"));
    write_input("other/model-00001-of-00001.safetensors", shard("c"));
    return true;
  }();
  (void)written;
  write_input("model.safetensors.index.json", input);
  const auto opened = checkpoint::Checkpoint::open(input_folder());
  for (const std::filesystem::path& file : opened->weight_files())
    require(file.parent_path() == input_folder(), "a shard outside the folder");
  require(!opened->contains("c"), "a tensor of another folder");
}

}  // namespace layerpress::fuzz
