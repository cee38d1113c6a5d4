#include "layerpress/run/precision/precision_decision.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "layerpress/base/text.h"

namespace layerpress::run {
namespace {

constexpr int kCurvePoints = 16;

/// --target-bits or --target-size.
class Limit {
 public:
  Limit(const OneshotOptions& options, const MeasuredUnits& units, std::uint64_t other_bytes)
      : options_(options), other_bytes_(other_bytes) {
    for (const MeasuredUnit& unit : units.units) weights_ += static_cast<double>(unit.weights);
  }

  double weights() const { return weights_; }
  double bits(std::uint64_t all) const { return static_cast<double>(all) / weights_; }

  /// For the weights of the linears, in bits.
  std::uint64_t budget() const {
    if (options_.target_size.empty())
      return static_cast<std::uint64_t>(std::floor(options_.target_bits * weights_ * (1 + 1e-12)));
    const std::uint64_t size = parse_bytes(options_.target_size, "--target-size");
    return size < other_bytes_ ? 0 : 8 * (size - other_bytes_);
  }

  /// `least_bits`: of all choices.
  [[noreturn]] void refuse_little(std::uint64_t least_bits) const {
    if (options_.target_size.empty())
      throw UsageError(
          "[options] --target-bits: {} is below the {:.3f} bits that the smallest of --schemes take, scales "
          "included; pass more, or add a smaller scheme",
          options_.target_bits, std::ceil(bits(least_bits) * 1000) / 1000);
    throw UsageError(
        "[options] --target-size: {} is below the {} bytes ({}) that the smallest of --schemes may take, with "
        "everything that stays as it is; pass more, or add a smaller scheme",
        options_.target_size, (least_bits + 7) / 8 + other_bytes_, format_bytes(least_bits / 8 + other_bytes_));
  }

  [[noreturn]] void refuse_much() const {
    throw UsageError(
        "[options] --{}: {} leaves room for all weights as they are, so nothing would be compressed; "
        "pass less, or leave out {}",
        options_.target_size.empty() ? "target-bits" : "target-size",
        options_.target_size.empty() ? fmt::format("{}", options_.target_bits) : options_.target_size,
        recipe::kLeftAlone);
  }

 private:
  const OneshotOptions& options_;
  std::uint64_t other_bytes_;
  double weights_ = 0;
};

/// The figures and what was chosen from them.
class PrecisionDecision {
 public:
  PrecisionDecision(const OneshotOptions& options, const MeasuredUnits& measured, std::uint64_t other_bytes)
      : options_(options), measured_(measured), limit_(options, measured, other_bytes), choices_(measured.options) {
    const std::optional<recipe::PrecisionChoice> choice = choices_.within(limit_.budget());
    if (!choice) limit_.refuse_little(choices_.least_bits());
    choice_ = *choice;
    refuse_impossible();
    if (targets().empty()) limit_.refuse_much();
  }

  Json to_json(const recipe::CandidateTargets& vocabulary) const {
    return {{"request", precision_request(options_)},
            {"recipe", recipe::to_yaml(recipe::mixed_recipe(targets(), options_, vocabulary))},
            {"vocabulary",
             vocabulary.name.empty() ? Json() : Json{{"scheme", vocabulary.name}, {"modules", vocabulary.targets}}},
            {"bits", bits(choice_.bits)},
            {"predicted_kl", predicted(choice_)},
            {"slack_bits", bits(choices_.slack_bits())},
            {"schemes", schemes()},
            {"uniform", uniform()},
            {"curve", curve()},
            {"units", units()},
            {"disturbed_by", measured_.disturbed_by},
            {"samples", measured_.samples},
            {"tokens", measured_.tokens}};
  }

 private:
  void refuse_impossible() const {
    for (std::size_t u = 0; u < choice_.candidates.size(); ++u)
      if (measured_.options[u][choice_.candidates[u]].loss >= kImpossible)
        throw DataError(
            "[mixed_precision] no token reaches {}, so that the static scales of its inputs are unknown, which the "
            "schemes within "
            "the limit need; add a scheme without them, such as {}, or samples that reach it",
            measured_.units[u].tied.modules.front(), recipe::kLeftAlone);
  }

  double bits(std::uint64_t all) const { return limit_.bits(all); }

  /// The KL divergence where weights are rounded to nearest, which is what can be measured before the run.
  double predicted(const recipe::PrecisionChoice& choice) const {
    double sum = 0;
    for (std::size_t u = 0; u < choice.candidates.size(); ++u) sum += measured_.predicted[u][choice.candidates[u]];
    return sum;
  }

  /// Those that get a candidate.
  std::vector<const MeasuredUnit*> units_of(std::size_t candidate) const {
    std::vector<const MeasuredUnit*> units;
    for (std::size_t u = 0; u < measured_.units.size(); ++u)
      if (choice_.candidates[u] == candidate) units.push_back(&measured_.units[u]);
    return units;
  }

  /// Candidates that are chosen anywhere, those with the most weights first: some readers look at the first group only.
  std::vector<recipe::CandidateTargets> targets() const {
    std::vector<std::pair<std::int64_t, recipe::CandidateTargets>> all;
    for (std::size_t c = 0; c < options_.schemes.size(); ++c) {
      std::pair<std::int64_t, recipe::CandidateTargets> own{0, {options_.schemes[c], {}}};
      for (const MeasuredUnit* unit : units_of(c)) {
        own.first -= unit->weights;
        own.second.targets.insert(own.second.targets.end(), unit->tied.targets.begin(), unit->tied.targets.end());
      }
      if (own.first != 0 && options_.schemes[c] != recipe::kLeftAlone) all.push_back(std::move(own));
    }
    std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<recipe::CandidateTargets> targets;
    for (auto& [weights, own] : all) targets.push_back(std::move(own));
    return targets;
  }

  /// What was chosen, in the order of --schemes.
  Json schemes() const {
    Json list = Json::array();
    for (std::size_t c = 0; c < options_.schemes.size(); ++c) {
      std::size_t modules = 0;
      double weights = 0;
      for (const MeasuredUnit* unit : units_of(c)) {
        modules += unit->tied.modules.size();
        weights += static_cast<double>(unit->weights);
      }
      list.push_back({{"scheme", options_.schemes[c]}, {"modules", modules}, {"share", weights / limit_.weights()}});
    }
    return list;
  }

  Json uniform() const {
    Json list = Json::array();
    for (std::size_t c = 0; c < options_.schemes.size(); ++c) {
      std::uint64_t all = 0;
      double loss = 0;
      for (std::size_t u = 0; u < measured_.options.size(); ++u)
        all += measured_.options[u][c].bits, loss += measured_.predicted[u][c];
      list.push_back({{"scheme", options_.schemes[c]}, {"bits", bits(all)}, {"predicted_kl", loss}});
    }
    return list;
  }

  /// The choices for budgets between the smallest and the greatest, as far as each predicts less than the one before.
  Json curve() const {
    Json list = Json::array();
    const std::uint64_t range = choices_.greatest_bits() - choices_.least_bits();
    for (int point = 0; point <= kCurvePoints; ++point) {
      const auto choice = choices_.within(choices_.least_bits() + range / kCurvePoints * static_cast<unsigned>(point));
      const double loss = predicted(*choice);
      if (list.empty() || loss < list.back()["predicted_kl"].get<double>())
        list.push_back({{"bits", bits(choice->bits)}, {"predicted_kl", loss}});
    }
    return list;
  }

  Json units() const {
    Json list = Json::array();
    for (std::size_t u = 0; u < measured_.units.size(); ++u) {
      const MeasuredUnit& unit = measured_.units[u];
      Json losses = Json::object();
      for (std::size_t c = 0; c < options_.schemes.size(); ++c) losses[options_.schemes[c]] = measured_.predicted[u][c];
      list.push_back({{"targets", unit.tied.targets},
                      {"modules", unit.tied.modules.size()},
                      {"weights", unit.weights},
                      {"scheme", options_.schemes[choice_.candidates[u]]},
                      {"left_by_gptq", measured_.left[u]},
                      {"predicted_kl", std::move(losses)}});
    }
    return list;
  }

  const OneshotOptions& options_;
  const MeasuredUnits& measured_;
  Limit limit_;
  recipe::PrecisionChoices choices_;
  recipe::PrecisionChoice choice_;
};

}  // namespace

Json precision_request(const OneshotOptions& options) {
  return {{"target-bits", options.target_bits}, {"target-size", options.target_size},
          {"schemes", options.schemes},         {"algorithm", options.algorithm},
          {"group-size", options.group_size},   {"observer", options.observer},
          {"targets", options.targets},         {"ignore", options.ignore}};
}

void require_useful_limit(const OneshotOptions& options, const MeasuredUnits& units, std::uint64_t other_bytes) {
  const Limit limit(options, units, other_bytes);
  const auto left = std::find(options.schemes.begin(), options.schemes.end(), recipe::kLeftAlone);
  const auto place = static_cast<std::size_t>(left - options.schemes.begin());
  std::uint64_t least = 0, untouched = 0;
  for (const recipe::PrecisionUnit& unit : units.options) {
    least += recipe::least_bits(unit);
    if (left != options.schemes.end()) untouched += unit[place].bits;
  }
  if (limit.budget() < least) limit.refuse_little(least);
  if (left != options.schemes.end() && untouched <= limit.budget()) limit.refuse_much();
}

Json precision_decision(const OneshotOptions& options, const MeasuredUnits& measured, std::uint64_t other_bytes,
                        const recipe::CandidateTargets& vocabulary) {
  return PrecisionDecision(options, measured, other_bytes).to_json(vocabulary);
}

}  // namespace layerpress::run
