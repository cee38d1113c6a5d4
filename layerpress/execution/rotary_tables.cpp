#include "layerpress/execution/rotary_tables.h"

#include <ATen/ATen.h>

#include <cmath>

namespace layerpress::execution {
namespace {

/// fp32 angles, as in transformers.
RotaryTables::Table computed(const std::vector<double>& frequencies, double scaling, std::int64_t length,
                             const residency::Placement& placement) {
  const auto pairs = static_cast<std::int64_t>(frequencies.size());
  RotaryTables::Table table{at::empty({length, pairs}, at::kFloat), at::empty({length, pairs}, at::kFloat)};
  auto *cosine = table.cosine.data_ptr<float>(), *sine = table.sine.data_ptr<float>();
  for (std::int64_t position = 0; position < length; ++position)
    for (const double frequency : frequencies) {
      const float angle = static_cast<float>(frequency) * static_cast<float>(position);
      *cosine++ = static_cast<float>(std::cos(static_cast<double>(angle)) * scaling);
      *sine++ = static_cast<float>(std::sin(static_cast<double>(angle)) * scaling);
    }
  table.cosine = table.cosine.to(placement.dtype).to(placement.device, at::kFloat);
  table.sine = table.sine.to(placement.dtype).to(placement.device, at::kFloat);
  return table;
}

}  // namespace

RotaryTables::Table RotaryTables::get(const graph::RopeTable& rope, const std::vector<double>& frequencies,
                                      std::int64_t length, const residency::Placement& placement) {
  if (frequencies != rope.inverse_frequencies && frequencies != rope.long_inverse_frequencies)
    return computed(frequencies, rope.attention_scaling, length, placement);
  Table& kept = kept_[{frequencies, rope.attention_scaling}];
  if (!kept.cosine.defined() || kept.cosine.size(0) < length)
    kept = computed(frequencies, rope.attention_scaling, length, placement);
  return kept;
}

std::uint64_t RotaryTables::kept_bytes(const graph::Graph& graph, std::int64_t longest_sample) {
  std::size_t pairs = 0;
  for (const graph::RopeTable& rope : graph.rope_tables)
    pairs += rope.inverse_frequencies.size() + rope.long_inverse_frequencies.size();
  return 2 * sizeof(float) * pairs * static_cast<std::uint64_t>(longest_sample);
}

}  // namespace layerpress::execution
