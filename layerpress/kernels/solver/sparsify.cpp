#include "layerpress/kernels/solver/sparsify.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <vector>

namespace layerpress::kernels {
namespace {

constexpr std::int64_t kRowsOfTask = 16;  // at least

/// Marks the `pruned` least of a group's scores.
void mark_least(const float* scores, std::int64_t pruned, std::int64_t group, bool* mask) {
  for (std::int64_t taken = 0; taken < pruned; ++taken) {
    std::int64_t least = -1;
    for (std::int64_t c = 0; c < group; ++c)
      if (!mask[c] && (least < 0 || scores[c] < scores[least])) least = c;
    mask[least] = true;
  }
}

/// Marks the `count` least scores of a row. The greatest of them is found by halving: floats that are not negative have the order of
/// their bits.
void mark_least_of_row(const float* scores, std::int64_t columns, std::int64_t count, bool* mask) {
  std::uint32_t low = 0, high = std::bit_cast<std::uint32_t>(std::numeric_limits<float>::infinity());
  while (low < high) {
    const std::uint32_t middle = low + (high - low) / 2;
    const auto limit = std::bit_cast<float>(middle);
    std::int32_t below = 0;
    for (std::int64_t c = 0; c < columns; ++c) below += scores[c] <= limit ? 1 : 0;
    below >= count ? high = middle : low = middle + 1;
  }
  const auto last = std::bit_cast<float>(low);
  std::int64_t equal = count;
  for (std::int64_t c = 0; c < columns; ++c) equal -= scores[c] < last ? 1 : 0;
  for (std::int64_t c = 0; c < columns; ++c) mask[c] = scores[c] < last || (scores[c] == last && equal-- > 0);
}

/// bool [group, group]: whether the second place is before the first.
at::Tensor earlier_places(std::int64_t group, const at::Tensor& like) {
  return at::ones({group, group}, like.options().dtype(at::kBool)).tril_(-1);
}

/// The `pruned` least scores of each row [N, group], the first of equal ones.
at::Tensor least_of_groups(const at::Tensor& scores, std::int64_t pruned, const at::Tensor& earlier) {
  const at::Tensor own = scores.unsqueeze(2), other = scores.unsqueeze(1);
  return at::where(earlier, other.le(own), other.lt(own)).sum(2).lt(pruned);
}

at::Tensor least_on_device(const at::Tensor& scores, const SparsePattern& pattern) {
  if (pattern.group > 0)
    return least_of_groups(scores.reshape({-1, pattern.group}), pattern.pruned, earlier_places(pattern.group, scores))
        .view(scores.sizes());
  at::Tensor mask = at::zeros(scores.sizes(), scores.options().dtype(at::kBool));
  const auto count = static_cast<std::int64_t>(static_cast<double>(scores.size(1)) * pattern.sparsity);
  const at::Tensor places = std::get<1>(at::sort(scores, /*stable=*/true, /*dim=*/1, /*descending=*/false));
  mask.scatter_(1, places.narrow(1, 0, count), true);
  return mask;
}

/// One block of columns on the way from the weights to the result.
struct Block {
  at::Tensor running;    // fp32 [N, B]: the weights with the feedback of earlier columns; becomes the result
  at::Tensor mask;       // bool [N, B]: what is pruned; with groups, so far what was zero
  at::Tensor responses;  // fp32 [B, B], unit upper triangular: how later columns answer a change of a column
  at::Tensor pivots;     // fp32 [B]
  at::Tensor losses;     // fp64 [N], added to
};

/// Goes through the columns of a row.
void prune_row(const Block& block, const SparsePattern& pattern, std::int64_t row) {
  const std::int64_t columns = block.running.size(1);
  float* running = block.running.data_ptr<float>() + row * columns;
  bool* mask = block.mask.data_ptr<bool>() + row * columns;
  const float* pivots = block.pivots.const_data_ptr<float>();
  const float* responses = block.responses.const_data_ptr<float>();
  std::vector<float> scores(static_cast<std::size_t>(pattern.group));
  double loss = 0;
  for (std::int64_t j = 0; j < columns; ++j) {
    if (pattern.group > 0 && j % pattern.group == 0) {
      std::int64_t zeros = 0;
      for (std::int64_t c = 0; c < pattern.group; ++c) {
        scores[static_cast<std::size_t>(c)] = running[j + c] * running[j + c] * pivots[j + c];
        zeros += mask[j + c] ? 1 : 0;
      }
      mark_least(scores.data(), std::max<std::int64_t>(0, pattern.pruned - zeros), pattern.group, mask + j);
    }
    if (!mask[j]) continue;
    const float change = running[j];
    running[j] = 0;
    loss += static_cast<double>(change) * static_cast<double>(change) * static_cast<double>(pivots[j]);
    const float* response = responses + j * columns;
    for (std::int64_t later = j + 1; later < columns; ++later) running[later] -= change * response[later];
  }
  block.losses.data_ptr<double>()[row] += loss;
}

void prune_block(const Block& block, const SparsePattern& pattern) {
  at::parallel_for(0, block.running.size(0), kRowsOfTask, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row) prune_row(block, pattern, row);
  });
}

/// The same with few ATen operations for each column, for devices. `zeros`: whether the mask has places already.
void prune_block_by_columns(const Block& block, const SparsePattern& pattern, bool zeros) {
  const at::Tensor& running = block.running;
  at::Tensor changes = at::empty_like(running);
  const at::Tensor earlier = earlier_places(pattern.group, running);
  for (std::int64_t j = 0; j < running.size(1); ++j) {
    if (pattern.group > 0 && j % pattern.group == 0) {
      at::Tensor mask = block.mask.narrow(1, j, pattern.group);
      at::Tensor scores = running.narrow(1, j, pattern.group).square().mul_(block.pivots.narrow(0, j, pattern.group));
      if (zeros) scores.masked_fill_(mask, -1);  // these come first
      const at::Tensor least = least_of_groups(scores, pattern.pruned, earlier);
      zeros ? mask.logical_or_(least) : mask.copy_(least);  // there may be more of them than are pruned
    }
    at::Tensor change = changes.select(1, j);
    at::mul_out(change, running.select(1, j), block.mask.select(1, j));
    running.slice(1, j + 1).addr_(change, block.responses[j].slice(0, j + 1), /*beta=*/1, /*alpha=*/-1);
  }
  running.masked_fill_(block.mask, 0);
  block.losses.add_(changes.square_().mv(block.pivots));
}

/// How later columns of a block answer a change of a column: the inverse of the feedback matrix with ones on its diagonal.
at::Tensor responses_of(const at::Tensor& feedback) {
  at::Tensor unit = feedback.clone(at::MemoryFormat::Contiguous);
  unit.diagonal().fill_(1);
  const at::Tensor ones = at::eye(unit.size(0), unit.options());
  return at::linalg_solve_triangular(unit, ones, /*upper=*/true, /*left=*/true, /*unitriangular=*/true).contiguous();
}

/// The places of a block that are pruned without groups.
at::Tensor pruned_of_block(const at::Tensor& running, const at::Tensor& pivots, const at::Tensor& zeros,
                           double sparsity) {
  const auto place = static_cast<std::int64_t>(static_cast<double>(running.numel()) * sparsity);
  if (zeros.defined() && zeros.sum().item<std::int64_t>() >= place) return zeros;
  at::Tensor scores = running.square().mul_(pivots);
  if (zeros.defined()) scores.masked_fill_(zeros, 0);
  if (!scores.is_cpu()) {
    const at::Tensor least =
        std::get<0>(at::topk(scores.flatten(), place + 1, /*dim=*/0, /*largest=*/false, /*sorted=*/false));
    return scores.le(least.max());
  }
  const at::Tensor sorted = scores.clone();
  float* values = sorted.data_ptr<float>();
  std::nth_element(values, values + place, values + sorted.numel());
  return scores.le(values[place]);
}

}  // namespace

at::Tensor least_scores(const at::Tensor& scores, const SparsePattern& pattern) {
  if (!scores.is_cpu()) return least_on_device(scores, pattern);
  const at::Tensor values = scores.contiguous();
  const std::int64_t columns = values.size(1);
  at::Tensor mask = at::zeros(values.sizes(), values.options().dtype(at::kBool));
  const auto count = static_cast<std::int64_t>(static_cast<double>(columns) * pattern.sparsity);
  at::parallel_for(0, values.size(0), kRowsOfTask, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row) {
      const float* own = values.const_data_ptr<float>() + row * columns;
      bool* marks = mask.data_ptr<bool>() + row * columns;
      if (pattern.group > 0) {
        for (std::int64_t c = 0; c < columns; c += pattern.group)
          mark_least(own + c, pattern.pruned, pattern.group, marks + c);
      } else {
        mark_least_of_row(own, columns, count, marks);
      }
    }
  });
  return mask;
}

SparseWeight sparsify(const at::Tensor& weight, const HessianFactor& factor, const at::Tensor& untouched,
                      const SparsifyOptions& options) {
  at::Tensor residual =
      weight.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);  // w - result, once a block is done
  residual.masked_fill_(untouched, 0);
  const std::int64_t columns = residual.size(1);
  SparseWeight result{at::empty_like(weight, at::MemoryFormat::Contiguous)};
  Block block;
  block.losses = at::zeros({weight.size(0)}, residual.options().dtype(at::kDouble));
  for (std::int64_t begin = 0, end = 0; begin < columns; begin = end) {
    end = std::min(begin + options.block_size, columns);
    at::Tensor own = residual.slice(1, begin, end);
    const at::Tensor feedback = factor.feedback.slice(1, begin, end);
    block.pivots = factor.pivots.slice(0, begin, end).contiguous();
    block.responses = responses_of(feedback.slice(0, begin, end));
    block.running = own.clone(at::MemoryFormat::Contiguous);
    if (begin > 0)  // columns of the block that stay nonzero follow what is fed back, and pass it on
      block.running.addmm_(residual.slice(1, 0, begin).mm(feedback.slice(0, 0, begin)), block.responses);
    const at::Tensor zeros = options.keeps_zeros ? own.eq(0) : at::Tensor();
    if (options.pattern.group == 0)
      block.mask = pruned_of_block(block.running, block.pivots, zeros, options.pattern.sparsity);
    else
      block.mask = zeros.defined() ? zeros : at::zeros(own.sizes(), own.options().dtype(at::kBool));
    residual.is_cpu() ? prune_block(block, options.pattern)
                      : prune_block_by_columns(block, options.pattern, zeros.defined());
    result.weight.slice(1, begin, end).copy_(block.running);
    own.sub_(block.running);
  }
  result.loss = block.losses.sum().item<double>();
  return result;
}

std::uint64_t sparsify_workspace(std::int64_t rows, std::int64_t columns, const SparsifyOptions& options) {
  const std::int64_t block = std::min(columns, options.block_size);
  constexpr std::int64_t kPacked = 2 << 20;  // by matrix products
  const std::int64_t per_block =
      options.pattern.group > 0 ? 4 + 4 + 1 + 1 : 4 + 4 + 6 + 1 + 1;  // running, feedback or scores, sorted, masks
  const std::int64_t compared = options.pattern.group * (3 * options.pattern.group + 8);
  return static_cast<std::uint64_t>(
      rows * (4 * columns + per_block * block + compared + (options.keeps_zeros ? block : 0) + 8) +
      3 * 4 * block * block + kPacked);
}

}  // namespace layerpress::kernels
