#include "layerpress/checkpoint/writer.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <set>
#include <thread>

#include "layerpress/base/files/checksum.h"
#include "tests/base/child_process.h"
#include "tests/base/file_size_limit.h"
#include "tests/checkpoint/temporary_folder.h"

namespace layerpress::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::expect_says;
using test::FileSizeLimit;
using test::message_of;
using test::read_bytes;
using test::TemporaryFolder;

std::map<std::string, at::Tensor> sample_tensors() {
  return {{"model.embed", at::arange(24, at::kFloat).reshape({6, 4})},
          {"model.packed", at::arange(7, at::kInt)},
          {"model.codes", at::arange(13).to(at::kByte)},
          {"model.scale", at::arange(9).to(at::kBFloat16).reshape({3, 3})},
          {"model.index", at::arange(3, at::kLong)},
          {"model.none", at::empty({0, 3}, at::kHalf)}};
}

std::vector<TensorSpec> specs_of(const std::map<std::string, at::Tensor>& tensors) {
  std::vector<TensorSpec> specs;
  for (const auto& [name, tensor] : tensors) specs.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
  return specs;
}

std::shared_ptr<const Checkpoint> open_written(const TemporaryFolder& folder) {
  folder.write("config.json", "{}");
  return Checkpoint::open(folder.path());
}

void expect_holds(const Checkpoint& checkpoint, const std::map<std::string, at::Tensor>& tensors) {
  ASSERT_EQ(checkpoint.names().size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    EXPECT_EQ(checkpoint.tensor(name).scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(at::equal(checkpoint.tensor(name), tensor)) << name;
    EXPECT_EQ(checkpoint.spec(name).offset % tensor.element_size(), 0u) << name;
  }
}

TEST(CheckpointWriter, OneShardInAnyOrder) {
  const TemporaryFolder folder;
  const auto tensors = sample_tensors();
  CheckpointWriter writer(folder.path(), safetensors_layout(specs_of(tensors), {}), {});
  for (auto tensor = tensors.rbegin(); tensor != tensors.rend(); ++tensor) writer.write(tensor->first, tensor->second);
  writer.finish();
  EXPECT_TRUE(fs::exists(folder / "model.safetensors"));
  EXPECT_FALSE(fs::exists(folder / "model.safetensors.index.json"));
  EXPECT_EQ(writer.total_bytes(), 96u + 28 + 13 + 18 + 24);
  expect_holds(*open_written(folder), tensors);
}

TEST(CheckpointWriter, ShardsAreFilledInOrderAndIndexed) {
  const TemporaryFolder folder;
  const std::vector<TensorSpec> specs = {{"c", at::kByte, {60}},
                                         {"a", at::kByte, {40}},
                                         {"b", at::kByte, {1}},
                                         {"z", at::kByte, {500}},
                                         {"d", at::kByte, {2}}};
  CheckpointWriter writer(folder.path(), safetensors_layout(specs, {.max_shard_bytes = 100}), {});
  for (const TensorSpec& spec : specs) writer.write(spec.name, at::full(spec.shape, spec.name[0], at::kByte));
  writer.finish();
  const std::string index = read_bytes(folder / "model.safetensors.index.json");
  EXPECT_EQ(index, R"({
  "metadata": {
    "total_parameters": 603,
    "total_size": 603
  },
  "weight_map": {
    "a": "model-00001-of-00004.safetensors",
    "b": "model-00002-of-00004.safetensors",
    "c": "model-00001-of-00004.safetensors",
    "d": "model-00004-of-00004.safetensors",
    "z": "model-00003-of-00004.safetensors"
  }
}
)");
  const auto checkpoint = open_written(folder);
  for (const TensorSpec& spec : specs)
    EXPECT_TRUE(at::equal(checkpoint->tensor(spec.name), at::full(spec.shape, spec.name[0], at::kByte))) << spec.name;
}

TEST(CheckpointWriter, SeveralThreadsWriteAtOnce) {
  const TemporaryFolder folder;
  std::map<std::string, at::Tensor> tensors;
  for (int i = 0; i < 64; ++i) tensors["t" + std::to_string(i)] = at::full({997 + i}, i, i % 2 ? at::kInt : at::kShort);
  CheckpointWriter writer(folder.path(), safetensors_layout(specs_of(tensors), {.max_shard_bytes = 20000}), {});
  std::vector<std::thread> threads;
  for (int part = 0; part < 4; ++part)
    threads.emplace_back([&, part] {
      for (int i = part; i < 64; i += 4) writer.write("t" + std::to_string(i), tensors.at("t" + std::to_string(i)));
    });
  for (std::thread& thread : threads) thread.join();
  writer.finish();
  expect_holds(*open_written(folder), tensors);
}

TEST(CheckpointWriter, RefusesWhatWasNotAnnounced) {
  const TemporaryFolder folder;
  CheckpointWriter writer(folder.path(), safetensors_layout({{"a", at::kFloat, {2}}, {"b", at::kFloat, {2}}}, {}), {});
  const auto write = [&](const char* name, const at::Tensor& tensor) {
    return message_of<InternalError>([&] { writer.write(name, tensor); });
  };
  expect_says(write("c", at::zeros({2})), {"'c'", "not announced"});
  expect_says(write("a", at::zeros({3})), {"'a'", "Float [2]", "Float [3]"});
  expect_says(write("a", at::zeros({2}, at::kHalf)), {"'a'", "Half"});
  writer.write("a", at::zeros({2}));
  expect_says(write("a", at::zeros({2})), {"'a'", "second time"});
  expect_says(message_of<InternalError>([&] { writer.finish(); }), {"1 tensors", "'b'"});
  expect_says(
      message_of<InternalError>([&] {
        const TemporaryFolder other;
        CheckpointWriter(other.path(), safetensors_layout({{"a", at::kFloat, {1}}, {"a", at::kFloat, {1}}}, {}), {});
      }),
      {"'a'", "twice"});
}

TEST(CheckpointWriter, DiskFullIsNoticedAtTheStart) {
  const TemporaryFolder folder;
  const FileSizeLimit limit(4096);
  expect_says(message_of<IoError>([&] {
                CheckpointWriter(folder.path(), safetensors_layout({{"a", at::kByte, {100000}}}, {}), {});
              }),
              {(folder / "model.safetensors").string(), "cannot reserve", "free some space"});
  EXPECT_FALSE(fs::exists(folder / "model.safetensors"));
}

TEST(CheckpointWriter, FailingWritesNameTheFile) {
  const TemporaryFolder folder;
  CheckpointWriter writer(folder.path(), safetensors_layout({{"a", at::kByte, {100000}}}, {}), {});
  const FileSizeLimit limit(4096);
  expect_says(message_of<IoError>([&] { writer.write("a", at::zeros({100000}, at::kByte)); }),
              {(folder / "model.safetensors").string(), "File too large"});
  expect_says(message_of<InternalError>([&] { writer.finish(); }), {"'a'"});
}

TEST(CheckpointWriter, DiskFullLeavesNoSmallFile) {
  const TemporaryFolder folder;
  const FileSizeLimit limit(4096);
  expect_says(message_of<IoError>([&] {
                write_safetensors(folder / "x.safetensors", {{"a", at::zeros({100000}, at::kByte)}});
              }),
              {"x.safetensors", "cannot reserve"});
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(CheckpointWriter, RefusesAFolderThatIsNotThereAndFilesThatAre) {
  const TemporaryFolder folder;
  const std::vector<TensorSpec> specs = {{"a", at::kByte, {1}}};
  expect_says(message_of<IoError>([&] { CheckpointWriter(folder / "none", safetensors_layout(specs, {}), {}); }),
              {"none"});
  folder.write("model.safetensors", "precious");
  expect_says(message_of<IoError>([&] { CheckpointWriter(folder.path(), safetensors_layout(specs, {}), {}); }),
              {"model.safetensors"});
  EXPECT_EQ(read_bytes(folder / "model.safetensors"), "precious");
}

/// A writer that goes on with what is in `folder`.
std::unique_ptr<CheckpointWriter> reopened(const TemporaryFolder& folder, const std::vector<TensorSpec>& specs) {
  return std::make_unique<CheckpointWriter>(folder.path(), safetensors_layout(specs, {.max_shard_bytes = 100}),
                                            CheckpointWriter::Options{.reopen = true});
}

const std::vector<TensorSpec> kTwoShards = {{"a", at::kByte, {60}}, {"b", at::kFloat, {10}}, {"c", at::kByte, {50}}};
constexpr const char* kFirstShard = "model-00001-of-00002.safetensors";
constexpr const char* kSecondShard = "model-00002-of-00002.safetensors";

at::Tensor short_value_of(const TensorSpec& spec) { return at::arange(spec.numel()).add(spec.name[0]).to(spec.dtype); }

/// Writes kTwoShards without finishing and returns the checksums.
std::map<std::string, std::string> write_and_stop(const TemporaryFolder& folder) {
  CheckpointWriter writer(folder.path(), safetensors_layout(kTwoShards, {.max_shard_bytes = 100}), {});
  std::map<std::string, std::string> checksums;
  for (const TensorSpec& spec : kTwoShards) {
    writer.write(spec.name, short_value_of(spec));
    checksums[spec.name] = writer.checksum(spec.name);
  }
  writer.sync();
  return checksums;
}

void flip_byte(const fs::path& path, std::uint64_t offset) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(static_cast<std::streamoff>(offset));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(offset));
  file.put(static_cast<char>(byte ^ 1));
}

TEST(CheckpointWriter, ReadsBackWhatWasWritten) {
  const TemporaryFolder folder;
  const auto tensors = sample_tensors();
  CheckpointWriter writer(folder.path(), safetensors_layout(specs_of(tensors), {}), {});
  expect_says(message_of<InternalError>([&] { writer.read("model.embed"); }), {"'model.embed'", "was not written"});
  expect_says(message_of<InternalError>([&] { writer.checksum("none"); }), {"'none'", "was not written"});
  for (const auto& [name, tensor] : tensors) {
    writer.write(name, tensor.dim() == 2 ? tensor.t().contiguous().t() : tensor);
    EXPECT_EQ(writer.read(name).scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(at::equal(writer.read(name), tensor)) << name;
    EXPECT_EQ(writer.checksum(name), checksum_of(tensor.const_data_ptr(), tensor.nbytes())) << name;
  }
}

TEST(CheckpointWriter, GoesOnWithTheFilesOfAnEarlierOne) {
  const TemporaryFolder folder;
  const auto checksums = write_and_stop(folder);
  {
    const auto writer = reopened(folder, kTwoShards);
    EXPECT_TRUE(writer->accept("a", checksums.at("a")));
    EXPECT_TRUE(at::equal(writer->read("a"), short_value_of(kTwoShards[0])));
    EXPECT_EQ(writer->checksum("a"), checksums.at("a"));
    EXPECT_THROW(writer->write("a", short_value_of(kTwoShards[0])), InternalError);
    EXPECT_THROW(writer->accept("a", checksums.at("a")), InternalError);
    EXPECT_THROW(writer->accept("unknown", ""), InternalError);
    EXPECT_THROW(writer->finish(), InternalError);  // nobody has asked for b and c
    writer->write("b", short_value_of(kTwoShards[1]));
    EXPECT_TRUE(writer->accept("c", checksums.at("c")));
    writer->finish();
  }
  const TemporaryFolder undisturbed;
  write_and_stop(undisturbed);
  for (const char* name : {kFirstShard, kSecondShard})
    EXPECT_EQ(read_bytes(folder / name), read_bytes(undisturbed / name));
  EXPECT_TRUE(at::equal(open_written(folder)->tensor("b"), short_value_of(kTwoShards[1])));
}

TEST(CheckpointWriter, FindsDamagedTensors) {
  const TemporaryFolder folder;
  const auto checksums = write_and_stop(folder);
  flip_byte(folder / kFirstShard, fs::file_size(folder / kFirstShard) - 1);  // the last byte of a, behind b
  const auto writer = reopened(folder, kTwoShards);
  EXPECT_FALSE(writer->accept("a", checksums.at("a")));
  EXPECT_THROW(writer->read("a"), InternalError);
  EXPECT_TRUE(writer->accept("b", checksums.at("b")));
  EXPECT_TRUE(writer->accept("c", checksums.at("c")));
  writer->write("a", short_value_of(kTwoShards[0]));
  writer->finish();
  EXPECT_TRUE(at::equal(open_written(folder)->tensor("a"), short_value_of(kTwoShards[0])));
}

TEST(CheckpointWriter, LargeTensorsAreAcceptedPieceByPiece) {
  const TemporaryFolder folder;
  constexpr std::int64_t kLength = (20 << 20) + 3;
  const std::vector<TensorSpec> specs = {{"large", at::kByte, {kLength}}};
  std::string checksum;
  {
    CheckpointWriter writer(folder.path(), safetensors_layout(specs, {}), {});
    writer.write("large", at::arange(kLength).remainder(251).to(at::kByte));
    checksum = writer.checksum("large");
  }
  EXPECT_TRUE(reopened(folder, specs)->accept("large", checksum));
  flip_byte(folder / "model.safetensors", 9 << 20);
  EXPECT_FALSE(reopened(folder, specs)->accept("large", checksum));
}

TEST(CheckpointWriter, DamagedFilesAreMadeAnew) {
  const TemporaryFolder undisturbed;
  const auto checksums = write_and_stop(undisturbed);
  const auto damages = std::vector<std::function<void(const fs::path&)>>{
      [](const fs::path& path) { flip_byte(path, 20); }, [](const fs::path& path) { fs::resize_file(path, 30); },
      [](const fs::path& path) { fs::resize_file(path, fs::file_size(path) + 1); },
      [](const fs::path& path) { fs::remove(path); }};
  for (const auto& damage : damages) {
    const TemporaryFolder folder;
    write_and_stop(folder);
    damage(folder / kFirstShard);
    const auto writer = reopened(folder, kTwoShards);
    EXPECT_FALSE(writer->accept("a", checksums.at("a")));
    EXPECT_FALSE(writer->accept("b", checksums.at("b")));
    EXPECT_TRUE(writer->accept("c", checksums.at("c")));
    for (const std::size_t i : {0, 1}) writer->write(kTwoShards[i].name, short_value_of(kTwoShards[i]));
    writer->finish();
    EXPECT_EQ(read_bytes(folder / kFirstShard), read_bytes(undisturbed / kFirstShard));
  }
}

TEST(CheckpointWriter, SyncFailsWhenTheDiskDoes) {
  const TemporaryFolder folder;
  test::ChildProcess child([&](test::ChildProcess&) {
    if (!test::deny_system_call(SYS_fdatasync, EIO)) return test::kNotAllowed;
    CheckpointWriter writer(folder.path(), safetensors_layout(kTwoShards, {.max_shard_bytes = 100}), {});
    writer.sync();  // nothing written, nothing to wait for
    writer.write("c", short_value_of(kTwoShards[2]));
    expect_says(message_of<IoError>([&] { writer.sync(); }), {kSecondShard, "Input/output error"});
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  const int code = child.exit_code();
  if (code == test::kNotAllowed) GTEST_SKIP() << "no system-call filters here";
  EXPECT_EQ(code, 0);
}

TEST(CheckpointWriter, SyncsWhileOthersWrite) {
  const TemporaryFolder folder;
  std::map<std::string, at::Tensor> tensors;
  for (int i = 0; i < 40; ++i) tensors["t" + std::to_string(i)] = at::full({5000 + i}, i, at::kInt);
  CheckpointWriter writer(folder.path(), safetensors_layout(specs_of(tensors), {.max_shard_bytes = 100'000}), {});
  std::atomic<bool> done{false};
  std::thread syncing([&] {
    while (!done) writer.sync();
  });
  for (const auto& [name, tensor] : tensors) writer.write(name, tensor);
  done = true;
  syncing.join();
  writer.sync();
  writer.finish();
  expect_holds(*open_written(folder), tensors);
}

}  // namespace
}  // namespace layerpress::checkpoint
