#pragma once

#include <memory>
#include <string>

#include "layerpress/modifier/all_modifiers.h"

namespace layerpress::test {

/// The modifier of a type that quantizes; null for a transform.
inline std::unique_ptr<compression::Quantizer> make_quantizer(const std::string& type, const OrderedJson& arguments,
                                                              const std::string& where) {
  std::unique_ptr<compression::Modifier> modifier = modifier::make_modifier(type, arguments, where);
  auto* quantizer = dynamic_cast<compression::Quantizer*>(modifier.get());
  if (quantizer != nullptr) (void)modifier.release();
  return std::unique_ptr<compression::Quantizer>(quantizer);
}

}  // namespace layerpress::test
