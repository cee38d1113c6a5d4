#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "layerpress/quant/scheme.h"

namespace layerpress::target {

/// Part of the reason where Hopper GPUs alone have a kernel.
inline constexpr const char* kHopperOnly = "on Hopper GPUs only";
/// Begins a gap that transformers has, too.
inline constexpr const char* kNotInTransformers = "vLLM and transformers need";

/// The reason why no common vLLM kernel runs a linear of this scheme and shape ("3-bit weights have no common vLLM
/// kernel ..."), or nothing if one does. Facts as of vLLM 0.33 (2, 3, 5, 6, 7 bits; group size 16; FP8_BLOCK with N or
/// K not a multiple of 128; asymmetric other than 4 bit; ...).
std::optional<std::string> vllm_kernel_gap(const quant::QuantizationScheme& scheme, std::int64_t rows,
                                           std::int64_t columns);

/// The same for an embedding: vLLM looks up rows only in packed symmetric weights of 2, 4 or 8 bits.
std::optional<std::string> vllm_embedding_gap(const quant::QuantizationScheme& scheme);

/// The same for a cache of keys and values: vLLM refuses the checkpoint unless it is symmetric fp8.
std::optional<std::string> vllm_cache_gap(const quant::QuantizationArgs& cache);

/// What vLLM's classes of a model type do otherwise with a head that has a weight of its own only in the result, and with compressed
/// embeddings. Facts as of vLLM 0.33.
std::vector<std::string> vllm_vocabulary_gaps(const std::string& model_type, bool unties, bool compresses_embeddings);

/// What is lost when vLLM reads weights of which `pruned` of each `group` are zero and that are stored dense or in codes.
std::string vllm_sparsity_gap(std::int64_t pruned, std::int64_t group);

}  // namespace layerpress::target
