#include <ATen/ATen.h>

#include "layerpress/gguf/importance.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/targets.h"

namespace layerpress::fuzz {

void importance_file(std::string_view input) {
  const auto file = gguf::ImportanceFile::open(write_input("imatrix.gguf", input));
  for (const std::int64_t matrices : {1, 2})
    if (const auto entry = file.find({"blk.0.ffn_up.weight", matrices - 1, matrices, 4}))
      (void)entry->sums.sum().item<float>();
}

}  // namespace layerpress::fuzz
