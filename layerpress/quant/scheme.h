#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "layerpress/base/json.h"

namespace layerpress::quant {

enum class NumberType { kInt, kFloat };
enum class Strategy { kTensor, kChannel, kGroup, kBlock, kToken, kTensorGroup, kAttentionHead };
enum class Dynamic { kFalse, kTrue, kLocal };

/// The names in compressed-tensors: "int", "channel", ...
std::string_view name_of(NumberType type);
std::string_view name_of(Strategy strategy);

/// How one tensor is quantized: the twelve keys of compressed-tensors' QuantizationArgs, with the same names and
/// defaults.
struct QuantizationArgs {
  int num_bits = 8;
  NumberType type = NumberType::kInt;
  bool symmetric = true;
  Strategy strategy = Strategy::kTensor;
  std::optional<std::int64_t> group_size;
  std::optional<std::array<std::int64_t, 2>> block_structure;  ///< rows, columns
  Dynamic dynamic = Dynamic::kFalse;
  std::optional<std::string> actorder;
  std::optional<std::string> scale_dtype;
  std::optional<std::string> zp_dtype;
  std::optional<std::string> observer;
  Json observer_kwargs = Json::object();

  bool operator==(const QuantizationArgs&) const = default;

  bool is_symmetric_integer() const { return type == NumberType::kInt && symmetric; }
  bool is_float(int bits) const { return type == NumberType::kFloat && num_bits == bits; }

  /// Smallest and largest code of an integer type, e.g. -8 and 7.
  int minimum_code() const { return -(1 << (num_bits - 1)); }
  int maximum_code() const { return (1 << (num_bits - 1)) - 1; }
};

/// The quantization of the modules that `targets` names.
struct QuantizationScheme {
  std::vector<std::string> targets;
  std::optional<QuantizationArgs> weights;
  std::optional<QuantizationArgs> input_activations;
  std::optional<QuantizationArgs> output_activations;
  std::string format;          ///< "" until resolved, see infer_format
  bool scaled_blocks = false;  ///< of blocks (NVFP4): a factor of the whole weight is stored beside them

  bool operator==(const QuantizationScheme&) const = default;
};

/// Parses and validates a QuantizationArgs object like compressed-tensors (unknown keys, strategy inferred from
/// group_size if missing, the rules between fields). Throws RecipeError naming `where` and the key.
QuantizationArgs parse_quantization_args(const Json& object, const std::string& where);

/// All twelve keys, in the library's form.
Json to_json(const QuantizationArgs& args);

/// Parses one config group ("targets", "weights", "input_activations", "output_activations", "format").
QuantizationScheme parse_quantization_scheme(const Json& object, const std::string& where);

/// The format of modules whose weights stay uncompressed.
inline constexpr const char* kDenseFormat = "dense";
inline constexpr const char* kUnchangedFormat = "unchanged";

/// Whether weights of the scheme stay dense: values in the stored dtype, without codes and scales.
bool is_dense(const QuantizationScheme& scheme);

/// The scheme of weights that a run changes and writes dense. No config names it.
const QuantizationScheme& dense_scheme();

/// The scheme of weights that a run only measures: dense ones, of which nothing is held, sent or written.
const QuantizationScheme& unchanged_scheme();
inline bool is_unchanged(const QuantizationScheme& scheme) { return scheme.format == kUnchangedFormat; }

/// The format that compressed-tensors infers for the scheme ("pack-quantized", ...), by its order of rules, with one
/// exception. Symmetric 4-bit weights per group of 128 with fp8 activations per token (W4AFP8) give pack-quantized,
/// where compressed-tensors gives int-quantized: vLLM reads them as `weight_packed` only. docs/formats.md has the
/// findings.
std::string infer_format(const QuantizationScheme& scheme);

/// The scheme's own format if it has one, otherwise infer_format.
std::string resolved_format(const QuantizationScheme& scheme);

/// A preset such as "W4A16" (case-insensitive), without targets. Throws RecipeError for an unknown name, with those that
/// may be meant: the symmetric one for "W4A16-sym", all with weights of such numbers for "int4", or the nearest name.
QuantizationScheme preset_scheme(const std::string& name);

/// Names of all presets, in order.
std::vector<std::string> preset_names();

/// Throws RecipeError naming what of the scheme Layerpress does not implement yet (attn_head, output activations,
/// static activations per group, ...). `where` says whose scheme it is.
void require_supported(const QuantizationScheme& scheme, const std::string& where);

/// The same for the cache of keys and values, and for all that an attention reads.
void require_supported_attention(const QuantizationArgs& args, const std::string& where);

/// Rows and columns of the block that shares one scale, for a weight [rows, columns]; for a tensor scale, the whole
/// weight.
struct ScaleBlock {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};
ScaleBlock scale_block(const QuantizationArgs& weights, std::int64_t rows, std::int64_t columns);

}  // namespace layerpress::quant
