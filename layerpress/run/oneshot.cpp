#include "layerpress/oneshot.h"

#include <ATen/ATen.h>

#include <filesystem>
#include <set>

#include "layerpress/base/file.h"
#include "layerpress/base/memory_sampler.h"
#include "layerpress/base/text.h"
#include "layerpress/data/row_slice.h"
#include "layerpress/dist/division.h"
#include "layerpress/output/output_writer.h"
#include "layerpress/output/resumed_weights.h"
#include "layerpress/output/run_folder.h"
#include "layerpress/output/scratch_space.h"
#include "layerpress/pipeline/background_sink.h"
#include "layerpress/plan/plan_report.h"
#include "layerpress/residency/device_memory.h"
#include "layerpress/residency/host_memory.h"
#include "layerpress/run/dataset_options.h"
#include "layerpress/run/filled_experts.h"
#include "layerpress/run/run_summary.h"
#include "layerpress/setup/rank_agreement.h"
#include "layerpress/setup/run_identity.h"

namespace layerpress {
namespace {

namespace fs = std::filesystem;
using output::Journal;

/// A slice that a rank reads by itself; empty when the dataset has no such rows.
data::CalibrationSet load_own_slice(data::DatasetOptions options, const setup::RunSetup& setup,
                                    const RunControl& control) {
  const data::RowSlice slice = data::parse_row_slice(options.split);
  if (slice.stop) {
    if (slice.start >= *slice.stop) return {};
    options.num_samples = std::min(options.num_samples, *slice.stop - slice.start);
  }
  options.may_be_empty = true;
  return data::load_samples(options, setup.model.checkpoint->directory(), setup.model.traced.vocab_size, control);
}

/// This rank's part of the calibration set.
data::CalibrationSet load_data(const OneshotOptions& options, const setup::RunSetup& setup,
                               const setup::DataDivision& division, dist::Group& group, const RunControl& control) {
  if (setup.pipeline == setup::Pipeline::kDatafree) return {};
  if (options.dataset.empty()) throw UsageError("[options] --dataset is missing: the recipe needs calibration data");
  const data::DatasetOptions dataset = run::dataset_options(options);
  if (division.own_slices) return load_own_slice(dataset, setup, control);
  if (group.size() == 1)
    return data::load_samples(dataset, setup.model.checkpoint->directory(), setup.model.traced.vocab_size, control);
  setup::RankLoaders loaders(group);
  return data::load_partition(dataset, setup.model.checkpoint->directory(), setup.model.traced.vocab_size, loaders,
                              control);
}

/// What all ranks' parts are together, whoever has what.
Json identity_of_all(const data::CalibrationSet& set, dist::Group& group) {
  const at::Tensor sums = at::empty({3}, at::kLong);
  auto* sum = sums.data_ptr<std::int64_t>();
  sum[0] = set.sample_count();
  sum[1] = set.token_count();
  sum[2] = static_cast<std::int64_t>(setup::checksum_of_samples(set));  // wraps around, which sums may
  group.all_reduce(sums);
  if (sum[0] == 0) return nullptr;
  return setup::identity_of_data(sum[0], sum[1], static_cast<std::uint64_t>(sum[2]));
}

/// One run, from options to the finished folder, as one rank goes through it.
class Oneshot {
 public:
  Oneshot(const OneshotOptions& options, const RunControl& control, dist::Group& group)
      : options_(options), control_(control), group_(group) {}

  OneshotSummary run() {
    const c10::InferenceMode inference;
    if (options_.output.empty()) throw UsageError("[options] --output is required");
    {
      const auto phase = times_.measure("open");
      setup_ = setup::set_up(options_, group_);
      setup::require_same_request(options_, setup_, group_);
      division_ = setup::agree_on_data(options_.dataset_split, group_);
    }
    folder_ = std::make_unique<output::RunFolder>(options_, setup_, group_);
    if (folder_->is_complete()) return already_complete();
    setup::connect_devices(options_, setup_, group_, control_);
    const std::uint64_t shard_bytes = parse_bytes(options_.max_shard_size, "--max-shard-size");
    folder_->open();
    read_header();
    for (const std::string& warning : setup::kernel_warnings(setup_.model, setup_.assignments))
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
    return summary_;
  }

 private:
  // ---- before the work

  OneshotSummary already_complete() const {
    // Journals that a run left which was killed at its very end.
    if (group_.is_first()) Journal::remove_all(options_.output);
    OneshotSummary summary;
    summary.already_complete = true;
    summary.output = options_.output;
    summary.seconds = timer_.seconds();
    summary.details = {{"layerpress", LAYERPRESS_VERSION}, {"output", options_.output}, {"already_complete", true}};
    if (group_.is_first() && !options_.summary.empty())
      write_text_file(options_.summary, summary.details.dump(2) + "\n");
    return summary;
  }

  /// Of the run that is continued: what must be as it was.
  void read_header() {
    if (folder_->journal().empty()) return;
    const Json& header = folder_->journal().front();
    const Json plan = header.contains("plan") ? header["plan"] : Json::object();
    shard_sets_ = Journal::shard_sets(header);
    same_ranks_ = json_get_or<int>(plan, "ranks", "journal", 1) == group_.size();
    if (!same_ranks_) return;  // the work is divided anew
    if (options_.threads == 0)
      setup_.threads = setup::set_threads(
          json_get<std::vector<int>>(plan, "threads", "journal").at(static_cast<std::size_t>(group_.rank())));
    batch_tokens_ = json_get_or<std::int64_t>(plan, "batch_tokens", "journal", 0);
  }

  setup::RunIdentity identity() const {
    setup::RunIdentity identity;
    identity.options = setup::identity_of_options(options_);
    identity.options["dataset-split"] = division_.split;
    identity.recipe = recipe::to_yaml(setup_.recipe);
    identity.software = setup::identity_of_software(setup_.placement);
    identity.model = setup::identity_of_model(setup_.model);
    identity.subgraphs = setup_.subgraphs.size();
    return identity;
  }

  /// The header is rank 0's, and so is the comparison: other hosts' copies have other times.
  void require_same_run(const setup::RunIdentity& identity) {
    if (folder_->journal().empty() || !group_.is_first()) return;
    const std::string found = setup::difference(folder_->journal().front(), identity);
    if (!found.empty())
      throw UsageError(
          "[resume] {}: the unfinished run cannot be continued: {}; use the same options and files, or start over with "
          "--overwrite",
          options_.output, found);
  }

  /// Data, what an earlier run left, the plan, and the files that are written to.
  void prepare(std::uint64_t shard_bytes) {
    setup::RunIdentity identity = this->identity();
    if (!folder_->journal().empty()) {  // what is cheap to compare is compared before the data is read
      setup::RunIdentity known = identity;
      known.dataset = folder_->journal().front().value("dataset", Json());
      require_same_run(known);
    }
    data::CalibrationSet set;
    {
      const auto phase = times_.measure("data");
      control_.step(0, setup_.subgraphs.size(), "data");
      set = load_data(options_, setup_, division_, group_, control_);
      identity.dataset = identity_of_all(set, group_);
      if (!identity.dataset.is_null()) all_tokens_ = identity.dataset["tokens"].get<std::int64_t>();
    }
    if (identity.dataset.is_null() && setup_.pipeline != setup::Pipeline::kDatafree)
      throw DataError("[data] {}, split {}: gives no samples; pass another dataset or split", options_.dataset,
                      division_.split);
    require_same_run(identity);
    const auto phase = times_.measure("plan");
    control_.step(0, setup_.subgraphs.size(), "plan");
    if (!folder_->journal().empty()) {
      open_output(shard_bytes);
      accept_earlier();
    }
    make_plan(set);
    if (!output_) open_output(shard_bytes);
    std::vector<int> threads;
    for (const at::Tensor& other : group_.all_gather(at::full({1}, setup_.threads, at::kInt)))
      threads.push_back(other.item<int>());
    identity.plan = {{"ranks", group_.size()}, {"threads", threads}, {"batch_tokens", plan_.batch_tokens}};
    start_journal(identity.to_json());
  }

  /// Rank 0 first: it removes what an earlier run left half done, and with its journal a run can be continued.
  void open_output(std::uint64_t shard_bytes) {
    if (!group_.is_first()) group_.barrier();
    if (group_.is_first() && !same_ranks_) output::OutputWriter::remove_scratch(folder_->path());
    output_ = std::make_unique<output::OutputWriter>(
        setup_.model, setup_.assignments, setup_.subgraphs,
        output::OutputWriter::Options{.directory = folder_->path(),
                                      .max_shard_bytes = shard_bytes,
                                      .reopen = folder_->continued(),
                                      .rank = group_.rank(),
                                      .ranks = group_.size(),
                                      .shard_sets = shard_sets_ > 0 ? shard_sets_ : group_.size(),
                                      .linears_first = setup_.pipeline == setup::Pipeline::kDatafree});
    if (group_.is_first()) group_.barrier();
  }

  void start_journal(const Json& header) {
    if (!group_.is_first()) group_.barrier();
    output_->start_journal(header);
    if (group_.is_first()) group_.barrier();
  }

  /// What one rank finds damaged is done again by all.
  void accept_earlier() {
    output_->accept(folder_->journal());
    std::string own;
    for (const bool finished : output_->finished()) own += finished ? '1' : '0';
    std::string all = own;
    for (const std::string& other : group_.all_gather_text(own))
      for (std::size_t s = 0; s < all.size(); ++s)
        if (other[s] == '0') all[s] = '0';
    for (const Json& record : folder_->journal()) {
      const auto index = json_get_or<std::size_t>(record, "index", "journal", all.size());
      if (index >= all.size() || all[index] == '1') continue;
      output_->reject(index);
      control_.message(LogLevel::kWarning, fmt::format("{}: its tensors in {} are damaged and are made again",
                                                       setup_.subgraphs[index].name, options_.output));
    }
    resumed_ = static_cast<std::size_t>(std::count(all.begin(), all.end(), '1'));
    control_.message(LogLevel::kInfo,
                     fmt::format("{} of {} subgraphs are done already", resumed_, setup_.subgraphs.size()));
  }

  void make_plan(const data::CalibrationSet& set) {
    plan::PlanInput input = plan::plan_input(setup_, plan::shapes_of(set));
    input.division_rates = rates_ = agreed_rates();
    if (output_) input.owns = [this](graph::NodeId linear) { return output_->owns(linear); };
    input.batch_tokens = batch_tokens_ > 0 ? batch_tokens_ : options_.batch_tokens;
    if (resumed_ > 0) {
      input.finished = output_->finished();
      // The other pipelines read nothing of finished subgraphs, or calibrate on the original weights whatever is done.
      if (setup_.pipeline == setup::Pipeline::kSequential) resume_sequential(set, input);
    }
    plan_ = plan::plan_run(input);
    // Sums over batches come out the same everywhere only when batches are cut alike.
    const std::int64_t least = setup::agree_on_least(plan_.batch_tokens, group_);
    if (least != plan_.batch_tokens) {
      input.batch_tokens = least;
      plan_ = plan::plan_run(input);
    }
    output::require_scratch_space(setup_, plan_, folder_->scratch(), options_.offload_dir.empty(), group_, control_);
    if (set.sample_count() == 0) return;
    batches_ = setup::make_batches(set, plan_.batch_tokens, setup_.model.traced.graph);
    control_.message(LogLevel::kInfo,
                     fmt::format("{} samples, {} tokens in {} batches{}", set.sample_count(), set.token_count(),
                                 batches_.size(), group_.size() > 1 ? " on rank 0" : ""));
  }

  /// All ranks divide by the same figures.
  dist::DivisionRates agreed_rates() {
    dist::DivisionRates rates;
    rates.update_flops *= static_cast<double>(setup::agree_on_least(setup_.threads, group_));
    return rates;
  }

  void resume_sequential(const data::CalibrationSet& set, plan::PlanInput& input) {
    auto weights = std::make_unique<output::ResumedWeights>(setup_.model, setup_.assignments, setup_.subgraphs,
                                                            *output_, setup_.placement.dtype);
    input.mapped = [&resumed = *weights](const std::string& name) { return resumed.is_original(name); };
    weights_ = std::move(weights);
    restore_boundary(set, input);
  }

  residency::ActivationStore::Options store_options() const {
    residency::ActivationStore::Options options;
    options.scratch = folder_->scratch();
    return options;
  }

  /// When every value that the next subgraph reads is still in the scratch file, nothing has to be run again.
  void restore_boundary(const data::CalibrationSet& set, plan::PlanInput& input) {
    std::size_t next = 0;
    while (next < input.finished.size() && input.finished[next]) ++next;
    const bool in_order = std::find(input.finished.begin() + static_cast<std::ptrdiff_t>(next), input.finished.end(),
                                    true) == input.finished.end();
    if (next == 0 || next == input.finished.size() || !in_order || folder_->scratch().empty() ||
        set.sample_count() == 0)
      return;
    const Json boundary = output_->boundary(next - 1);
    if (boundary.is_null()) return;
    const auto schedule = schedule::make_schedule(
        {setup_.model.traced.graph, setup_.subgraphs, setup_.assignments, input.finished, {}, {}});
    residency::ActivationStore::Expected expected;
    expected.index = next - 1;
    const graph::Graph& graph = setup_.model.traced.graph;
    const auto batches = plan::batches_of(plan::shapes_of(set), input.batch_tokens, graph);
    for (const graph::ValueId id : schedule[next - 1].boundary) {
      const graph::Value& value = graph.values[graph::ReferenceStream::value_of(graph, id)];
      if (value.rows == graph::Rows::kSelected) return;  // how many they were is known only by running again
      for (const execution::Batch& batch : batches)
        expected.shapes[id].push_back({batch.rows(value.rows), value.features});
    }
    auto store = std::make_unique<residency::ActivationStore>(batches.size(), store_options());
    if (!store->restore(boundary, expected)) return;
    store_ = std::move(store);
    input.available = schedule[next - 1].boundary;
    control_.message(LogLevel::kInfo,
                     fmt::format("activations behind {} are still there", setup_.subgraphs[next - 1].name));
  }

  // ---- the work

  void compress() {
    // The pool may hold what the plan counts, which is everything beyond the process itself.
    const std::uint64_t now =
        plan::process_baseline(setup_.pipeline, setup_.placement.dtype, setup_.model.traced.graph);
    const std::uint64_t process = now - std::min(now, memory_.used_bytes());
    residency::restart_peak_device_bytes(setup_.placement.device);
    memory_.limit(plan_.memory.peak.host - std::min(plan_.memory.peak.host, process));
    if (!weights_) weights_ = setup_.model.weights(setup_.placement.dtype);
    const auto original = setup_.model.weights(setup_.placement.dtype);
    const execution::RunContext run{setup_.model.traced.graph,
                                    *weights_,
                                    setup_.placement,
                                    batches_,
                                    control_,
                                    times_,
                                    group_,
                                    rates_,
                                    all_tokens_,
                                    setup_.min_tokens_per_expert,
                                    original.get()};
    switch (setup_.pipeline) {
      case setup::Pipeline::kSequential: {
        if (!store_) store_ = std::make_unique<residency::ActivationStore>(batches_.size(), store_options());
        store_->limit_memory(plan_.activation_limit);
        store_->live_on(plan_.activation_home);
        if (plan_.activation_home.is_cpu()) store_->copy_by(residency::host_copies(setup_.placement.device));
        run_sequential(run);
        spilled_bytes_ = store_->spilled_bytes();
        break;
      }
      case setup::Pipeline::kBasic:
        pipeline::run_basic(run, setup_.subgraphs, setup_.assignments, output_->finished(), *output_);
        break;
      case setup::Pipeline::kDatafree:
        pipeline::run_datafree(run, setup_.subgraphs, setup_.assignments, output_->finished(), *output_);
        break;
    }
  }

  void run_sequential(const execution::RunContext& run) {
    if (setup_.placement.device.is_cpu()) {
      pipeline::run_sequential(run, plan_.schedule, setup_.assignments, *store_, *output_);
      return;
    }
    pipeline::BackgroundSink results(*output_, residency::host_copies(setup_.placement.device));
    pipeline::run_sequential(run, plan_.schedule, setup_.assignments, *store_, results);
    results.finish();
  }

  void finish() {
    control_.step(setup_.subgraphs.size(), setup_.subgraphs.size(), "finish");
    {
      const auto phase = times_.measure("finish");
      store_.reset();
      output_->finish();
      folder_->remove_scratch();
    }
    summarize();  // and all ranks' files are whole
    if (group_.is_first()) {
      output_->write_index();
      checkpoint::write_companions(*setup_.model.checkpoint, output::output_config(setup_), folder_->path(),
                                   {"recipe.yaml"});
      write_text_file(folder_->path() / "recipe.yaml", recipe::to_yaml(setup_.recipe));
      output::OutputWriter::remove_scratch(folder_->path());
      control_.check_stop();
      folder_->commit();
      if (!options_.summary.empty()) write_text_file(options_.summary, summary_.details.dump(2) + "\n");
    }
    group_.barrier();
  }

  void keep_or_discard() {
    if (output_->records().empty())
      discard();
    else
      folder_->keep();
  }

  /// The unfinished folder goes by itself; a scratch file elsewhere does not.
  void discard() {
    if (folder_->continued()) return;  // an earlier run's, which stays
    store_.reset();
    folder_->remove_scratch();
  }

  /// What to say when somebody asked to stop.
  std::string interruption() {
    keep_or_discard();
    if (output_->records().empty()) return "stopped on request; no subgraph was finished, so nothing is kept";
    return fmt::format("stopped on request; {} of {} subgraphs are done, continue with --resume",
                       output_->records().size(), setup_.subgraphs.size());
  }

  /// Collective, and before the output has its name: a rank that is lost here must not make a finished one look failed.
  void summarize() {
    OneshotSummary& summary = summary_;
    summary.output = options_.output;
    summary.output_bytes = output_->total_bytes();
    summary.seconds = timer_.seconds();
    const run::RankReport report{.seconds = summary.seconds,
                                 .peak_anonymous_bytes = sampler_.peak_bytes(),
                                 .peak_device_bytes = residency::peak_device_bytes(setup_.placement.device),
                                 .spilled_bytes = spilled_bytes_,
                                 .times = times_,
                                 .plan = plan_,
                                 .modules = output_->reports()};
    summary.details = run::run_summary(options_, setup_, report, group_);
    if (summary.details.is_null()) return;
    summary.details["layerpress"] = LAYERPRESS_VERSION;
    summary.details["output_bytes"] = summary.output_bytes;
    summary.details["resumed_subgraphs"] = resumed_;
    for (const Json& module : summary.details["modules"]) {
      ++summary.modules;
      if (!module["fallback"].is_string()) continue;
      ++summary.fallbacks;
      control_.message(LogLevel::kWarning, fmt::format("{}: {}", module["module"].get<std::string>(),
                                                       module["fallback"].get<std::string>()));
    }
    const run::FilledExperts filled = run::filled_experts(summary.details["modules"]);
    summary.details["filled_experts"] = filled.experts;
    if (filled.experts > 0) control_.message(LogLevel::kInfo, filled.text(setup_.min_tokens_per_expert));
  }

  const OneshotOptions& options_;
  const RunControl& control_;
  dist::Group& group_;
  Timer timer_;
  PhaseTimes times_;
  MemorySampler sampler_;
  residency::HostMemory memory_;
  setup::RunSetup setup_;
  setup::DataDivision division_;
  std::unique_ptr<output::RunFolder> folder_;
  int shard_sets_ = 0;      // of the run that is continued
  bool same_ranks_ = true;  // as then
  std::int64_t batch_tokens_ = 0;
  std::size_t resumed_ = 0;
  dist::DivisionRates rates_;
  std::int64_t all_tokens_ = 0;
  plan::RunPlan plan_;
  std::vector<execution::Batch> batches_;
  std::unique_ptr<output::OutputWriter> output_;
  std::unique_ptr<residency::WeightSource> weights_;
  std::unique_ptr<residency::ActivationStore> store_;
  std::uint64_t spilled_bytes_ = 0;
  OneshotSummary summary_;
};

/// Of several ranks the first reports, and all watch each other.
RunControl control_of(const RunControl& control, dist::Group& group) {
  if (group.size() == 1) return control;
  RunControl own = control;
  own.supervisor = &group;
  if (!group.is_first()) own.events = nullptr;
  return own;
}

/// Runs `function` and lets the other ranks know when it throws.
template <typename Function>
auto run_together(dist::Group& group, Function&& function) {
  try {
    return function();
  } catch (const InterruptedError& error) {
    // The end of another rank can look like a request: its launcher stops the others.
    if (!group.failure().empty()) group.check();
    group.fail(error.what(), dist::FailureKind::kOnRequest);
    throw;
  } catch (const DamagedWeightsError& error) {
    group.fail(error.what(), dist::FailureKind::kHopeless);
    throw;
  } catch (const std::exception& error) {
    group.fail(error.what());
    throw;
  }
}

}  // namespace

OneshotSummary oneshot(const OneshotOptions& options, const RunControl& control, Distributed* ranks) {
  dist::Group alone;
  dist::Group& group = ranks != nullptr ? *ranks : alone;
  const RunControl own = control_of(control, group);
  Oneshot run(options, own, group);  // outlives the message to the others, who write into its folder until then
  return run_together(group, [&] { return run.run(); });
}

Json plan_oneshot(const OneshotOptions& options, const RunControl& control, Distributed* ranks) {
  dist::Group alone;
  dist::Group& group = ranks != nullptr ? *ranks : alone;
  return run_together(group, [&] {
    const RunControl own = control_of(control, group);
    setup::RunSetup setup = setup::set_up(options, group);
    setup::require_same_request(options, setup, group);
    setup::connect_devices(options, setup, group, own);
    std::vector<plan::SampleShape> samples;
    if (!options.dataset.empty()) {
      samples =
          plan::shapes_of(load_data(options, setup, setup::agree_on_data(options.dataset_split, group), group, own));
    } else if (setup.pipeline != setup::Pipeline::kDatafree) {
      if (options.num_calibration_samples < 1 || options.max_seq_length < 1)
        throw UsageError("[options] --num-calibration-samples and --max-seq-length must be positive");
      const auto count = dist::partition(options.num_calibration_samples, group.rank(), group.size()).size();
      samples.assign(static_cast<std::size_t>(count), {options.max_seq_length});
    }
    plan::PlanInput input = plan::plan_input(setup, std::move(samples));
    input.batch_tokens = options.batch_tokens;
    const plan::RunPlan plan = plan::plan_run(input);
    const Json report = plan::plan_report(setup, plan, plan::measure_rates(setup, options.output));
    group.barrier();
    return report;
  });
}

}  // namespace layerpress
