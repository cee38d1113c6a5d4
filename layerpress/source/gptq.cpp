#include <ATen/ATen.h>

#include <algorithm>

#include "layerpress/quant/container_format.h"
#include "layerpress/quant/pack.h"
#include "layerpress/source/column_groups.h"
#include "layerpress/source/packed_integers.h"

namespace layerpress::source {
namespace {

struct Settings {
  int bits = 4;
  std::int64_t group_size = -1;
};

/// "qweight" I32 [columns * bits / 32, rows], "qzeros" I32 [groups, rows * bits / 32], "scales" F16 [groups, rows], "g_idx" I32
/// [columns]. In the first version of the format, which is the usual one, 1 has been subtracted from the zero points. `dynamic` has
/// settings of its own for some modules, which their tensors' shapes show.
class Gptq : public ModuleFormat {
 public:
  Gptq(const Json& config, const std::string& where)
      : method_(json_get_or<std::string>(config, "quant_method", where, "gptq")),
        symmetric_(json_get_or<bool>(config, "sym", where, true)) {
    if (json_get_or<bool>(config, "is_marlin_format", where, false))
      throw UnsupportedError(
          "[source.{}] {}: is_marlin_format is not supported; start from the model that it was made of", method_,
          where);
    add_settings(config, where, {json_get<int>(config, "bits", where), -1});
    for (const char* key : {"dynamic", "extra_config"})  // GPTQModel's name, and AutoRound's
      if (json_has(config, key)) add_others(config[key], fmt::format("{}: {}", where, key));
    const auto version = json_get_or<std::string>(config, "checkpoint_format", where, "gptq");
    if (version != "gptq" && version != "gptq_v2")
      throw UnsupportedError("[source.{}] {}: checkpoint_format '{}' is not supported; only gptq and gptq_v2 are",
                             method_, where, version);
    added_ = version == "gptq" ? 1 : 0;
  }

  std::string description() const override {
    const Settings& usual = settings_.front();
    return groups_description(method_, usual.bits, usual.group_size) +
           (settings_.size() > 1 ? ", other settings for some modules" : "");
  }

 private:
  void add_settings(const Json& config, const std::string& where, const Settings& otherwise) {
    const Settings own{json_get_or<int>(config, "bits", where, otherwise.bits),
                       json_get_or<std::int64_t>(config, "group_size", where, otherwise.group_size)};
    if (own.bits != 2 && own.bits != 3 && own.bits != 4 && own.bits != 8)
      throw UnsupportedError("[source.{}] {}: {} bits are not supported; only 2, 3, 4 and 8 are", method_, where,
                             own.bits);
    require_group_size(own.group_size, method_, where);
    settings_.push_back(own);
  }

  /// Of patterns of modules, "-:" for those that are not quantized.
  void add_others(const Json& dynamic, const std::string& where) {
    if (!dynamic.is_object()) throw CheckpointError("[source.{}] {}: is not an object", method_, where);
    for (const auto& [pattern, own] : dynamic.items()) {
      const std::string place = fmt::format("{}: {}", where, pattern);
      if (!own.is_object()) throw CheckpointError("[source.{}] {}: is not an object", method_, place);
      if (pattern.starts_with("-:") || json_get_or<int>(own, "bits", place, settings_.front().bits) >= 16) continue;
      add_settings(own, place, settings_.front());
      symmetric_ = symmetric_ && json_get_or<bool>(own, "sym", place, true);
    }
  }

  /// Those that the shapes of a module's tensors have, or the usual ones.
  const Settings& settings_of(std::int64_t words, std::int64_t rows, const ModuleTensors& tensors) const {
    const auto& zeros = tensors.spec("qzeros", {at::kInt});
    const auto has = [&](const Settings& own) {
      const std::int64_t columns = words * 32 / own.bits, group = own.group_size < 0 ? columns : own.group_size;
      return zeros.shape == std::vector<std::int64_t>{divided_up(columns, group), divided_up(rows * own.bits, 32)};
    };
    const auto found = std::find_if(settings_.begin(), settings_.end(), has);
    return found == settings_.end() ? settings_.front() : *found;
  }

  bool marks(const std::string& suffix, const checkpoint::StoredTensor&) const override {
    return suffix == "qweight" || suffix == "qzeros" || suffix == "g_idx";
  }

  StoredWeight weight(const ModuleTensors& tensors) const override {
    const auto& words = tensors.spec("qweight", {at::kInt});
    if (words.shape.size() != 2 || words.numel() == 0)
      tensors.refuse("qweight", fmt::format("shape {}, expected [words, rows]", quant::shape_text(words.shape)));
    const std::int64_t rows = words.shape[1];
    const auto [bits, group_size] = settings_of(words.shape[0], rows, tensors);
    const std::int64_t columns = words.shape[0] * 32 / bits;
    const std::int64_t group = group_size < 0 ? columns : group_size, groups = divided_up(columns, group);
    if (columns % group != 0)
      tensors.refuse("qweight", fmt::format("{} columns do not divide into groups of {}", columns, group));
    const auto& scales = tensors.spec("scales", {at::kHalf, at::kBFloat16, at::kFloat});
    tensors.require_shape("scales", {groups, rows});
    tensors.require_shape("qzeros", {groups, divided_up(rows * bits, 32)});
    ColumnGroups order;
    if (tensors.has("g_idx")) order = ColumnGroups(tensors, "g_idx", columns, group);
    StoredWeight weight{.name = tensors.name("weight"),
                        .shape = {rows, columns},
                        .parts = tensors.names_of({"qweight", "qzeros", "scales", "g_idx"}),
                        .scheme = integer_scheme(bits, group, columns, symmetric_)};
    const auto read = [tensors, order, bits = bits, added = added_, symmetric = symmetric_] {
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

  std::string method_;
  std::vector<Settings> settings_;  ///< the usual ones first
  bool symmetric_;                  ///< of all modules
  int added_ = 1;
};

}  // namespace

std::unique_ptr<SourceFormat> gptq(const Json& config, const std::string& where) {
  return std::make_unique<Gptq>(config, where);
}

}  // namespace layerpress::source
