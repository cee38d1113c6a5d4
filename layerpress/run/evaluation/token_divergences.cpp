#include "layerpress/run/evaluation/token_divergences.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <system_error>
#include <utility>

#include "layerpress/base/error.h"
#include "layerpress/setup/opening/helper_request.h"

namespace layerpress::run {
namespace {

constexpr std::size_t kWorst = 5;
constexpr std::int64_t kBefore = 12;  // tokens that show the place of a worst one

bool has_tokenizer(const std::filesystem::path& folder) {
  std::error_code failure;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "tokenizer.model"})
    if (std::filesystem::exists(folder / name, failure)) return true;
  return false;
}

/// Empty where the tokenizer fails: the figures do not depend on it.
std::vector<std::string> texts_of(const std::vector<std::vector<std::int64_t>>& sequences,
                                  const std::filesystem::path& folder, const RunControl& control) {
  std::vector<std::string> texts(sequences.size());
  if (sequences.empty() || !has_tokenizer(folder)) return texts;
  try {
    const Json answer = setup::ask_helper(
        {"prepare.py", "[data.prepare]", {{"model", folder.string()}, {"decode", sequences}}}, control);
    const auto found = json_get<std::vector<std::string>>(answer, "texts", "the data helper's answer");
    if (found.size() == texts.size()) return found;
  } catch (const IoError& error) {
    control.message(LogLevel::kInfo, fmt::format("the worst tokens have no texts: {}", error.what()));
  }
  return texts;
}

}  // namespace

void TokenDivergences::add(const at::Tensor& divergences, std::int64_t sample, const at::Tensor& ids,
                           std::int64_t first) {
  const at::Tensor values = divergences.to(at::kCPU, at::kFloat).contiguous();
  const float* own = values.const_data_ptr<float>();
  const std::int64_t* tokens = ids.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    const float divergence =
        std::isnan(own[i]) ? std::numeric_limits<float>::infinity() : own[i];  // so that they have an order
    all_.push_back(divergence);
    if (worst_.size() == kWorst && !(divergence > worst_.back().token.kl_divergence)) continue;
    const std::int64_t position = first + i;
    keep({{divergence, sample, position, tokens[position], {}, {}},
          {tokens + std::max<std::int64_t>(0, position - kBefore), tokens + position}});
  }
}

void TokenDivergences::keep(Candidate candidate) {
  const auto place = std::upper_bound(worst_.begin(), worst_.end(), candidate, [](const auto& left, const auto& right) {
    return left.token.kl_divergence > right.token.kl_divergence;
  });
  worst_.insert(place, std::move(candidate));
  if (worst_.size() > kWorst) worst_.pop_back();
}

double TokenDivergences::mean() const {
  return std::accumulate(all_.begin(), all_.end(), 0.0) / static_cast<double>(all_.size());
}

double TokenDivergences::quantile(double q) const {
  std::vector<float> sorted = all_;
  const double place = q * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<std::ptrdiff_t>(place);
  std::nth_element(sorted.begin(), sorted.begin() + low, sorted.end());
  const double below = sorted[static_cast<std::size_t>(low)], share = place - static_cast<double>(low);
  if (!(share > 0)) return below;
  const double above = *std::min_element(sorted.begin() + low + 1, sorted.end());
  return above > below ? below + share * (above - below) : below;
}

std::vector<Evaluation::WorstToken> TokenDivergences::worst(const std::filesystem::path& folder,
                                                            const RunControl& control) const {
  std::vector<std::vector<std::int64_t>> sequences;
  std::vector<Evaluation::WorstToken> tokens;
  for (const Candidate& candidate : worst_) {
    sequences.push_back({candidate.token.id});
    sequences.push_back(candidate.before);
    tokens.push_back(candidate.token);
  }
  const std::vector<std::string> texts = texts_of(sequences, folder, control);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens[i].text = texts[2 * i];
    tokens[i].before = texts[2 * i + 1];
  }
  return tokens;
}

}  // namespace layerpress::run
