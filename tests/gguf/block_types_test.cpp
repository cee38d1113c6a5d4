#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "layerpress/base/error.h"
#include "layerpress/gguf/blocks/block_rows.h"
#include "layerpress/gguf/blocks/block_type.h"

namespace layerpress::gguf {
namespace {

TEST(BlockTypes, AreFoundByNameAndById) {
  std::set<std::string> names;
  for (const BlockType* type : block_types()) {
    EXPECT_EQ(find_block_type(type->name()), type);
    EXPECT_EQ(find_block_type(type->id()), type);
    names.insert(type->name());
  }
  EXPECT_EQ(names.size(), block_types().size());
  EXPECT_EQ(find_block_type("Q4_Z"), nullptr);
  EXPECT_EQ(find_block_type(std::uint32_t{4711}), nullptr);
}

TEST(BlockRows, StoreFloatsAsTheTensorLibraryRoundsThem) {
  const at::Tensor weight = at::randn({13, 40});
  for (const auto& [name, dtype] : {std::pair{"F32", at::kFloat}, {"F16", at::kHalf}, {"BF16", at::kBFloat16}}) {
    const BlockType& type = *find_block_type(name);
    const at::Tensor blocks = round_rows(type, weight, {});
    EXPECT_TRUE(blocks.equal(weight.to(dtype).view(at::kByte))) << name;
    EXPECT_TRUE(decode_rows(type, blocks, 40).equal(weight.to(dtype).to(at::kFloat))) << name;
  }
}

TEST(BlockRows, RefuseShapesThatDoNotFit) {
  const BlockType& type = *find_block_type("F16");
  EXPECT_THROW(decode_rows(type, at::zeros({2, 10}, at::kByte), 4), InternalError);
  EXPECT_THROW(round_rows(type, at::zeros({2, 8}), at::ones({4})), InternalError);
}

}  // namespace
}  // namespace layerpress::gguf
