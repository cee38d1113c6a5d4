#include "layerpress/quant/scheme_name.h"

#include <gtest/gtest.h>

namespace layerpress::quant {
namespace {

TEST(SchemeNameTest, PresetsHaveTheirNames) {
  for (const std::string& name : preset_names()) {
    if (name == "UNQUANTIZED" || name == "INT8") continue;
    EXPECT_EQ(scheme_name(preset_scheme(name)), name);
  }
  EXPECT_EQ(scheme_name(preset_scheme("INT8")), "W8A8");  // the same numbers
}

TEST(SchemeNameTest, OtherGroupsAndObservers) {
  QuantizationScheme scheme = preset_scheme("W4A16");
  scheme.weights->observer = "mse";
  EXPECT_EQ(scheme_name(scheme), "W4A16");
  scheme.weights->group_size = 64;
  EXPECT_EQ(scheme_name(scheme), "W4A16 (group 64)");
}

TEST(SchemeNameTest, OtherNumbersAreNoPreset) {
  QuantizationScheme scheme = preset_scheme("W4A16");
  scheme.weights->strategy = Strategy::kChannel;
  scheme.weights->group_size.reset();
  EXPECT_EQ(scheme_name(scheme), "");
  QuantizationScheme asymmetric = preset_scheme("W8A16");
  asymmetric.weights->symmetric = false;
  EXPECT_EQ(scheme_name(asymmetric), "");
  EXPECT_EQ(scheme_name({}), "");
}

}  // namespace
}  // namespace layerpress::quant
