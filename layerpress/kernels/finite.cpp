#include "layerpress/kernels/finite.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>

namespace layerpress::kernels {
namespace {

constexpr std::int64_t kChunk = 1 << 16;

/// The greatest magnitude by its bits. Signed, so that the maximum is a vector instruction everywhere.
template <typename Bits>
std::int32_t largest_bits(const void* values, std::int64_t first, std::int64_t count) {
  constexpr Bits kMagnitude = std::numeric_limits<Bits>::max();
  const Bits* bits = static_cast<const Bits*>(values) + first;
  Bits largest = 0;
  for (std::int64_t i = 0; i < count; ++i) largest = std::max(largest, static_cast<Bits>(bits[i] & kMagnitude));
  return largest;
}

std::int32_t largest_bits(const at::Tensor& tensor, std::int64_t chunk) {
  const std::int64_t first = chunk * kChunk, count = std::min(kChunk, tensor.numel() - first);
  return tensor.element_size() == 2 ? largest_bits<std::int16_t>(tensor.const_data_ptr(), first, count)
                                    : largest_bits<std::int32_t>(tensor.const_data_ptr(), first, count);
}

std::int32_t infinity_bits(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return 0x7F80;
  return dtype == at::kHalf ? 0x7C00 : 0x7F800000;
}

std::int64_t chunks_of(const at::Tensor& tensor) { return (tensor.numel() + kChunk - 1) / kChunk; }

bool has_readable_bits(const at::Tensor& tensor) {
  const at::ScalarType dtype = tensor.scalar_type();
  return tensor.is_cpu() && tensor.is_contiguous() &&
         (dtype == at::kBFloat16 || dtype == at::kHalf || dtype == at::kFloat);
}

}  // namespace

bool all_finite(const at::Tensor& tensor) {
  if (c10::isFloat8Type(tensor.scalar_type()))
    return all_finite(tensor.to(at::kFloat));  // which ATen cannot tell itself
  if (!has_readable_bits(tensor)) return at::isfinite(tensor).all().item<bool>();
  std::atomic<bool> finite{true};
  at::parallel_for(0, chunks_of(tensor), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t c = begin; c < end && finite.load(std::memory_order_relaxed); ++c)
      if (largest_bits(tensor, c) >= infinity_bits(tensor.scalar_type()))
        finite.store(false, std::memory_order_relaxed);
  });
  return finite.load();
}

at::Tensor magnitude_on_device(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return at::zeros({}, tensor.options());
  const auto [least, greatest] = at::aminmax(tensor);
  return at::maximum(greatest, least.neg());
}

double largest_magnitude(const at::Tensor& weight) {
  if (weight.numel() == 0) return 0;
  if (!has_readable_bits(weight)) return magnitude_on_device(weight).to(at::kDouble).item<double>();
  std::vector<std::int32_t> largest(static_cast<std::size_t>(chunks_of(weight)));
  at::parallel_for(0, chunks_of(weight), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t c = begin; c < end; ++c) largest[static_cast<std::size_t>(c)] = largest_bits(weight, c);
  });
  const std::int32_t bits = *std::max_element(largest.begin(), largest.end());
  const at::Tensor integer = at::scalar_tensor(bits, at::kInt);
  const at::Tensor number = weight.element_size() == 2 ? integer.to(at::kShort) : integer;
  return number.view(weight.scalar_type()).to(at::kDouble).item<double>();
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
    answers.push_back(at::isfinite(magnitude_on_device(tensors[i])));
  }
  if (elsewhere.empty()) return result;
  const at::Tensor finite = at::stack(answers).cpu();
  for (std::size_t i = 0; i < elsewhere.size(); ++i) result[elsewhere[i]] = finite.const_data_ptr<bool>()[i];
  return result;
}

}  // namespace layerpress::kernels
