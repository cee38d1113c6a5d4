#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layerpress/base/progress.h"
#include "layerpress/data/calibration_set.h"

namespace layerpress::test {

using Samples = std::vector<std::vector<std::int32_t>>;

inline Samples samples_of(const data::CalibrationSet& set) {
  Samples samples;
  for (std::size_t i = 0; i + 1 < set.sample_offsets.size(); ++i)
    samples.emplace_back(set.tokens.begin() + set.sample_offsets[i], set.tokens.begin() + set.sample_offsets[i + 1]);
  return samples;
}

/// Keeps the warnings of a loader.
class Messages : public EventSink {
 public:
  void on_message(LogLevel level, const std::string& text) override {
    if (level == LogLevel::kWarning) warnings.push_back(text);
  }
  std::vector<std::string> warnings;
};

}  // namespace layerpress::test
