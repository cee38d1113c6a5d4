#include <ATen/ATen.h>

#include "layerpress/base/text.h"
#include "layerpress/quant/compressed_weight.h"
#include "layerpress/quant/container_format.h"
#include "layerpress/quant/pack.h"
#include "layerpress/source/module_tensors.h"

namespace layerpress::source {
namespace {

constexpr std::string_view kBlocks = "_blocks", kScales = "_scales";
constexpr std::int64_t kBlockBytes = 16;  // 32 values

std::string base_of(const std::string& name, std::string_view ending) {
  return name.ends_with(ending) ? name.substr(0, name.size() - ending.size()) : "";
}

/// The experts of a layer as gpt-oss stores them: X_blocks U8 [experts, rows, blocks, 16] and X_scales U8 [experts, rows,
/// blocks] stand for X [experts, blocks * 32, rows], which has a row per input.
class Mxfp4Experts : public SourceFormat {
 public:
  std::string description() const override { return "mxfp4, stacked experts"; }

  std::vector<StoredWeight> weights(const CheckpointPointer& stored) const override {
    std::vector<StoredWeight> weights;
    for (const std::string& name : stored->names()) {
      if (const std::string base = base_of(name, kBlocks); !base.empty()) weights.push_back(weight(stored, base));
      if (const std::string base = base_of(name, kScales);
          !base.empty() && !stored->contains(base + std::string(kBlocks)))
        throw CheckpointError("[source.mxfp4] {}: stored without {}; the checkpoint is damaged", name,
                              last_part(base) + std::string(kBlocks));
    }
    return weights;
  }

 private:
  static StoredWeight weight(const CheckpointPointer& stored, const std::string& base) {
    const std::string blocks = base + std::string(kBlocks), scales = base + std::string(kScales);
    const auto& codes = stored->spec(blocks);
    require(codes.dtype == at::kByte && codes.shape.size() == 4 && codes.numel() > 0 && codes.shape[3] == kBlockBytes,
            blocks, codes, "U8 [experts, rows, blocks, 16]");
    const std::int64_t experts = codes.shape[0], rows = codes.shape[1], columns = codes.shape[2] * 2 * kBlockBytes;
    if (!stored->contains(scales))
      throw CheckpointError("[source.mxfp4] {}: the tensor is missing; the checkpoint is damaged", scales);
    const auto& exponents = stored->spec(scales);
    require(exponents.dtype == at::kByte && exponents.shape == std::vector<std::int64_t>{experts, rows, codes.shape[2]},
            scales, exponents, fmt::format("U8 {}", quant::shape_text({experts, rows, codes.shape[2]})));
    StoredWeight weight{.name = base, .shape = {experts, columns, rows}, .parts = {blocks, scales}};
    weight.scheme = quant::preset_scheme("MXFP4A16");
    weight.scheme.targets = {"Linear"};
    weight.workspace_bytes = static_cast<std::uint64_t>(rows * columns) * 3;  // codes and values of an expert
    const auto rows_of_expert = [=](std::int64_t expert, std::int64_t first, std::int64_t count, std::int64_t step) {
      const auto rows_of = [&](const std::string& name) {
        return stored->tensor(name)[expert].slice(0, first, first + count * step, step);
      };
      quant::QuantizedWeight linear;
      linear.codes = quant::unpack_nibbles(rows_of(blocks).reshape({count, columns / 2}));
      linear.scale = rows_of(scales).contiguous();
      if (linear.scale.eq(255).any().item<bool>())
        throw DamagedWeightsError("[source.mxfp4] {}: holds NaN (the byte 255); the checkpoint is damaged", scales);
      return linear;
    };
    weight.dequantize = [=, scheme = weight.scheme](at::ScalarType dtype) {
      at::Tensor values = at::empty({experts, columns, rows}, dtype);
      for (std::int64_t e = 0; e < experts; ++e)
        values[e].copy_(quant::dequantize(scheme, rows_of_expert(e, 0, rows, 1), dtype).t());
      return values;
    };
    weight.part_of_expert = [=, scheme = weight.scheme](const ExpertPart& part) {
      StoredWeight own{.name = part.name, .shape = {part.count, columns}, .parts = {blocks, scales}};
      own.scheme = scheme;
      own.expert = part.expert;
      const auto read = [=] { return rows_of_expert(part.expert, part.first, part.count, part.step); };
      dequantize_from(own, read);
      keep_from(own, at::kFloat, read);
      return own;
    };
    return weight;
  }

  static void require(bool condition, const std::string& name, const checkpoint::StoredTensor& stored,
                      const std::string& expected) {
    if (condition) return;
    throw CheckpointError("[source.mxfp4] {}: stored as {} {}, expected {}; the checkpoint is damaged", name,
                          checkpoint::dtype_name(stored.dtype), quant::shape_text(stored.shape), expected);
  }
};

}  // namespace

std::unique_ptr<SourceFormat> mxfp4(const Json&, const std::string&) { return std::make_unique<Mxfp4Experts>(); }

}  // namespace layerpress::source
