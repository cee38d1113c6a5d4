#include "layerpress/plan/run_plan.h"

#include <algorithm>
#include <optional>
#include <set>

#include "layerpress/base/machine.h"
#include "layerpress/base/text.h"
#include "layerpress/graph/image_geometry.h"
#include "layerpress/kernels/linear.h"

namespace layerpress::plan {
namespace {

constexpr std::uint64_t kMebibyte = 1u << 20;

/// Rough speeds for choosing between computing and moving; the choice changes time, never results.
constexpr double kFlopsPerSecond = 2e11;
constexpr double kDiskBytesPerSecond = 1e9;

std::vector<std::int64_t> batch_sizes(const PlanInput& input) {
  const std::int64_t first = setup::choose_batch_tokens(input.batch_tokens, input.model.traced.graph);
  if (input.batch_tokens > 0) return {first};
  std::vector<std::int64_t> sizes;
  for (std::int64_t size = first; size >= 256; size /= 2) sizes.push_back(size);
  return sizes;
}

class Planner {
 public:
  explicit Planner(const PlanInput& input)
      : input_(input), baseline_(process_baseline(input.pipeline, input.placement.dtype, input.model.traced.graph)) {
    for (const SampleShape& sample : input.samples)
      baseline_ += static_cast<std::uint64_t>(sample.tokens) * sizeof(std::int64_t);
  }

  RunPlan plan() {
    std::optional<RunPlan> least;
    const std::vector<std::int64_t> sizes = batch_sizes(input_);
    std::optional<RunPlan> chosen;
    const bool on_device = input_.place == setup::ActivationPlace::kNone;
    for (const std::int64_t size : sizes) {
      const Frame frame{size, on_device ? input_.placement.device : at::Device(at::kCPU)};
      if (!chosen) chosen = best(frame);
      if (!chosen || size == sizes.back()) {
        RunPlan frugal = smallest(frame);
        if (!least || frugal.memory.peak.host < least->memory.peak.host) least = std::move(frugal);
      }
    }
    const std::uint64_t needed = (least->memory.peak.host + kMebibyte - 1) / kMebibyte;
    if (!chosen) refuse(*least, needed);
    chosen->smallest_budget = needed * kMebibyte;
    return std::move(*chosen);
  }

 private:
  /// What plans are made for that differ in what they keep.
  struct Frame {
    std::int64_t batch_tokens;
    at::Device home;  ///< of activations in memory
  };

  bool may_spill() const {
    return input_.place == setup::ActivationPlace::kAuto || input_.place == setup::ActivationPlace::kDisk;
  }

  bool fits(const RunPlan& plan) const {
    return plan.memory.peak.host <= input_.budget && plan.memory.peak.device <= input_.device_budget;
  }

  static double seconds(const RunPlan& plan) {
    double flops = 0;
    for (const SubgraphPlan& subgraph : plan.memory.subgraphs)
      for (const auto& [phase, count] : subgraph.flops) flops += count;
    return flops / kFlopsPerSecond + 2 * static_cast<double>(plan.memory.spilled_bytes) / kDiskBytesPerSecond;
  }

  /// The fastest plan that fits with batches of this size.
  std::optional<RunPlan> best(const Frame& frame) const {
    if (input_.place == setup::ActivationPlace::kAuto && !input_.placement.device.is_cpu()) {
      // What is computed again is there sooner than what comes over the bus.
      if (auto plan = best_in_memory({frame.batch_tokens, input_.placement.device})) return plan;
    }
    if (input_.place != setup::ActivationPlace::kDisk || input_.pipeline != setup::Pipeline::kSequential) {
      RunPlan in_memory = make(frame, {}, setup::kUnlimited);
      if (fits(in_memory)) return in_memory;
    }
    if (input_.pipeline != setup::Pipeline::kSequential) return std::nullopt;
    std::optional<RunPlan> chosen;
    if (may_spill()) {
      RunPlan spilled = spilling(frame, {});
      if (fits(spilled)) chosen = std::move(spilled);
    }
    if (input_.place == setup::ActivationPlace::kDisk) return chosen;
    std::optional<RunPlan> again = best_again(frame);
    if (again && (!chosen || seconds(*again) < seconds(*chosen))) chosen = std::move(again);
    return chosen;
  }

  /// Of plans that compute values again.
  std::optional<RunPlan> best_again(const Frame& frame) const {
    std::optional<RunPlan> chosen;
    for (const std::vector<bool>& pattern : patterns()) {
      RunPlan again = make(frame, pattern, setup::kUnlimited);
      if (fits(again) && (!chosen || seconds(again) < seconds(*chosen))) chosen = std::move(again);
    }
    return chosen;
  }

  std::optional<RunPlan> best_in_memory(const Frame& frame) const {
    RunPlan in_memory = make(frame, {}, setup::kUnlimited);
    if (fits(in_memory)) return in_memory;
    if (input_.pipeline != setup::Pipeline::kSequential) return std::nullopt;
    return best_again(frame);
  }

  /// The plan with the least memory.
  RunPlan smallest(const Frame& frame) const {
    if (input_.pipeline != setup::Pipeline::kSequential) return make(frame, {}, setup::kUnlimited);
    if (may_spill()) return make(frame, {}, 0);
    std::optional<RunPlan> least;
    for (const std::vector<bool>& pattern : patterns()) {
      RunPlan plan = make(frame, pattern, setup::kUnlimited);
      if (!least || plan.memory.peak.host < least->memory.peak.host) least = std::move(plan);
    }
    return std::move(*least);
  }

  /// In memory as far as the budget goes beside everything else, the rest on disk.
  RunPlan spilling(const Frame& frame, const std::vector<bool>& pattern) const {
    const RunPlan bare = make(frame, pattern, 0);
    const std::uint64_t rest = bare.memory.peak.host;
    if (input_.place == setup::ActivationPlace::kDisk || rest >= input_.budget) return bare;
    return make(frame, pattern, input_.budget - rest);
  }

  /// Which groups of a subgraph keep what was computed up to them: all combinations for subgraphs of the usual shapes.
  std::vector<std::vector<bool>> patterns() const {
    std::size_t groups = 0;
    for (const schedule::SubgraphSchedule& subgraph : make_schedule({}))
      groups = std::max(groups, subgraph.steps.size() - 1);
    constexpr std::size_t kMostGroups = 4;
    const std::size_t decided = std::min(groups, kMostGroups);
    std::vector<std::vector<bool>> patterns;
    for (std::size_t bits = 0; bits < (1u << decided); ++bits) {
      std::vector<bool> pattern(groups, false);  // beyond those, everything is computed again
      for (std::size_t g = 0; g < decided; ++g) pattern[g] = (bits >> g & 1) != 0;
      patterns.push_back(std::move(pattern));
    }
    return patterns;
  }

  std::vector<schedule::SubgraphSchedule> make_schedule(const std::vector<bool>& pattern) const {
    std::vector<std::vector<bool>> keep_after;
    if (!pattern.empty())
      for (std::size_t s = 0; s < input_.subgraphs.size(); ++s) {
        keep_after.push_back(pattern);
        keep_after.back().resize(input_.subgraphs[s].nodes.size() + pattern.size(), false);
      }
    return schedule::make_schedule({input_.model.traced.graph, input_.subgraphs, input_.assignments, input_.finished,
                                    input_.available, std::move(keep_after)});
  }

  RunPlan make(const Frame& frame, const std::vector<bool>& pattern, std::uint64_t activation_limit) const {
    RunPlan plan;
    plan.batch_tokens = frame.batch_tokens;
    plan.batches = batches_of(input_.samples, frame.batch_tokens, input_.model.traced.graph);
    plan.activation_limit = activation_limit;
    plan.activation_home = frame.home;
    const PlanRequest request = {
        .graph = input_.model.traced.graph,
        .assignments = input_.assignments,
        .batches = plan.batches,
        .placement = input_.placement,
        .activation_home = frame.home,
        .activation_limit = activation_limit,
        .stored_dtype = [&](const std::string& name) { return input_.model.checkpoint->spec(name).dtype; },
        .mapped = input_.mapped,
        .baseline = baseline_,
        .threads = input_.threads,
        .ranks = input_.ranks,
        .division_rates = input_.division_rates,
        .owns = input_.owns};
    switch (input_.pipeline) {
      case setup::Pipeline::kSequential:
        plan.schedule = make_schedule(pattern);
        plan.memory = plan_sequential(request, plan.schedule);
        break;
      case setup::Pipeline::kBasic:
        plan.memory = plan_basic(request, input_.subgraphs, input_.finished);
        break;
      case setup::Pipeline::kDatafree:
        plan.memory = plan_datafree(request, input_.subgraphs, input_.finished);
        break;
    }
    add_copies(plan);
    return plan;
  }

  /// Weights that stay as they are are read and written, too: with the first subgraph that reads them, or at the end.
  void add_copies(RunPlan& plan) const {
    const graph::Graph& graph = input_.model.traced.graph;
    std::vector<SubgraphPlan>& planned = plan.memory.subgraphs;
    const std::size_t before = planned.size() - input_.subgraphs.size();  // entries for work on the whole model
    std::set<std::string> done;
    for (const auto& [n, assignment] : input_.assignments)
      done.insert(std::get<graph::Linear>(graph.nodes[n].operation).weight);
    for (std::size_t s = 0; s < input_.subgraphs.size(); ++s) {
      const bool finished = !input_.finished.empty() && input_.finished[s];
      std::set<std::string> onloaded;
      if (!plan.schedule.empty()) onloaded.insert(plan.schedule[s].weights.begin(), plan.schedule[s].weights.end());
      for (const graph::NodeId n : input_.subgraphs[s].nodes)
        for (const graph::WeightUse& use : graph::weights_of(graph.nodes[n].operation))
          if (done.insert(use.name).second && !finished)
            add_copy(planned[before + s], use.name, onloaded.count(use.name) != 0);
    }
    for (const std::string& name : input_.model.checkpoint->names())
      if (done.insert(name).second) add_copy(planned.back(), name, false);
  }

  void add_copy(SubgraphPlan& subgraph, const std::string& name, bool is_read_anyway) const {
    const std::uint64_t bytes = input_.model.checkpoint->spec(name).nbytes();
    subgraph.written_bytes += bytes;
    if (is_read_anyway) return;
    subgraph.weight_bytes += bytes;
    subgraph.read_bytes += bytes;
  }

  [[noreturn]] void refuse(const RunPlan& least, std::uint64_t mebibytes) const {
    const auto worst = std::max_element(least.memory.subgraphs.begin(), least.memory.subgraphs.end(),
                                        [](const auto& a, const auto& b) { return a.peak.host < b.peak.host; });
    std::vector<std::string> advice;
    if (input_.pipeline == setup::Pipeline::kBasic) advice.push_back("--pipeline sequential");
    if (!may_spill()) advice.push_back("--sequential-offload-device disk");
    const bool cut_finely = std::all_of(input_.subgraphs.begin(), input_.subgraphs.end(), [&](const auto& subgraph) {
      int linears = 0;
      for (const graph::NodeId n : subgraph.nodes) linears += static_cast<int>(input_.assignments.count(n));
      return linears <= 1;
    });
    if (input_.pipeline == setup::Pipeline::kSequential && !cut_finely) advice.push_back("--sequential-targets Linear");
    if (input_.batch_tokens > 0 && input_.finished.empty()) advice.push_back("smaller --batch-tokens");
    if (least.memory.peak.device > input_.device_budget && least.memory.peak.host <= input_.budget)
      throw MemoryError("[plan] subgraph {} needs {} on the device, {} may be used; raise --device-memory-budget{}",
                        worst->name, format_bytes(least.memory.peak.device), format_bytes(input_.device_budget),
                        advice.empty() ? "" : " or use " + join(advice, " or "));
    throw MemoryError(
        "[plan] {} MiB of memory may be used{}, the run needs at least {} MiB (subgraph {}: Gram matrices {}, "
        "workspace "
        "{}, "
        "weights {}); raise --memory-budget{}",
        input_.budget / kMebibyte, input_.ranks > 1 ? " by each rank" : "", mebibytes, worst->name,
        format_bytes(worst->gram_bytes), format_bytes(worst->workspace_bytes), format_bytes(worst->onloaded_bytes),
        advice.empty() ? "" : " or use " + join(advice, " or "));
  }

  const PlanInput& input_;
  std::uint64_t baseline_;
};

}  // namespace

std::uint64_t process_baseline(setup::Pipeline pipeline, at::ScalarType dtype, const graph::Graph& graph) {
  // Threads' stacks and heaps, slack of the allocator; packing buffers of the matrix libraries where anything is multiplied, and
  // the code that they make for the model's products.
  const bool on_tiles =
      kernels::runs_on_tiles(dtype) && !graph::image_geometry(graph);  // attention to images is theirs
  const std::uint64_t multiplying = on_tiles ? 10 : 16;
  return anonymous_bytes() + (pipeline == setup::Pipeline::kDatafree ? 4 : multiplying) * kMebibyte;
}

std::vector<SampleShape> shapes_of(const data::CalibrationSet& set) {
  std::vector<SampleShape> samples;
  for (std::size_t i = 0; i + 1 < set.sample_offsets.size(); ++i) {
    samples.push_back({set.sample_offsets[i + 1] - set.sample_offsets[i]});
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
      batch.images.offsets.push_back(batch.images.offsets.back() + set.image_count(i));
      const std::vector<std::int64_t>& filled = samples[static_cast<std::size_t>(i)].filled_tiles;
      batch.images.filled_tiles.insert(batch.images.filled_tiles.end(), filled.begin(), filled.end());
    }
    batches.push_back(std::move(batch));
  }
  return batches;
}

RunPlan plan_run(const PlanInput& input) { return Planner(input).plan(); }

PlanInput plan_input(const setup::RunSetup& setup, std::vector<SampleShape> samples) {
  return {.model = setup.model,
          .assignments = setup.assignments,
          .subgraphs = setup.subgraphs,
          .pipeline = setup.pipeline,
          .placement = setup.placement,
          .place = setup.place,
          .samples = std::move(samples),
          .finished = {},
          .available = {},
          .mapped = {},
          .batch_tokens = 0,
          .budget = setup.budget,
          .device_budget = setup.device_budget,
          .threads = setup.threads,
          .ranks = setup.ranks,
          .division_rates = {},
          .owns = {}};
}

}  // namespace layerpress::plan
