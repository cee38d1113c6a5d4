#include "layerpress/oneshot.h"

#include <ATen/ATen.h>
#include <linux/magic.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <filesystem>
#include <set>

#include "layerpress/base/checksum.h"
#include "layerpress/base/file.h"
#include "layerpress/base/machine.h"
#include "layerpress/base/memory_sampler.h"
#include "layerpress/base/text.h"
#include "layerpress/recipe/dataset_options.h"
#include "layerpress/recipe/output_writer.h"
#include "layerpress/recipe/plan_report.h"
#include "layerpress/recipe/resumed_weights.h"
#include "layerpress/recipe/run_identity.h"
#include "layerpress/recipe/run_setup.h"
#include "layerpress/runtime/host_memory.h"

namespace layerpress {
namespace {

namespace fs = std::filesystem;
using runtime::Journal;

void check_output(const OneshotOptions& options, const fs::path& model_directory) {
  std::error_code failure;
  const fs::path output = fs::weakly_canonical(options.output, failure),
                 model = fs::canonical(model_directory, failure);
  for (fs::path folder = output; folder.has_relative_path(); folder = folder.parent_path())
    if (folder == model)
      throw UsageError("[options] --output: {} is the model's own folder or inside it; choose another", options.output);
  if (!options.offload_dir.empty() && !fs::is_directory(options.offload_dir, failure))
    throw UsageError("[options] --offload-dir: {} is no directory", options.offload_dir);
  if (options.summary.empty()) return;
  // Found out now rather than after the work.
  const fs::path summary = fs::absolute(options.summary, failure);
  if (fs::is_directory(summary) || !fs::is_directory(summary.parent_path()) ||
      ::access(summary.parent_path().c_str(), W_OK) != 0)
    throw UsageError("[options] --summary: {} cannot be written; name a file in an existing, writable folder",
                     options.summary);
}

/// The original config.json with the quantization_config.
Json output_config(const recipe::RunSetup& setup) {
  Json config = setup.model.checkpoint->config();
  config["quantization_config"] = quant::to_json(recipe::quantization_config(setup.model, setup.assignments));
  for (const auto& [node, assignment] : setup.assignments)
    if (setup.model.traced.tied_head &&
        setup.model.traced.graph.module_name(setup.model.traced.graph.nodes[node]) == "lm_head")
      config["tie_word_embeddings"] = false;
  return config;
}

data::CalibrationSet load_data(const OneshotOptions& options, const recipe::RunSetup& setup,
                               const RunControl& control) {
  if (setup.pipeline == recipe::Pipeline::kDatafree) return {};
  if (options.dataset.empty()) throw UsageError("[options] --dataset is missing: the recipe needs calibration data");
  return data::load_samples(recipe::dataset_options(options), setup.model.checkpoint->directory(),
                            setup.model.traced.vocab_size, control);
}

std::vector<std::int64_t> lengths_of(const data::CalibrationSet& set) {
  std::vector<std::int64_t> lengths;
  for (std::size_t i = 0; i + 1 < set.sample_offsets.size(); ++i)
    lengths.push_back(set.sample_offsets[i + 1] - set.sample_offsets[i]);
  return lengths;
}

/// One run, from options to the finished folder.
class Oneshot {
 public:
  Oneshot(const OneshotOptions& options, const RunControl& control) : options_(options), control_(control) {}

  OneshotSummary run() {
    const c10::InferenceMode inference;
    if (options_.output.empty()) throw UsageError("[options] --output is required");
    {
      const auto phase = times_.measure("open");
      setup_ = recipe::set_up(options_);
      check_output(options_, setup_.model.checkpoint->directory());
    }
    if (is_complete()) return already_complete();
    const std::uint64_t shard_bytes = parse_bytes(options_.max_shard_size, "--max-shard-size");
    // An unfinished folder is kept whatever was asked, until it is clear what it holds.
    directory_ = std::make_unique<PendingDirectory>(
        options_.output, PendingDirectory::Options{.overwrite = options_.overwrite,
                                                   .resume = options_.resume || !options_.overwrite,
                                                   .marker = Journal::kFileName});
    read_journal();
    for (const std::string& warning : recipe::kernel_warnings(setup_.model, setup_.assignments))
      control_.message(LogLevel::kWarning, warning);
    prepare(shard_bytes);
    try {
      compress();
      finish();
    } catch (const InterruptedError&) {
      throw InterruptedError("{}", interruption());
    } catch (const DamagedWeightsError&) {
      discard();  // another model is needed, with which nothing of this run can be used
      throw;
    } catch (const RecipeError&) {
      discard();
      throw;
    } catch (...) {
      keep_or_discard();
      throw;
    }
    return summarize();
  }

 private:
  // ---- before the work

  /// Whether --resume finds the finished output of the same run.
  bool is_complete() const {
    std::error_code failure;
    const fs::path target = options_.output;
    if (!options_.resume || !fs::is_directory(target, failure) || fs::is_empty(target, failure)) return false;
    if (fs::exists(PendingDirectory::pending_path(target) / Journal::kFileName)) return false;
    if (!holds_this_output(target)) {
      if (options_.overwrite) return false;
      throw UsageError(
          "[output] {}: is complete, but not what this run makes: another model, another recipe, or no checkpoint; "
          "choose another --output or pass --overwrite",
          options_.output);
    }
    return true;
  }

  /// Config, recipe, and all weights that are copied; which data it was calibrated on cannot be seen any more.
  bool holds_this_output(const fs::path& folder) const {
    try {
      const auto complete = checkpoint::Checkpoint::open(folder);
      if (complete->config() != output_config(setup_) ||
          read_text_file(folder / "recipe.yaml") != recipe::to_yaml(setup_.recipe))
        return false;
      const checkpoint::Checkpoint& original = *setup_.model.checkpoint;
      for (const std::string& name : original.names())
        if (complete->contains(name) && complete->spec(name).dtype == original.spec(name).dtype &&
            !at::equal(complete->tensor(name), original.tensor(name)))
          return false;
      return true;
    } catch (const CheckpointError&) {
      return false;  // no checkpoint, or a damaged one
    }
  }

  OneshotSummary already_complete() const {
    std::error_code failure;
    fs::remove(fs::path(options_.output) / Journal::kFileName,
               failure);  // left by a run that was killed at its very end
    OneshotSummary summary;
    summary.already_complete = true;
    summary.output = options_.output;
    summary.seconds = timer_.seconds();
    summary.details = {{"layerpress", LAYERPRESS_VERSION}, {"output", options_.output}, {"already_complete", true}};
    if (!options_.summary.empty()) write_text_file(options_.summary, summary.details.dump(2) + "\n");
    return summary;
  }

  void read_journal() {
    if (!directory_->continued()) return;
    journal_ = Journal::read(directory_->path() / Journal::kFileName);
    if (journal_.empty()) return;
    if (!options_.resume) {
      directory_->keep();
      const auto found = find_unfinished_run(options_.output);
      throw UsageError(
          "[output] {}: an earlier run did not finish ({} of {} subgraphs are done); continue it with --resume or "
          "start over "
          "with --overwrite",
          options_.output, found ? found->finished : 0, found ? found->subgraphs : 0);
    }
    const Json& header = journal_.front();
    const Json plan = header.contains("plan") ? header["plan"] : Json::object();
    if (options_.threads == 0)
      setup_.threads = recipe::set_threads(json_get_or<int>(plan, "threads", "journal", setup_.threads));
    batch_tokens_ = json_get_or<std::int64_t>(plan, "batch_tokens", "journal", 0);
  }

  recipe::RunIdentity identity(const data::CalibrationSet& set) const {
    recipe::RunIdentity identity;
    identity.options = recipe::identity_of_options(options_);
    identity.recipe = recipe::to_yaml(setup_.recipe);
    identity.software = recipe::identity_of_software(setup_.placement);
    identity.model = recipe::identity_of_model(setup_.model);
    if (set.sample_count() > 0) identity.dataset = recipe::identity_of_data(set);
    identity.subgraphs = setup_.subgraphs.size();
    return identity;
  }

  void require_same_run(const recipe::RunIdentity& identity) {
    if (journal_.empty()) return;
    const std::string found = recipe::difference(journal_.front(), identity);
    if (!found.empty())
      throw UsageError(
          "[resume] {}: the unfinished run cannot be continued: {}; use the same options and files, or start over with "
          "--overwrite",
          options_.output, found);
  }

  /// Data, what an earlier run left, the plan, and the files that are written to.
  void prepare(std::uint64_t shard_bytes) {
    recipe::RunIdentity identity = this->identity({});
    if (!journal_.empty()) {  // what is cheap to compare is compared before the data is read
      recipe::RunIdentity known = identity;
      known.dataset = journal_.front().value("dataset", Json());
      require_same_run(known);
    }
    data::CalibrationSet set;
    {
      const auto phase = times_.measure("data");
      set = load_data(options_, setup_, control_);
    }
    identity = this->identity(set);
    require_same_run(identity);
    const auto phase = times_.measure("plan");
    const auto open_output = [&] {
      output_ = std::make_unique<recipe::OutputWriter>(
          setup_.model, setup_.assignments, setup_.subgraphs,
          recipe::OutputWriter::Options{directory_->path(), shard_bytes, directory_->continued()});
    };
    if (!journal_.empty()) {
      open_output();
      accept_earlier();
    }
    make_plan(set);
    if (!output_) open_output();
    identity.plan = {{"threads", setup_.threads}, {"batch_tokens", plan_.batch_tokens}};
    output_->start_journal(identity.to_json());
  }

  void accept_earlier() {
    for (const std::string& name : output_->accept(journal_))
      control_.message(LogLevel::kWarning,
                       fmt::format("{}: its tensors in {} are damaged and are made again", name, options_.output));
    for (const bool finished : output_->finished()) resumed_ += finished ? 1 : 0;
    control_.message(LogLevel::kInfo,
                     fmt::format("{} of {} subgraphs are done already", resumed_, setup_.subgraphs.size()));
  }

  void make_plan(const data::CalibrationSet& set) {
    recipe::PlanInput input = recipe::plan_input(setup_, lengths_of(set));
    input.batch_tokens = batch_tokens_ > 0 ? batch_tokens_ : options_.batch_tokens;
    if (resumed_ > 0) {
      input.finished = output_->finished();
      // The other pipelines read nothing of finished subgraphs, or calibrate on the original weights whatever is done.
      if (setup_.pipeline == recipe::Pipeline::kSequential) resume_sequential(set, input);
    }
    plan_ = recipe::plan_run(input);
    require_scratch_space();
    if (set.sample_count() == 0) return;
    batches_ = recipe::make_batches(set, plan_.batch_tokens);
    control_.message(LogLevel::kInfo, fmt::format("{} samples, {} tokens in {} batches", set.sample_count(),
                                                  set.token_count(), batches_.size()));
  }

  void resume_sequential(const data::CalibrationSet& set, recipe::PlanInput& input) {
    auto weights = std::make_unique<recipe::ResumedWeights>(setup_.model, setup_.assignments, setup_.subgraphs,
                                                            *output_, setup_.placement.dtype);
    input.mapped = [&resumed = *weights](const std::string& name) { return resumed.is_original(name); };
    weights_ = std::move(weights);
    restore_boundary(set, input);
  }

  fs::path scratch_path() const {
    if (setup_.place != recipe::ActivationPlace::kAuto && setup_.place != recipe::ActivationPlace::kDisk) return {};
    if (options_.offload_dir.empty()) return directory_->path() / recipe::OutputWriter::kScratchName;
    const std::string output = directory_->path().string();
    return fs::path(options_.offload_dir) /
           fmt::format(".layerpress-activations-{}", checksum_of(output.data(), output.size()));
  }

  /// A disk that is too small for the activations shows now rather than hours later.
  void require_scratch_space() const {
    std::uint64_t needed = 0, boundary = 0, tokens = 0;
    for (const runtime::SubgraphPlan& subgraph : plan_.memory.subgraphs)
      needed = std::max(needed, subgraph.activation_disk_bytes);
    if (needed == 0) return;
    // The values behind the last subgraph stay until those behind the next are safe.
    for (const runtime::Batch& batch : plan_.batches) tokens += static_cast<std::uint64_t>(batch.tokens());
    for (const runtime::SubgraphSchedule& subgraph : plan_.schedule) {
      std::uint64_t features = 0;
      for (const graph::ValueId value : subgraph.boundary)
        features += static_cast<std::uint64_t>(setup_.model.traced.graph.values[value].features);
      boundary = std::max(boundary, tokens * features * c10::elementSize(setup_.placement.dtype));
    }
    needed += boundary;
    std::error_code failure;
    const fs::path folder = scratch_path().parent_path();
    struct statfs system {};
    if (::statfs(folder.c_str(), &system) == 0 && system.f_type == TMPFS_MAGIC)
      control_.message(
          LogLevel::kWarning,
          fmt::format("{} is a disk in memory: activations there count against no budget", folder.string()));
    const fs::space_info space = fs::space(folder, failure);
    if (failure) return;
    const std::uintmax_t used = fs::file_size(scratch_path(), failure);  // an earlier run's, which is used again
    const std::uintmax_t available = space.available + (failure ? 0 : used);
    if (available < needed)
      throw MemoryError(
          "[plan] activations need {} on disk, {} has {} free; choose another --offload-dir, or use fewer samples or a "
          "larger "
          "--memory-budget",
          format_bytes(needed), folder.string(), format_bytes(available));
  }

  runtime::ActivationStore::Options store_options() const {
    runtime::ActivationStore::Options options;
    options.scratch = scratch_path();
    if (setup_.place == recipe::ActivationPlace::kNone) options.home = setup_.placement.device;
    return options;
  }

  /// When every value that the next subgraph reads is still in the scratch file, nothing has to be run again.
  void restore_boundary(const data::CalibrationSet& set, recipe::PlanInput& input) {
    std::size_t next = 0;
    while (next < input.finished.size() && input.finished[next]) ++next;
    const bool in_order = std::find(input.finished.begin() + static_cast<std::ptrdiff_t>(next), input.finished.end(),
                                    true) == input.finished.end();
    if (next == 0 || next == input.finished.size() || !in_order || scratch_path().empty() || set.sample_count() == 0)
      return;
    const auto boundary = output_->records().at(next - 1).find("boundary");
    if (boundary == output_->records().at(next - 1).end()) return;
    const auto schedule = runtime::make_schedule(
        {setup_.model.traced.graph, setup_.subgraphs, setup_.assignments, input.finished, {}, {}});
    runtime::ActivationStore::Expected expected;
    expected.index = next - 1;
    for (const graph::ValueId value : schedule[next - 1].boundary)
      expected.features[value] = setup_.model.traced.graph.values[value].features;
    for (const runtime::Batch& batch : recipe::batches_of(lengths_of(set), input.batch_tokens))
      expected.tokens.push_back(batch.tokens());
    auto store = std::make_unique<runtime::ActivationStore>(expected.tokens.size(), store_options());
    if (!store->restore(*boundary, expected)) return;
    store_ = std::move(store);
    input.available = schedule[next - 1].boundary;
    control_.message(LogLevel::kInfo,
                     fmt::format("activations behind {} are still there", setup_.subgraphs[next - 1].name));
  }

  // ---- the work

  void compress() {
    // The pool may hold what the plan counts, which is everything beyond the process itself.
    const std::uint64_t now = recipe::process_baseline(setup_.pipeline);
    const std::uint64_t process = now - std::min(now, memory_.used_bytes());
    memory_.limit(plan_.memory.peak.host - std::min(plan_.memory.peak.host, process));
    if (!weights_) weights_ = setup_.model.weights(setup_.placement.dtype);
    const runtime::RunContext run{setup_.model.traced.graph, *weights_, setup_.placement, batches_, control_, times_};
    switch (setup_.pipeline) {
      case recipe::Pipeline::kSequential: {
        if (!store_) store_ = std::make_unique<runtime::ActivationStore>(batches_.size(), store_options());
        store_->limit_memory(plan_.activation_limit);
        runtime::run_sequential(run, plan_.schedule, setup_.assignments, *store_, *output_);
        spilled_bytes_ = store_->spilled_bytes();
        break;
      }
      case recipe::Pipeline::kBasic:
        runtime::run_basic(run, setup_.subgraphs, setup_.assignments, output_->finished(), *output_);
        break;
      case recipe::Pipeline::kDatafree:
        runtime::run_datafree(run, setup_.subgraphs, setup_.assignments, output_->finished(), *output_);
        break;
    }
  }

  void finish() {
    const auto phase = times_.measure("finish");
    store_.reset();
    output_->finish();
    checkpoint::write_companions(*setup_.model.checkpoint, output_config(setup_), directory_->path(), {"recipe.yaml"});
    write_text_file(directory_->path() / "recipe.yaml", recipe::to_yaml(setup_.recipe));
    std::error_code failure;
    if (!scratch_path().empty()) fs::remove(scratch_path(), failure);
    control_.check_stop();
    directory_->commit();
    // Last: until the folder has its name, the journal says how to get there.
    fs::remove(fs::path(options_.output) / Journal::kFileName, failure);
  }

  void keep_or_discard() {
    if (output_->records().empty())
      discard();
    else
      directory_->keep();
  }

  /// The unfinished folder goes by itself; a scratch file elsewhere does not.
  void discard() {
    if (directory_->continued()) return;  // an earlier run's, which stays
    store_.reset();
    std::error_code ignored;
    if (!scratch_path().empty()) fs::remove(scratch_path(), ignored);
  }

  /// What to say when somebody asked to stop.
  std::string interruption() {
    keep_or_discard();
    if (output_->records().empty()) return "stopped on request; no subgraph was finished, so nothing is kept";
    return fmt::format("stopped on request; {} of {} subgraphs are done, continue with --resume",
                       output_->records().size(), setup_.subgraphs.size());
  }

  OneshotSummary summarize() {
    OneshotSummary summary;
    summary.seconds = timer_.seconds();
    summary.output = options_.output;
    summary.output_bytes = output_->total_bytes();
    Json modules = Json::array(), phases = Json::object();
    for (const runtime::ModuleReport& report : output_->reports()) {
      modules.push_back(report.to_json());
      ++summary.modules;
      if (report.fallback.empty()) continue;
      ++summary.fallbacks;
      control_.message(LogLevel::kWarning, fmt::format("{}: {}", report.module, report.fallback));
    }
    for (const auto& [name, phase] : times_.phases())
      phases[name] = {{"seconds", phase.seconds}, {"flops", phase.flops}, {"peak_bytes", phase.peak_resident_bytes}};
    const Json plan = recipe::plan_numbers(setup_, plan_);
    summary.details = {{"layerpress", LAYERPRESS_VERSION},
                       {"model", options_.model},
                       {"architecture", setup_.model.architecture},
                       {"output", options_.output},
                       {"output_bytes", summary.output_bytes},
                       {"recipe", recipe::to_yaml(setup_.recipe)},
                       {"device", setup_.placement.device.str()},
                       {"dtype", recipe::dtype_word(setup_.placement.dtype)},
                       {"threads", setup_.threads},
                       {"samples", plan["samples"]},
                       {"tokens", plan["tokens"]},
                       {"seconds", summary.seconds},
                       {"plan", plan},
                       {"peak_bytes", peak_resident_bytes()},
                       {"peak_anonymous_bytes", sampler_.peak_bytes()},
                       {"spilled_bytes", spilled_bytes_},
                       {"resumed_subgraphs", resumed_},
                       {"phases", std::move(phases)},
                       {"modules", std::move(modules)}};
    if (!options_.summary.empty()) write_text_file(options_.summary, summary.details.dump(2) + "\n");
    return summary;
  }

  const OneshotOptions& options_;
  const RunControl& control_;
  Timer timer_;
  PhaseTimes times_;
  MemorySampler sampler_;
  runtime::HostMemory memory_;
  recipe::RunSetup setup_;
  std::unique_ptr<PendingDirectory> directory_;
  std::vector<Json> journal_;  // of the run that is continued
  std::int64_t batch_tokens_ = 0;
  std::size_t resumed_ = 0;
  recipe::RunPlan plan_;
  std::vector<runtime::Batch> batches_;
  std::unique_ptr<recipe::OutputWriter> output_;
  std::unique_ptr<runtime::WeightSource> weights_;
  std::unique_ptr<runtime::ActivationStore> store_;
  std::uint64_t spilled_bytes_ = 0;
};

}  // namespace

OneshotSummary oneshot(const OneshotOptions& options, const RunControl& control) {
  return Oneshot(options, control).run();
}

Json plan_oneshot(const OneshotOptions& options, const RunControl& control) {
  const recipe::RunSetup setup = recipe::set_up(options);
  std::vector<std::int64_t> lengths;
  if (!options.dataset.empty()) {
    lengths = lengths_of(load_data(options, setup, control));
  } else if (setup.pipeline != recipe::Pipeline::kDatafree) {
    if (options.num_calibration_samples < 1 || options.max_seq_length < 1)
      throw UsageError("[options] --num-calibration-samples and --max-seq-length must be positive");
    lengths.assign(static_cast<std::size_t>(options.num_calibration_samples), options.max_seq_length);
  }
  recipe::PlanInput input = recipe::plan_input(setup, std::move(lengths));
  input.batch_tokens = options.batch_tokens;
  const recipe::RunPlan plan = recipe::plan_run(input);
  return recipe::plan_report(setup, plan, recipe::measure_rates(setup, options.output));
}

std::optional<UnfinishedRun> find_unfinished_run(const std::string& output) {
  const std::vector<Json> records = Journal::read(PendingDirectory::pending_path(output) / Journal::kFileName);
  if (records.empty()) return std::nullopt;
  UnfinishedRun run;
  run.finished = records.size() - 1;
  run.subgraphs = json_get_or<std::size_t>(records.front(), "subgraphs", "journal", 0);
  return run;
}

}  // namespace layerpress
