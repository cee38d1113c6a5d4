#include "layerpress/gguf/container/file.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "layerpress/base/error.h"

namespace layerpress::gguf {
namespace {

FileHeader read(const std::string& bytes) {
  return read_header(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size(), "a.gguf");
}

std::string refusal(const std::string& bytes) {
  try {
    (void)read(bytes);
  } catch (const CheckpointError& error) {
    return error.what();
  }
  return "";
}

Metadata metadata() {
  Metadata pairs;
  pairs.emplace_back("general.architecture", std::string("llama"));
  pairs.emplace_back("llama.block_count", std::uint32_t{2});
  pairs.emplace_back("llama.epsilon", 1e-5F);
  pairs.emplace_back("flag", true);
  pairs.emplace_back("tokens", std::vector<std::string>{"a", "", "\xff"});
  pairs.emplace_back("flags", std::vector<bool>{true, false});
  pairs.emplace_back("big", std::uint64_t{1} << 40);
  return pairs;
}

/// Whether the pair has this value.
template <typename T>
bool holds(const FileHeader& header, const std::string& key, const T& value) {
  const T* found = find_value<T>(header.metadata, key);
  return found != nullptr && *found == value;
}

std::vector<TensorInfo> tensors() {
  return {{"norm.weight", {5}, find_block_type("F32")},
          {"experts.weight", {3, 4, 256}, find_block_type("Q4_K")},
          {"half.weight", {2, 7}, find_block_type("F16")}};
}

/// A whole file whose data is zeros.
std::string file() {
  std::vector<TensorInfo> placed = tensors();
  std::string bytes = file_header(metadata(), placed);
  bytes.resize(bytes.size() + placed.back().offset + placed.back().nbytes());
  return bytes;
}

TEST(GgufFile, IsReadAsItWasWritten) {
  const FileHeader header = read(file());
  EXPECT_EQ(header.metadata.size(), metadata().size());
  EXPECT_TRUE(holds(header, "general.architecture", std::string("llama")));
  EXPECT_TRUE(holds(header, "llama.block_count", std::uint32_t{2}));
  EXPECT_TRUE(holds(header, "llama.epsilon", 1e-5F));
  EXPECT_TRUE(holds(header, "flag", true));
  EXPECT_TRUE(holds(header, "tokens", std::vector<std::string>{"a", "", "\xff"}));
  EXPECT_TRUE(holds(header, "flags", std::vector<bool>{true, false}));
  EXPECT_TRUE(holds(header, "big", std::uint64_t{1} << 40));
  ASSERT_EQ(header.tensors.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(header.tensors[i].name, tensors()[i].name);
    EXPECT_EQ(header.tensors[i].shape, tensors()[i].shape);
    EXPECT_EQ(header.tensors[i].type, tensors()[i].type);
    EXPECT_EQ(header.tensors[i].offset % kAlignment, 0U);
  }
  EXPECT_EQ(header.data % kAlignment, 0U);
  EXPECT_EQ(header.tensors[1].nbytes(), 3U * 4U * 144U);
}

TEST(GgufFile, RefusesEveryBeginning) {
  const std::string whole = file();
  for (std::size_t size = 0; size < whole.size(); ++size) EXPECT_NE(refusal(whole.substr(0, size)), "") << size;
}

TEST(GgufFile, SurvivesEveryChangedByte) {
  std::string bytes = file();
  const std::size_t header = read(bytes).data;
  for (std::size_t i = 0; i < header; ++i)
    for (const char mask : {'\x01', '\x80', '\xff'}) {
      bytes[i] = static_cast<char>(bytes[i] ^ mask);
      (void)refusal(bytes);  // another value, or an error of the right kind
      bytes[i] = static_cast<char>(bytes[i] ^ mask);
    }
}

TEST(GgufFile, NamesWhatIsWrong) {
  EXPECT_NE(refusal("GGML" + file().substr(4)).find("GGUF"), std::string::npos);
  std::vector<TensorInfo> same = {tensors()[0], tensors()[0]};
  std::string twice = file_header({}, same);
  twice.resize(twice.size() + 64);
  EXPECT_NE(refusal(twice).find("norm.weight"), std::string::npos);
  std::vector<TensorInfo> narrow = {{"narrow", {2, 100}, find_block_type("Q8_0")}};
  std::string uneven = file_header({}, narrow);
  uneven.resize(uneven.size() + 4096);
  EXPECT_NE(refusal(uneven).find("100 columns"), std::string::npos);
}

/// The refusal of a file with these keys and a tensor of a type with this id.
std::string refusal_of(const Metadata& pairs, std::uint32_t type = 0, std::uint64_t offset = 0) {
  std::vector<TensorInfo> one = {{"a.weight", {32}, find_block_type("F32")}};
  std::string bytes = file_header(pairs, one);
  const std::size_t place = bytes.find("a.weight") + 8 + 4 + 8;
  std::memcpy(bytes.data() + place, &type, sizeof(type));
  std::memcpy(bytes.data() + place + sizeof(type), &offset, sizeof(offset));
  return refusal(bytes + std::string(256, '\0'));
}

TEST(GgufFile, RefusesAKeyWithTwoValues) {
  EXPECT_EQ(refusal_of({{"rate", 1.0F}}), "");
  EXPECT_NE(refusal_of({{"rate", 1.0F}, {"other", 1.0F}, {"rate", 2.0F}}).find("two values of \"rate\""),
            std::string::npos);
}

TEST(GgufFile, RefusesAlignmentsThatAreNone) {
  const auto of = [](const Value& value, std::uint64_t offset = 0) {
    return refusal_of({{"general.alignment", value}}, 0, offset);
  };
  EXPECT_EQ(of(std::uint32_t{64}), "");
  for (const Value& value : {Value(std::uint32_t{0}), Value(std::uint32_t{48}), Value(std::uint64_t{64}), Value(64.0F)})
    EXPECT_NE(of(value).find("general.alignment is no power of two in 32 bits"), std::string::npos);
  EXPECT_NE(of(std::uint32_t{64}, 32).find("lies at 32, no multiple of 64"), std::string::npos);
  EXPECT_EQ(of(std::uint32_t{32}, 32), "");
}

TEST(GgufFile, SaysWhichFilesAreNotDamaged) {
  constexpr std::uint32_t kIq2Xxs = 16, kNone = 999;
  const std::string other = refusal_of({}, kIq2Xxs), none = refusal_of({}, kNone);
  EXPECT_NE(other.find("\"a.weight\" has ggml's type 16, which is none of F32, F16"), std::string::npos) << other;
  EXPECT_EQ(other.find("damaged"), std::string::npos) << other;
  EXPECT_NE(none.find("damaged"), std::string::npos) << none;
  std::string swapped = file();
  std::swap(swapped[4], swapped[7]);  // of the version
  EXPECT_NE(refusal(swapped).find("big-endian; convert it"), std::string::npos);
}

TEST(GgufFile, RefusesLongNames) {
  std::vector<TensorInfo> long_name = {{std::string(64, 'x'), {1}, find_block_type("F32")}};
  EXPECT_THROW(file_header({}, long_name), CheckpointError);
}

}  // namespace
}  // namespace layerpress::gguf
