// Facts as of vLLM 0.33 on CUDA. A scheme passes if a kernel of vLLM runs it on more than one GPU generation.
#include "layerpress/target/vllm_kernels.h"

#include <algorithm>
#include <array>
#include <set>

#include "layerpress/base/error.h"

namespace layerpress::target {
namespace {

using quant::Dynamic;
using quant::NumberType;
using quant::QuantizationArgs;
using quant::QuantizationScheme;
using quant::Strategy;
using Gap = std::optional<std::string>;

Gap integer_width_gap(const QuantizationArgs& args) {
  if (args.num_bits != 4 && args.num_bits != 8)
    return fmt::format("{}-bit weights have no common vLLM kernel; use 4 or 8 bits", args.num_bits);
  if (!args.symmetric && args.num_bits != 4)
    return fmt::format("asymmetric 8-bit weights have a vLLM kernel {}; use symmetric: true", kHopperOnly);
  return std::nullopt;
}

Gap group_gap(const QuantizationArgs& args, std::int64_t columns) {
  if (args.strategy != Strategy::kGroup) return std::nullopt;
  const std::int64_t size = args.group_size.value();
  constexpr std::array<std::int64_t, 3> kCommon{32, 64, 128};
  const bool common =
      std::find(kCommon.begin(), kCommon.end(), size) != kCommon.end() || (size == 256 && args.num_bits == 4);
  if (!common) return fmt::format("group size {} has no common vLLM kernel; use 32, 64 or 128", size);
  if (columns % size != 0) return fmt::format("{} columns do not divide into groups of {}", columns, size);
  return std::nullopt;
}

Gap packed_gap(const QuantizationArgs& args, std::int64_t rows, std::int64_t columns) {
  if (args.strategy == Strategy::kTensor)
    return "vLLM does not read packed weights with one scale per tensor; use strategy channel or group";
  if (Gap gap = integer_width_gap(args)) return gap;
  if (Gap gap = group_gap(args, columns)) return gap;
  if (!args.symmetric && rows % 8 != 0)
    return fmt::format("vLLM unpacks zero points by eight rows, but there are {}; use symmetric: true", rows);
  if (args.group_size == 256 && rows % 8 != 0)
    return fmt::format(
        "vLLM's kernel for group size 256 needs a multiple of 8 rows, but there are {}; use group size 128", rows);
  return std::nullopt;
}

Gap float_activations_gap(const QuantizationScheme& scheme, std::int64_t rows, std::int64_t columns) {
  const QuantizationArgs& args = *scheme.weights;
  const bool known = args.num_bits == 4 && args.symmetric && args.strategy == Strategy::kGroup &&
                     args.group_size == 128 && scheme.input_activations->strategy == Strategy::kToken;
  if (!known || resolved_format(scheme) != "pack-quantized")
    return "with fp8 activations vLLM runs only packed symmetric 4-bit weights of group size 128 and fp8 weights";
  if (rows % 128 != 0 || columns % 128 != 0)
    return fmt::format("vLLM needs multiples of 128 for 4-bit weights with fp8 activations, but the weight is {} x {}",
                       rows, columns);
  return fmt::format("4-bit weights with fp8 activations have a vLLM kernel {}", kHopperOnly);
}

Gap unpacked_integer_gap(const QuantizationScheme& scheme) {
  const QuantizationArgs& args = *scheme.weights;
  if (!args.symmetric) return "vLLM refuses asymmetric weights in int-quantized; use symmetric: true or pack-quantized";
  if (!scheme.input_activations) return "vLLM reads weight-only integers from pack-quantized only; leave format out";
  if (args.num_bits != 8)
    return fmt::format("vLLM has no GPU kernel for {}-bit weights in int-quantized; write format: pack-quantized",
                       args.num_bits);
  if (args.strategy == Strategy::kGroup)
    return "vLLM runs 8-bit weights and activations per channel or tensor, not per group";
  const QuantizationArgs& activations = *scheme.input_activations;
  if (activations.type == NumberType::kFloat)
    return "vLLM runs int8 weights with int8 activations, also where the scheme says fp8; use W8A8 or FP8_DYNAMIC";
  const bool fits = activations.strategy == Strategy::kToken ||
                    (activations.strategy == Strategy::kTensor && activations.dynamic == Dynamic::kFalse);
  if (activations.num_bits != 8 || !fits)
    return "vLLM runs int8 weights only with 8-bit integer activations per token, or with a static scale per tensor";
  return std::nullopt;
}

Gap fp8_gap(const QuantizationScheme& scheme, std::int64_t rows, std::int64_t columns) {
  const QuantizationArgs& args = *scheme.weights;
  if (scheme.input_activations && scheme.input_activations->type != NumberType::kFloat)
    return "vLLM runs fp8 weights only with fp8 activations or none";
  if (args.strategy != Strategy::kBlock) return std::nullopt;
  if (scheme.input_activations && scheme.input_activations->dynamic == Dynamic::kFalse)
    return "vLLM runs fp8 blocks only with dynamic activations";
  const auto [block_rows, block_columns] = args.block_structure.value();
  if (block_rows != 128 || block_columns != 128)
    return fmt::format("fp8 blocks of {} x {} have no common vLLM kernel; use 128 x 128", block_rows, block_columns);
  if (rows % 128 != 0 || columns % 128 != 0)
    return fmt::format("{} multiples of 128 for fp8 blocks, but the weight is {} x {}; use FP8_DYNAMIC",
                       kNotInTransformers, rows, columns);
  return std::nullopt;
}

}  // namespace

std::optional<std::string> vllm_embedding_gap(const QuantizationScheme& scheme) {
  if (!scheme.weights) return std::nullopt;
  const QuantizationArgs& args = *scheme.weights;
  const bool by_rows = args.strategy == Strategy::kChannel || args.strategy == Strategy::kGroup;
  if (args.type == NumberType::kInt && by_rows && !scheme.input_activations && args.symmetric &&
      32 % args.num_bits == 0 && resolved_format(scheme) == "pack-quantized")
    return std::nullopt;
  return "vLLM reads compressed embeddings only as symmetric pack-quantized integers of 2, 4 or 8 bits per channel "
         "or group and without activations, such as W8A16";
}

std::optional<std::string> vllm_kernel_gap(const QuantizationScheme& scheme, std::int64_t rows, std::int64_t columns) {
  if (!scheme.weights) return std::nullopt;
  if (scheme.weights->type == NumberType::kFloat) return fp8_gap(scheme, rows, columns);
  const bool float_activations = scheme.input_activations && scheme.input_activations->type == NumberType::kFloat;
  if (resolved_format(scheme) != "pack-quantized" && (!float_activations || scheme.weights->num_bits == 8))
    return unpacked_integer_gap(scheme);
  if (float_activations) return float_activations_gap(scheme, rows, columns);
  return packed_gap(*scheme.weights, rows, columns);
}

std::optional<std::string> vllm_cache_gap(const QuantizationArgs& cache) {
  if (cache.is_float(8) && cache.symmetric) return std::nullopt;
  return "vLLM refuses checkpoints whose cache of keys and values is not in symmetric fp8; write kv_cache_scheme with "
         "type: float and "
         "num_bits: 8";
}

std::string vllm_sparsity_gap(std::int64_t pruned, std::int64_t group) {
  return fmt::format(
      "{}:{} sparsity: vLLM has no kernels for it since 0.19 and runs such weights like dense ones; they are written "
      "without a sparsity_config, with which it would refuse them",
      pruned, group);
}

std::vector<std::string> vllm_vocabulary_gaps(const std::string& model_type, bool unties, bool compresses_embeddings) {
  // Its logits come from the embedding, whatever the checkpoint has.
  static const std::set<std::string> kWithoutHead = {"cohere", "cohere2", "cohere2_moe",
                                                     "gemma2", "gemma3n", "gemma3n_text"};
  static const std::set<std::string> kPlainEmbedding = {
      "afmoe",       "bloom",        "cohere",      "cohere2",
      "cohere2_moe", "dbrx",         "falcon",      "falcon_h1",
      "gemma",       "gemma2",       "gemma3n",     "glm4_moe",
      "gpt_oss",     "gptj",         "granitemoe",  "granitemoehybrid",
      "internlm2",   "jamba",        "lfm2",        "lfm2_moe",
      "mamba",       "mamba2",       "minicpm",     "mixtral",
      "nemotron",    "opt",          "orion",       "phimoe",
      "qwen3_5",     "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text",
      "qwen3_next",  "olmo_hybrid",  "solar",       "zamba2"};
  std::vector<std::string> gaps;
  if (unties && kWithoutHead.count(model_type) != 0)
    gaps.push_back(
        fmt::format("the head gets a weight apart from the embedding's, but vLLM computes the logits of {} with the "
                    "embedding: it ignores "
                    "or refuses this head; leave head and embedding as they are",
                    model_type));
  if (compresses_embeddings && kPlainEmbedding.count(model_type) != 0)
    gaps.push_back(fmt::format("vLLM loads the embeddings of {} uncompressed only; leave them out", model_type));
  return gaps;
}

}  // namespace layerpress::target
