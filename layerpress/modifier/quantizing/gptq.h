#pragma once

#include <memory>
#include <string>

#include "layerpress/kernels/solver/block_solver.h"
#include "layerpress/modifier/arguments/argument.h"

namespace layerpress::modifier {

/// Returns the solver for a device, or null.
using BlockSolverOf = kernels::ColumnBlockSolver (*)(at::Device device);

/// GPTQ (arXiv 2210.17323) with static groups: columns are quantized one after the other, and the error of each moves
/// the ones behind it so that the layer's outputs change least. Own arguments: block_size 128, dampening_frac 0.01,
/// actorder static|weight|null (columns by descending Gram diagonal, each with the scale of its place; static unless the
/// modifier or a group says otherwise), batched_quantization (changes nothing: groups are always solved as one stack). Default
/// observer: hessian.
///
/// With observer gptq, the scale of each group is chosen during the solve (kernels::GroupSearch), and activation order
/// keeps a group's columns together. Whole channels, groups of more than 128 columns and linears with a fallback are
/// observed as by hessian.
///
/// error_propagation (null): true or {strength: 0.8, damping: 0.3, residual: 0.4} moves weights towards the original
/// model's outputs before they are quantized (kernels/solver/error_propagation.h). residual is the share of the residual
/// stream's own error for which linears that write into the stream compensate. If that fails, or if nothing was
/// compressed before, it is plain GPTQ.
///
/// coordinate_descent (null): true or {sweeps: 4, damping: 0.3} improves the codes of integers after the solve
/// (kernels/solver/coordinate_descent.h), on the CPU, where no zeros are kept.
///
/// rounded_inputs (false) calibrates on inputs that are rounded as the scheme says, where it gives them less than 8 bits with dynamic
/// scales; the original model's inputs stay exact.
///
/// If the Gram matrix cannot be factorized: dampening x10 up to three times, then double precision, then
/// round-to-nearest; the report says which. Columns that no token touched keep their round-to-nearest value.
///
/// cost() assumes a factorization that succeeds in single precision; one in double precision holds a second [K, K]. It
/// assumes cross matrices; with output cross matrices, moving takes fewer operations.
///
/// Where `block_solver` has one for the device, groups of equal shapes, such as experts', are compressed several at a time;
/// those whose inputs or factorization need a fallback one by one after them. Not with error_propagation, and not where linears of
/// a group differ in their schemes.
std::unique_ptr<compression::Quantizer> make_gptq_modifier(const OrderedJson& arguments, const std::string& where,
                                                           BlockSolverOf block_solver = kernels::column_block_solver);

/// The same, or for groups in llama.cpp's types the quantizer of block_quantizer.h.
Kind gptq_modifier();

}  // namespace layerpress::modifier
