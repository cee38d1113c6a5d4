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
  static const std::vector<const BlockType*> kTypes = [] {
    std::vector<const BlockType*> all;
    for (const auto family : {float_types, flat_types, affine_types, symmetric_types, nonlinear_types, fp4_types})
      for (const BlockType* type : family()) all.push_back(type);
    std::sort(all.begin(), all.end(), [](const BlockType* a, const BlockType* b) { return a->id() < b->id(); });
    return all;
  }();
  return kTypes;
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
