#include "layerpress/checkpoint/safetensors.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <ostream>

#include "layerpress/base/json.h"
#include "tests/checkpoint/temporary_folder.h"

namespace layerpress::checkpoint {
namespace {

using test::expect_says;
using test::message_of;
using test::TemporaryFolder;

/// The bytes of a file with this header text and so many bytes of data.
std::string file_bytes(const std::string& header, std::size_t data_size) {
  std::string bytes(8, '\0');
  const std::uint64_t length = header.size();
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + header + std::string(data_size, '\1');
}

std::string open_error(const std::string& bytes) {
  const TemporaryFolder folder;
  const auto path = folder.write("model.safetensors", bytes);
  std::string message = message_of<CheckpointError>([&] { SafetensorsFile::open(path); });
  expect_says(message, {path.string()});
  return message;
}

TEST(Safetensors, RoundTripOfEveryElementType) {
  const TemporaryFolder folder;
  std::map<std::string, at::Tensor> tensors;
  for (const auto dtype : {at::kBFloat16, at::kHalf, at::kFloat, at::kDouble, at::kFloat8_e4m3fn, at::kFloat8_e5m2,
                           at::kChar, at::kShort, at::kInt, at::kLong, at::kByte, at::kBool})
    tensors[std::string(dtype_name(dtype))] = at::arange(15).reshape({3, 5}).to(dtype);
  write_safetensors(folder / "all.safetensors", tensors, {{"origin", "a \"test\""}});

  const auto file = SafetensorsFile::open(folder / "all.safetensors");
  ASSERT_EQ(file->tensors().size(), tensors.size());
  EXPECT_EQ(file->metadata().at("origin"), "a \"test\"");
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor read = file->tensor(name);
    EXPECT_EQ(read.scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(at::equal(read.to(at::kFloat), tensor.to(at::kFloat))) << name;
    EXPECT_EQ(file->tensors().at(name).offset % tensor.element_size(), 0u) << name;
  }
}

TEST(Safetensors, ScalarsAndEmptyTensorsAreLegal) {
  const TemporaryFolder folder;
  write_safetensors(folder / "x.safetensors",
                    {{"scalar", at::full({}, 7, at::kInt)}, {"empty", at::empty({0, 4}, at::kFloat)}});
  const auto file = SafetensorsFile::open(folder / "x.safetensors");
  EXPECT_EQ(file->tensor("scalar").item<int>(), 7);
  EXPECT_EQ(file->tensor("empty").sizes(), (at::IntArrayRef{0, 4}));
}

TEST(Safetensors, WritesTransposedTensorsByTheirValues) {
  const TemporaryFolder folder;
  const at::Tensor transposed = at::arange(6, at::kFloat).reshape({2, 3}).t();
  write_safetensors(folder / "x.safetensors", {{"t", transposed}});
  EXPECT_TRUE(at::equal(SafetensorsFile::open(folder / "x.safetensors")->tensor("t"), transposed));
}

TEST(Safetensors, TensorsOutliveTheFileObject) {
  const TemporaryFolder folder;
  write_safetensors(folder / "x.safetensors", {{"t", at::arange(1000)}});
  at::Tensor tensor = SafetensorsFile::open(folder / "x.safetensors")->tensor("t");
  EXPECT_EQ(tensor.sum().item<int64_t>(), 499500);
}

TEST(Safetensors, MisalignedTensorIsCopied) {
  const TemporaryFolder folder;
  const std::string header =
      R"({"byte":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"word":{"dtype":"I32","shape":[2],"data_offsets":[1,9]}} )";
  std::string bytes = file_bytes(header, 1);
  const std::int32_t words[] = {-5, 123456789};
  bytes.append(reinterpret_cast<const char*>(words), sizeof words);
  const auto file = SafetensorsFile::open(folder.write("x.safetensors", bytes));
  ASSERT_NE(file->tensors().at("word").offset % 4, 0u);
  const at::Tensor word = file->tensor("word");
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(word.const_data_ptr()) % 4, 0u);
  EXPECT_EQ(word[0].item<int>(), -5);
  EXPECT_EQ(word[1].item<int>(), 123456789);
}

TEST(Safetensors, HeaderBytesAreAsSpecified) {
  const std::string header = safetensors_header({{"b", at::kBFloat16, {2, 3}}, {"a", at::kByte, {5}}});
  std::uint64_t length = 0;
  std::memcpy(&length, header.data(), sizeof length);
  EXPECT_EQ(length, header.size() - 8);
  EXPECT_EQ(header.size() % 8, 0u);
  const Json parsed = Json::parse(header.substr(8));
  EXPECT_EQ(parsed["__metadata__"], Json({{"format", "pt"}}));
  EXPECT_EQ(parsed["b"], Json::parse(R"({"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]})"));
  EXPECT_EQ(parsed["a"], Json::parse(R"({"dtype":"U8","shape":[5],"data_offsets":[12,17]})"));
}

TEST(Safetensors, UnknownTensorIsNamed) {
  const TemporaryFolder folder;
  write_safetensors(folder / "x.safetensors", {{"t", at::zeros({1})}});
  const auto file = SafetensorsFile::open(folder / "x.safetensors");
  expect_says(message_of<CheckpointError>([&] { file->tensor("absent"); }), {"x.safetensors", "'absent'"});
  const StoredTensor& place = file->tensors().at("t");
  file->will_need(place);
  file->fetch(place);
  file->release(place);
  EXPECT_EQ(file->tensor("t").item<float>(), 0.0f);
}

TEST(Safetensors, FetchTellsOfTruncation) {
  const TemporaryFolder folder;
  write_safetensors(folder / "x.safetensors", {{"first", at::zeros({5000})}, {"second", at::zeros({5000})}});
  const auto file = SafetensorsFile::open(folder / "x.safetensors");
  std::filesystem::resize_file(folder / "x.safetensors", 30'000);
  file->fetch(file->tensors().at("first"));
  expect_says(message_of<IoError>([&] { file->fetch(file->tensors().at("second")); }),
              {"x.safetensors", "truncated while in use"});
}

TEST(Safetensors, FilesThatAreNoSafetensors) {
  expect_says(open_error(""), {"is empty", "download it again"});
  expect_says(open_error("1234"), {"4 bytes"});
  expect_says(open_error("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"),
              {"LFS pointer", "git lfs"});
  expect_says(open_error("<!DOCTYPE html><html></html>"), {"a header of", "is it safetensors?"});
  expect_says(open_error(std::string(8, '\xff') + "{}"), {"18446744073709551615"});
  std::string short_file = file_bytes("{}", 0);
  short_file[0] = 100;
  expect_says(open_error(short_file), {"ends at byte 108", "the file has 10"});
  expect_says(open_error(file_bytes("", 0)), {"not valid JSON"});
  expect_says(open_error(file_bytes("[]", 0)), {"not an object"});
  expect_says(open_error(file_bytes("{\"a\":", 0)), {"not valid JSON", "ends at byte 5"});
  expect_says(open_error(file_bytes("{\"a\":1e999}", 0)), {"out of range"});
  expect_says(open_error(file_bytes(std::string(100000, '['), 0)), {"nested deeper"});
  expect_says(open_error(file_bytes("{\"__metadata__\":{\"a\":1}}", 0)), {"'__metadata__' member 'a'"});
  expect_says(open_error(file_bytes("{\"__metadata__\":7}", 0)), {"'__metadata__' is not an object"});
}

struct HostileEntry {
  const char* entry;      ///< describes tensor 'x'
  std::size_t data_size;  ///< bytes behind the header
  const char* says;
};

void PrintTo(const HostileEntry& hostile, std::ostream* stream) { *stream << hostile.entry; }

class HostileTensor : public testing::TestWithParam<HostileEntry> {};

TEST_P(HostileTensor, IsRefusedByName) {
  const HostileEntry& hostile = GetParam();
  const std::string message = open_error(file_bytes(std::string("{\"x\":") + hostile.entry + "}", hostile.data_size));
  expect_says(message, {"tensor 'x'", hostile.says});
}

INSTANTIATE_TEST_SUITE_P(
    Safetensors, HostileTensor,
    testing::Values(
        HostileEntry{R"(5)", 0, "not described by an object"},
        HostileEntry{R"({"shape":[1],"data_offsets":[0,4]})", 4, "no 'dtype'"},
        HostileEntry{R"({"dtype":"F31","shape":[1],"data_offsets":[0,4]})", 4, "dtype 'F31'; supported are BF16"},
        HostileEntry{R"({"dtype":"F32","data_offsets":[0,4]})", 4, "no list 'shape'"},
        HostileEntry{R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})", 4, "'-1' in its shape"},
        HostileEntry{R"({"dtype":"F32","shape":[1.0],"data_offsets":[0,4]})", 4, "in its shape"},
        HostileEntry{R"({"dtype":"F32","shape":["1"],"data_offsets":[0,4]})", 4, "in its shape"},
        HostileEntry{R"({"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,4]})", 4, "in its shape"},
        HostileEntry{R"({"dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,4]})", 4, "in its shape"},
        HostileEntry{R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]})", 0, "size overflows"},
        HostileEntry{R"({"dtype":"F32","shape":[0,4294967296,4294967296],"data_offsets":[0,0]})", 0, "size overflows"},
        HostileEntry{R"({"dtype":"F32","shape":[1],"data_offsets":[0]})", 4, "1 data_offsets"},
        HostileEntry{R"({"dtype":"F32","shape":[1],"data_offsets":[4,0]})", 4, "after its end"},
        HostileEntry{R"({"dtype":"F32","shape":[1],"data_offsets":[-4,0]})", 4, "'-4' in its data_offsets"},
        HostileEntry{R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})", 4,
                     "ends at byte 8 of the data, which has 4"},
        HostileEntry{R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})", 4,
                     "takes 4 bytes, its shape [2] of F32 needs 8"},
        HostileEntry{R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})", 8, "hole of 4 bytes"}));

TEST(Safetensors, TooManyDimensions) {
  std::string extents = "1";
  for (int i = 1; i < 65; ++i) extents += ",1";
  expect_says(
      open_error(file_bytes("{\"x\":{\"dtype\":\"U8\",\"shape\":[" + extents + "],\"data_offsets\":[0,1]}}", 1)),
      {"65 dimensions"});
}

TEST(Safetensors, TensorsThatDoNotTileTheData) {
  const auto two = [](const char* first, const char* second) {
    return std::string(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)") + first +
           R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + second + "}}";
  };
  EXPECT_NO_THROW({
    const TemporaryFolder folder;
    SafetensorsFile::open(folder.write("x.safetensors", file_bytes(two("[0,4]", "[4,8]"), 8)));
  });
  expect_says(open_error(file_bytes(two("[0,4]", "[2,6]"), 6)), {"'b' overlaps tensor 'a'"});
  expect_says(open_error(file_bytes(two("[0,4]", "[0,4]"), 4)), {"overlaps"});
  expect_says(open_error(file_bytes(two("[0,4]", "[6,10]"), 10)), {"'b' leaves a hole of 2 bytes"});
  expect_says(open_error(file_bytes(two("[0,4]", "[4,8]"), 11)), {"3 bytes at the end belong to no tensor"});
}

TEST(Safetensors, NamesThatStandTwice) {
  const std::string entry = R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  expect_says(open_error(file_bytes("{\"same\":" + entry + ",\"same\":" + entry + "}", 1)), {"'same' appears twice"});
}

TEST(Safetensors, ControlCharactersInNamesStayOutOfMessages) {
  expect_says(open_error(file_bytes("{\"a\\nb\":3}", 0)), {"tensor 'a?b'"});
}

TEST(Safetensors, MissingFileAndFolder) {
  const TemporaryFolder folder;
  expect_says(message_of<IoError>([&] { SafetensorsFile::open(folder / "none.safetensors"); }),
              {"none.safetensors", "No such file"});
  expect_says(message_of<IoError>([&] { SafetensorsFile::open(folder.path()); }), {"not a regular file"});
  const std::string pipe = (folder.path() / "pipe").string();  // whose writer is not waited for
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  expect_says(message_of<IoError>([&] { SafetensorsFile::open(pipe); }), {"not a regular file"});
}

TEST(Safetensors, FailedWriteLeavesNothing) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "target");
  folder.write("target/occupied", "x");
  message_of<IoError>([&] { write_safetensors(folder / "target", {{"t", at::zeros({1})}}); });
  const auto entries = std::distance(std::filesystem::directory_iterator(folder.path()), {});
  EXPECT_EQ(entries, 1);
}

TEST(Safetensors, ElementTypesWithoutANameAreRefused) {
  message_of<InternalError>([] { dtype_name(at::kComplexFloat); });
}

}  // namespace
}  // namespace layerpress::checkpoint
