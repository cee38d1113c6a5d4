#include "layerpress/modifier/arguments/targeted_edit.h"

#include "layerpress/base/text.h"
#include "layerpress/quant/compressed_weight.h"

namespace layerpress::modifier {

TargetedLinears targeted_linears(const std::vector<compression::ModelModule>& modules, const quant::TargetList& targets,
                                 const std::optional<quant::TargetList>& ignore) {
  std::map<std::string, std::size_t> places;  // of targets
  for (const compression::ModelModule& module : modules) {
    const quant::TargetList::Match how = targets.match(module.name);
    const bool is_meant = how != quant::TargetList::Match::kRegex || !module.name.needs_own_target;
    if (how != quant::TargetList::Match::kNone && is_meant) places.emplace(module.name.name, places.size());
  }
  TargetedLinears found{places.size(), {}};
  for (const compression::ModelModule& module : modules) {
    if ((ignore && ignore->matches(module.name)) || !module.is_linear) continue;
    for (std::string around = module.name.name;; around = parent_name(around)) {
      const auto place = places.find(around);
      if (place != places.end()) found.linears[module.name.name] = place->second;
      if (place != places.end() || module.name.needs_own_target || around.find('.') == std::string::npos) break;
    }
  }
  return found;
}

std::optional<quant::TargetList> target_list(const Json& arguments, const std::string& key, const std::string& where) {
  if (!json_has(arguments, key.c_str()) || arguments[key] == Json::array()) return std::nullopt;
  return quant::TargetList(names_in(arguments[key], where + "." + key), where + "." + key);
}

std::vector<compression::Modifier::ListEntry> unmatched_in(const quant::TargetList& targets,
                                                           const std::optional<quant::TargetList>& ignore) {
  std::vector<compression::Modifier::ListEntry> entries;
  for (const std::string& entry : targets.unmatched()) entries.push_back({"targets", entry});
  if (ignore)
    for (const std::string& entry : ignore->unmatched()) entries.push_back({"ignore", entry});
  return entries;
}

std::uint64_t edited_bytes(const compression::LinearShape& linear) {
  return quant::quantized_bytes(quant::dense_scheme(), linear.rows, linear.columns, linear.dtype);
}

TargetedEdit::TargetedEdit(const OrderedJson& arguments, const std::string& where, const std::vector<Argument>& known,
                           const std::string& usual_target)
    : plain_(arguments) {
  without_effect_ = check_arguments(plain_, where, known);
  if (!json_has(plain_, "targets")) {
    if (usual_target.empty())
      throw RecipeError("[recipe.modifier] {}: targets is missing; name modules, such as Linear", where);
    plain_["targets"] = usual_target;
  }
  targets_.emplace(names_in(plain_["targets"], where + ".targets"), where + ".targets");
  ignore_ = target_list(plain_, "ignore", where);
}

std::map<std::string, compression::EditPtr> TargetedEdit::edits_of(
    const std::vector<compression::ModelModule>& modules) const {
  std::map<std::string, compression::EditPtr> edits;
  for (const auto& [linear, place] : targeted_linears(modules, *targets_, ignore_).linears) edits[linear] = edit_;
  return edits;
}

}  // namespace layerpress::modifier
