#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "layerpress/compression/edit.h"
#include "layerpress/modifier/arguments/argument.h"
#include "layerpress/quant/targets/matching.h"

namespace layerpress::modifier {

/// The linears that targets reach.
struct TargetedLinears {
  std::size_t targets = 0;  ///< modules that the targets match
  std::map<std::string, std::size_t>
      linears;  ///< for each linear, the place of its target among them; the innermost counts
};

/// A module around linears means all of them, but no routers and gates: those must be named, or their class. `ignore`: nothing, or what stays as it is.
TargetedLinears targeted_linears(const std::vector<compression::ModelModule>& modules, const quant::TargetList& targets,
                                 const std::optional<quant::TargetList>& ignore);

/// The names of the argument `key`; nothing if it is missing, null or an empty list. Throws RecipeError naming `where` and the key.
std::optional<quant::TargetList> target_list(const Json& arguments, const std::string& key, const std::string& where);

/// The entries of these lists that have matched nothing so far.
std::vector<compression::Modifier::ListEntry> unmatched_in(const quant::TargetList& targets,
                                                           const std::optional<quant::TargetList>& ignore);

/// Bytes of a linear's edited weight.
std::uint64_t edited_bytes(const compression::LinearShape& linear);

/// An entry of a recipe that has one edit for all of its targets. Arguments: targets, and ignore if `known` has it.
class TargetedEdit : public compression::EditingModifier {
 public:
  std::string type() const override { return edit_->type(); }
  std::map<std::string, compression::EditPtr> edits_of(
      const std::vector<compression::ModelModule>& modules) const override;
  std::vector<ListEntry> unmatched_entries() const override { return unmatched_in(*targets_, ignore_); }

 protected:
  /// `known`: all arguments that the derived class, which sets edit_, takes. `usual_target`: without targets; "" where they may not be
  /// missing. Throws RecipeError naming `where` and the argument.
  TargetedEdit(const OrderedJson& arguments, const std::string& where, const std::vector<Argument>& known,
               const std::string& usual_target = "");

  Json plain_;
  compression::EditPtr edit_;

 private:
  std::optional<quant::TargetList> targets_, ignore_;
};

}  // namespace layerpress::modifier
