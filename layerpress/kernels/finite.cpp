#include "layerpress/kernels/finite.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace layerpress::kernels {
namespace {

/// Whether the exponent of any value, given by its bits, is all ones. Signed, so that the maximum is a vector instruction
/// everywhere.
template <typename Bits>
bool any_at_or_above(const Bits* values, std::int64_t count, Bits magnitude_mask, Bits infinity) {
  Bits largest = 0;
  for (std::int64_t i = 0; i < count; ++i) largest = std::max(largest, static_cast<Bits>(values[i] & magnitude_mask));
  return largest >= infinity;
}

bool any_not_finite(const at::Tensor& tensor, std::int64_t first, std::int64_t count) {
  const auto* halves = static_cast<const std::int16_t*>(tensor.const_data_ptr());
  switch (tensor.scalar_type()) {
    case at::kBFloat16:
      return any_at_or_above<std::int16_t>(halves + first, count, 0x7FFF, 0x7F80);
    case at::kHalf:
      return any_at_or_above<std::int16_t>(halves + first, count, 0x7FFF, 0x7C00);
    default:
      return any_at_or_above<std::int32_t>(static_cast<const std::int32_t*>(tensor.const_data_ptr()) + first, count,
                                           0x7FFFFFFF, 0x7F800000);
  }
}

}  // namespace

bool all_finite(const at::Tensor& tensor) {
  const at::ScalarType dtype = tensor.scalar_type();
  const bool read_here = tensor.is_cpu() && tensor.is_contiguous() &&
                         (dtype == at::kBFloat16 || dtype == at::kHalf || dtype == at::kFloat);
  if (!read_here) return at::isfinite(tensor).all().item<bool>();
  constexpr std::int64_t kChunk = 1 << 16;
  const std::int64_t elements = tensor.numel(), chunks = (elements + kChunk - 1) / kChunk;
  std::atomic<bool> finite{true};
  at::parallel_for(0, chunks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t c = begin; c < end && finite.load(std::memory_order_relaxed); ++c)
      if (any_not_finite(tensor, c * kChunk, std::min(kChunk, elements - c * kChunk)))
        finite.store(false, std::memory_order_relaxed);
  });
  return finite.load();
}

std::vector<bool> each_finite(const std::vector<at::Tensor>& tensors) {
  std::vector<bool> result(tensors.size());
  std::vector<std::size_t> elsewhere;
  std::vector<at::Tensor> answers;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].is_cpu()) {
      result[i] = all_finite(tensors[i]);
      continue;
    }
    elsewhere.push_back(i);
    answers.push_back(at::isfinite(tensors[i]).all());
  }
  if (elsewhere.empty()) return result;
  const at::Tensor finite = at::stack(answers).cpu();
  for (std::size_t i = 0; i < elsewhere.size(); ++i) result[elsewhere[i]] = finite.const_data_ptr<bool>()[i];
  return result;
}

}  // namespace layerpress::kernels
