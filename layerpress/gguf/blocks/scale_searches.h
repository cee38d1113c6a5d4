#pragma once

#include <bit>
#include <cstdint>

namespace layerpress::gguf {

// The searches by which ggml chooses the scale of a group of values. All of them compute in fp32 in ggml's order, so that they end at
// the same scale to the last bit. Candidates or groups are computed side by side, as lanes of vectors.

/// Values of at most this magnitude count as 0.
constexpr float kSmallestScale = 1e-15f;

/// The nearest integer, ties to even. It is ggml's for |value| > 2^22, too, where it is meaningless: integers must be clamped.
inline int nearest_integer(float value) {
  const auto bits = std::bit_cast<std::int32_t>(value + 12582912.0f);  // 1.5 * 2^23: fraction bits fall away
  return (bits & 0x007FFFFF) - 0x00400000;
}

/// The value of greatest magnitude, the first one of several.
float farthest_from_zero(int count, const float* values);

/// A group's values are scale * code - minimum.
struct AffineFit {
  float scale = 0;
  float minimum = 0;
};

/// The candidates of search_affine: the range has greatest_code + first + i * step steps, i in [0, count).
struct AffineSteps {
  float first = 0;
  float step = 0;
  int count = 0;
  bool absolute_error = false;  ///< instead of the squared one; only for groups of 16
};

constexpr int kAffineTogether = 4;  // groups at a time

/// At most kAffineTogether groups of `count` consecutive values, 16 or 32.
struct AffineInput {
  int groups = 0;
  int count = 0;
  const float* values = nullptr;
  const float* weights = nullptr;
};

/// Finds codes 0 ... greatest_code and a fit for each group; minimums are not negative. A candidate's codes determine scale and minimum by
/// weighted least squares; the least weighted error wins. The next candidates' range begins at the best fit's minimum.
void search_affine(const AffineInput& input, int greatest_code, const AffineSteps& steps, AffineFit* fits,
                   std::uint8_t* codes);

/// Codes 0 ... 2 half - 1 for `count` values (at most 32) that are scale * (code - half); returns the scale. Among 19 candidates, the
/// one with the least weighted squared error at its best scale wins.
float search_symmetric(int count, const float* values, const float* weights, int half, std::uint8_t* codes);

/// The same for 16 values that are weighted by their squares, without candidates: begins with the greatest magnitude at -half and
/// changes one code at a time while the error falls.
float refine_symmetric(const float* values, int half, std::uint8_t* codes);

/// Codes 0 ... greatest_code for `count` scales or minimums of groups (at most 16) that are not negative; returns their common unit.
float search_unit(int count, const float* values, const float* weights, int greatest_code, std::uint8_t* codes);

/// The 16 levels of IQ4_NL and IQ4_XS.
constexpr float kNonlinearLevels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

/// The code of the nonlinear level that is nearest to a value, of two the upper.
inline int nearest_nonlinear(float value) {
  int code = 0;
  for (int i = 1; i < 16; ++i) code += value < 0.5f * (kNonlinearLevels[i - 1] + kNonlinearLevels[i]) ? 0 : 1;
  return code;
}

/// The scale of 32 values that are scale * nonlinear level: as search_symmetric, with 15 candidates.
float search_nonlinear(const float* values, const float* weights);

}  // namespace layerpress::gguf
