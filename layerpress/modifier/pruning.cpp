#include "layerpress/modifier/pruning.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "layerpress/base/text.h"
#include "layerpress/modifier/lifecycle_arguments.h"
#include "layerpress/quant/compressed_weight.h"

namespace layerpress::modifier {
namespace {

constexpr std::int64_t kLargestGroup = 4096;

double sparsity_of(const Json& value, const std::string& where) {
  if (value.is_number() && value.get<double>() >= 0 && value.get<double>() < 1) return value.get<double>();
  throw RecipeError("[recipe.modifier] {}: sparsity {} is not a number from 0 to below 1", where,
                    value.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 40));
}

bool read_number(std::string_view text, std::int64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

/// OWL takes a layer's share of large products of weights and inputs, relative to all layers.
void refuse_profiles(const Json& arguments, const std::string& where) {
  for (const char* key : {"sparsity_profile", "owl_m", "owl_lmbda"})
    if (json_has(arguments, key))
      throw RecipeError(
          "[recipe.modifier] {}: {} is not implemented: it needs figures of all layers before the first one is pruned; "
          "give a list of sparsities, one for each target",
          where, key);
}

}  // namespace

const std::vector<Argument>& PruningModifier::shared_arguments() {
  static const std::vector<Argument> kArguments = {{"sparsity", "float | list[float] | None"},
                                                   {"sparsity_profile", "str | None"},
                                                   {"mask_structure", "str"},
                                                   {"owl_m", "int | None"},
                                                   {"owl_lmbda", "float | None"},
                                                   {"targets", "str | list[str]"},
                                                   {"ignore", "str | list[str]"}};
  return kArguments;
}

PruningModifier::PruningModifier(const OrderedJson& arguments, const std::string& where,
                                 const std::vector<Argument>& own_arguments)
    : where_(where) {
  if (!arguments.is_object()) throw RecipeError("[recipe.modifier] {}: the arguments are not a mapping", where);
  std::vector<std::string> known = names_of(shared_arguments());
  for (const Argument& own : own_arguments) known.push_back(own.name);
  const Json plain(arguments);
  without_effect_ = check_arguments(plain, where, known);
  refuse_profiles(plain, where);
  read_structure(plain);
  read_sparsity(plain);
  const Json targets = json_has(plain, "targets") ? plain["targets"] : Json("Linear");
  targets_.emplace(names_in(targets, where + ".targets"), where + ".targets");
  if (json_has(plain, "ignore") && plain["ignore"] != Json::array())
    ignore_.emplace(names_in(plain["ignore"], where + ".ignore"), where + ".ignore");
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
    sparsities_ = {sparsity_of(value, where_)};
  } else {
    for (const Json& entry : value) sparsities_.push_back(sparsity_of(entry, where_));
  }
  const double own = group_ > 0 ? static_cast<double>(pruned_) / static_cast<double>(group_) : 0;
  if (group_ > 0 && !value.is_null() &&
      std::any_of(sparsities_.begin(), sparsities_.end(), [&](double sparsity) { return sparsity != own; }))
    without_effect_.emplace_back("sparsity");
}

TargetedLinears targeted_linears(const std::vector<compression::ModelModule>& modules, const quant::TargetList& targets,
                                 const quant::TargetList* ignore) {
  std::map<std::string, std::size_t> places;  // of targets
  for (const compression::ModelModule& module : modules)
    if (targets.matches(module.name)) places.emplace(module.name.name, places.size());
  TargetedLinears found{places.size(), {}};
  for (const compression::ModelModule& module : modules) {
    if (!module.is_linear || (ignore != nullptr && ignore->matches(module.name))) continue;
    for (std::string around = module.name.name;; around = parent_name(around)) {
      const auto place = places.find(around);
      if (place != places.end()) found.linears[module.name.name] = place->second;
      if (place != places.end() || around.find('.') == std::string::npos) break;
    }
  }
  return found;
}

std::map<std::string, compression::EditPtr> PruningModifier::edits_of(
    const std::vector<compression::ModelModule>& modules) const {
  const auto [targets, linears] = targeted_linears(modules, *targets_, ignore_ ? &*ignore_ : nullptr);
  if (!one_for_all_ && targets != sparsities_.size())
    throw RecipeError("[recipe.check] {}: sparsity has {} numbers, but its targets match {} modules", where_,
                      sparsities_.size(), targets);
  std::map<double, compression::EditPtr> known;
  std::map<std::string, compression::EditPtr> edits;
  for (const compression::ModelModule& module : modules) {
    const auto found = linears.find(module.name.name);
    if (found == linears.end() || !module.is_linear) continue;
    if (group_ > 0 && module.columns % group_ != 0)
      throw RecipeError("[recipe.check] {}: mask_structure {}:{} does not divide the {} columns of {}; ignore it",
                        where_, pruned_, group_, module.columns, module.name.name);
    const double sparsity = group_ > 0 ? 0 : sparsities_[one_for_all_ ? 0 : found->second];
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

std::uint64_t edited_bytes(const compression::LinearShape& linear) {
  return quant::quantized_bytes(quant::dense_scheme(), linear.rows, linear.columns, linear.dtype);
}

}  // namespace layerpress::modifier
