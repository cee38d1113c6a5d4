#include "layerpress/kernels/gptq.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <numeric>

#include "layerpress/base/error.h"
#include "layerpress/kernels/cpu/table.h"
#include "layerpress/kernels/gram.h"

namespace layerpress::kernels {
namespace {

/// The columns in quantization order.
at::Tensor column_order(const at::Tensor& diagonal, bool activation_order) {
  // Stable, so that equal columns keep their order and the result does not depend on the sort.
  if (activation_order) return at::argsort(diagonal, /*stable=*/true, /*dim=*/0, /*descending=*/true);
  return at::arange(diagonal.numel(), diagonal.options().dtype(at::kLong));
}

/// The upper triangle's matrix, symmetric, with rows and columns in `order`.
at::Tensor reordered(const at::Tensor& gram, const at::Tensor& order) {
  if (!gram.is_cpu() || gram.scalar_type() != at::kFloat || !gram.is_contiguous())
    return symmetric_from_upper(gram).index_select(0, order).index_select(1, order);
  at::Tensor result = at::empty_like(gram);
  const std::int64_t size = gram.size(0);
  const float* source = gram.const_data_ptr<float>();
  const std::int64_t* column = order.const_data_ptr<std::int64_t>();
  at::parallel_for(0, size, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      float* row = result.data_ptr<float>() + i * size;
      for (std::int64_t j = 0; j < size; ++j)
        row[j] = source[std::min(column[i], column[j]) * size + std::max(column[i], column[j])];
    }
  });
  return result;
}

/// Gram matrix in `order`, damped, with untouched columns made independent.
at::Tensor prepared_hessian(const at::Tensor& gram, const at::Tensor& order, double dampening) {
  at::Tensor hessian = reordered(gram, order.contiguous());
  at::Tensor diagonal = hessian.diagonal();
  diagonal.masked_fill_(diagonal.eq(0), 1);
  diagonal.add_(diagonal.mean() * dampening);
  return hessian;
}

/// From the Cholesky factor of the reversed matrix to HessianFactor::feedback: F[i, j] = R[i, j] / R[j, j] above the
/// diagonal, where R is `lower` with both axes reversed.
at::Tensor feedback_of(const at::Tensor& lower) {
  if (!lower.is_cpu() || lower.scalar_type() != at::kFloat) {
    const at::Tensor upper = lower.flip({0, 1});
    return (upper / upper.diagonal()).to(at::kFloat).triu(1).contiguous();
  }
  const at::Tensor rows = lower.contiguous();
  const at::Tensor inverse = rows.diagonal().reciprocal().contiguous();
  at::Tensor feedback = at::empty_like(rows);
  const std::int64_t last = rows.size(0) - 1;
  at::parallel_for(0, rows.size(0), 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const float* source = rows.const_data_ptr<float>() + (last - i) * (last + 1);
      const float* factor = inverse.const_data_ptr<float>();
      float* target = feedback.data_ptr<float>() + i * (last + 1);
      std::fill(target, target + i + 1, 0.0f);
      for (std::int64_t j = i + 1; j <= last; ++j) target[j] = source[last - j] * factor[last - j];
    }
  });
  return feedback;
}

/// Runs the recursion inside one block of columns on the CPU, rows over threads.
double run_block(const cpu::ColumnBlockTask& task) {
  // One slot per lane tile, so that the sum does not depend on which thread ends first.
  std::vector<double> losses(static_cast<std::size_t>((task.rows + 15) / 16), 0.0);
  at::parallel_for(0, static_cast<std::int64_t>(losses.size()), 4, [&](std::int64_t begin, std::int64_t end) {
    cpu::ColumnBlockTask part = task;
    const std::int64_t first = begin * 16;
    part.rows = std::min(end * 16, task.rows) - first;
    part.running += first * task.running_stride;
    part.residual += first * task.residual_stride;
    part.codes += first * task.codes_stride;
    part.scales += first * task.groups;
    if (part.zero_points != nullptr) part.zero_points += first * task.groups;
    losses[begin] = cpu::table().column_block(part);
  });
  return std::accumulate(losses.begin(), losses.end(), 0.0);
}

cpu::Codebook cpu_codebook(const Codebook& codebook) {
  return {codebook.fp8, codebook.fp8 ? -448.0f : static_cast<float>(codebook.minimum),
          codebook.fp8 ? 448.0f : static_cast<float>(codebook.maximum)};
}

/// State of one solve on the CPU: `columns` starts as the weights in order and becomes the residual block by block.
struct Solve {
  at::Tensor columns;  // fp32 [N, K]
  at::Tensor codes;    // int8 [N, K], in order
  at::Tensor groups;   // int32 [K], group of each column in order
  at::Tensor scale, zero_point;
};

double solve_on_cpu(Solve& solve, const HessianFactor& factor, const Codebook& codebook, std::int64_t block_size) {
  const std::int64_t rows = solve.columns.size(0), columns = solve.columns.size(1);
  double loss = 0;
  for (std::int64_t begin = 0; begin < columns; begin += block_size) {
    const std::int64_t end = std::min(begin + block_size, columns);
    const at::Tensor own = solve.columns.slice(1, begin, end);
    // Left-looking: all earlier residuals act on the block in one product.
    const at::Tensor running = begin == 0 ? own.clone(at::MemoryFormat::Contiguous)
                                          : at::addmm(own, solve.columns.slice(1, 0, begin),
                                                      factor.feedback.slice(0, 0, begin).slice(1, begin, end));
    cpu::ColumnBlockTask task;
    task.running = running.const_data_ptr<float>();
    task.running_stride = running.stride(0);
    task.residual = solve.columns.data_ptr<float>() + begin;
    task.residual_stride = columns;
    task.codes = solve.codes.data_ptr<std::int8_t>() + begin;
    task.codes_stride = columns;
    task.feedback = factor.feedback.const_data_ptr<float>() + begin * columns + begin;
    task.feedback_stride = columns;
    task.pivots = factor.pivots.const_data_ptr<float>() + begin;
    task.scales = solve.scale.const_data_ptr<float>();
    task.zero_points = solve.zero_point.defined() ? solve.zero_point.const_data_ptr<float>() : nullptr;
    task.groups = solve.scale.size(1);
    task.group_of_column = solve.groups.const_data_ptr<std::int32_t>() + begin;
    task.rows = rows;
    task.columns = end - begin;
    task.codebook = cpu_codebook(codebook);
    loss += run_block(task);
  }
  return loss;
}

/// The same with ATen operations, column by column, for other devices.
double solve_on_device(Solve& solve, const HessianFactor& factor, const Codebook& codebook) {
  const std::int64_t columns = solve.columns.size(1);
  const at::Tensor groups = solve.groups.to(at::kLong);
  at::Tensor loss = at::zeros({}, solve.columns.options().dtype(at::kDouble));
  for (std::int64_t j = 0; j < columns; ++j) {
    const at::Tensor feedback = factor.feedback.slice(0, 0, j).select(1, j);
    const at::Tensor running = solve.columns.select(1, j) + solve.columns.slice(1, 0, j).mv(feedback);
    const at::Tensor group = groups.slice(0, j, j + 1);
    const at::Tensor scale = solve.scale.index_select(1, group).select(1, 0);
    const at::Tensor zero =
        solve.zero_point.defined() ? solve.zero_point.index_select(1, group).select(1, 0) : at::Tensor();
    const at::Tensor level = nearest_level(running, scale, zero, codebook);
    const at::Tensor value = level_value(level, scale, zero);
    loss += (running - value).to(at::kDouble).square().sum() * factor.pivots[j];
    solve.columns.select(1, j).sub_(value);
    solve.codes.select(1, j).copy_(level_codes(level, codebook));
  }
  return loss.item<double>();
}

}  // namespace

std::optional<HessianFactor> factorize(const at::Tensor& gram, const FactorizeOptions& options) {
  const at::Tensor wide = options.double_precision ? gram.to(at::kDouble) : gram;
  HessianFactor factor;
  factor.order = column_order(gram.diagonal(), options.activation_order);
  const at::Tensor reversed = factor.order.flip(0);
  const at::Tensor hessian = prepared_hessian(wide, reversed, options.dampening);
  auto [lower, info] = at::linalg_cholesky_ex(hessian);
  if (info.item<int>() != 0) return std::nullopt;
  const at::Tensor diagonal = lower.diagonal().flip(0);
  if (!at::isfinite(diagonal).all().item<bool>()) return std::nullopt;
  factor.pivots = diagonal.square().to(at::kFloat);
  factor.feedback = feedback_of(lower);
  return factor;
}

GptqResult gptq(const at::Tensor& weight, const HessianFactor& factor, const ColumnScales& scales,
                const Codebook& codebook, std::int64_t block_size) {
  // Beyond 64 columns the recursion inside a block costs more than the product between blocks saves.
  constexpr std::int64_t kBestBlock = 64;
  static_assert(kBestBlock <= cpu::kMaximumBlock);
  block_size = std::clamp<std::int64_t>(block_size, 1, kBestBlock);
  Solve solve;
  solve.columns = weight.to(at::kFloat).index_select(1, factor.order);
  solve.codes = at::empty(solve.columns.sizes(), solve.columns.options().dtype(at::kChar));
  solve.groups = factor.order.floor_divide(scales.columns_per_group).to(at::kInt);
  solve.scale = scales.scale.contiguous();
  if (scales.zero_point.defined()) solve.zero_point = scales.zero_point.contiguous();
  GptqResult result;
  result.loss =
      weight.is_cpu() ? solve_on_cpu(solve, factor, codebook, block_size) : solve_on_device(solve, factor, codebook);
  const at::Tensor position = at::argsort(factor.order);
  result.codes = solve.codes.index_select(1, position);
  return result;
}

GptqResult gptq_reference(const at::Tensor& weight, const at::Tensor& gram, const FactorizeOptions& options,
                          const ColumnScales& scales, const Codebook& codebook) {
  const at::Tensor order = column_order(gram.diagonal(), options.activation_order);
  const at::Tensor hessian = prepared_hessian(gram.to(at::kDouble), order, options.dampening);
  const at::Tensor inverse_factor = at::linalg_cholesky(at::inverse(hessian), /*upper=*/true);
  at::Tensor w = weight.to(at::kDouble).index_select(1, order);
  at::Tensor codes = at::empty(w.sizes(), w.options().dtype(at::kChar));
  double loss = 0;
  for (std::int64_t j = 0; j < w.size(1); ++j) {
    const std::int64_t group = order[j].item<std::int64_t>() / scales.columns_per_group;
    const at::Tensor scale = scales.scale.select(1, group).to(at::kDouble);
    const at::Tensor zero =
        scales.zero_point.defined() ? scales.zero_point.select(1, group).to(at::kDouble) : at::Tensor();
    const at::Tensor level = nearest_level(w.select(1, j), scale, zero, codebook);
    const at::Tensor error = (w.select(1, j) - level_value(level, scale, zero)) / inverse_factor[j][j];
    w.slice(1, j).sub_(error.outer(inverse_factor[j].slice(0, j)));
    codes.select(1, j).copy_(level_codes(level, codebook));
    loss += error.square().sum().item<double>();
  }
  return {codes.index_select(1, at::argsort(order)), loss};
}

}  // namespace layerpress::kernels
