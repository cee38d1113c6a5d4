#include "layerpress/kernels/codebook.h"

#include <ATen/ATen.h>

#include "layerpress/kernels/cpu/table.h"
#include "layerpress/kernels/device_types.h"

namespace layerpress::kernels {

at::Tensor nearest_level(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& zero_point,
                         const Codebook& codebook) {
  at::Tensor ratio = x / scale;
  if (codebook.fp8) return ratio.clamp(-448, 448).to(at::kFloat8_e4m3fn).to(ratio.scalar_type());
  if (zero_point.defined()) ratio = ratio + zero_point;
  return ratio.clamp(codebook.minimum, codebook.maximum).round();
}

at::Tensor level_value(const at::Tensor& level, const at::Tensor& scale, const at::Tensor& zero_point) {
  return (zero_point.defined() ? level - zero_point : level) * scale;
}

at::Tensor level_codes(const at::Tensor& level, const Codebook& codebook) {
  return codebook.fp8 ? level.to(at::kFloat8_e4m3fn).view(at::kChar) : level.to(at::kChar);
}

cpu::Codebook cpu_codebook(const Codebook& codebook) {
  return {codebook.fp8, codebook.fp8 ? -448.0f : static_cast<float>(codebook.minimum),
          codebook.fp8 ? 448.0f : static_cast<float>(codebook.maximum)};
}

cuda::Codebook device_codebook(const Codebook& codebook) {
  const cpu::Codebook book = cpu_codebook(codebook);
  return {book.fp8, book.minimum, book.maximum};
}

}  // namespace layerpress::kernels
