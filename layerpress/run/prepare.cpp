#include "layerpress/prepare.h"

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include "layerpress/base/files/missing_folder.h"
#include "layerpress/base/files/temporary_directory.h"
#include "layerpress/run/compression/dataset_options.h"
#include "layerpress/setup/opening/helper_request.h"
#include "layerpress/setup/opening/hub.h"
#include "layerpress/setup/opening/open_model.h"

namespace layerpress {
namespace {

/// Reports the continuations that the helper has begun.
void report_step(std::string_view line, const RunControl& control) {
  const Json step = Json::parse(line, nullptr, false);
  if (!json_has(step, "continued")) return;
  constexpr const char* kWhere = "the data helper's answer";
  control.step(json_get<std::uint64_t>(step, "continued", kWhere), json_get<std::uint64_t>(step, "of", kWhere),
               "samples of the model's own");
}

void require_generation(const PrepareOptions& options, const setup::OpenedModel& model) {
  if (options.generate < 0) throw UsageError("[options] --generate must not be negative");
  if (options.use_loss_mask)
    throw UsageError("[options] --generate: what the model writes has no loss mask; leave out --use-loss-mask");
  if (model.file_metadata)
    throw UsageError("[options] --generate: transformers must load {}, which is a GGUF file; name the original model",
                     options.model);
}

/// Adds samples that the model writes.
void add_continuations(const PrepareOptions& options, const setup::OpenedModel& model, data::CalibrationSet& set,
                       const RunControl& control) {
  if (!set.images.empty())
    throw UsageError(
        "[options] --generate: {} has samples with images, which the model cannot continue as text; leave "
        "it out",
        options.dataset);
  if (!set.loss_mask.empty())
    throw UsageError(
        "[options] --generate: the samples of {} have loss masks, and what the model writes has none; leave one out",
        options.dataset);
  Json samples = Json::array();
  for (std::int64_t i = 0; i < set.sample_count(); ++i) {
    const auto begin = set.tokens.begin() + set.sample_offsets[static_cast<std::size_t>(i)];
    samples.push_back(
        std::vector<std::int32_t>(begin, set.tokens.begin() + set.sample_offsets[static_cast<std::size_t>(i) + 1]));
  }
  const TemporaryDirectory folder;  // an answer of so many numbers would be too long for a line
  const std::filesystem::path written = folder.path() / "continuations.safetensors";
  const Json request = {{"model", model.checkpoint->directory().string()},
                        {"samples", std::move(samples)},
                        {"continuations", options.generate},
                        {"output", written.string()},
                        {"seed", options.seed},
                        {"trust_remote_code", options.trust_remote_code}};
  (void)setup::ask_helper({"prepare.py", "[data.prepare]", request}, control,
                          [&](std::string_view line) { report_step(line, control); });
  const data::CalibrationSet made = data::read_token_file(written);
  for (const std::int32_t id : made.tokens)
    if (id >= model.traced.vocab_size)
      throw DataError("[data.prepare] the model wrote the token {}, but its vocabulary has {}", id,
                      model.traced.vocab_size);
  set.append(made);
}

}  // namespace

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
  run::warn_of_unused(dataset, /*draws=*/options.generate != 0, control);
  if (options.download) setup::download_model(options.model, control);
  const setup::OpenedModel model = setup::open_model(
      options.model, {.graph = options.model_graph, .trust_remote_code = options.trust_remote_code}, control);
  dataset.has_tokenizer = model.has_tokenizer;
  if (options.generate != 0) require_generation(options, model);
  data::CalibrationSet set =
      data::load_samples(dataset, model.checkpoint->directory(), model.traced.vocab_size, control);
  if (options.generate != 0) add_continuations(options, model, set, control);
  data::write_token_file(options.output, set);
  return {set.sample_count(), set.token_count()};
}

}  // namespace layerpress
