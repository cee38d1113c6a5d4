#include <algorithm>
#include <limits>

#include "layerpress/gguf/blocks/scale_searches.h"
#include "layerpress/gguf/blocks/search_lanes.h"

namespace layerpress::gguf {
namespace {

static_assert(kLanes == kAffineTogether);

/// NaN becomes 0.
inline Vector code_of(Vector value, Vector greatest) {
  const Vector whole = rounded(value), zero = constant(0);
  const Vector code = whole > zero ? whole : zero;
  return code < greatest ? code : greatest;
}

template <bool kAbsolute>
inline Vector error_of(Vector difference) {
  if constexpr (kAbsolute) return difference < constant(0) ? -difference : difference;
  return difference * difference;
}

/// Groups of kCount values, one per lane, and the state of their searches. Here values are scale * code + offset.
template <int kCount, bool kAbsolute>
class AffineGroups {
 public:
  AffineGroups(int groups, const float* values, const float* weights, int greatest_code)
      : greatest_(constant(static_cast<float>(greatest_code))) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const int first = std::min(lane, groups - 1) * kCount;
      for (int i = 0; i < kCount; ++i) {
        values_[i][lane] = values[first + i];
        weights_[i][lane] = weights[first + i];
      }
    }
    offset_ = high_ = values_[0];
    sum_weights_ = weights_[0];
    sum_values_ = weights_[0] * values_[0];
    for (int i = 1; i < kCount; ++i) {
      offset_ = values_[i] < offset_ ? values_[i] : offset_;
      high_ = values_[i] > high_ ? values_[i] : high_;
      sum_weights_ += weights_[i];
      sum_values_ += weights_[i] * values_[i];
    }
    offset_ = offset_ > constant(0) ? constant(0) : offset_;
    begin();
  }

  /// Tries to divide the range into so many steps. The range begins at the best offset so far.
  void try_steps(float steps) {
    Vector inverse = constant(steps) / (high_ - offset_);
    const Vector magnitude = inverse < constant(0) ? -inverse : inverse;
    inverse = magnitude <= constant(std::numeric_limits<float>::max()) ? inverse : constant(0);
    Vector codes[kCount], sum_codes{}, squares{}, products{};
    for (int i = 0; i < kCount; ++i) {
      codes[i] = code_of(inverse * (values_[i] - offset_), greatest_);
      const Vector weighted = weights_[i] * codes[i];
      sum_codes += weighted;
      squares += weighted * codes[i];
      products += weighted * values_[i];
    }
    const Vector determinant = sum_weights_ * squares - sum_codes * sum_codes;
    Vector scale = (sum_weights_ * products - sum_values_ * sum_codes) / determinant;
    Vector offset = (squares * sum_values_ - sum_codes * products) / determinant;
    scale = offset > constant(0) ? products / squares : scale;
    offset = offset > constant(0) ? constant(0) : offset;
    const Vector error = error_at(codes, scale, offset);
    keep(determinant > constant(0) ? error : constant(std::numeric_limits<float>::infinity()), inverse, scale, offset);
  }

  AffineFit result(int lane, std::uint8_t* codes) const {
    if (is_constant_[lane] != 0) {
      std::fill_n(codes, kCount, std::uint8_t{0});
      return {0, -begin_[lane]};
    }
    for (int i = 0; i < kCount; ++i) {
      const int code = nearest_integer(inverse_[lane] * (values_[i][lane] - begin_[lane]));
      codes[i] = static_cast<std::uint8_t>(std::clamp(code, 0, static_cast<int>(greatest_[0])));
    }
    return {scale_[lane], -offset_[lane]};
  }

 private:
  /// The range divided into as many steps as there are codes.
  void begin() {
    begin_ = offset_;
    is_constant_ = high_ == offset_ ? constant(1) : constant(0);
    inverse_ = greatest_ / (high_ - offset_);
    scale_ = constant(1) / inverse_;
    Vector codes[kCount];
    for (int i = 0; i < kCount; ++i) codes[i] = code_of(inverse_ * (values_[i] - offset_), greatest_);
    error_ = error_at(codes, scale_, offset_);
  }

  Vector error_at(const Vector (&codes)[kCount], Vector scale, Vector offset) const {
    Vector error{};
    for (int i = 0; i < kCount; ++i) error += weights_[i] * error_of<kAbsolute>(scale * codes[i] + offset - values_[i]);
    return error;
  }

  void keep(Vector error, Vector inverse, Vector scale, Vector offset) {
    const auto better = error < error_;
    error_ = better ? error : error_;
    inverse_ = better ? inverse : inverse_;
    begin_ = better ? offset_ : begin_;
    scale_ = better ? scale : scale_;
    offset_ = better ? offset : offset_;
  }

  Vector greatest_, values_[kCount], weights_[kCount];
  Vector high_, sum_weights_, sum_values_;
  Vector error_, scale_, offset_;  // of the best fit
  Vector inverse_, begin_;         // what the best fit's codes came from
  Vector is_constant_;
};

template <int kCount, bool kAbsolute>
void search(const AffineInput& input, int greatest_code, const AffineSteps& steps, AffineFit* fits,
            std::uint8_t* codes) {
  AffineGroups<kCount, kAbsolute> groups(input.groups, input.values, input.weights, greatest_code);
  for (int i = 0; i < steps.count; ++i)
    groups.try_steps(steps.first + steps.step * static_cast<float>(i) + static_cast<float>(greatest_code));
  for (int g = 0; g < input.groups; ++g) fits[g] = groups.result(g, codes + g * kCount);
}

}  // namespace

void search_affine(const AffineInput& input, int greatest_code, const AffineSteps& steps, AffineFit* fits,
                   std::uint8_t* codes) {
  if (steps.absolute_error)
    search<16, true>(input, greatest_code, steps, fits, codes);
  else if (input.count == 16)
    search<16, false>(input, greatest_code, steps, fits, codes);
  else
    search<32, false>(input, greatest_code, steps, fits, codes);
}

}  // namespace layerpress::gguf
