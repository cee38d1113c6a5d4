#include "layerpress/kernels/gptq.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "layerpress/kernels/cpu/table.h"
#include "layerpress/kernels/wide_rows.h"

namespace layerpress::kernels {
namespace {

// Beyond 64 columns the recursion inside a block costs more than the product between blocks saves.
constexpr std::int64_t kLargestBlock = 64;
static_assert(kLargestBlock <= cpu::kMaximumBlock);
constexpr std::int64_t kTileRows = 16;  // rows that a thread solves side by side

/// Consecutive rows of one weight inside a chunk.
struct Piece {
  std::size_t weight = 0;
  std::int64_t first = 0;  ///< in the weight
  std::int64_t rows = 0;
  std::int64_t place = 0;  ///< of the first row in the chunk
};

/// The rows of all weights, one after the other, in chunks of at most `limit` rows.
std::vector<std::vector<Piece>> cut_into_chunks(const std::vector<GptqWeight>& weights, std::int64_t limit) {
  std::vector<std::vector<Piece>> chunks;
  std::int64_t filled = limit;
  for (std::size_t w = 0; w < weights.size(); ++w) {
    const std::int64_t rows = weights[w].weight.size(0);
    for (std::int64_t first = 0; first < rows; first += chunks.back().back().rows) {
      if (filled == limit) {
        chunks.emplace_back();
        filled = 0;
      }
      chunks.back().push_back({w, first, std::min(rows - first, limit - filled), filled});
      filled += chunks.back().back().rows;
    }
  }
  return chunks;
}

std::int64_t rows_of(const std::vector<Piece>& chunk) { return chunk.back().place + chunk.back().rows; }

/// Solves chunks of rows on the CPU, with buffers that all chunks use.
class ChunkSolver {
 public:
  ChunkSolver(const std::vector<GptqWeight>& weights, const HessianFactor& factor, const Codebook& codebook)
      : weights_(weights), factor_(factor), codebook_(cpu_codebook(codebook)), columns_(factor.order.size(0)) {
    groups_ = factor.order.floor_divide(weights.front().scales.columns_per_group).to(at::kInt);
    order_ = factor.order.const_data_ptr<std::int64_t>();
  }

  /// Quantizes the chunk's rows into `codes`; returns the loss.
  double solve(const std::vector<Piece>& chunk, std::vector<at::Tensor>& codes, std::int64_t block_size) {
    load(chunk);
    double loss = 0;
    for (std::int64_t begin = 0; begin < columns_; begin += block_size)
      loss += solve_block(codes, begin, std::min(begin + block_size, columns_));
    restore_order(chunk, codes);
    return loss;
  }

 private:
  void load(const std::vector<Piece>& chunk) {
    const std::int64_t rows = rows_of(chunk), groups = weights_.front().scales.scale.size(1);
    if (!residual_.defined() || residual_.size(0) < rows) {
      residual_ = at::empty({rows, columns_}, at::kFloat);
      running_ = at::empty({rows, kLargestBlock}, at::kFloat);
      scale_ = at::empty({rows, groups}, at::kFloat);
      if (weights_.front().scales.zero_point.defined()) zero_point_ = at::empty({rows, groups}, at::kFloat);
    }
    rows_ = rows;
    tiles_.clear();
    for (const Piece& piece : chunk) {
      load_weights(piece);
      const ColumnScales& scales = weights_[piece.weight].scales;
      load_scales(piece, scales.scale, scales.rows_per_group, scale_);
      if (zero_point_.defined()) load_scales(piece, scales.zero_point, scales.rows_per_group, zero_point_);
      for (std::int64_t row = 0; row < piece.rows; row += kTileRows)
        tiles_.push_back({piece.weight, piece.first + row, std::min(kTileRows, piece.rows - row), piece.place + row});
    }
  }

  /// Widens the rows of a piece and puts their columns into the order of quantization.
  void load_weights(const Piece& piece) {
    const at::Tensor& weight = weights_[piece.weight].weight;
    at::parallel_for(0, piece.rows, grain(), [&](std::int64_t begin, std::int64_t end) {
      std::vector<float> buffer;
      for (std::int64_t row = begin; row < end; ++row) {
        const float* source = wide_rows(weight, piece.first + row, 1, buffer);
        float* target = residual_.data_ptr<float>() + (piece.place + row) * columns_;
        for (std::int64_t j = 0; j < columns_; ++j) target[j] = source[order_[j]];
      }
    });
  }

  /// One row of scales per row of the chunk.
  static void load_scales(const Piece& piece, const at::Tensor& blocks, std::int64_t rows_per_group,
                          at::Tensor& per_row) {
    const std::int64_t groups = per_row.size(1);
    for (std::int64_t row = 0; row < piece.rows; ++row) {
      const float* source = blocks.const_data_ptr<float>() + (piece.first + row) / rows_per_group * groups;
      std::copy(source, source + groups, per_row.data_ptr<float>() + (piece.place + row) * groups);
    }
  }

  double solve_block(std::vector<at::Tensor>& codes, std::int64_t begin, std::int64_t end) {
    const at::Tensor chunk = residual_.narrow(0, 0, rows_), own = chunk.slice(1, begin, end);
    // Left-looking: all earlier residuals act on the block in one product.
    at::Tensor running = running_.narrow(0, 0, rows_).narrow(1, 0, end - begin);
    if (begin == 0)
      running.copy_(own);
    else
      at::addmm_out(running, own, chunk.slice(1, 0, begin), factor_.feedback.slice(0, 0, begin).slice(1, begin, end));
    cpu::ColumnBlockTask task;
    task.running = running.const_data_ptr<float>();
    task.running_stride = running.stride(0);
    task.residual = residual_.data_ptr<float>() + begin;
    task.residual_stride = task.codes_stride = task.feedback_stride = columns_;
    task.feedback = factor_.feedback.const_data_ptr<float>() + begin * columns_ + begin;
    task.pivots = factor_.pivots.const_data_ptr<float>() + begin;
    task.scales = scale_.const_data_ptr<float>();
    task.zero_points = zero_point_.defined() ? zero_point_.const_data_ptr<float>() : nullptr;
    task.groups = scale_.size(1);
    task.group_of_column = groups_.const_data_ptr<std::int32_t>() + begin;
    task.columns = end - begin;
    task.codebook = codebook_;
    return run_tiles(task, codes, begin);
  }

  /// Runs the recursion inside one block of columns, tiles over threads.
  double run_tiles(const cpu::ColumnBlockTask& task, std::vector<at::Tensor>& codes, std::int64_t first_column) {
    // One slot per tile, so that the sum does not depend on which thread ends first.
    losses_.assign(tiles_.size(), 0.0);
    at::parallel_for(0, static_cast<std::int64_t>(tiles_.size()), 4, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const Piece& tile = tiles_[static_cast<std::size_t>(t)];
        cpu::ColumnBlockTask part = task;
        part.rows = tile.rows;
        part.running += tile.place * task.running_stride;
        part.residual += tile.place * task.residual_stride;
        part.scales += tile.place * task.groups;
        if (part.zero_points != nullptr) part.zero_points += tile.place * task.groups;
        part.codes = codes[tile.weight].data_ptr<std::int8_t>() + tile.first * columns_ + first_column;
        losses_[static_cast<std::size_t>(t)] = cpu::table().column_block(part);
      }
    });
    return std::accumulate(losses_.begin(), losses_.end(), 0.0);
  }

  /// Codes were written in the order of quantization; puts each row's back into the weight's order, in place.
  void restore_order(const std::vector<Piece>& chunk, std::vector<at::Tensor>& codes) const {
    for (const Piece& piece : chunk)
      at::parallel_for(0, piece.rows, grain(), [&](std::int64_t begin, std::int64_t end) {
        std::vector<std::int8_t> ordered(static_cast<std::size_t>(columns_));
        for (std::int64_t row = begin; row < end; ++row) {
          std::int8_t* own = codes[piece.weight].data_ptr<std::int8_t>() + (piece.first + row) * columns_;
          std::memcpy(ordered.data(), own, ordered.size());
          for (std::int64_t j = 0; j < columns_; ++j) own[order_[j]] = ordered[static_cast<std::size_t>(j)];
        }
      });
  }

  std::int64_t grain() const { return std::max<std::int64_t>(1, (1 << 15) / columns_); }

  const std::vector<GptqWeight>& weights_;
  const HessianFactor& factor_;
  cpu::Codebook codebook_;
  std::int64_t columns_;
  const std::int64_t* order_ = nullptr;
  at::Tensor groups_;    // int32 [K], group of each column in order
  at::Tensor residual_;  // fp32 [rows, K]: starts as the weights in order, becomes the residual block by block
  at::Tensor running_;   // fp32 [rows, kLargestBlock]: a block of columns with the feedback of all earlier ones
  at::Tensor scale_, zero_point_;
  std::int64_t rows_ = 0;
  std::vector<Piece> tiles_;  // what one call of the kernel solves
  std::vector<double> losses_;
};

/// The same with ATen operations, column by column, for other devices; codes of one weight.
at::Tensor solve_on_device(const GptqWeight& task, const HessianFactor& factor, const Codebook& codebook,
                           double& total_loss) {
  const ColumnScales& scales = task.scales;
  at::Tensor residual = task.weight.to(at::kFloat).index_select(1, factor.order);
  at::Tensor codes = at::empty(residual.sizes(), residual.options().dtype(at::kChar));
  const at::Tensor groups = factor.order.floor_divide(scales.columns_per_group);
  const auto per_row = [&](const at::Tensor& blocks, const at::Tensor& group) {
    return blocks.index_select(1, group)
        .select(1, 0)
        .repeat_interleave(scales.rows_per_group)
        .narrow(0, 0, residual.size(0));
  };
  at::Tensor loss = at::zeros({}, residual.options().dtype(at::kDouble));
  for (std::int64_t j = 0; j < residual.size(1); ++j) {
    const at::Tensor feedback = factor.feedback.slice(0, 0, j).select(1, j);
    const at::Tensor running = residual.select(1, j) + residual.slice(1, 0, j).mv(feedback);
    const at::Tensor group = groups.slice(0, j, j + 1);
    const at::Tensor scale = per_row(scales.scale, group);
    const at::Tensor zero = scales.zero_point.defined() ? per_row(scales.zero_point, group) : at::Tensor();
    const at::Tensor level = nearest_level(running, scale, zero, codebook);
    const at::Tensor value = level_value(level, scale, zero);
    loss += (running - value).to(at::kDouble).square().sum() * factor.pivots[j];
    residual.select(1, j).sub_(value);
    codes.select(1, j).copy_(level_codes(level, codebook));
  }
  total_loss += loss.item<double>();
  return codes.index_select(1, at::argsort(factor.order));
}

GptqResult solve_on_device(const std::vector<GptqWeight>& weights, const HessianFactor& factor,
                           const Codebook& codebook) {
  GptqResult result;
  for (const GptqWeight& weight : weights)
    result.codes.push_back(solve_on_device(weight, factor, codebook, result.loss));
  return result;
}

}  // namespace

std::int64_t gptq_chunk_rows(std::int64_t columns) {
  constexpr std::int64_t kElements = 1 << 24, kFewest = 256;
  return std::max(kFewest, kElements / std::max<std::int64_t>(1, columns) / kTileRows * kTileRows);
}

std::uint64_t gptq_workspace(std::int64_t rows, std::int64_t columns, std::int64_t groups) {
  const std::int64_t chunk = std::min(rows, gptq_chunk_rows(columns));
  // The residual, the running block, scales and zero points; then what belongs to columns or threads.
  const std::int64_t per_row = columns + kLargestBlock + 2 * groups;
  const std::int64_t per_thread = 5 * columns + (2 << 20);  // and the product's packed panels
  return sizeof(float) * static_cast<std::uint64_t>(chunk * per_row + columns) +
         static_cast<std::uint64_t>(per_thread * at::get_num_threads());
}

GptqResult gptq(const std::vector<GptqWeight>& weights, const HessianFactor& factor, const Codebook& codebook,
                std::int64_t block_size) {
  if (weights.empty()) return {};
  if (!factor.feedback.is_cpu()) return solve_on_device(weights, factor, codebook);
  std::vector<GptqWeight> contiguous;
  GptqResult result;
  for (const auto& [weight, scales] : weights) {
    const at::Tensor zero_point = scales.zero_point.defined() ? scales.zero_point.contiguous() : at::Tensor();
    contiguous.push_back({weight.contiguous(),
                          {scales.scale.contiguous(), zero_point, scales.columns_per_group, scales.rows_per_group}});
    result.codes.push_back(at::empty(weight.sizes(), at::kChar));
  }
  ChunkSolver solver(contiguous, factor, codebook);
  for (const std::vector<Piece>& chunk : cut_into_chunks(contiguous, gptq_chunk_rows(factor.order.size(0))))
    result.loss += solver.solve(chunk, result.codes, std::clamp<std::int64_t>(block_size, 1, kLargestBlock));
  return result;
}

}  // namespace layerpress::kernels
