#include "layerpress/kernels/products/gram.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "layerpress/base/error.h"
#include "layerpress/kernels/products/gram_tiles.h"

namespace layerpress::kernels {
namespace {

// On a device, where fp32 inputs are multiplied as they are, and halves on tensor cores with fp32 results.

/// Rows of the sums that are computed at once. Fewer rows would compute less below the diagonal, but products of so few rows are slower: on
/// an H100, 1024 rows of 4096 features run at 734 TFLOP/s and 512 rows at 649; for 14336 features it is 2048 rows and 716, 632 with 1024.
std::int64_t rows_at_once(std::int64_t features) { return features > 8192 ? 2048 : 1024; }

/// Calls function(first_row, rows) for blocks of rows.
template <typename Function>
void for_each_block(const GramRows& wanted, std::int64_t features, Function&& function) {
  const std::int64_t step = rows_at_once(features);
  for (std::int64_t row = wanted.first; row < wanted.last; row += step)
    function(row, std::min(step, wanted.last - row));
}

/// Adds aᵀ b in fp32 to `sums` in place.
void add_product_on_device(at::Tensor sums, const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() == at::kFloat)
    sums.addmm_(a.t(), b);
  else
    at::addmm_out(sums, sums, a.t(), b, at::kFloat);
}

/// The difference is rounded once to the inputs' dtype.
void accumulate_cross_on_device(at::Tensor& cross, const at::Tensor& original, const at::Tensor& x,
                                const GramRows& wanted) {
  for_each_block(wanted, x.size(1), [&](std::int64_t row, std::int64_t rows) {
    const at::Tensor difference = original.narrow(1, row, rows).sub(x.narrow(1, row, rows));
    add_product_on_device(cross.narrow(0, row, rows), difference, x);
  });
}

/// The same for the product of two different matrices.
void accumulate_product_on_device(at::Tensor& sums, const at::Tensor& left, const at::Tensor& x) {
  for_each_block({0, left.size(1)}, x.size(1), [&](std::int64_t row, std::int64_t rows) {
    add_product_on_device(sums.narrow(0, row, rows), left.narrow(1, row, rows), x);
  });
}

/// Half of the square by row blocks.
void accumulate_on_device(at::Tensor& gram, const at::Tensor& x, const GramRows& wanted) {
  for_each_block(wanted, x.size(1), [&](std::int64_t row, std::int64_t rows) {
    add_product_on_device(gram.slice(0, row, row + rows).slice(1, row), x.slice(1, row, row + rows), x.slice(1, row));
  });
}

void require_fitting(const at::Tensor& sums, const at::Tensor& x, const GramRows& rows) {
  const std::int64_t features = x.size(1);
  if (sums.scalar_type() != at::kFloat || sums.dim() != 2 || sums.size(0) != features || sums.size(1) != features ||
      !sums.is_contiguous())
    throw InternalError("[kernels.gram] the accumulator does not fit {} features", features);
  if (rows.first < 0 || rows.last > features || rows.first % kGramRowStep != 0 ||
      (rows.last % kGramRowStep != 0 && rows.last != features))
    throw InternalError("[kernels.gram] rows {} to {} of {} are no whole blocks", rows.first, rows.last, features);
}

}  // namespace

void accumulate_gram(at::Tensor& gram, const at::Tensor& x) { accumulate_gram_rows(gram, x, 0, gram.size(0)); }

void accumulate_gram_rows(at::Tensor& gram, const at::Tensor& input, std::int64_t first, std::int64_t last) {
  const at::Tensor x = input.contiguous();
  const GramRows rows{first, last};
  require_fitting(gram, x, rows);
  if (x.size(0) == 0 || first >= last) return;
  if (x.is_cpu()) return accumulate_triangle(gram, x, rows);
  accumulate_on_device(gram, x, rows);
}

void accumulate_cross_gram(at::Tensor& cross, const at::Tensor& original, const at::Tensor& x) {
  accumulate_cross_gram_rows(cross, original, x, 0, cross.size(0));
}

void accumulate_cross_gram_rows(at::Tensor& cross, const at::Tensor& original, const at::Tensor& input,
                                std::int64_t first, std::int64_t last) {
  if (original.sizes() != input.sizes() || original.scalar_type() != input.scalar_type())
    throw InternalError("[kernels.gram] the original model's inputs are not like the {} x {} inputs", input.size(0),
                        input.size(1));
  const at::Tensor minuend = original.contiguous(), x = input.contiguous();
  const GramRows rows{first, last};
  require_fitting(cross, x, rows);
  if (x.size(0) == 0 || first >= last) return;
  if (x.is_cpu()) return accumulate_difference(cross, minuend, x, rows);
  accumulate_cross_on_device(cross, minuend, x, rows);
}

void accumulate_product(at::Tensor& sums, const at::Tensor& left_input, const at::Tensor& input) {
  const at::Tensor left = left_input.contiguous(), x = input.contiguous();
  if (sums.scalar_type() != at::kFloat || !sums.is_contiguous() || sums.dim() != 2 || sums.size(0) != left.size(1) ||
      sums.size(1) != x.size(1) || left.size(0) != x.size(0) || (left.scalar_type() != x.scalar_type() && !x.is_cpu()))
    throw InternalError("[kernels.gram] the accumulator does not fit {} x {} products", left.size(1), x.size(1));
  if (x.size(0) == 0) return;
  if (x.is_cpu()) return accumulate_tiles(sums, left, x);
  accumulate_product_on_device(sums, left, x);
}

std::uint64_t gram_workspace_bytes(std::int64_t features, at::ScalarType dtype, at::Device device) {
  return device.is_cpu() ? packed_chunk_bytes(features, dtype) : 0;
}

std::uint64_t cross_gram_workspace_bytes(std::int64_t features, at::ScalarType dtype, at::Device device) {
  // The inputs and the difference.
  if (device.is_cpu()) return 2 * packed_chunk_bytes(features, dtype);
  constexpr std::int64_t kTokens = 8192;
  const std::int64_t difference = kTokens * std::min(features, rows_at_once(features));
  return c10::elementSize(dtype) * static_cast<std::uint64_t>(difference);
}

std::uint64_t product_workspace_bytes(std::int64_t rows, std::int64_t features, at::ScalarType dtype,
                                      at::Device device) {
  return device.is_cpu() ? packed_chunk_bytes(rows, dtype) + packed_chunk_bytes(features, dtype) : 0;
}

void mirror_upper(at::Tensor& gram) {
  constexpr std::int64_t kRows = 256;
  for (std::int64_t first = 0; first < gram.size(0); first += kRows) {
    const std::int64_t last = std::min(first + kRows, gram.size(0));
    gram.slice(0, first, last).slice(1, 0, first).copy_(gram.slice(0, 0, first).slice(1, first, last).t());
    at::Tensor square = gram.slice(0, first, last).slice(1, first, last);
    const at::Tensor upper = square.triu();
    square.copy_(upper + upper.triu(1).t());
  }
}

at::Tensor symmetric_from_upper(const at::Tensor& gram) {
  at::Tensor full = gram.clone(at::MemoryFormat::Contiguous);
  mirror_upper(full);
  return full;
}

}  // namespace layerpress::kernels
