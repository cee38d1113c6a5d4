#include "layerpress/residency/weight_source.h"

#include <optional>

#include "layerpress/base/text.h"
#include "layerpress/quant/compressed_weight.h"

namespace layerpress::residency {

at::Tensor CompressedWeights::load(const std::string& name) const {
  const auto found = scheme_of_.find(name);
  if (found == scheme_of_.end()) return checkpoint_->tensor(name);
  const std::string module = parent_name(name);
  const auto part = [&](const std::string& suffix) -> std::optional<at::Tensor> {
    const std::string full = module + "." + suffix;
    if (!checkpoint_->contains(full)) return std::nullopt;
    return checkpoint_->tensor(full);
  };
  return quant::dequantize(found->second, quant::decompress(found->second, module, part), dtype_);
}

template <typename Function>
void CompressedWeights::for_each_part(const std::string& name, Function&& function) const {
  const auto found = scheme_of_.find(name);
  if (found == scheme_of_.end()) return function(name);
  for (const std::string& suffix : quant::compressed_suffixes(found->second)) {
    const std::string part = parent_name(name) + "." + suffix;
    if (checkpoint_->contains(part)) function(part);
  }
}

void CompressedWeights::will_need(const std::string& name) const {
  for_each_part(name, [&](const std::string& part) { checkpoint_->will_need(part); });
}

void CompressedWeights::fetch(const std::string& name) const {
  for_each_part(name, [&](const std::string& part) { checkpoint_->fetch(part); });
}

void CompressedWeights::release(const std::string& name) const {
  for_each_part(name, [&](const std::string& part) { checkpoint_->release(part); });
}

}  // namespace layerpress::residency
