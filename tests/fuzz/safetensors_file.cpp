#include <ATen/ATen.h>

#include "layerpress/checkpoint/safetensors.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/targets.h"

namespace layerpress::fuzz {

void safetensors_file(std::string_view input) {
  const auto file = checkpoint::SafetensorsFile::open(write_input("file.safetensors", safetensors_of(input)));
  std::uint64_t bytes = 0;
  for (const auto& [name, spec] : file->tensors()) {
    const at::Tensor tensor = file->tensor(name);
    bytes += tensor.nbytes();
    if (tensor.numel() > 0) (void)tensor.contiguous().view({-1}).view(at::kByte).sum().item<std::int64_t>();
  }
  require(bytes <= input.size(), "tensors beyond the file");
}

}  // namespace layerpress::fuzz
