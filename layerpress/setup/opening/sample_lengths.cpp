#include "layerpress/setup/opening/sample_lengths.h"

#include <algorithm>
#include <cstdint>
#include <variant>

#include "layerpress/base/error.h"

namespace layerpress::setup {

void require_lengths(const model::TracedModel& model, const data::CalibrationSet& set, const std::string& dataset) {
  std::int64_t least = 1, most = model.most_tokens;
  for (const graph::Node& node : model.graph.nodes) {
    const auto* program = std::get_if<graph::Aten>(&node.operation);
    if (program == nullptr) continue;
    least = std::max(least, program->least_tokens);
    if (program->most_tokens > 0 && (most == 0 || program->most_tokens < most)) most = program->most_tokens;
  }
  for (std::int64_t i = 0; i < set.sample_count(); ++i) {
    const std::int64_t length = set.sample_offsets[i + 1] - set.sample_offsets[i];
    if (most > 0 && length > most)
      throw DataError(
          "[data] {}: sample {} (from 1) has {} tokens, but the model's imported graph holds for {} to {}; add "
          "--max-seq-length {}",
          dataset, i + 1, length, least, most, most);
    if (length < least)
      throw DataError(
          "[data] {}: sample {} (from 1) has {} token{}, but the model's imported graph needs at least {}; leave such "
          "samples out",
          dataset, i + 1, length, length == 1 ? "" : "s", least);
  }
}

std::int64_t longest_sample(const data::CalibrationSet& set) {
  std::int64_t longest = 0;
  for (std::int64_t i = 0; i < set.sample_count(); ++i)
    longest = std::max(longest, set.sample_offsets[i + 1] - set.sample_offsets[i]);
  return longest;
}

void warn_beyond_context(std::int64_t longest, std::int64_t context, const RunControl& control) {
  if (context <= 0 || longest <= context) return;
  control.message(LogLevel::kWarning,
                  fmt::format("[data] samples have up to {} tokens, but the model's max_position_embeddings is {}; "
                              "add --max-seq-length {}",
                              longest, context, context));
}

}  // namespace layerpress::setup
