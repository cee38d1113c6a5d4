#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "layerpress/kernels/solver/gptq.h"

namespace layerpress::kernels {

/// Codes that are there are improved: GPTQ decides on a column when it knows the errors of the columns before it, coordinate descent
/// when it knows those of all others (Behdin et al. 2023, arXiv:2309.01885).
struct CoordinateDescent {
  int sweeps = 4;  ///< through all columns
  double damping =
      0.3;  ///< of the Gram matrix, times its mean diagonal: codes that fit the calibration tokens too well fit no others
};

/// Gives each column in turn, in the weights' order, the codes with the smallest loss (w - q) H (w - q)ᵀ, H the dampened `gram`
/// (fp32 [K, K], of which the upper triangle is defined), while all other columns and the scales stay. `codes`: int8 [N, K] of each
/// weight, integers of `element`, which change. Weights have scales per row and group of columns, and keep no zeros. On the CPU; the
/// result depends neither on the number of threads nor on the other rows. Returns sum over all rows of the loss with `loss_damping` in
/// the place of the descent's damping.
double descend(const std::vector<GptqWeight>& weights, const at::Tensor& gram, const ElementType& element,
               const CoordinateDescent& options, double loss_damping, std::vector<at::Tensor>& codes);

/// Bytes that descend() allocates at most for a stack of `rows` rows in total with `groups` column groups per row.
std::uint64_t descend_workspace(std::int64_t rows, std::int64_t columns, std::int64_t groups);

/// Its operations for so many elements of a weight.
double descend_flops(double elements, double columns, const CoordinateDescent& options);

}  // namespace layerpress::kernels
