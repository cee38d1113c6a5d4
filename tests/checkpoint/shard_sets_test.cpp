#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <thread>

#include "layerpress/checkpoint/writer.h"
#include "tests/base/file_size_limit.h"
#include "tests/checkpoint/temporary_folder.h"

namespace layerpress::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::expect_says;
using test::message_of;
using test::read_bytes;
using test::TemporaryFolder;

constexpr const char* kIndex = "model.safetensors.index.json";

/// 30 tensors of several dtypes and sizes.
std::vector<TensorSpec> many_specs() {
  std::vector<TensorSpec> specs;
  const std::vector<at::ScalarType> dtypes = {at::kByte, at::kFloat, at::kBFloat16, at::kInt};
  for (int i = 0; i < 30; ++i) specs.push_back({fmt::format("t{:02}", i), dtypes[i % 4], {3 + i % 7, 11 + i}});
  return specs;
}

at::Tensor value_of(const TensorSpec& spec) {
  return at::arange(spec.numel()).add(spec.name.back()).remainder(251).to(spec.dtype).reshape(spec.shape);
}

/// Tensor i is in set i modulo `sets`.
CheckpointLayout layout(const std::vector<TensorSpec>& specs, int sets) {
  FileDivision division{.max_shard_bytes = 2000, .sets = sets};
  for (std::size_t i = 0; i < specs.size(); ++i) division.set_of_spec.push_back(static_cast<int>(i) % sets);
  return safetensors_layout(specs, division);
}

/// The sets w, w + writers, ... are own.
CheckpointWriter::Options own_sets(int sets, int writer, int writers) {
  CheckpointWriter::Options options;
  for (int set = 0; set < sets; ++set) options.own.push_back(set % writers == writer);
  return options;
}

void write_own(CheckpointWriter& writer, const std::vector<TensorSpec>& specs) {
  for (const TensorSpec& spec : specs)
    if (writer.owns(spec.name)) writer.write(spec.name, value_of(spec));
}

void expect_complete(const TemporaryFolder& folder, const std::vector<TensorSpec>& specs) {
  folder.write("config.json", "{}");
  const auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_EQ(checkpoint->names().size(), specs.size());
  for (const TensorSpec& spec : specs) {
    EXPECT_EQ(checkpoint->spec(spec.name).dtype, spec.dtype) << spec.name;
    EXPECT_TRUE(at::equal(checkpoint->tensor(spec.name), value_of(spec))) << spec.name;
  }
}

/// Every weight file holds tensors of one set, and the files of lower sets come first.
void expect_files_by_set(const fs::path& index, const std::vector<TensorSpec>& specs, int sets) {
  std::map<std::string, int> set_of_file;
  const Json weight_map = read_json_file(index)["weight_map"];
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const int set = static_cast<int>(i) % sets;
    EXPECT_EQ(set_of_file.emplace(weight_map[specs[i].name], set).first->second, set) << specs[i].name;
  }
  int last = 0;
  for (const auto& [file, set] : set_of_file) {
    EXPECT_GE(set, last) << file;
    last = set;
  }
  EXPECT_EQ(last, sets - 1);
}

TEST(ShardSets, WritersAtOnceMakeOneCheckpoint) {
  const std::vector<TensorSpec> specs = many_specs();
  for (const int writers : {1, 2, 3}) {
    const TemporaryFolder folder;
    std::vector<std::thread> threads;
    for (int w = 0; w < writers; ++w)
      threads.emplace_back([&, w] {
        CheckpointWriter writer(folder.path(), layout(specs, writers), own_sets(writers, w, writers));
        write_own(writer, specs);
        writer.sync();
        writer.finish();
      });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(fs::exists(folder / kIndex), writers == 1);  // none of several knows that the others are done
    const std::vector<bool> none(static_cast<std::size_t>(writers), false);
    CheckpointWriter onlooker(folder.path(), layout(specs, writers), {.own = none});
    onlooker.write_index();
    expect_complete(folder, specs);
    expect_files_by_set(folder / kIndex, specs, writers);
    EXPECT_EQ(read_json_file(folder / kIndex)["metadata"]["total_size"], onlooker.total_bytes());
  }
}

TEST(ShardSets, FilesAreNumberedOverAllSets) {
  const TemporaryFolder folder;
  const std::vector<TensorSpec> specs = {
      {"a", at::kByte, {60}}, {"b", at::kByte, {90}}, {"c", at::kByte, {60}}, {"d", at::kByte, {5}}};
  const FileDivision division{.max_shard_bytes = 100, .sets = 3, .set_of_spec = {2, 0, 2, 0}};
  CheckpointWriter writer(folder.path(), safetensors_layout(specs, division), {});
  for (const TensorSpec& spec : specs) writer.write(spec.name, value_of(spec));
  writer.finish();
  const Json expected = {{"a", "model-00002-of-00003.safetensors"},
                         {"b", "model-00001-of-00003.safetensors"},
                         {"c", "model-00003-of-00003.safetensors"},
                         {"d", "model-00001-of-00003.safetensors"}};
  EXPECT_EQ(read_json_file(folder / kIndex)["weight_map"], expected);  // set 1 is empty
  expect_complete(folder, specs);
}

TEST(ShardSets, OneFileInAllNeedsNoIndex) {
  const TemporaryFolder alone, divided;
  const std::vector<TensorSpec> specs = many_specs();
  CheckpointWriter plain(alone.path(), safetensors_layout(specs, {}), {});
  write_own(plain, specs);
  plain.finish();
  const CheckpointLayout layout =
      safetensors_layout(specs, {.sets = 2, .set_of_spec = std::vector<int>(specs.size(), 1)});
  CheckpointWriter first(divided.path(), layout, {.own = {true, false}});
  CheckpointWriter second(divided.path(), layout, {.own = {false, true}});
  write_own(second, specs);
  second.finish();
  first.finish();
  first.write_index();
  EXPECT_FALSE(fs::exists(divided / kIndex));
  EXPECT_EQ(read_bytes(divided / "model.safetensors"), read_bytes(alone / "model.safetensors"));
}

TEST(ShardSets, SeveralWritersFillOneFile) {
  const TemporaryFolder alone, together;
  const std::vector<TensorSpec> specs = many_specs();
  CheckpointLayout layout = safetensors_layout(specs, {});
  CheckpointWriter plain(alone.path(), layout, {});
  write_own(plain, specs);
  plain.finish();
  for (std::size_t i = 0; i < layout.files[0].tensors.size(); ++i)
    layout.files[0].set_of_tensor.push_back(static_cast<int>(i) % 3);
  const auto open = [&](int writer) {
    return std::make_unique<CheckpointWriter>(together.path(), layout, own_sets(3, writer, 2));
  };
  EXPECT_THROW(open(1), IoError);  // the writer of the file's own set comes first
  const auto first = open(0), second = open(1);
  EXPECT_NE(first->owns(layout.files[0].tensors[0].name), second->owns(layout.files[0].tensors[0].name));
  write_own(*first, specs);
  EXPECT_THROW(second->finish(), InternalError);
  write_own(*second, specs);
  first->finish();
  second->finish();
  EXPECT_EQ(read_bytes(together / "model.safetensors"), read_bytes(alone / "model.safetensors"));
}

TEST(ShardSets, ASharedFileIsNotTakenFromAWriter) {
  const TemporaryFolder folder;
  CheckpointLayout layout = safetensors_layout(many_specs(), {});
  layout.files[0].set_of_tensor.assign(layout.files[0].tensors.size(), 1);
  auto first = std::make_unique<CheckpointWriter>(folder.path(), layout, own_sets(2, 0, 2));
  const CheckpointWriter second(folder.path(), layout, own_sets(2, 1, 2));
  first.reset();
  EXPECT_THROW(OutputFile(folder / "model.safetensors", layout.files[0].size, OutputFile::Mode::kReopen), IoError);
}

const std::vector<TensorSpec> kTwoSpecs = {{"mine", at::kByte, {60}}, {"other", at::kFloat, {10}}};
constexpr const char* kOtherFile = "model-00002-of-00002.safetensors";

TEST(ShardSets, LeavesWhatIsNotItsOwnAlone) {
  const TemporaryFolder folder;
  CheckpointWriter writer(folder.path(), layout(kTwoSpecs, 2), own_sets(2, 0, 2));
  EXPECT_FALSE(fs::exists(folder / kOtherFile));
  EXPECT_TRUE(writer.owns("mine"));
  EXPECT_FALSE(writer.owns("other"));
  EXPECT_THROW(writer.owns("unknown"), InternalError);
  expect_says(message_of<InternalError>([&] { writer.write("other", value_of(kTwoSpecs[1])); }),
              {"'other'", "another"});
  expect_says(message_of<InternalError>([&] { writer.accept("other", "00"); }), {"'other'", "another"});
  expect_says(message_of<InternalError>([&] { writer.adopt("mine", "00"); }), {"'mine'", "own"});
  expect_says(message_of<InternalError>([&] { writer.read("other"); }), {"'other'", "not written"});
  expect_says(message_of<InternalError>([&] { writer.finish(); }), {"1 tensors", "'mine'"});
  writer.write("mine", value_of(kTwoSpecs[0]));
  writer.finish();
  EXPECT_FALSE(fs::exists(folder / kOtherFile));
  EXPECT_FALSE(fs::exists(folder / kIndex));
}

TEST(ShardSets, ReadsWhatAnotherWrote) {
  const TemporaryFolder folder;
  CheckpointWriter writer(folder.path(), layout(kTwoSpecs, 2), own_sets(2, 0, 2));
  writer.adopt("other", "00");
  EXPECT_EQ(writer.checksum("other"), "00");
  EXPECT_THROW(writer.adopt("other", "00"), InternalError);
  expect_says(message_of<IoError>([&] { writer.read("other"); }), {kOtherFile, "same folder"});
  folder.write(kOtherFile, "short");
  expect_says(message_of<IoError>([&] { writer.read("other"); }), {kOtherFile, "5 bytes"});
  fs::remove(folder / kOtherFile);
  CheckpointWriter other(folder.path(), layout(kTwoSpecs, 2), own_sets(2, 1, 2));
  other.write("other", value_of(kTwoSpecs[1]));
  EXPECT_TRUE(at::equal(writer.read("other"), value_of(kTwoSpecs[1])));
  fs::resize_file(folder / kOtherFile, fs::file_size(folder / kOtherFile) - 1);
  expect_says(message_of<IoError>([&] { writer.read("other"); }), {kOtherFile, "ends before"});
  writer.retract("other");
  EXPECT_THROW(writer.read("other"), InternalError);
}

TEST(ShardSets, AnotherNumberOfWritersGoesOn) {
  const std::vector<TensorSpec> specs = many_specs();
  const TemporaryFolder folder;
  std::map<std::string, std::string> checksums;
  for (int w = 0; w < 3; ++w) {
    CheckpointWriter writer(folder.path(), layout(specs, 3), own_sets(3, w, 3));
    for (std::size_t i = 0; i < 20; ++i) {
      if (!writer.owns(specs[i].name)) continue;
      writer.write(specs[i].name, value_of(specs[i]));
      checksums[specs[i].name] = writer.checksum(specs[i].name);
    }
  }
  for (int w = 0; w < 2; ++w) {
    CheckpointWriter::Options options = own_sets(3, w, 2);
    options.reopen = true;
    CheckpointWriter writer(folder.path(), layout(specs, 3), options);
    for (const TensorSpec& spec : specs) {
      const auto known = checksums.find(spec.name);
      if (!writer.owns(spec.name)) continue;
      if (known == checksums.end())
        writer.write(spec.name, value_of(spec));
      else
        EXPECT_TRUE(writer.accept(spec.name, known->second)) << spec.name;
    }
    writer.finish();
    if (w == 1) writer.write_index();
  }
  expect_complete(folder, specs);
}

TEST(ShardSets, ADiskIsTooSmallForOwnFilesOnly) {
  const TemporaryFolder folder;
  const std::vector<TensorSpec> specs = {{"small", at::kByte, {60}}, {"large", at::kByte, {100000}}};
  const test::FileSizeLimit limit(4096);
  CheckpointWriter small(folder.path(), layout(specs, 2), own_sets(2, 0, 2));
  small.write("small", value_of(specs[0]));
  expect_says(message_of<IoError>([&] { CheckpointWriter(folder.path(), layout(specs, 2), own_sets(2, 1, 2)); }),
              {kOtherFile, "cannot reserve", "free some space"});
  EXPECT_FALSE(fs::exists(folder / kOtherFile));
}

TEST(ShardSets, RefusesADivisionThatIsNone) {
  for (const FileDivision& division : {FileDivision{.sets = 0}, FileDivision{.set_of_spec = {0}},
                                       FileDivision{.set_of_spec = {0, 1}}, FileDivision{.set_of_spec = {0, -1}}})
    expect_says(message_of<InternalError>([&] { safetensors_layout(kTwoSpecs, division); }), {"2 tensors", "sets"});
  const TemporaryFolder folder;
  expect_says(
      message_of<InternalError>([&] { CheckpointWriter(folder.path(), layout(kTwoSpecs, 2), {.own = {true}}); }),
      {"2 sets", "1"});
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

}  // namespace
}  // namespace layerpress::checkpoint
