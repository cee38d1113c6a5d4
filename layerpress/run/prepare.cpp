#include "layerpress/prepare.h"

#include <filesystem>

#include "layerpress/base/files/missing_folder.h"
#include "layerpress/run/compression/dataset_options.h"
#include "layerpress/setup/opening/hub.h"
#include "layerpress/setup/opening/open_model.h"

namespace layerpress {

Prepared prepare(const PrepareOptions& options, const RunControl& control) {
  if (options.output.empty()) throw UsageError("[options] --output is missing");
  require_own_file("--output", options.output, {{"the dataset", options.dataset}, {"the model", options.model}},
                   {{"a file of the model", options.model}});
  require_writable("--output", options.output);
  if (std::filesystem::path(options.output).extension() != ".safetensors")
    throw UsageError(
        "[options] --output: {} does not end in .safetensors, by which --dataset knows a token file; rename it",
        options.output);
  data::DatasetOptions dataset = run::dataset_options(options);
  run::warn_of_unused(dataset, control);
  if (options.download) setup::download_model(options.model, control);
  const setup::OpenedModel model = setup::open_model(
      options.model, {.graph = options.model_graph, .trust_remote_code = options.trust_remote_code}, control);
  dataset.has_tokenizer = model.has_tokenizer;
  const data::CalibrationSet set =
      data::load_samples(dataset, model.checkpoint->directory(), model.traced.vocab_size, control);
  data::write_token_file(options.output, set);
  return {set.sample_count(), set.token_count()};
}

}  // namespace layerpress
