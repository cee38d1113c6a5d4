// Runs the vector kernels on fixed numbers and prints the results: one line for each, with its name, the greatest difference that
// another compiler or CPU may make (as a part of the greatest number of the line), and the numbers. scripts/check_arm compares the
// lines of two CPUs. Without ATen and gtest, which a cross compiler seldom has.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <string>
#include <vector>

#include "layerpress/kernels/cpu/table.h"

namespace layerpress::kernels::cpu {
namespace {

constexpr double kExact = 0, kSums = 1e-5, kRounded = 1.0 / 128;  // kRounded: a sum that is rounded to bf16 or fp16

template <typename T>
void print(const std::string& name, double tolerance, const std::vector<T>& numbers) {
  std::printf("%s %g", name.c_str(), tolerance);
  for (const T number : numbers) std::printf(" %.9g", static_cast<double>(number));
  std::printf("\n");
}

/// The same numbers on every machine, between -1 and 1.
class Numbers {
 public:
  float next() {
    state_ = state_ * 1664525u + 1013904223u;
    return static_cast<float>(static_cast<std::int32_t>(state_ >> 8)) / 8388608.0f - 1.0f;
  }
  std::vector<float> floats(std::int64_t count) {
    std::vector<float> numbers(static_cast<std::size_t>(count));
    for (float& number : numbers) number = next();
    return numbers;
  }
  std::vector<Bits16> bfloats(std::int64_t count) {
    std::vector<Bits16> numbers(static_cast<std::size_t>(count));
    for (Bits16& number : numbers) {
      const float value = next();
      std::uint32_t bits;
      std::memcpy(&bits, &value, sizeof(bits));
      number = static_cast<Bits16>(bits >> 16);
    }
    return numbers;
  }

 private:
  std::uint32_t state_ = 7;
};

std::vector<float> widened(const std::vector<Bits16>& x) {
  std::vector<float> y(x.size());
  table().widen_bf16(x.data(), y.data(), static_cast<std::int64_t>(x.size()));
  return y;
}

struct NamedElement {
  const char* name;
  ElementType type;
  float zero_point;
};
constexpr NamedElement kElements[] = {{"int4", integers(4), 2}, {"e4m3", kE4m3, 0}, {"e2m1", kE2m1, 0}};

void elementwise(Numbers& numbers) {
  constexpr std::int64_t kRows = 3, kSize = 70;
  const auto x = numbers.bfloats(kRows * kSize), weight = numbers.bfloats(kSize),
             other = numbers.bfloats(kRows * kSize);
  std::vector<Bits16> y(x.size());
  table().bf16.rms_norm(x.data(), weight.data(), y.data(), kRows, kSize, 1e-5f);
  print("rms_norm_bf16", kRounded, widened(y));
  table().bf16.silu_multiply(x.data(), other.data(), y.data(), kRows * kSize);
  print("silu_multiply_bf16", kRounded, widened(y));
  table().add_scaled_bf16(x.data(), 0.7f, y.data(), kRows * kSize);
  print("add_scaled_bf16", kRounded, widened(y));
  const auto cosine = numbers.floats(8), sine = numbers.floats(8);
  table().bf16.rotary(x.data(), cosine.data(), sine.data(), y.data(), 10, 21, 8);
  print("rotary_bf16", kRounded, widened(y));

  const auto a = widened(x), b = widened(other), scale = widened(weight);
  std::vector<float> wide(a.size());
  table().f32.rms_norm(a.data(), scale.data(), wide.data(), kRows, kSize, 1e-5f);
  print("rms_norm_f32", kSums, wide);
  table().f32.silu_multiply(a.data(), b.data(), wide.data(), kRows * kSize);
  print("silu_multiply_f32", kSums, wide);
  table().f32.rotary(a.data(), cosine.data(), sine.data(), wide.data(), 10, 21, 8);
  print("rotary_f32", kSums, wide);
  double difference = 0, square = 0;
  table().f32.squared_difference(a.data(), b.data(), kRows * kSize, &difference, &square);
  print("squared_difference_f32", kSums, std::vector<double>{difference, square});
  table().bf16.squared_difference(x.data(), other.data(), kRows * kSize, &difference, &square);
  print("squared_difference_bf16", kSums, std::vector<double>{difference, square});
}

void rounding(Numbers& numbers) {
  constexpr std::int64_t kCount = 96, kRun = 32;
  const auto x = numbers.floats(kCount), importance = numbers.floats(kCount), factors = numbers.floats(kCount);
  const auto bits = numbers.bfloats(kCount);
  float low = 0, high = 0;
  table().minimum_maximum(x.data(), kCount, &low, &high);
  std::vector<float> minima(kCount / kRun), maxima(kCount / kRun);
  table().run_ranges(x.data(), kCount / kRun, kRun, minima.data(), maxima.data());
  print("ranges", kExact, std::vector<float>{low, high, minima[0], minima[1], maxima[1], maxima[2]});
  std::vector<Bits16> scaled(kCount);
  table().scale_columns(bits.data(), ValueType::kBFloat16, factors.data(), kCount, scaled.data(), ValueType::kBFloat16);
  print("scale_columns", kExact, widened(scaled));
  for (const auto& [name, element, zero_point] : kElements) {
    const float scale = 0.9f / element.maximum;
    const std::vector<float> scales(6, scale), zero_points(6, zero_point);
    const RowScales row{kCount, 16, scales.data(), zero_points.data()};
    std::vector<std::int8_t> codes(kCount);
    table().quantize(x.data(), row, element, codes.data());
    print(std::string("quantize_") + name, kExact, codes);
    std::vector<float> values(kCount);
    table().dequantize_f32(codes.data(), row, element, values.data());
    print(std::string("dequantize_f32_") + name, kSums, values);
    std::vector<Bits16> narrow(kCount);
    table().dequantize_bf16(codes.data(), row, element, narrow.data());
    print(std::string("dequantize_bf16_") + name, kExact, widened(narrow));
    const std::vector<float> candidates = {scale, scale * 0.9f, scale * 0.8f};
    table().round_values({.x = x.data(),
                          .runs = kCount / kRun,
                          .run = kRun,
                          .scales = scales.data(),
                          .zero_points = zero_points.data(),
                          .element = element,
                          .type = ValueType::kHalf,
                          .y = narrow.data()});
    print(std::string("round_values_") + name, kExact, narrow);
    for (const float exponent : {2.0f, 2.4f}) {
      std::vector<float> errors(3, 0.0f);
      table().scale_errors({.weights = x.data(),
                            .importance = exponent == 2.0f ? nullptr : importance.data(),
                            .count = kCount,
                            .scales = candidates.data(),
                            .zero_points = zero_points.data(),
                            .candidates = 3,
                            .exponent = exponent,
                            .element = element,
                            .errors = errors.data()});
      print(std::string("scale_errors_") + name, kSums, errors);
    }
  }
}

/// x [37, 50] times a weight [44, 50], in one tile.
void products(Numbers& numbers) {
  constexpr std::int64_t kRows = 37, kColumns = 44, kBlocks = 3, kDepth = 50;
  const auto x = numbers.bfloats(kRows * kDepth);
  const auto weight = numbers.floats(kColumns * kDepth);
  const std::int64_t group = table().wide_rows, groups = (kRows + group - 1) / group;
  std::vector<float> left(static_cast<std::size_t>(groups * group * kDepth)), right(kBlocks * kWideColumns * kDepth);
  for (std::int64_t g = 0; g < groups; ++g)
    table().wide_pack_rows(
        {x.data() + g * group * kDepth, ValueType::kBFloat16, std::min(group, kRows - g * group), kDepth}, kDepth,
        group, left.data() + g * group * kDepth);
  for (std::int64_t b = 0; b < kBlocks; ++b)
    table().wide_pack_rows({weight.data() + b * kWideColumns * kDepth, ValueType::kFloat,
                            std::min(kWideColumns, kColumns - b * kWideColumns), kDepth},
                           kDepth, kWideColumns, right.data() + b * kWideColumns * kDepth);
  std::vector<float> sums(kRows * kColumns, 0.5f);
  for (const bool adds : {false, true}) {
    table().wide_tile({.left = left.data(),
                       .left_stride = group,
                       .left_group = kDepth * group,
                       .right = right.data(),
                       .right_stride = kWideColumns,
                       .right_block = kDepth * kWideColumns,
                       .depth = kDepth,
                       .sums = sums.data(),
                       .stride = kColumns,
                       .rows = kRows,
                       .columns = kColumns,
                       .adds = adds});
    print("wide_tile", kSums, sums);
  }
  alignas(64) float tile[4 * kProductPanel];
  for (float& sum : tile) sum = 4 * numbers.next();
  std::vector<Bits16> y(4 * kProductPanel);
  ProductResult result{.sums = tile, .rows = 4, .columns = 30, .y = y.data(), .stride = kProductPanel};
  table().product_round(result);
  print("product_round", kExact, widened(y));
  result.columns = 13;
  table().product_gate(result);
  print("product_gate", kRounded, widened(y));
}

void panels(Numbers& numbers) {
  constexpr std::int64_t kRows = 5, kColumns = 50;
  const auto a = numbers.bfloats(kRows * kColumns), b = numbers.bfloats(kRows * kColumns);
  std::vector<float> panel(kRows * kGramPanel);
  const StoredRows rows{a.data(), ValueType::kBFloat16, kRows, kColumns};
  table().wide_pack_columns(rows, 45, panel.data());
  print("wide_pack_columns", kExact, panel);
  table().wide_pack_difference(rows, {b.data(), ValueType::kBFloat16, kRows, kColumns}, 48, panel.data());
  print("wide_pack_difference", kExact, panel);
}

void attention(Numbers& numbers) {
  constexpr std::int64_t kLength = 60, kHeads = 2, kSize = 20;
  const auto q = numbers.bfloats(kLength * kHeads * kSize), k = numbers.bfloats(kLength * kSize),
             v = numbers.bfloats(kLength * kSize);
  for (const std::int64_t window : {0, 9})
    for (const bool causal : {true, false}) {
      std::vector<Bits16> output(q.size());
      AttentionTask task{.q = q.data(),
                         .k = k.data(),
                         .v = v.data(),
                         .output = output.data(),
                         .query_stride = kHeads * kSize,
                         .key_stride = kSize,
                         .value_stride = kSize,
                         .output_stride = kHeads * kSize,
                         .length = kLength,
                         .keys = kLength,
                         .heads = kHeads,
                         .head_dim = kSize,
                         .value_dim = kSize,
                         .causal = causal,
                         .window = causal ? window : 0,
                         .scale = 2,
                         .soft_cap = window > 0 ? 1.5f : 0.0f};
      std::vector<std::uint64_t> memory(static_cast<std::size_t>(table().attention_wide_workspace(task)) / 8 + 16);
      const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
      task.workspace = reinterpret_cast<void*>((address + 63) / 64 * 64);
      table().attention_wide(task);
      print("attention_wide", kRounded, widened(output));
    }
}

/// Two blocks of GPTQ's recursion.
void recursion(Numbers& numbers) {
  constexpr std::int64_t kRows = 30, kColumns = 40, kBlock = 24;
  const auto weight = numbers.floats(kRows * kColumns);
  std::vector<float> feedback = numbers.floats(kColumns * kColumns), pivots(kColumns, 0.5f),
                     scales(2 * kColumnTile, 0.2f);
  for (float& factor : feedback) factor *= 0.25f;
  std::vector<std::int64_t> order(kColumns);
  std::vector<std::int32_t> groups(kColumns);
  for (std::int64_t j = 0; j < kColumns; ++j) order[j] = kColumns - 1 - j, groups[j] = j < 20 ? 0 : 1;
  std::vector<float> tile(kColumns * kColumnTile);
  std::vector<std::int8_t> code_tile(kColumns * kColumnTile), codes(kRows * kColumns);
  table().column_tile_load(weight.data(), kRows, kColumns, order.data(), tile.data());
  std::vector<double> losses;
  for (std::int64_t begin = 0; begin < kColumns; begin += kBlock) {
    const ColumnBlockTask task{.begin = begin,
                               .end = std::min(begin + kBlock, kColumns),
                               .rows = kRows,
                               .residual = tile.data(),
                               .codes = code_tile.data(),
                               .feedback = feedback.data() + begin * kColumns + begin,
                               .feedback_stride = kColumns,
                               .pivots = pivots.data(),
                               .scales = scales.data(),
                               .group_of_column = groups.data(),
                               .order = order.data(),
                               .element = integers(4)};
    alignas(64) float running[kMaximumBlock * kColumnTile], tried[kColumnTile];
    std::copy_n(tile.data() + begin * kColumnTile, (task.end - begin) * kColumnTile, running);
    table().column_block_add({tile.data(), begin, feedback.data() + begin, kColumns, task.end - begin}, running);
    table().column_block_try(task, running, tried);
    losses.insert(losses.end(), tried, tried + kRows);
    losses.push_back(table().column_block_end(task, running));
  }
  table().column_tile_store(code_tile.data(), kRows, kColumns, codes.data());
  print("codes", kExact, codes);
  print("losses", kSums, losses);
  print("residuals", kSums, tile);
}

}  // namespace
}  // namespace layerpress::kernels::cpu

int main() {
  using namespace layerpress::kernels::cpu;
  Numbers numbers;
  elementwise(numbers);
  rounding(numbers);
  products(numbers);
  panels(numbers);
  attention(numbers);
  recursion(numbers);
}
