#include "layerpress/plan/run_plan.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "layerpress/base/system/machine.h"
#include "layerpress/base/text.h"
#include "layerpress/graph/facts/image_geometry.h"
#include "layerpress/plan/plan_maker.h"
#include "layerpress/setup/rank_agreement.h"

namespace layerpress::plan {
namespace {

/// Rough speeds for choosing between computing and moving; the choice changes time, never results.
constexpr double kFlopsPerSecond = 2e11;
constexpr double kDiskBytesPerSecond = 1e9;
/// Of a GPU and its bus in one direction: an H100's; their ratio is about the same for other generations.
constexpr double kDeviceFlopsPerSecond = 5.5e14;
constexpr double kBusBytesPerSecond = 4.5e10;

std::vector<std::int64_t> batch_sizes(const PlanInput& input) {
  const std::int64_t first =
      setup::choose_batch_tokens(input.batch_tokens, input.run.model.traced.graph, input.run.placement.device);
  if (input.batch_tokens > 0) return {first};
  std::vector<std::int64_t> sizes;
  for (std::int64_t size = first; size >= 256; size /= 2) sizes.push_back(size);
  return sizes;
}

/// Chooses among plans for one batch size.
class Planner {
 public:
  explicit Planner(const PlanInput& input) : run_(input.run), maker_(input) {}

  /// The fastest plan that fits.
  std::optional<RunPlan> best(const Choice& frame) const {
    if (run_.place == setup::ActivationPlace::kAuto && !run_.placement.device.is_cpu()) {
      // What is computed again is there sooner than what comes over the bus.
      if (auto plan = best_in_memory({frame.batch_tokens, run_.placement.device})) return plan;
    }
    if (run_.place != setup::ActivationPlace::kDisk || !is_sequential()) {
      if (auto plan = best_waiting(frame)) return plan;
    }
    if (!is_sequential()) return std::nullopt;
    std::optional<RunPlan> chosen;
    if (setup::may_use_disk(run_.place)) {
      RunPlan spilled = spilling(frame);
      if (fits(spilled)) chosen = std::move(spilled);
    }
    if (run_.place == setup::ActivationPlace::kDisk) return chosen;
    return best_again(frame, seconds, std::move(chosen));
  }

  void add_spare(RunPlan& plan) const { maker_.add_spare(plan); }

  /// The plan with the least memory.
  RunPlan smallest(const Choice& frame) const {
    if (!is_sequential()) return maker_.make(frame);
    if (setup::may_use_disk(run_.place)) return maker_.make(on_disk(frame));
    std::optional<RunPlan> least;
    for (const std::vector<bool>& keeps : maker_.patterns()) {
      RunPlan plan = maker_.make(keeping(frame, keeps));
      if (!least || plan.memory.peak.host < least->memory.peak.host) least = std::move(plan);
    }
    return std::move(*least);
  }

 private:
  bool is_sequential() const { return run_.pipeline->layer_by_layer; }

  bool fits(const RunPlan& plan) const {
    return plan.memory.peak.host <= run_.budget && plan.memory.peak.device <= run_.device_budget;
  }

  static double seconds(const RunPlan& plan) {
    double flops = 0;
    for (const SubgraphPlan& subgraph : plan.memory.subgraphs)
      for (const auto& [phase, count] : subgraph.flops) flops += count;
    return flops / kFlopsPerSecond + 2 * static_cast<double>(plan.memory.spilled_bytes) / kDiskBytesPerSecond;
  }

  static double seconds_with_copies(const RunPlan& plan) {
    double seconds = 0;
    for (const SubgraphPlan& subgraph : plan.memory.subgraphs)
      for (const StageLoad& pass : subgraph.passes)
        seconds += std::max(pass.flops / kDeviceFlopsPerSecond,
                            static_cast<double>(std::max(pass.in_bytes, pass.out_bytes)) / kBusBytesPerSecond);
    return seconds;
  }

  static Choice keeping(Choice choice, const std::vector<bool>& keeps) {
    choice.keeps = keeps;
    return choice;
  }
  static Choice on_disk(Choice choice, std::uint64_t in_memory = 0) {
    choice.activation_limit = in_memory;
    return choice;
  }

  /// The fastest of `chosen` and the plans that compute values again.
  std::optional<RunPlan> best_again(const Choice& frame, double (*seconds_of)(const RunPlan&),
                                    std::optional<RunPlan> chosen = std::nullopt) const {
    for (const std::vector<bool>& keeps : maker_.patterns()) {
      RunPlan again = maker_.make(keeping(frame, keeps));
      if (fits(again) && (!chosen || seconds_of(again) < seconds_of(*chosen))) chosen = std::move(again);
    }
    return chosen;
  }

  std::optional<RunPlan> best_in_memory(const Choice& frame) const {
    RunPlan in_memory = maker_.make(frame);
    if (fits(in_memory)) return in_memory;
    if (!is_sequential()) return std::nullopt;
    return best_again(frame, seconds);
  }

  /// Values wait in the host's memory. What a device computes again need not come over the bus.
  std::optional<RunPlan> best_waiting(const Choice& frame) const {
    std::optional<RunPlan> chosen;
    if (RunPlan in_memory = maker_.make(frame); fits(in_memory)) chosen = std::move(in_memory);
    if (run_.placement.device.is_cpu() || !frame.home.is_cpu() || !is_sequential()) return chosen;
    return best_again(frame, seconds_with_copies, std::move(chosen));
  }

  /// In memory as far as the budget goes beside everything else, the rest on disk.
  RunPlan spilling(const Choice& frame) const {
    RunPlan bare = maker_.make(on_disk(frame));
    const std::uint64_t rest = bare.memory.peak.host;
    if (run_.place == setup::ActivationPlace::kDisk || rest >= run_.budget) return bare;
    return maker_.make(on_disk(frame, run_.budget - rest));
  }

  const setup::RunSetup& run_;
  PlanMaker maker_;
};

/// What else than a larger budget would help, of the device or of the host.
std::vector<std::string> advice_for(const PlanInput& input, bool on_device) {
  const setup::RunSetup& run = input.run;
  std::vector<std::string> advice;
  if (run.pipeline->takes_data && !run.pipeline->layer_by_layer) advice.emplace_back("--pipeline sequential");
  if (!on_device && !setup::may_use_disk(run.place)) advice.emplace_back("--sequential-offload-device disk");
  if (on_device && run.place == setup::ActivationPlace::kNone) advice.emplace_back("--sequential-offload-device cpu");
  const bool cut_finely = std::all_of(run.subgraphs.begin(), run.subgraphs.end(), [&](const auto& subgraph) {
    int linears = 0;
    for (const graph::NodeId n : subgraph.nodes) linears += static_cast<int>(run.assignments.linears.count(n));
    return linears <= 1;
  });
  if (run.pipeline->layer_by_layer && !cut_finely) advice.emplace_back("--sequential-targets Linear");
  if (input.batch_tokens > 0 && input.finished.empty()) advice.emplace_back("smaller --batch-tokens");
  return advice;
}

[[noreturn]] void refuse(const PlanInput& input, const RunPlan& least, std::uint64_t mebibytes) {
  const setup::RunSetup& run = input.run;
  const bool on_device = least.memory.peak.device > run.device_budget && least.memory.peak.host <= run.budget;
  const auto peak = [&](const SubgraphPlan& subgraph) { return on_device ? subgraph.peak.device : subgraph.peak.host; };
  const auto worst = std::max_element(least.memory.subgraphs.begin(), least.memory.subgraphs.end(),
                                      [&](const auto& a, const auto& b) { return peak(a) < peak(b); });
  const std::vector<std::string> advice = advice_for(input, on_device);
  const std::string also = advice.empty() ? "" : " or use " + join(advice, " or ");
  if (on_device)
    throw MemoryError(
        "[plan] subgraph {} needs {} on the device, but only {} may be used; raise --device-memory-budget{}",
        worst->name, format_bytes(least.memory.peak.device), format_bytes(run.device_budget), also);
  throw MemoryError(
      "[plan] {} MiB of memory may be used{}, but the run needs at least {} MiB (subgraph {}: statistics {}, "
      "workspace {}, weights {}); raise --memory-budget{}",
      run.budget / kMebibyte, run.ranks > 1 ? " by each rank" : "", mebibytes, worst->name,
      format_bytes(worst->statistics_bytes), format_bytes(worst->workspace_bytes), format_bytes(worst->onloaded_bytes),
      also);
}

}  // namespace

std::uint64_t process_baseline(const schedule::Pipeline& pipeline, const graph::Graph& graph) {
  // Threads' stacks and heaps, slack of the allocator, buffers of spilled values; packing buffers of the matrix libraries where
  // anything is multiplied, and the code that they make for attention to images.
  const std::uint64_t multiplying = graph::image_geometry(graph) ? 16 : 12;
  return_freed_memory();  // of a parsed tokenizer, for example
  return anonymous_bytes() + (pipeline.takes_data ? multiplying : 6) * kMebibyte;
}

std::vector<SampleShape> shapes_of(const data::CalibrationSet& set) {
  std::vector<SampleShape> samples;
  for (std::size_t i = 0; i + 1 < set.sample_offsets.size(); ++i) {
    samples.push_back({set.sample_offsets[i + 1] - set.sample_offsets[i]});
    if (!set.loss_mask.empty())
      samples.back().counted = std::count(set.loss_mask.begin() + set.sample_offsets[i],
                                          set.loss_mask.begin() + set.sample_offsets[i + 1], std::uint8_t{1});
    if (!set.images.empty())
      for (const at::Tensor& pixels : set.images[i].pixels) samples.back().filled_tiles.push_back(pixels.size(0));
  }
  return samples;
}

std::vector<execution::Batch> batches_of(const std::vector<SampleShape>& samples, std::int64_t batch_tokens,
                                         const graph::Graph& graph) {
  const graph::ImageGeometry geometry = graph::image_geometry(graph).value_or(graph::ImageGeometry());
  data::CalibrationSet set;
  for (const SampleShape& sample : samples) {
    set.sample_offsets.push_back(set.sample_offsets.back() + sample.tokens);
    set.images.emplace_back().aspect_ratios.resize(sample.filled_tiles.size());
  }
  std::vector<execution::Batch> batches;
  for (const data::BatchRange& range : data::pack_batches(set, batch_tokens, geometry.tiles * geometry.tile_rows())) {
    execution::Batch batch;
    batch.images.geometry = geometry;
    batch.images.offsets.push_back(0);
    for (std::int64_t i = range.first_sample; i < range.last_sample; ++i) {
      batch.offsets.push_back(set.sample_offsets[i + 1] - set.sample_offsets[range.first_sample]);
      if (const auto counted = samples[static_cast<std::size_t>(i)].counted)
        batch.counted_tokens = batch.counted_tokens.value_or(0) + *counted;
      batch.images.offsets.push_back(batch.images.offsets.back() + set.image_count(i));
      const std::vector<std::int64_t>& filled = samples[static_cast<std::size_t>(i)].filled_tiles;
      batch.images.filled_tiles.insert(batch.images.filled_tiles.end(), filled.begin(), filled.end());
    }
    batches.push_back(std::move(batch));
  }
  return batches;
}

RunPlan plan_run(const PlanInput& input) {
  const Planner planner(input);
  const bool on_device = input.run.place == setup::ActivationPlace::kNone;
  const std::vector<std::int64_t> sizes = batch_sizes(input);
  std::optional<RunPlan> chosen, least;
  for (const std::int64_t size : sizes) {
    const Choice frame{size, on_device ? input.run.placement.device : at::Device(at::kCPU)};
    if (!chosen) chosen = planner.best(frame);
    if (!chosen || size == sizes.back()) {
      RunPlan frugal = planner.smallest(frame);
      if (!least || frugal.memory.peak.host < least->memory.peak.host) least = std::move(frugal);
    }
  }
  // A process that runs may hold a little more than one that only plans.
  const std::uint64_t needed = (least->memory.peak.host + kMebibyte - 1) / kMebibyte + 1;
  if (!chosen) refuse(input, *least, needed);
  chosen->smallest_budget = needed * kMebibyte;
  planner.add_spare(*chosen);
  return std::move(*chosen);
}

RunPlan agreed_plan(PlanInput& input, dist::Group& group) {
  RunPlan plan = plan_run(input);
  const std::int64_t least = setup::agree_on_least(plan.batch_tokens, group);
  if (least == plan.batch_tokens) return plan;
  input.batch_tokens = least;
  return plan_run(input);
}

}  // namespace layerpress::plan
