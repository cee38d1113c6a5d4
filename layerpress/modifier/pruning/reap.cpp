#include "layerpress/modifier/pruning/reap.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "layerpress/quant/targets/matching.h"

namespace layerpress::modifier {

std::vector<std::int64_t> kept_experts(const std::vector<double>& saliency, std::int64_t groups, std::int64_t dropped) {
  const auto size = static_cast<std::int64_t>(saliency.size()) / groups;
  std::vector<std::int64_t> kept;
  for (std::int64_t group = 0; group < groups; ++group) {
    std::vector<std::int64_t> own(static_cast<std::size_t>(size));
    std::iota(own.begin(), own.end(), group * size);
    std::stable_sort(own.begin(), own.end(), [&](std::int64_t a, std::int64_t b) {
      return saliency[static_cast<std::size_t>(a)] > saliency[static_cast<std::size_t>(b)];
    });
    kept.insert(kept.end(), own.begin(), own.end() - dropped);
  }
  std::sort(kept.begin(), kept.end());
  return kept;
}

std::vector<std::vector<std::int64_t>> kept_over_layers(const std::vector<std::vector<double>>& saliency,
                                                        std::int64_t dropped, std::int64_t least) {
  struct Expert {
    double score;
    std::size_t layer;
    std::int64_t number;
  };
  std::vector<Expert> all;
  std::vector<std::int64_t> left;
  for (std::size_t layer = 0; layer < saliency.size(); ++layer) {
    const double greatest = *std::max_element(saliency[layer].begin(), saliency[layer].end());
    left.push_back(static_cast<std::int64_t>(saliency[layer].size()));
    for (std::int64_t e = 0; e < left.back(); ++e)
      all.push_back({greatest > 0 ? saliency[layer][static_cast<std::size_t>(e)] / greatest : 0, layer, e});
  }
  std::sort(all.begin(), all.end(), [](const Expert& a, const Expert& b) {
    return std::tie(a.score, b.number, b.layer) < std::tie(b.score, a.number, a.layer);
  });
  std::vector<std::vector<std::int64_t>> kept(saliency.size());
  for (const Expert& expert : all) {
    if (dropped > 0 && left[expert.layer] > least)
      --dropped, --left[expert.layer];
    else
      kept[expert.layer].push_back(expert.number);
  }
  for (std::vector<std::int64_t>& own : kept) std::sort(own.begin(), own.end());
  return kept;
}

namespace {

const std::vector<Argument> kReapArguments = {{"sparsity", "float"},
                                              {"uniform", "bool"},
                                              {"ignore", "list[str]"},
                                              {"report_path", "str | None"},
                                              {"kept_experts", "dict[str, list[int]] | None"},
                                              {"measured_on", "dict[str, Any] | None"}};

/// Names in the order of the numbers in them: layers.2 before layers.10.
bool comes_before(const std::string& a, const std::string& b) {
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  std::size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (!digit(a[i]) || !digit(b[j])) {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i, ++j;
      continue;
    }
    std::size_t end_i = i, end_j = j;
    while (end_i < a.size() && digit(a[end_i])) ++end_i;
    while (end_j < b.size() && digit(b[end_j])) ++end_j;
    const std::string left = a.substr(i, end_i - i), right = b.substr(j, end_j - j);
    if (left.size() != right.size()) return left.size() < right.size();
    if (left != right) return left < right;
    i = end_i, j = end_j;
  }
  return a.size() - i < b.size() - j;
}

}  // namespace

ExpertPruning::ExpertPruning(const Json& arguments, const std::string& where) : where_(where) {
  without_effect_ = check_arguments(arguments, where, kReapArguments);
  sparsity_ = json_get_or<double>(arguments, "sparsity", where, 0);
  uniform_ = json_get_or<bool>(arguments, "uniform", where, true);
  ignore_ = json_get_or<std::vector<std::string>>(arguments, "ignore", where, {});
  for (std::string& pattern : ignore_)  // LLM Compressor's are without the prefix of other modifiers' lists
    if (pattern.starts_with("re:")) pattern.erase(0, 3);
  report_path_ = json_get_or<std::string>(arguments, "report_path", where, "");
  if (!json_has(arguments, "sparsity"))
    throw RecipeError("[recipe.modifier] {}: sparsity is missing; write the part of the experts to remove, such as 0.5",
                      where);
  if (!(sparsity_ > 0 && sparsity_ < 1))
    throw RecipeError("[recipe.modifier] {}: sparsity is {}; write a part of the experts between 0 and 1", where,
                      sparsity_);
  if (!report_path_.empty() && !report_path_.ends_with(".json"))
    throw RecipeError("[recipe.modifier] {}: report_path {} does not end in .json", where, report_path_);
  for (const std::string& pattern : ignore_) (void)quant::TargetList({"re:" + pattern}, where + ".ignore");
  if (json_has(arguments, "kept_experts")) read_decision(arguments["kept_experts"]);
}

std::string ExpertPruning::type() const { return kType; }

std::vector<compression::Modifier::ListEntry> ExpertPruning::unmatched_entries() const {
  std::vector<ListEntry> entries;  // all: the run does not begin if one matches
  for (const std::string& pattern : ignore_) entries.push_back({"ignore", pattern});
  return entries;
}

void ExpertPruning::read_decision(const Json& decision) {
  const auto refuse = [&](const std::string& layer) {
    throw RecipeError(
        "[recipe.modifier] {}: kept_experts of {} are not ascending numbers of experts; write a list for each layer, "
        "such "
        "as model.layers.0.mlp: [0, 3]",
        where_, layer);
  };
  if (!decision.is_object() || decision.empty()) refuse("all layers");
  for (const auto& [layer, numbers] : decision.items()) {
    if (!numbers.is_array() || numbers.empty()) refuse(layer);
    std::vector<std::int64_t>& own = kept_[layer];
    for (const Json& number : numbers) {
      if (!number.is_number_integer() || number < 0 || (!own.empty() && number <= own.back())) refuse(layer);
      own.push_back(number.get<std::int64_t>());
    }
  }
}

ExpertPruning::Share ExpertPruning::share_of(const rewrite::ExpertMixture& mixture) const {
  Share share{.groups = mixture.groups};
  const auto all = static_cast<std::int64_t>(static_cast<double>(mixture.experts) * sparsity_);
  if (share.groups < 1 || mixture.experts % share.groups != 0)
    throw RecipeError("[recipe.check] {}: {} experts do not divide into {} groups", where_, mixture.experts,
                      share.groups);
  share.dropped =
      static_cast<std::int64_t>(std::nearbyint(static_cast<double>(all) / static_cast<double>(share.groups)));
  const std::string of = share.groups == 1 ? "" : fmt::format(" of each of the {} groups", share.groups);
  if (share.dropped == 0)
    throw RecipeError("[recipe.check] {}: sparsity {} removes none of the {} experts{}; write a greater one", where_,
                      sparsity_, mixture.experts / share.groups, of);
  const std::int64_t left = mixture.experts / share.groups - share.dropped;
  const std::int64_t reachable = left * (share.groups == 1 ? 1 : mixture.top_groups);
  if (left < mixture.least_of_group)
    throw RecipeError(
        "[recipe.check] {}: sparsity {} leaves {} experts{}, but the model needs {} there; write a smaller one", where_,
        sparsity_, left, of, mixture.least_of_group);
  if (mixture.top_k > reachable)
    throw RecipeError(
        "[recipe.check] {}: sparsity {} leaves {} experts that a token can reach, but each token takes {}; write a "
        "smaller one",
        where_, sparsity_, std::max<std::int64_t>(0, reachable), mixture.top_k);
  return share;
}

std::int64_t ExpertPruning::dropped_of_all(const rewrite::ExpertMixture& mixture) const {
  if (!mixture.uniform_reason.empty())
    throw RecipeError("[recipe.check] {}: uniform: false does not work with this model, because {}; leave it out",
                      where_, mixture.uniform_reason);
  const auto layers = static_cast<std::int64_t>(mixture.layers.size());
  const auto dropped = static_cast<std::int64_t>(static_cast<double>(layers * mixture.experts) * sparsity_);
  if (dropped == 0)
    throw RecipeError("[recipe.check] {}: sparsity {} removes none of the {} experts; write a greater one", where_,
                      sparsity_, layers * mixture.experts);
  if (const std::int64_t most = layers * (mixture.experts - mixture.top_k); dropped > most)
    throw RecipeError(
        "[recipe.check] {}: sparsity {} removes {} experts, but at most {} can go, because each token takes {} of a "
        "layer; write a smaller one",
        where_, sparsity_, dropped, most, mixture.top_k);
  return dropped;
}

void ExpertPruning::check_ignore(const rewrite::ExpertMixture& mixture) const {
  for (const std::string& pattern : ignore_) {
    const quant::TargetList list({"re:.*(?:" + pattern + ")"}, where_ + ".ignore");
    for (const std::string& layer : mixture.layers)
      if (list.matches({layer, {}}))
        throw RecipeError(
            "[recipe.check] {}: ignore leaves all experts of {}, but config.json has one number of experts for all "
            "layers, so that no engine could load the result; leave it out",
            where_, layer);
  }
}

void ExpertPruning::check_share(const rewrite::KeptExperts& kept, const rewrite::ExpertMixture& mixture) const {
  const Share share = share_of(mixture);
  const std::int64_t size = mixture.experts / share.groups, left = size - share.dropped;
  for (const auto& [layer, numbers] : kept)
    for (std::int64_t group = 0; group < share.groups; ++group)
      if (left != std::count_if(numbers.begin(), numbers.end(), [&](std::int64_t e) { return e / size == group; }))
        throw RecipeError("[recipe.check] {}: kept_experts of {} are not the {} that sparsity {} leaves", where_, layer,
                          left * share.groups, sparsity_);
}

void ExpertPruning::check(const rewrite::KeptExperts& kept, const rewrite::ExpertMixture& mixture) const {
  for (const std::string& layer : mixture.layers) {
    const auto found = kept.find(layer);
    if (found == kept.end()) throw RecipeError("[recipe.check] {}: kept_experts has no list for {}", where_, layer);
    if (found->second.back() >= mixture.experts || static_cast<std::int64_t>(found->second.size()) < mixture.top_k)
      throw RecipeError("[recipe.check] {}: kept_experts of {} are not at least {} of its {} experts", where_, layer,
                        mixture.top_k, mixture.experts);
  }
  if (uniform_) check_share(kept, mixture);
  if (kept.size() != mixture.layers.size())
    throw RecipeError("[recipe.check] {}: kept_experts has {} layers, but the model has {} with experts", where_,
                      kept.size(), mixture.layers.size());
}

std::vector<double> ExpertPruning::saliencies(const std::vector<ExpertFigures>& figures) const {
  std::vector<double> saliency;
  for (const ExpertFigures& expert : figures) saliency.push_back(expert.saliency());
  if (!std::all_of(saliency.begin(), saliency.end(), [](double own) { return std::isfinite(own); }))
    throw RecipeError("[recipe.check] {}: the outputs of some experts are NaN or infinite", where_);
  return saliency;
}

std::vector<std::int64_t> ExpertPruning::choose(const rewrite::ExpertMixture& mixture,
                                                const std::vector<ExpertFigures>& figures) const {
  const Share share = share_of(mixture);
  return kept_experts(saliencies(figures), share.groups, share.dropped);
}

rewrite::KeptExperts ExpertPruning::choose_over_layers(const rewrite::ExpertMixture& mixture,
                                                       const std::vector<std::vector<ExpertFigures>>& figures) const {
  std::vector<std::vector<double>> saliency;
  for (const std::vector<ExpertFigures>& layer : figures) saliency.push_back(saliencies(layer));
  const auto kept = kept_over_layers(saliency, dropped_of_all(mixture), mixture.top_k);
  rewrite::KeptExperts named;
  for (std::size_t layer = 0; layer < kept.size(); ++layer) named[mixture.layers[layer]] = kept[layer];
  return named;
}

rewrite::KeptExperts ExpertPruning::first_experts(const rewrite::ExpertMixture& mixture) const {
  const std::vector<ExpertFigures> equal(static_cast<std::size_t>(mixture.experts));
  if (!uniform_) {
    std::vector<std::vector<ExpertFigures>> figures(mixture.layers.size(), equal);
    for (std::vector<ExpertFigures>& layer : figures) layer.front() = {.sum = 1, .tokens = 1};
    for (ExpertFigures& expert : figures.back()) expert = {.sum = 1, .tokens = 1};
    return choose_over_layers(mixture, figures);
  }
  const std::vector<std::int64_t> first = choose(mixture, equal);
  rewrite::KeptExperts kept;
  for (const std::string& layer : mixture.layers) kept[layer] = first;
  return kept;
}

rewrite::ExpertMixture ExpertPruning::mixture_of(const rewrite::Model& model) const {
  rewrite::ExpertMixture mixture = rewrite::expert_mixture(model, where_);
  check_ignore(mixture);
  (void)(uniform_ ? share_of(mixture).dropped : dropped_of_all(mixture));
  return mixture;
}

rewrite::Changes ExpertPruning::changes(const rewrite::Model& model, const rewrite::KeptExperts& kept) const {
  rewrite::Changes changes = rewrite::keep_experts(model, kept, where_);
  changes.text = type() + ": " + changes.text;
  return changes;
}

rewrite::Changes ExpertPruning::changes(const rewrite::Model& model) const {
  const rewrite::ExpertMixture mixture = mixture_of(model);
  if (is_decided()) check(kept_, mixture);
  return changes(model, is_decided() ? kept_ : first_experts(mixture));
}

OrderedJson ExpertPruning::report(const rewrite::KeptExperts& kept) {
  std::vector<std::string> layers;
  for (const auto& [layer, numbers] : kept) layers.push_back(layer);
  std::sort(layers.begin(), layers.end(), comes_before);
  OrderedJson report = OrderedJson::object();
  for (const std::string& layer : layers) report[layer] = kept.at(layer);
  return report;
}

Kind reap_modifier() { return {ExpertPruning::kType, make<ExpertPruning>, kReapArguments}; }

}  // namespace layerpress::modifier
