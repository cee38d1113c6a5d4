#include "layerpress/checkpoint/companion_files.h"
#include "layerpress/quant/block_scheme.h"
#include "layerpress/quant/quantization_config.h"
#include "layerpress/quant/rounding/observer.h"
#include "layerpress/target/target.h"
#include "layerpress/target/vllm_hardware.h"
#include "layerpress/target/vllm_kernels.h"

namespace layerpress::target {
namespace {

/// What readers cannot do with an embedding of the scheme. Facts as of compressed-tensors 0.19, with which transformers loads it.
std::optional<std::string> embedding_gap(const quant::QuantizationScheme& scheme) {
  std::optional<std::string> gap = vllm_embedding_gap(scheme);
  std::string others;
  if (scheme.weights && quant::resolved_format(scheme) == "pack-quantized")
    others = "transformers cannot load packed embeddings";
  else if (scheme.weights && scheme.input_activations)
    others = "transformers computes embeddings with activations only with CompressedTensorsConfig(dequantize=True)";
  if (others.empty()) return gap;
  return gap ? *gap + "; " + others : others;
}

class CompressedTensorsTarget final : public Target {
 public:
  std::string format() const override { return "the compressed-tensors format"; }
  std::string engines() const override { return "vLLM"; }
  std::string refusal(const quant::QuantizationScheme& scheme) const override {
    if (quant::block_type(scheme) == nullptr) return "";
    return scheme.format + " is a type of GGUF files; name an --output that ends in .gguf";
  }

  bool holds_activation_scales() const override { return true; }
  bool fuses_linears() const override { return true; }
  bool keeps_ties() const override { return false; }

  bool reads_scale_of_blocks(const std::string&) const override { return false; }
  std::optional<std::string> left_out(const std::string&) const override { return std::nullopt; }
  std::vector<checkpoint::TensorSpec> plain_forms(const checkpoint::TensorSpec& original) const override {
    return {original};
  }
  at::Tensor stored(const std::string&, const at::Tensor& value) const override { return value; }
  at::Tensor restored(const std::string&, const at::Tensor& stored) const override { return stored; }
  std::vector<std::pair<checkpoint::TensorSpec, at::Tensor>> own_tensors() const override { return {}; }

  checkpoint::CheckpointLayout layout(const std::vector<checkpoint::TensorSpec>& specs,
                                      const checkpoint::FileDivision& division, const SchemeOf&) const override {
    return checkpoint::safetensors_layout(specs, division);
  }

  /// One group per scheme, with the recipe's targets where all readers understand them.
  bool has_config() const override { return true; }
  std::pair<std::string, Json> config_of(const CompressedModules& compressed) const override {
    quant::QuantizationConfig config = with_targets(compressed.schemes, compressed.modules);
    config.ignore.insert(config.ignore.end(), compressed.ignored.begin(), compressed.ignored.end());
    for (auto& [name, scheme] : config.groups)
      if (scheme.weights) scheme.weights = quant::with_portable_observer(*scheme.weights);
    config.kv_cache_scheme = compressed.kv_cache_scheme;
    return {"quantization_config", quant::to_json(config)};
  }

  void write_others(const Finished& finished, const std::filesystem::path& folder) const override {
    checkpoint::write_companions(finished.source, finished.config(), folder, {"recipe.yaml", "README.md"});
    write_text_file(folder / "recipe.yaml", finished.recipe);
    write_text_file(folder / "README.md", finished.card());
  }
  std::string only_file() const override { return ""; }

  std::optional<std::string> kernel_gap(const quant::QuantizationScheme& scheme, std::int64_t rows,
                                        std::int64_t columns, bool is_embedding) const override {
    return is_embedding ? embedding_gap(scheme) : vllm_kernel_gap(scheme, rows, columns);
  }
  std::optional<std::string> cache_gap(const quant::QuantizationArgs& cache) const override {
    return vllm_cache_gap(cache);
  }
  std::string sparsity_gap(std::int64_t pruned, std::int64_t group) const override {
    return vllm_sparsity_gap(pruned, group);
  }
  std::vector<std::string> vocabulary_gaps(const std::string& model_type, bool unties,
                                           bool compresses_embeddings) const override {
    return vllm_vocabulary_gaps(model_type, unties, compresses_embeddings);
  }
  Serving serving(const std::string& output, const std::vector<CompressedShape>& modules,
                  const CompressedParts& parts) const override {
    return vllm_serving(output, modules, parts);
  }
};

}  // namespace

std::unique_ptr<Target> compressed_tensors_target() { return std::make_unique<CompressedTensorsTarget>(); }

}  // namespace layerpress::target
