#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace layerpress::kernels {

/// gram += xᵀ x for x [tokens, features]; gram is fp32 [features, features] on x's device. Only the upper triangle is
/// defined; elements below the diagonal are unspecified. On a CPU, products of bf16 inputs are formed in bf16 and summed in fp32
/// where there are bf16 dot products; otherwise inputs are widened to fp32 in packed panels. The order of summation depends on
/// shapes only.
void accumulate_gram(at::Tensor& gram, const at::Tensor& x);

/// accumulate_gram_rows divides the rows of the triangle into units of this size.
inline constexpr std::int64_t kGramRowStep = 192;

/// The same for rows [first, last) of the triangle only. first is a multiple of kGramRowStep; last is one, too, or the
/// end. On a CPU, computing all rows part by part gives the same bits as accumulate_gram.
void accumulate_gram_rows(at::Tensor& gram, const at::Tensor& x, std::int64_t first, std::int64_t last);

/// The most memory, in bytes, that accumulate_gram allocates on a device for inputs of this width and dtype.
std::uint64_t gram_workspace_bytes(std::int64_t features, at::ScalarType dtype, at::Device device);

/// cross += (original - x)ᵀ x for original and x [tokens, features] of one dtype, where `original` is x in the
/// original model. cross is fp32 [features, features], the whole square. The difference is computed in fp32 and, where
/// bf16 inputs are multiplied in bf16, rounded to bf16. Products and sums are as above. (A difference of two Gram
/// matrices would lose almost all digits.)
void accumulate_cross_gram(at::Tensor& cross, const at::Tensor& original, const at::Tensor& x);

/// The same for rows [first, last) of the square, with bounds and bits as for the triangle.
void accumulate_cross_gram_rows(at::Tensor& cross, const at::Tensor& original, const at::Tensor& x, std::int64_t first,
                                std::int64_t last);

/// sums += leftᵀ x for left [tokens, rows] and x [tokens, features] of one dtype, or on a CPU of two; sums is fp32 [rows,
/// features]. Products and sums are as above.
void accumulate_product(at::Tensor& sums, const at::Tensor& left, const at::Tensor& x);

/// The most memory, in bytes, that accumulate_cross_gram allocates on a device for inputs of this width and dtype; on others than
/// CPUs for up to 8192 tokens.
std::uint64_t cross_gram_workspace_bytes(std::int64_t features, at::ScalarType dtype, at::Device device);

/// The most memory, in bytes, that accumulate_product allocates on a device.
std::uint64_t product_workspace_bytes(std::int64_t rows, std::int64_t features, at::ScalarType dtype,
                                      at::Device device);

/// Copies the upper triangle onto the lower one.
void mirror_upper(at::Tensor& gram);
/// The same in a new tensor.
at::Tensor symmetric_from_upper(const at::Tensor& gram);

}  // namespace layerpress::kernels
