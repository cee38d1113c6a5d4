#include <algorithm>

#include "layerpress/gguf/blocks/block_families.h"
#include "layerpress/gguf/blocks/block_type.h"

namespace layerpress::gguf {
namespace {

template <typename Predicate>
const BlockType* first_type(Predicate&& is_wanted) {
  const std::vector<const BlockType*>& types = block_types();
  const auto found = std::find_if(types.begin(), types.end(), is_wanted);
  return found == types.end() ? nullptr : *found;
}

}  // namespace

const std::vector<const BlockType*>& block_types() {
  static const std::vector<const BlockType*> types{
      &f32_type(),    &f16_type(),    &q4_0_type(), &q4_1_type(),  &q5_0_type(), &q5_1_type(),
      &q8_0_type(),   &q2_k_type(),   &q3_k_type(), &q4_k_type(),  &q5_k_type(), &q6_k_type(),
      &iq4_nl_type(), &iq4_xs_type(), &bf16_type(), &mxfp4_type(), &nvfp4_type()};
  return types;
}

const BlockType* find_block_type(const std::string& name) {
  return first_type([&](const BlockType* type) { return type->name() == name; });
}

const BlockType* find_block_type(std::uint32_t id) {
  return first_type([&](const BlockType* type) { return type->id() == id; });
}

std::vector<std::string> block_type_names() {
  std::vector<std::string> names;
  for (const BlockType* type : block_types()) names.push_back(type->name());
  return names;
}

}  // namespace layerpress::gguf
