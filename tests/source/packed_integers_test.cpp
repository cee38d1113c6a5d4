#include "layerpress/source/packed_integers.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace layerpress::source {
namespace {

/// Words [rows, words] of fields [rows, words, per word], the first in the lowest bits.
at::Tensor packed(const at::Tensor& fields, int bits) {
  const at::Tensor places = at::arange(fields.size(2), at::kLong) * bits;
  return fields.to(at::kLong).bitwise_left_shift(places).sum(2).to(at::kInt);
}

TEST(PackedIntegersTest, AlongInputs) {
  for (const int bits : {2, 4, 8}) {
    const std::int64_t per_word = 32 / bits, outputs = 37, words = 5;
    const at::Tensor codes = at::randint(1 << bits, {outputs, words * per_word}, at::kLong);
    const at::Tensor stored = packed(codes.view({outputs, words, per_word}), bits).t();
    const at::Tensor read = codes_packed_along_inputs(stored, bits);
    EXPECT_TRUE(at::equal(read, codes.sub(1 << (bits - 1)).to(at::kChar))) << bits << " bits";
  }
}

/// A stream of bits: code k is at k * bits, from the lowest bit of the first word on.
TEST(PackedIntegersTest, AcrossWords) {
  for (const int bits : {3, 5, 6, 7}) {
    const std::int64_t outputs = 19, inputs = 64;
    const at::Tensor codes = at::randint(1 << bits, {outputs, inputs}, at::kLong);
    const at::Tensor places = at::arange(bits, at::kLong);
    const at::Tensor stream = codes.unsqueeze(2).bitwise_right_shift(places).bitwise_and(1);
    const at::Tensor stored = packed(stream.reshape({outputs, inputs * bits / 32, 32}), 1).t();
    EXPECT_TRUE(at::equal(codes_packed_along_inputs(stored, bits), codes.sub(1 << (bits - 1)).to(at::kChar))) << bits;
  }
}

TEST(PackedIntegersTest, InAwqOrder) {
  const std::int64_t inputs = 131, words = 19;
  const at::Tensor codes = at::randint(16, {inputs, words * 8}, at::kLong);
  const at::Tensor order = at::tensor({0, 2, 4, 6, 1, 3, 5, 7}, at::kLong);
  const at::Tensor stored = packed(codes.view({inputs, words, 8}).index_select(2, order), 4);
  EXPECT_TRUE(at::equal(codes_in_awq_order(stored), codes.t().sub(8).to(at::kChar)));
}

TEST(PackedIntegersTest, Schemes) {
  EXPECT_EQ(integer_scheme(4, 32, 128, true).weights->group_size, 32);
  const quant::QuantizationScheme whole = integer_scheme(8, 128, 128, false);
  EXPECT_EQ(whole.weights->strategy, quant::Strategy::kChannel);
  EXPECT_FALSE(whole.weights->group_size.has_value());
  EXPECT_FALSE(whole.weights->symmetric);
  EXPECT_EQ(whole.weights->num_bits, 8);
}

}  // namespace
}  // namespace layerpress::source
