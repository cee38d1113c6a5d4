#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "layerpress/compression/edited_encoding.h"
#include "layerpress/modifier/all_modifiers.h"
#include "layerpress/modifier/sensitivity.h"

namespace layerpress::test {

/// The modifier of a type that quantizes; null for a transform.
inline std::unique_ptr<compression::Quantizer> make_quantizer(const std::string& type, const OrderedJson& arguments,
                                                              const std::string& where) {
  std::unique_ptr<compression::Modifier> modifier = modifier::make_modifier(type, arguments, where);
  auto* quantizer = dynamic_cast<compression::Quantizer*>(modifier.get());
  if (quantizer != nullptr) (void)modifier.release();
  return std::unique_ptr<compression::Quantizer>(quantizer);
}

/// What measures rounding to these schemes.
inline std::unique_ptr<modifier::Sensitivity> make_sensitivity(const std::vector<std::string>& schemes,
                                                               bool asks_what_gptq_leaves = false) {
  modifier::Sensitivity::Candidates candidates;
  for (const std::string& scheme : schemes)
    candidates.push_back(make_quantizer("QuantizationModifier", {{"scheme", scheme}}, "test"));
  return std::make_unique<modifier::Sensitivity>(std::move(candidates), asks_what_gptq_leaves);
}

/// The edit that a modifier makes of a linear "m", and then `encoding`, or none.
inline std::unique_ptr<compression::Quantizer> make_edited(const std::string& type, const OrderedJson& arguments,
                                                           std::int64_t columns,
                                                           const compression::Quantizer* encoding) {
  const std::unique_ptr<compression::Modifier> modifier = modifier::make_modifier(type, arguments, "test");
  const auto edits =
      dynamic_cast<const compression::EditingModifier&>(*modifier).edits_of({{{"m", {"Linear"}}, true, columns}});
  return std::make_unique<compression::EditedEncoding>(std::vector{edits.at("m")}, encoding);
}

}  // namespace layerpress::test
