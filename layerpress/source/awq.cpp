#include <ATen/ATen.h>

#include "layerpress/base/text.h"
#include "layerpress/quant/container_format.h"
#include "layerpress/source/module_tensors.h"
#include "layerpress/source/packed_integers.h"

namespace layerpress::source {
namespace {

/// "qweight" I32 [columns, rows / 8], "qzeros" I32 [groups, rows / 8], both in AWQ's order, "scales" F16 [groups, rows].
class Awq : public ModuleFormat {
 public:
  Awq(const Json& config, const std::string& where)
      : group_size_(json_get_or<std::int64_t>(config, "group_size", where,
                                              json_get_or<std::int64_t>(config, "q_group_size", where, 128))),
        zero_point_(json_get_or<bool>(config, "zero_point", where, true)) {
    const int bits = json_get_or<int>(config, "bits", where, json_get_or<int>(config, "w_bit", where, 4));
    if (bits != 4) throw UnsupportedError("[source.awq] {}: {} bits are not supported; only 4 are", where, bits);
    const std::string version = lower_case(json_get_or<std::string>(config, "version", where, "gemm"));
    if (version != "gemm")
      throw UnsupportedError("[source.awq] {}: version '{}' is not supported; only gemm is", where, version);
    require_group_size(group_size_, "awq", where);
  }

  std::string description() const override { return groups_description("awq", 4, group_size_); }

 private:
  bool marks(const std::string& suffix, const checkpoint::StoredTensor&) const override {
    return suffix == "qweight" || suffix == "qzeros";
  }

  StoredWeight weight(const ModuleTensors& tensors) const override {
    const auto& words = tensors.spec("qweight", {at::kInt});
    if (words.shape.size() != 2 || words.numel() == 0)
      tensors.refuse("qweight", fmt::format("shape {}, expected [columns, words]", quant::shape_text(words.shape)));
    const std::int64_t columns = words.shape[0], rows = words.shape[1] * 8;
    const std::int64_t group = group_size_ < 0 ? columns : group_size_;
    if (columns % group != 0)
      tensors.refuse("qweight", fmt::format("{} columns do not divide into groups of {}", columns, group));
    const auto& scales = tensors.spec("scales", {at::kHalf, at::kBFloat16, at::kFloat});
    tensors.require_shape("scales", {columns / group, rows});
    if (zero_point_ || tensors.has("qzeros")) {
      (void)tensors.spec("qzeros", {at::kInt});
      tensors.require_shape("qzeros", {columns / group, words.shape[1]});
    }
    StoredWeight weight{.name = tensors.name("weight"),
                        .shape = {rows, columns},
                        .parts = tensors.names_of({"qweight", "qzeros", "scales"}),
                        .scheme = integer_scheme(4, group, columns, !zero_point_)};
    const auto read = [tensors, zero_point = zero_point_] {
      quant::QuantizedWeight read;
      read.codes = codes_in_awq_order(tensors.get("qweight"));
      const auto signs = zero_point ? quant::ScaleSigns::kPositive : quant::ScaleSigns::kAny;
      read.scale = tensors.scales("scales", signs).t().contiguous();
      if (zero_point)
        read.zero_point = codes_in_awq_order(tensors.get("qzeros"));
      else if (tensors.has("qzeros") && codes_in_awq_order(tensors.get("qzeros")).ne(0).any().item<bool>())
        tensors.refuse("qzeros", "holds other zero points than the middle, but config.json says that there are none");
      return read;
    };
    dequantize_from(weight, read);
    keep_from(weight, scales.dtype, read);
    return weight;
  }

  std::int64_t group_size_;
  bool zero_point_;
};

}  // namespace

std::unique_ptr<SourceFormat> awq(const Json& config, const std::string& where) {
  return std::make_unique<Awq>(config, where);
}

}  // namespace layerpress::source
