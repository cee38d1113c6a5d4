#include "layerpress/kernels/layers/linear.h"

#include <ATen/ATen.h>

#include <vector>

#include "layerpress/kernels/layers/transformer.h"
#include "layerpress/kernels/products/product.h"

namespace layerpress::kernels {
namespace {

bool fits_pairs(at::ScalarType dtype, std::int64_t features) {
  return multiplies_pairs(dtype) && features > 0 && features % 2 == 0;
}

bool fits_tiles(const at::Tensor& x, const at::Tensor& weight) {
  return x.is_cpu() && has_value_type(x.scalar_type()) && has_value_type(weight.scalar_type());
}

void multiply_on_tiles(const Product& product) {
  const at::ScalarType dtype = product.x.scalar_type();
  if (fits_pairs(dtype, product.x.size(1)) && product.first.scalar_type() == dtype &&
      product.second.scalar_type() == dtype)
    multiply_pairs(product);
  else
    multiply_wide(product);
}

/// Reshapes [..., features] to contiguous rows, and a result's rows to [..., outputs].
at::Tensor rows_of(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}).contiguous(); }
at::Tensor shaped_like(const at::Tensor& x, const at::Tensor& y) {
  std::vector<std::int64_t> shape = x.sizes().vec();
  shape.back() = y.size(1);
  return y.view(shape);
}

}  // namespace

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  const bool has_bias = bias && bias->defined();
  if (!fits_tiles(x, weight)) return at::linear(x, weight, has_bias ? bias : std::nullopt);
  const at::Tensor rows = rows_of(x), own = weight.contiguous();
  const at::Tensor added = has_bias ? bias->to(x.scalar_type()).contiguous() : at::Tensor();
  at::Tensor y = at::empty({rows.size(0), own.size(0)}, x.options());
  multiply_on_tiles({rows, own, own, has_bias ? added.const_data_ptr() : nullptr, y, /*gated=*/false});
  return shaped_like(x, y);
}

bool fuses_gated_linear(const std::string& function, at::ScalarType dtype) {
  return function == "silu" && (dtype == at::kBFloat16 || dtype == at::kFloat);
}

at::Tensor gated_linear(const std::string& function, const at::Tensor& x, const at::Tensor& gate,
                        const at::Tensor& up) {
  if (!fuses_gated_linear(function, x.scalar_type()) || !fits_tiles(x, gate) || !fits_tiles(x, up))
    return gated_activation(function, kernels::linear(x, gate), kernels::linear(x, up));
  const at::Tensor rows = rows_of(x), first = gate.contiguous(), second = up.contiguous();
  at::Tensor y = at::empty({rows.size(0), first.size(0)}, x.options());
  multiply_on_tiles({rows, first, second, /*bias=*/nullptr, y, /*gated=*/true});
  return shaped_like(x, y);
}

std::uint64_t linear_workspace_bytes(std::int64_t rows, std::int64_t features, at::ScalarType dtype, int threads) {
  return fits_pairs(dtype, features) ? pairs_workspace_bytes(rows, features, threads)
                                     : wide_workspace_bytes(rows, features, threads);
}

}  // namespace layerpress::kernels
