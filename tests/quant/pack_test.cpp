#include "layerpress/quant/pack.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "layerpress/base/error.h"

namespace layerpress::quant {
namespace {

at::Tensor codes_of(std::vector<int> values) {
  return at::tensor(values, at::kInt).to(at::kChar).reshape({1, static_cast<std::int64_t>(values.size())});
}

std::vector<std::uint32_t> words_of(const at::Tensor& packed) {
  std::vector<std::uint32_t> words;
  const at::Tensor flat = packed.contiguous().flatten();
  for (std::int64_t i = 0; i < flat.numel(); ++i) words.push_back(static_cast<std::uint32_t>(flat[i].item<int>()));
  return words;
}

std::vector<int> repeated(const std::vector<int>& values, int times) {
  std::vector<int> all;
  for (int i = 0; i < times; ++i) all.insert(all.end(), values.begin(), values.end());
  return all;
}

/// Bit by bit, as the format is described.
std::vector<std::uint32_t> slow_pack(const at::Tensor& row, int bits) {
  const std::int64_t columns = row.numel();
  std::vector<std::uint32_t> words(static_cast<std::size_t>((columns * bits + 31) / 32), 0);
  for (std::int64_t i = 0; i < columns; ++i) {
    const int offset_code = row[i].item<int>() + (1 << (bits - 1));
    for (int bit = 0; bit < bits; ++bit) {
      const std::int64_t position = i * bits + bit;
      if ((offset_code >> bit) & 1) words[static_cast<std::size_t>(position / 32)] |= 1u << (position % 32);
    }
  }
  return words;
}

using Words = std::vector<std::uint32_t>;

TEST(PackTest, KnownWords) {
  EXPECT_EQ(words_of(pack_int32(codes_of({-8, -7, -6, -5, -4, -3, -2, -1}), 4)), Words{0x76543210});
  EXPECT_EQ(words_of(pack_int32(codes_of({0, 1, 2, 3, 4, 5, 6, 7}), 4)), Words{0xFEDCBA98});
  EXPECT_EQ(words_of(pack_int32(codes_of({0, 1, -1, 7, -8, 3, -3, 0}), 4)), Words{0x85B0F798});
  EXPECT_EQ(words_of(pack_int32(codes_of(repeated({1}, 10)), 4)), (Words{0x99999999, 0x00000099}));
  EXPECT_EQ(words_of(pack_int32(codes_of({-128, 0, 127, 1}), 8)), Words{0x81FF8000});
  EXPECT_EQ(words_of(pack_int32(codes_of({-1, -1, -1, -1}), 8)), Words{0x7F7F7F7F});
  EXPECT_EQ(words_of(pack_int32(codes_of(repeated({-2, -1, 0, 1}, 4)), 2)), Words{0xE4E4E4E4});
  EXPECT_EQ(words_of(pack_int32(codes_of(repeated({-4, -3, -2, -1, 0, 1, 2, 3}, 4)), 3)),
            (Words{0x88FAC688, 0xC688FAC6, 0xFAC688FA}));
}

TEST(PackTest, EveryWidthAndOddSizesAgreeWithBitByBit) {
  at::manual_seed(1);
  for (int bits = 1; bits <= 8; ++bits) {
    for (const std::int64_t columns : {1, 2, 3, 7, 8, 9, 15, 31, 32, 33, 63, 64, 65, 100, 257}) {
      const at::Tensor codes = at::randint(-(1 << (bits - 1)), 1 << (bits - 1), {5, columns}, at::kChar);
      const at::Tensor packed = pack_int32(codes, bits);
      ASSERT_EQ(packed.sizes(), (std::vector<std::int64_t>{5, (columns * bits + 31) / 32}));
      for (std::int64_t row = 0; row < 5; ++row)
        ASSERT_EQ(words_of(packed[row]), slow_pack(codes[row], bits)) << bits << " bits, " << columns << " columns";
      ASSERT_TRUE(at::equal(unpack_int32(packed, bits, columns), codes)) << bits << " bits, " << columns << " columns";
    }
  }
}

TEST(PackTest, ManyRowsOnAllThreadsAndTransposedInput) {
  at::manual_seed(2);
  const at::Tensor codes = at::randint(-4, 4, {300, 1111}, at::kChar);
  EXPECT_TRUE(at::equal(unpack_int32(pack_int32(codes, 3), 3, 1111), codes));
  EXPECT_TRUE(at::equal(pack_int32(codes.t(), 3), pack_int32(codes.t().contiguous(), 3)));
}

TEST(PackTest, WordsThatDoNotFitAreRefused) {
  const at::Tensor packed = at::zeros({2, 3}, at::kInt);
  EXPECT_NO_THROW(unpack_int32(packed, 4, 24));
  EXPECT_NO_THROW(unpack_int32(packed, 4, 17));
  EXPECT_THROW(unpack_int32(packed, 4, 16), CheckpointError);
  EXPECT_THROW(unpack_int32(packed, 4, 25), CheckpointError);
  EXPECT_THROW(unpack_int32(packed, 4, -1), CheckpointError);
  EXPECT_THROW(unpack_int32(packed, 4, std::int64_t{1} << 62), CheckpointError);
  EXPECT_THROW(unpack_int32(packed.to(at::kLong), 4, 24), CheckpointError);
  EXPECT_THROW(pack_int32(packed, 4), InternalError);
  EXPECT_THROW(pack_int32(codes_of({1}), 9), InternalError);
}

TEST(PackTest, EmptyTensors) {
  EXPECT_EQ(pack_int32(at::zeros({0, 16}, at::kChar), 4).sizes(), (std::vector<std::int64_t>{0, 2}));
  EXPECT_EQ(pack_int32(at::zeros({3, 0}, at::kChar), 4).sizes(), (std::vector<std::int64_t>{3, 0}));
}

}  // namespace
}  // namespace layerpress::quant
