#include <ATen/ATen.h>

#include "layerpress/quant/container_format.h"
#include "layerpress/quant/pack.h"
#include "layerpress/source/column_groups.h"
#include "layerpress/source/packed_integers.h"

namespace layerpress::source {
namespace {

/// "qweight" I32 [columns * bits / 32, rows], "qzeros" I32 [groups, rows * bits / 32], "scales" F16 [groups, rows], "g_idx" I32
/// [columns]. In the first version of the format, which is the usual one, 1 has been subtracted from the zero points.
class Gptq : public ModuleFormat {
 public:
  Gptq(const Json& config, const std::string& where)
      : bits_(json_get<int>(config, "bits", where)),
        group_size_(json_get_or<std::int64_t>(config, "group_size", where, -1)),
        symmetric_(json_get_or<bool>(config, "sym", where, true)) {
    if (bits_ != 2 && bits_ != 4 && bits_ != 8)
      throw UnsupportedError("[source.gptq] {}: {} bits are not supported; only 2, 4 and 8 are", where, bits_);
    const auto version = json_get_or<std::string>(config, "checkpoint_format", where, "gptq");
    if (version != "gptq" && version != "gptq_v2")
      throw UnsupportedError("[source.gptq] {}: checkpoint_format '{}' is not supported; only gptq and gptq_v2 are",
                             where, version);
    added_ = version == "gptq" ? 1 : 0;
    require_group_size(group_size_, "gptq", where);
  }

  std::string description() const override { return groups_description("gptq", bits_, group_size_); }

 private:
  bool marks(const std::string& suffix, const checkpoint::StoredTensor&) const override {
    return suffix == "qweight" || suffix == "qzeros" || suffix == "g_idx";
  }

  StoredWeight weight(const ModuleTensors& tensors) const override {
    const auto& words = tensors.spec("qweight", {at::kInt});
    if (words.shape.size() != 2 || words.numel() == 0)
      tensors.refuse("qweight", fmt::format("shape {}, expected [words, rows]", quant::shape_text(words.shape)));
    const std::int64_t columns = words.shape[0] * 32 / bits_, rows = words.shape[1];
    const std::int64_t group = group_size_ < 0 ? columns : group_size_, groups = divided_up(columns, group);
    if (columns % group != 0)
      tensors.refuse("qweight", fmt::format("{} columns do not divide into groups of {}", columns, group));
    const auto& scales = tensors.spec("scales", {at::kHalf, at::kBFloat16, at::kFloat});
    tensors.require_shape("scales", {groups, rows});
    (void)tensors.spec("qzeros", {at::kInt});
    tensors.require_shape("qzeros", {groups, divided_up(rows * bits_, 32)});
    ColumnGroups order;
    if (tensors.has("g_idx")) order = ColumnGroups(tensors, "g_idx", columns, group);
    StoredWeight weight{.name = tensors.name("weight"),
                        .shape = {rows, columns},
                        .parts = tensors.names_of({"qweight", "qzeros", "scales", "g_idx"}),
                        .scheme = integer_scheme(bits_, group, columns, symmetric_)};
    const auto read = [tensors, order, bits = bits_, added = added_, symmetric = symmetric_] {
      quant::QuantizedWeight read;
      read.codes = order.sorted(codes_packed_along_inputs(tensors.get("qweight"), bits));
      read.scale = tensors.scales("scales", quant::ScaleSigns::kAny).t().contiguous();
      const at::Tensor zeros = zero_points(tensors.get("qzeros"), bits, added, read.codes.size(0));
      if (!symmetric)
        read.zero_point = zeros;
      else if (zeros.ne(0).any().item<bool>())
        tensors.refuse("qzeros", "holds other zero points than the middle, but config.json says sym");
      return read;
    };
    dequantize_from(weight, read);
    if (order.in_order()) {
      keep_from(weight, scales.dtype, read);
      return weight;
    }
    weight.dequantize = [order, sorted = weight.dequantize](at::ScalarType dtype) {
      return order.restored(sorted(dtype));
    };
    weight.workspace_bytes *= 3;
    return weight;
  }

  /// int8 [rows, groups] around the middle of the codes; the sum wraps around like that of the engines.
  static at::Tensor zero_points(const at::Tensor& packed, int bits, int added, std::int64_t rows) {
    const int middle = 1 << (bits - 1);
    const at::Tensor stored = quant::unpack_int32(packed, bits, rows).t().to(at::kInt) + middle;
    return stored.add(added).bitwise_and(2 * middle - 1).sub(middle).to(at::kChar).contiguous();
  }

  int bits_;
  std::int64_t group_size_;
  bool symmetric_;
  int added_ = 1;
};

}  // namespace

std::unique_ptr<SourceFormat> gptq(const Json& config, const std::string& where) {
  return std::make_unique<Gptq>(config, where);
}

}  // namespace layerpress::source
