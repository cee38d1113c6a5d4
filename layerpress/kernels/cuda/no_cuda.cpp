// Replaces the device kernels if libtorch has no CUDA.
#include "layerpress/kernels/block_solver.h"
#include "layerpress/kernels/device_layers.h"
#include "layerpress/kernels/row_search.h"

namespace layerpress::kernels {

ColumnBlockSolver column_block_solver(at::Device) { return nullptr; }
RowSearcher row_searcher(at::Device) { return nullptr; }

std::optional<at::Tensor> rms_norm_on_device(const at::Tensor&, const at::Tensor&, double, const NormWeight&) {
  return std::nullopt;
}
std::optional<at::Tensor> silu_multiply_on_device(const at::Tensor&, const at::Tensor&) { return std::nullopt; }
std::optional<at::Tensor> rotary_on_device(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                           const RotaryShape&) {
  return std::nullopt;
}

}  // namespace layerpress::kernels
