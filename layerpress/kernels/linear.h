#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

namespace layerpress::kernels {

// Products with weights as they lie in checkpoints, [outputs, features]. With bf16 dot products on the CPU they run on tiles of
// our own: every output is one sum in fp32 over the features in their order, so its bits depend neither on the threads nor on
// the rows and outputs computed beside it. Everything else runs through ATen.

/// x weightᵀ + bias for x [..., features], weight [outputs, features] and bias [outputs] of one dtype.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias = std::nullopt);

/// gated_activation(function, linear(x, gate), linear(x, up)), the same bits; on tiles without the two products in memory.
at::Tensor gated_linear(const std::string& function, const at::Tensor& x, const at::Tensor& gate, const at::Tensor& up);
/// Whether it runs so on a CPU.
bool fuses_gated_linear(const std::string& function, std::int64_t features, at::ScalarType dtype);

/// Whether products of this dtype on a CPU run on tiles. (The library behind ATen keeps machine code for every shape of bf16
/// products that it meets, a quarter of a MiB each.)
bool runs_on_tiles(at::ScalarType dtype);

/// Most memory that either takes on a CPU beside its result, for x [rows, features], in bytes.
std::uint64_t linear_workspace_bytes(std::int64_t rows, std::int64_t features, at::ScalarType dtype, int threads);

}  // namespace layerpress::kernels
