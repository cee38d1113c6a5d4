#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <vector>

#include "layerpress/base/progress.h"
#include "layerpress/evaluate.h"

namespace layerpress::run {

/// The KL divergences of all tokens that an evaluation compares: their mean, how they are spread, and the worst ones.
class TokenDivergences {
 public:
  /// Adds the `divergences` of consecutive tokens of a sample with token ids `ids`; the first one is that of token `first`.
  void add(const at::Tensor& divergences, std::int64_t sample, const at::Tensor& ids, std::int64_t first);

  double mean() const;
  /// The divergence that a share `q` of all tokens does not exceed, interpolated between neighbors.
  double quantile(double q) const;
  /// The five worst tokens, the worst first, with their texts by the tokenizer in `folder`; without a usable one the texts are
  /// empty.
  std::vector<Evaluation::WorstToken> worst(const std::filesystem::path& folder, const RunControl& control) const;

 private:
  struct Candidate {
    Evaluation::WorstToken token;
    std::vector<std::int64_t> before;  ///< ids of the nearest tokens before it
  };
  void keep(Candidate candidate);

  std::vector<float> all_;
  std::vector<Candidate> worst_;  // the worst first
};

}  // namespace layerpress::run
