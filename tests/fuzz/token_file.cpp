#include "layerpress/data/token_file.h"

#include <ATen/ATen.h>

#include "tests/fuzz/input.h"
#include "tests/fuzz/targets.h"

namespace layerpress::fuzz {

void token_file(std::string_view input) {
  const data::TokenFile file(write_input("tokens.safetensors", safetensors_of(input)));
  const std::int64_t samples = static_cast<std::int64_t>(file.sample_offsets().size()) - 1;
  (void)file.tokens(0, file.sample_offsets().back());
  if (file.has_loss_mask()) (void)file.loss_mask(0, file.sample_offsets().back());
  for (std::int64_t sample = 0; file.has_images() && sample < samples; ++sample) {
    const data::SampleImages images = file.images(sample);
    for (const at::Tensor& pixels : images.pixels) (void)pixels.sum().item<float>();
    if (images.embeddings.are_there()) (void)images.embeddings.cut(1).values.sum().item<float>();
  }
}

}  // namespace layerpress::fuzz
