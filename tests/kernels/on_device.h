#pragma once

#include <ATen/Context.h>
#include <gtest/gtest.h>

namespace layerpress {

inline const at::Device kGpu(at::kCUDA, 0);

/// Tests that need a GPU; skipped where there is none.
class OnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "no GPU";
  }
};

}  // namespace layerpress
