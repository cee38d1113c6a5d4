#include "layerpress/setup/opening/sample_lengths.h"

#include <algorithm>
#include <cstdint>
#include <variant>

#include "layerpress/base/error.h"
#include "layerpress/base/text.h"

namespace layerpress::setup {

std::int64_t least_tokens(const model::TracedModel& model) {
  std::int64_t least = 1;
  for (const graph::Node& node : model.graph.nodes)
    if (const auto* program = std::get_if<graph::Aten>(&node.operation)) least = std::max(least, program->least_tokens);
  return least;
}

std::string short_samples_text(std::size_t count, std::int64_t least, const std::string& dataset) {
  return fmt::format(
      "[data] {}: {} left out, because the model's imported graph holds for samples of {} tokens and more", dataset,
      count == 1 ? "one sample is" : fmt::format("{} samples are", count), least);
}

void require_lengths(const model::TracedModel& model, const data::CalibrationSet& set, const std::string& dataset) {
  const std::int64_t least = least_tokens(model);
  std::int64_t most = model.most_tokens;
  for (const graph::Node& node : model.graph.nodes)
    if (const auto* program = std::get_if<graph::Aten>(&node.operation))
      if (program->most_tokens > 0 && (most == 0 || program->most_tokens < most)) most = program->most_tokens;
  for (std::int64_t i = 0; i < set.sample_count(); ++i) {
    const std::int64_t length = set.sample_offsets[i + 1] - set.sample_offsets[i];
    if (most > 0 && length > most)
      throw DataError(
          "[data] {}: sample {} (from 1) has {} tokens, but the model's imported graph holds for {} to {}; add "
          "--max-seq-length {}",
          dataset, i + 1, length, least, most, most);
    if (length < least)
      throw DataError(
          "[data] {}: sample {} (from 1) has {}, but the model's imported graph needs at least {}; leave such "
          "samples out",
          dataset, i + 1, counted(length, "token"), least);
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
