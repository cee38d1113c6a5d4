#include "layerpress/kernels/finite.h"

#include <ATen/ATen.h>

namespace layerpress::kernels {

bool all_finite(const at::Tensor& tensor) {
  if (c10::isFloat8Type(tensor.scalar_type()))
    return all_finite(tensor.to(at::kFloat));  // which ATen cannot tell itself
  return at::isfinite(magnitude_on_device(tensor)).item<bool>();
}

at::Tensor magnitude_on_device(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return at::zeros({}, tensor.options());
  const auto [least, greatest] = at::aminmax(tensor);
  return at::maximum(greatest, least.neg());
}

double largest_magnitude(const at::Tensor& weight) {
  return magnitude_on_device(weight).to(at::kDouble).item<double>();
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
