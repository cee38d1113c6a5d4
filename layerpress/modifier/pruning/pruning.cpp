#include "layerpress/modifier/pruning/pruning.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "layerpress/base/text.h"

namespace layerpress::modifier {
namespace {

constexpr std::int64_t kLargestGroup = 4096;

double checked_sparsity(const Json& value, const std::string& where) {
  if (value.is_number() && value.get<double>() >= 0 && value.get<double>() < 1) return value.get<double>();
  throw RecipeError("[recipe.modifier] {}: sparsity {} is not a number from 0 to below 1", where,
                    value.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 40));
}

bool read_number(std::string_view text, std::int64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

double positive(const Json& arguments, const char* key, const std::string& where) {
  const auto value = json_get_or<double>(arguments, key, where, 0);
  if (!(value > 0 && std::isfinite(value)))
    throw RecipeError("[recipe.modifier] {}: {} must be a positive number", where, key);
  return value;
}

}  // namespace

std::optional<OutlierProfile> outlier_profile(const Json& arguments, const std::string& where) {
  const bool asked = json_has(arguments, kSparsityProfile);
  if (!asked && !json_has(arguments, "owl_m") && !json_has(arguments, "owl_lmbda")) return std::nullopt;
  if (!asked || !json_has(arguments, "owl_m") || !json_has(arguments, "owl_lmbda"))
    throw RecipeError(
        "[recipe.modifier] {}: {}: owl, owl_m and owl_lmbda belong together; give all of them, such as owl_m: 5 and "
        "owl_lmbda: 0.08, or none",
        where, kSparsityProfile);
  if (const auto name = json_get_or<std::string>(arguments, kSparsityProfile, where, ""); upper_case(name) != "OWL")
    throw RecipeError("[recipe.modifier] {}: {} '{}' is unknown; write owl", where, kSparsityProfile, name);
  if (!json_has(arguments, "sparsity") || !arguments["sparsity"].is_number())
    throw RecipeError("[recipe.modifier] {}: with {}, sparsity is one number, the mean over layers", where,
                      kSparsityProfile);
  OutlierProfile profile{checked_sparsity(arguments["sparsity"], where), positive(arguments, "owl_m", where),
                         positive(arguments, "owl_lmbda", where)};
  if (2 * profile.spread >= 1)
    throw RecipeError(
        "[recipe.modifier] {}: owl_lmbda {} sets the sparsest and the densest layer {} apart; write a number below 0.5",
        where, profile.spread, 2 * profile.spread);
  return profile;
}

std::vector<double> sparsities_of(const OutlierProfile& profile, const std::vector<double>& shares,
                                  const std::string& where) {
  const auto [least, most] = std::minmax_element(shares.begin(), shares.end());
  const double scale = *most > *least ? 2 * profile.spread / (*most - *least) : 0;
  const double mean = std::accumulate(shares.begin(), shares.end(), 0.0) / static_cast<double>(shares.size());
  std::vector<double> sparsities;
  for (const double share : shares) {
    sparsities.push_back(std::round(1e6 * (profile.sparsity - scale * (share - mean))) / 1e6);
    if (!(sparsities.back() >= 0 && sparsities.back() < 1))
      throw RecipeError(
          "[recipe.check] {}: owl_lmbda {} gives a layer a sparsity of {}; write a smaller one, because sparsities are "
          "from 0 to below 1",
          where, profile.spread, sparsities.back());
  }
  return sparsities;
}

const std::vector<Argument>& PruningModifier::shared_arguments() {
  static const std::vector<Argument> kArguments = {{"sparsity", "float | list[float] | None"},
                                                   {kSparsityProfile, "str | None"},
                                                   {"mask_structure", "str"},
                                                   {"owl_m", "int | None"},
                                                   {"owl_lmbda", "float | None"},
                                                   {"targets", "str | list[str]"},
                                                   {"ignore", "str | list[str]"},
                                                   {kLayerSparsities, "dict[str, float] | None"},
                                                   {"measured_on", "dict[str, Any] | None"}};
  return kArguments;
}

PruningModifier::PruningModifier(const OrderedJson& arguments, const std::string& where,
                                 const std::vector<Argument>& known)
    : where_(where) {
  const Json plain(arguments);
  without_effect_ = check_arguments(plain, where, known);
  read_structure(plain);
  read_sparsity(plain);
  read_profile(plain);
  const Json targets = json_has(plain, "targets") ? plain["targets"] : Json("Linear");
  targets_.emplace(names_in(targets, where + ".targets"), where + ".targets");
  ignore_ = target_list(plain, "ignore", where);
}

void PruningModifier::read_structure(const Json& arguments) {
  const auto text = json_get_or<std::string>(arguments, "mask_structure", where_, "0:0");
  const std::size_t colon = text.find(':');
  const bool numbers = colon != std::string::npos && read_number(std::string_view(text).substr(0, colon), pruned_) &&
                       read_number(std::string_view(text).substr(colon + 1), group_);
  if (numbers && pruned_ == 0 && group_ == 0) return;
  if (!numbers || pruned_ < 1 || group_ <= pruned_ || group_ > kLargestGroup)
    throw RecipeError(
        "[recipe.modifier] {}: mask_structure '{}' must be \"0:0\", or \"n:m\" for n zeros among m weights, such as "
        "\"2:4\"",
        where_, text);
}

void PruningModifier::read_sparsity(const Json& arguments) {
  if (!arguments.contains("sparsity"))
    throw RecipeError(
        "[recipe.modifier] {}: sparsity is missing; give the share of weights that become zero, such as 0.5", where_);
  const Json& value = arguments["sparsity"];
  one_for_all_ = !value.is_array();
  if (value.is_null() && group_ > 0) {
    sparsities_ = {0};
  } else if (one_for_all_) {
    sparsities_ = {checked_sparsity(value, where_)};
  } else {
    for (const Json& entry : value) sparsities_.push_back(checked_sparsity(entry, where_));
  }
  const double own = group_ > 0 ? static_cast<double>(pruned_) / static_cast<double>(group_) : 0;
  if (group_ > 0 && !value.is_null() &&
      std::any_of(sparsities_.begin(), sparsities_.end(), [&](double sparsity) { return sparsity != own; }))
    without_effect_.emplace_back("sparsity");
}

void PruningModifier::read_profile(const Json& arguments) {
  const bool by_layer = json_has(arguments, kLayerSparsities);
  if (group_ > 0 && (by_layer || json_has(arguments, kSparsityProfile)))
    throw RecipeError("[recipe.modifier] {}: mask_structure {}:{} makes all layers equally sparse; leave out {}",
                      where_, pruned_, group_, by_layer ? kLayerSparsities : kSparsityProfile);
  (void)outlier_profile(arguments, where_);
  if (!by_layer) return;
  if (!one_for_all_)
    throw RecipeError("[recipe.modifier] {}: {} and a list of sparsities: give only one", where_, kLayerSparsities);
  const Json& layers = arguments[kLayerSparsities];
  if (!layers.is_object() || layers.empty())
    throw RecipeError("[recipe.modifier] {}: {} is not a mapping such as model.layers.0: 0.4", where_,
                      kLayerSparsities);
  for (const auto& [layer, sparsity] : layers.items())
    layer_sparsities_[layer] = checked_sparsity(sparsity, where_ + "." + kLayerSparsities + "." + layer);
}

void PruningModifier::check_layers(const std::vector<compression::ModelModule>& modules) const {
  std::vector<std::string> names;
  for (const compression::ModelModule& module : modules) names.push_back(module.name.name);
  for (const auto& [layer, sparsity] : layer_sparsities_) {
    if (std::find(names.begin(), names.end(), layer) != names.end()) continue;
    const std::string hint = did_you_mean(layer, names);
    throw RecipeError("[recipe.check] {}: {} names {}, which is no module of the model{}{}", where_, kLayerSparsities,
                      layer, hint.empty() ? "" : "; ", hint);
  }
}

double PruningModifier::sparsity_of(const std::string& module, double otherwise) const {
  for (std::string around = module;; around = parent_name(around)) {
    if (const auto layer = layer_sparsities_.find(around); layer != layer_sparsities_.end()) return layer->second;
    if (around.find('.') == std::string::npos) return otherwise;
  }
}

std::map<std::string, compression::EditPtr> PruningModifier::edits_of(
    const std::vector<compression::ModelModule>& modules) const {
  const auto [targets, linears] = targeted_linears(modules, *targets_, ignore_);
  if (!one_for_all_ && targets != sparsities_.size())
    throw RecipeError("[recipe.check] {}: sparsity has {} numbers, but its targets match {}", where_,
                      sparsities_.size(), counted(targets, "module"));
  check_layers(modules);
  std::map<double, compression::EditPtr> known;
  std::map<std::string, compression::EditPtr> edits;
  for (const compression::ModelModule& module : modules) {
    const auto found = linears.find(module.name.name);
    if (found == linears.end() || !module.is_linear) continue;
    if (group_ > 0 && module.columns % group_ != 0)
      throw RecipeError("[recipe.check] {}: mask_structure {}:{} does not divide the {} columns of {}; ignore it",
                        where_, pruned_, group_, module.columns, module.name.name);
    const double sparsity =
        group_ > 0 ? 0 : sparsity_of(module.name.name, sparsities_[one_for_all_ ? 0 : found->second]);
    if (group_ == 0 && sparsity == 0) continue;
    compression::EditPtr& edit = known[sparsity];
    if (edit == nullptr) edit = make_edit({sparsity, pruned_, group_});
    edits[module.name.name] = edit;
  }
  if (edits.empty() && !linears.empty())
    throw RecipeError(
        "[recipe.check] {}: a sparsity of 0 leaves every linear as it is; give the share of weights that become zero",
        where_);
  return edits;
}

std::string PruningEdit::describe() const {
  if (pattern_.group > 0) return fmt::format("{}:{} sparse", pattern_.pruned, pattern_.group);
  return fmt::format("{:.6g} % sparse", 100 * pattern_.sparsity);
}

}  // namespace layerpress::modifier
