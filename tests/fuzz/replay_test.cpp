// What libFuzzer starts from and what it has found, without libFuzzer.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "layerpress/base/file.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/targets.h"

namespace layerpress::fuzz {
namespace {

namespace fs = std::filesystem;

struct Target {
  std::string name;
  void (*run)(std::string_view input);
};

std::vector<Target> targets() {
  return {{"checkpoint_index", checkpoint_index},
          {"dataset_rows", dataset_rows},
          {"gguf_model", gguf_model},
          {"graph_file", graph_file},
          {"hub_answers", hub_answers},
          {"hub_cache", hub_cache},
          {"importance_file", importance_file},
          {"model_config", model_config},
          {"name_patterns", name_patterns},
          {"recipe_json", recipe_json},
          {"quantization_config", quantization_config},
          {"recipe_yaml", recipe_yaml},
          {"run_folder", run_folder},
          {"safetensors_file", safetensors_file},
          {"token_file", token_file},
          {"tokenizer_folder", tokenizer_folder}};
}

class Replay : public testing::TestWithParam<Target> {};

TEST_P(Replay, EveryInputIsTakenOrRefused) {
  prepare_process();
  int inputs = 0;
  for (const char* folder : {"corpus", "findings"}) {
    const fs::path path = fs::path(LAYERPRESS_FUZZ_INPUTS) / folder / GetParam().name;
    if (!fs::exists(path)) continue;
    for (const auto& entry : fs::directory_iterator(path)) {
      EXPECT_NO_THROW(feed(GetParam().run, read_text_file(entry.path()))) << entry.path();
      ++inputs;
    }
  }
  EXPECT_GT(inputs, 0);
}

INSTANTIATE_TEST_SUITE_P(Targets, Replay, testing::ValuesIn(targets()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace layerpress::fuzz
