#include "layerpress/setup/recipe_notes.h"

#include <algorithm>
#include <set>

#include "layerpress/base/text.h"

namespace layerpress::setup {
namespace {

std::vector<std::string> unused_arguments(const Modifiers& modifiers) {
  std::vector<std::string> unused;
  for (const auto& modifier : modifiers)
    for (const std::string& argument : modifier->arguments_without_effect())
      if (std::find(unused.begin(), unused.end(), argument) == unused.end()) unused.push_back(argument);
  return unused;
}

}  // namespace

std::vector<std::string> recipe_notes(const Modifiers& modifiers, const compression::Assignments& assignments) {
  std::vector<std::string> notes;
  if (const auto unused = unused_arguments(modifiers); !unused.empty())
    notes.push_back(
        fmt::format("the recipe's {} {} no effect here", join(unused), unused.size() == 1 ? "has" : "have"));
  std::set<const quant::QuantizationScheme*> used;
  for (const auto& [node, assignment] : assignments.linears) used.insert(assignment.scheme);
  for (const compression::QuantizedAttention& attention : assignments.attentions) used.insert(attention.group);
  for (const auto& modifier : modifiers) {
    const auto* quantizer = dynamic_cast<const compression::Quantizer*>(modifier.get());
    if (quantizer == nullptr) continue;
    for (const compression::Quantizer::SchemeGroup& group : quantizer->scheme_groups())
      if (!used.contains(group.scheme))
        notes.push_back(
            fmt::format("{}: group '{}' compresses nothing: what its targets ({}) match is ignored or goes to another "
                        "group, or there "
                        "is none",
                        modifier->type(), group.name, join(group.scheme->targets)));
  }
  return notes;
}

}  // namespace layerpress::setup
