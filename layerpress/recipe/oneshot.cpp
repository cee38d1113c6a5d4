#include "layerpress/oneshot.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <filesystem>

#include "layerpress/base/file.h"
#include "layerpress/base/machine.h"
#include "layerpress/base/text.h"
#include "layerpress/recipe/assignment.h"
#include "layerpress/recipe/dataset_options.h"
#include "layerpress/recipe/open_model.h"
#include "layerpress/recipe/output_writer.h"
#include "layerpress/recipe/recipe_of_options.h"

namespace layerpress {
namespace {

namespace fs = std::filesystem;

enum class Pipeline { kSequential, kBasic, kDatafree };

Pipeline choose_pipeline(const std::string& asked, const recipe::Modifiers& modifiers) {
  const bool needs_data =
      std::any_of(modifiers.begin(), modifiers.end(), [](const auto& modifier) { return modifier->needs_data(); });
  if (asked.empty()) return needs_data ? Pipeline::kSequential : Pipeline::kDatafree;
  if (asked == "sequential" || asked == "independent") return Pipeline::kSequential;
  if (asked == "basic") return Pipeline::kBasic;
  if (asked != "datafree")
    throw UsageError("[options] --pipeline: '{}' is not known; sequential, basic and datafree are", asked);
  if (needs_data)
    throw UsageError("[options] --pipeline datafree: the recipe needs calibration data (GPTQ, or a hessian observer)");
  return Pipeline::kDatafree;
}

void check_output(const OneshotOptions& options, const fs::path& model_directory) {
  if (options.output.empty()) throw UsageError("[options] --output is missing");
  std::error_code failure;
  const fs::path output = fs::weakly_canonical(options.output, failure),
                 model = fs::canonical(model_directory, failure);
  for (fs::path folder = output; folder.has_relative_path(); folder = folder.parent_path())
    if (folder == model)
      throw UsageError("[options] --output: {} is the model's own folder or inside it; choose another", options.output);
  if (options.summary.empty()) return;
  // Found out now rather than after the work.
  const fs::path summary = fs::absolute(options.summary, failure);
  if (fs::is_directory(summary) || !fs::is_directory(summary.parent_path()) ||
      ::access(summary.parent_path().c_str(), W_OK) != 0)
    throw UsageError("[options] --summary: {} cannot be written; name a file in an existing, writable folder",
                     options.summary);
}

/// The original config.json with the quantization_config.
Json output_config(const recipe::OpenedModel& model, const runtime::Assignments& assignments) {
  Json config = model.checkpoint->config();
  config["quantization_config"] = quant::to_json(recipe::quantization_config(model, assignments));
  for (const auto& [node, assignment] : assignments)
    if (model.traced.tied_head && model.traced.graph.module_name(model.traced.graph.nodes[node]) == "lm_head")
      config["tie_word_embeddings"] = false;
  return config;
}

Json report_json(const runtime::ModuleReport& report) {
  Json entry = {{"module", report.module},
                {"scheme", report.scheme},
                {"weight_error", report.weight_error},
                {"tokens", report.tokens},
                {"fallback", report.fallback.empty() ? Json() : Json(report.fallback)},
                {"output_error", report.output_error ? Json(*report.output_error) : Json()}};
  return entry;
}

/// One run, from options to the finished folder.
class Oneshot {
 public:
  Oneshot(const OneshotOptions& options, const RunControl& control) : options_(options), control_(control) {}

  OneshotSummary run() {
    const c10::InferenceMode inference;
    {
      const auto phase = times_.measure("open");
      threads_ = recipe::set_threads(options_.threads);
      recipe_ = recipe::recipe_of(options_);
      modifiers_ = recipe::make_modifiers(recipe_);
      pipeline_ = choose_pipeline(options_.pipeline, modifiers_);
      model_ = recipe::open_model(options_.model);
      if (!model_.checkpoint->quantization_config().is_null())
        throw CheckpointError("[oneshot] {}: the checkpoint is already quantized; start from the original one",
                              options_.model);
      assignments_ = recipe::assign(model_, modifiers_);
      subgraphs_ = recipe::cut_model(model_.traced, options_.sequential_targets);
      placement_ = recipe::choose_placement(options_.device, options_.dtype, model_.stored_dtype);
      check_output(options_, model_.checkpoint->directory());
    }
    const std::uint64_t shard_bytes = parse_bytes(options_.max_shard_size, "--max-shard-size");
    PendingDirectory directory(options_.output, options_.overwrite);
    for (const std::string& warning : recipe::kernel_warnings(model_, assignments_))
      control_.message(LogLevel::kWarning, warning);
    load_data();
    recipe::OutputWriter writer(model_, assignments_, directory.path(), shard_bytes);
    compress(writer);
    {
      const auto phase = times_.measure("finish");
      writer.finish();
      checkpoint::write_companions(*model_.checkpoint, output_config(model_, assignments_), directory.path(),
                                   {"recipe.yaml"});
      write_text_file(directory.path() / "recipe.yaml", recipe::to_yaml(recipe_));
      control_.check_stop();
      directory.commit();
    }
    return summarize(writer);
  }

 private:
  void load_data() {
    if (pipeline_ == Pipeline::kDatafree) return;
    const auto phase = times_.measure("data");
    if (options_.dataset.empty()) throw UsageError("[options] --dataset is missing: the recipe needs calibration data");
    const data::CalibrationSet set = data::load_samples(
        recipe::dataset_options(options_), model_.checkpoint->directory(), model_.traced.vocab_size, control_);
    samples_ = set.sample_count();
    tokens_ = set.token_count();
    batches_ = recipe::make_batches(set, recipe::choose_batch_tokens(options_.batch_tokens, model_.traced.graph));
    control_.message(LogLevel::kInfo,
                     fmt::format("{} samples, {} tokens in {} batches", samples_, tokens_, batches_.size()));
  }

  void compress(recipe::OutputWriter& writer) {
    const auto weights = model_.weights(placement_.dtype);
    const runtime::RunContext run{model_.traced.graph, *weights, placement_, batches_, control_, times_};
    if (pipeline_ == Pipeline::kSequential)
      runtime::run_sequential(run, subgraphs_, assignments_, writer);
    else if (pipeline_ == Pipeline::kBasic)
      runtime::run_basic(run, subgraphs_, assignments_, writer);
    else
      runtime::run_datafree(run, subgraphs_, assignments_, writer);
  }

  OneshotSummary summarize(const recipe::OutputWriter& writer) const {
    OneshotSummary summary;
    summary.seconds = timer_.seconds();
    summary.output = options_.output;
    summary.output_bytes = writer.total_bytes();
    Json modules = Json::array(), phases = Json::object();
    for (const runtime::ModuleReport& report : writer.reports()) {
      modules.push_back(report_json(report));
      ++summary.modules;
      if (report.fallback.empty()) continue;
      ++summary.fallbacks;
      control_.message(LogLevel::kWarning, fmt::format("{}: {}", report.module, report.fallback));
    }
    for (const auto& [name, phase] : times_.phases())
      phases[name] = {{"seconds", phase.seconds}, {"flops", phase.flops}, {"peak_bytes", phase.peak_resident_bytes}};
    summary.details = {{"layerpress", LAYERPRESS_VERSION},
                       {"model", options_.model},
                       {"architecture", model_.architecture},
                       {"output", options_.output},
                       {"output_bytes", summary.output_bytes},
                       {"recipe", recipe::to_yaml(recipe_)},
                       {"device", placement_.device.str()},
                       {"dtype", recipe::dtype_word(placement_.dtype)},
                       {"threads", threads_},
                       {"samples", samples_},
                       {"tokens", tokens_},
                       {"seconds", summary.seconds},
                       {"peak_bytes", peak_resident_bytes()},
                       {"phases", std::move(phases)},
                       {"modules", std::move(modules)}};
    if (!options_.summary.empty()) write_text_file(options_.summary, summary.details.dump(2) + "\n");
    return summary;
  }

  const OneshotOptions& options_;
  const RunControl& control_;
  Timer timer_;
  PhaseTimes times_;
  int threads_ = 0;
  recipe::Recipe recipe_;
  recipe::Modifiers modifiers_;
  Pipeline pipeline_ = Pipeline::kSequential;
  recipe::OpenedModel model_;
  runtime::Assignments assignments_;
  std::vector<graph::Subgraph> subgraphs_;
  runtime::Placement placement_;
  std::vector<runtime::Batch> batches_;
  std::int64_t samples_ = 0, tokens_ = 0;
};

}  // namespace

OneshotSummary oneshot(const OneshotOptions& options, const RunControl& control) {
  return Oneshot(options, control).run();
}

}  // namespace layerpress
