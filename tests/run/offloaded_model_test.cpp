#include "layerpress/offloaded_model.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <fstream>

#include "layerpress/base/error.h"
#include "layerpress/checkpoint/safetensors.h"
#include "tests/checkpoint/temporary_folder.h"

namespace layerpress {
namespace {

using Place = OffloadedModel::Place;

/// A checkpoint of `count` bf16 matrices of 1 MiB.
void write_model(const test::TemporaryFolder& folder, int count) {
  std::map<std::string, at::Tensor> tensors;
  for (int i = 0; i < count; ++i) tensors[fmt::format("layers.{}.weight", i)] = at::full({512, 1024}, i, at::kBFloat16);
  folder.write("model/config.json", R"({"model_type": "any"})");
  folder.write("model/tokenizer.json", "{}");
  checkpoint::write_safetensors(folder / "model/model.safetensors", tensors, {});
}

TEST(OffloadedModel, KeepsModifiedParametersInMemoryAndThenOnDisk) {
  const test::TemporaryFolder folder;
  write_model(folder, 4);
  OffloadOptions options;
  options.memory_budget = "2MiB";
  options.offload_dir = folder.path().string();
  auto model = load_offloaded_model((folder / "model").string(), options);
  EXPECT_EQ(model.names().size(), 4u);
  EXPECT_EQ(model.place("layers.0.weight"), Place::kMapped);
  for (const char* name : {"layers.0.weight", "layers.1.weight", "layers.2.weight"})
    model.update(name, model.parameter(name) + 10);
  EXPECT_EQ(model.place("layers.0.weight"), Place::kMemory);
  EXPECT_EQ(model.place("layers.1.weight"), Place::kMemory);
  EXPECT_EQ(model.place("layers.2.weight"), Place::kDisk);
  EXPECT_EQ(model.place("layers.3.weight"), Place::kMapped);
  const auto layer = model.onload({"layers.2.weight", "layers.3.weight"}, at::kCPU);
  EXPECT_EQ(layer.parameter("layers.2.weight")[7][9].item<float>(), 12);
  EXPECT_EQ(layer.parameter("layers.3.weight")[7][9].item<float>(), 3);
  EXPECT_THROW(layer.parameter("layers.0.weight"), InternalError);
  // A value that replaces one in memory takes its place there.
  model.update("layers.0.weight", at::ones({2, 2}));
  EXPECT_EQ(model.place("layers.0.weight"), Place::kMemory);

  model.save((folder / "saved").string());
  const auto saved = load_offloaded_model((folder / "saved").string());
  EXPECT_EQ(saved.parameter("layers.0.weight").sizes(), (at::IntArrayRef{2, 2}));
  EXPECT_EQ(saved.parameter("layers.1.weight")[0][0].item<float>(), 11);
  EXPECT_EQ(saved.parameter("layers.2.weight")[511][1023].item<float>(), 12);
  EXPECT_TRUE(std::filesystem::exists(folder / "saved/tokenizer.json"));
}

TEST(OffloadedModel, TensorsGotBeforeKeepTheirValue) {
  const test::TemporaryFolder folder;
  write_model(folder, 3);
  for (const char* map : {"cpu", "disk"}) {
    OffloadOptions options;
    options.device_map = map;
    options.offload_dir = folder.path().string();
    auto model = load_offloaded_model((folder / "model").string(), options);
    at::Tensor mine = at::full({512, 1024}, 7, at::kBFloat16);
    model.update("layers.0.weight", mine);
    mine.fill_(8);  // the model has a copy
    const at::Tensor before = model.parameter("layers.0.weight");
    const auto onloaded = model.onload({"layers.0.weight"}, at::kCPU);
    EXPECT_EQ(before[3][4].item<float>(), 7) << map;
    model.update("layers.0.weight", at::full({512, 1024}, 9, at::kBFloat16));
    model.update("layers.1.weight", at::full({512, 1024}, 10, at::kBFloat16));
    model.update("layers.2.weight", model.parameter("layers.1.weight"));
    model.update("layers.1.weight", at::full({512, 1024}, 11, at::kBFloat16));
    EXPECT_EQ(before[3][4].item<float>(), 7) << map;
    EXPECT_EQ(onloaded.parameter("layers.0.weight")[3][4].item<float>(), 7) << map;
    EXPECT_EQ(model.parameter("layers.0.weight")[3][4].item<float>(), 9) << map;
    EXPECT_EQ(model.parameter("layers.2.weight")[3][4].item<float>(), 10) << map;
  }
}

TEST(OffloadedModel, RefusesWhatItCannotKeep) {
  const test::TemporaryFolder folder;
  write_model(folder, 1);
  const std::string path = (folder / "model").string();
  OffloadOptions options;
  options.memory_budget = "1KiB";
  auto model = load_offloaded_model(path, options);
  EXPECT_THROW(model.update("layers.0.weight", at::ones({512, 1024})), MemoryError);
  EXPECT_EQ(model.place("layers.0.weight"), Place::kMapped);
  EXPECT_THROW(model.update("no such", at::ones({1})), CheckpointError);
  EXPECT_THROW(model.place("no such"), CheckpointError);
  for (const at::Tensor& value :
       {at::Tensor(), at::ones({2, 2}).to_sparse(), at::ones({2, 2}, at::kMeta), at::ones({2, 2}, at::kComplexFloat)})
    EXPECT_THROW(model.update("layers.0.weight", value), CheckpointError);
  if (!at::hasCUDA()) {
    EXPECT_THROW(model.onload({"layers.0.weight"}, at::kCUDA), UsageError);
  }
  options.device_map = "balanced";
  EXPECT_THROW(load_offloaded_model(path, options), UsageError);
  options.device_map = "disk";
  EXPECT_THROW(load_offloaded_model(path, options), UsageError);
}

TEST(OffloadedModel, LeavesNoFileBehind) {
  const test::TemporaryFolder folder;
  write_model(folder, 1);
  std::filesystem::create_directory(folder / "offload");
  OffloadOptions options;
  options.device_map = "disk";
  options.offload_dir = (folder / "offload").string();
  {
    auto model = load_offloaded_model((folder / "model").string(), options);
    model.update("layers.0.weight", at::ones({512, 1024}));
    EXPECT_EQ(model.place("layers.0.weight"), Place::kDisk);
    EXPECT_FALSE(std::filesystem::is_empty(folder / "offload"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder / "offload"));
}

/// This process's share of the pages it has mapped of files named so; pages of n processes count as 1/n each.
std::uint64_t proportional_bytes(const std::string& file_name) {
  std::ifstream file("/proc/self/smaps");
  std::uint64_t bytes = 0;
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line.find('-') < line.find(' ')) inside = line.find("/" + file_name) != std::string::npos;
    if (inside && line.rfind("Pss:", 0) == 0) bytes += std::stoull(line.substr(4)) * 1024;
  }
  return bytes;
}

struct Pipes {
  std::array<int, 2> ready{}, measure{}, report{}, leave{};
};

/// Reads every parameter, waits until all processes have, and reports its share.
void read_in_child(const std::string& path, const Pipes& pipes) {
  const auto model = load_offloaded_model(path);
  char sum = 0;
  for (const std::string& name : model.names()) {
    const at::Tensor tensor = model.parameter(name);
    const auto* bytes = static_cast<const char*>(tensor.const_data_ptr());
    for (std::size_t i = 0; i < tensor.nbytes(); i += 512) sum = static_cast<char>(sum + bytes[i]);
  }
  bool complete = ::write(pipes.ready[1], &sum, 1) == 1 && ::read(pipes.measure[0], &sum, 1) == 1;
  const std::uint64_t share = proportional_bytes("model.safetensors");
  complete = complete && ::write(pipes.report[1], &share, sizeof(share)) == sizeof(share);
  complete = complete && ::read(pipes.leave[0], &sum, 1) == 1;  // all measure before one leaves
  ::_exit(complete ? 0 : 1);
}

TEST(OffloadedModel, ProcessesShareOneCopy) {
  const test::TemporaryFolder folder;
  constexpr int kTensors = 64, kProcesses = 2;
  write_model(folder, kTensors);
  Pipes pipes;
  for (auto* pipe : {&pipes.ready, &pipes.measure, &pipes.report, &pipes.leave}) ASSERT_EQ(::pipe(pipe->data()), 0);
  std::array<pid_t, kProcesses> children{};
  for (pid_t& child : children) {
    child = ::fork();
    if (child == 0) read_in_child((folder / "model").string(), pipes);
  }
  char byte = 0;
  std::uint64_t sum = 0;
  for (int i = 0; i < kProcesses; ++i) ASSERT_EQ(::read(pipes.ready[0], &byte, 1), 1);
  for (int i = 0; i < kProcesses; ++i) ASSERT_EQ(::write(pipes.measure[1], &byte, 1), 1);
  for (int i = 0; i < kProcesses; ++i) {
    std::uint64_t share = 0;
    ASSERT_EQ(::read(pipes.report[0], &share, sizeof(share)), static_cast<ssize_t>(sizeof(share)));
    sum += share;
  }
  for (int i = 0; i < kProcesses; ++i) ASSERT_EQ(::write(pipes.leave[1], &byte, 1), 1);
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_GT(sum, 60u << 20);  // 64 MiB of weights, once
  EXPECT_LT(sum, 68u << 20);
}

}  // namespace
}  // namespace layerpress
