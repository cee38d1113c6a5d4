#include "layerpress/plan/machine_rates.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <system_error>

#include "layerpress/base/file.h"
#include "layerpress/graph/weight_matrix.h"
#include "layerpress/kernels/layers/linear.h"
#include "layerpress/kernels/layers/transformer.h"
#include "layerpress/schedule/value_statistics.h"

namespace layerpress::plan {
namespace {

constexpr std::int64_t kFeatures = 1024, kTokens = 2048;

/// Work per second of `function` on `device`: one run to warm up, then runs for about a tenth of a second. A device gets
/// several runs at once, because waiting for it takes longer than a short kernel.
template <typename Function>
double rate_of(at::Device device, double work, Function&& function) {
  const int runs_at_once = device.is_cpu() ? 1 : 32;
  function();
  finish_queued(device);
  const Timer timer;
  int runs = 0;
  do {
    for (int i = 0; i < runs_at_once; ++i) function();
    finish_queued(device);
    runs += runs_at_once;
  } while (timer.seconds() < 0.1);
  return work * runs / timer.seconds();
}

/// The largest power of two below the widest compressed linear, limited to a fraction of a second of work.
std::int64_t sample_columns(const setup::RunSetup& setup) {
  std::int64_t widest = 0;
  for (const auto& [node, assignment] : setup.assignments.linears)
    widest = std::max(widest, graph::weight_matrix(setup.model.traced.graph.nodes[node].operation).value().columns);
  std::int64_t columns = 512;
  while (columns < 4096 && 2 * columns <= widest) columns *= 2;
  return columns;
}

compression::ValueFacts facts_of(const compression::Assignment& assignment) {
  return {.value = 0, .differs = assignment.modifier->wants_original(), .scheme = assignment.scheme};
}

/// Some tokens, as one sample, in the place of all sources of a statistic.
compression::StatisticInput sample_input(const compression::Statistic& statistic, const at::Tensor& x) {
  return {std::vector<at::Tensor>(statistic.sources(0).size(), x), {}, {{0, x.size(0)}, {0}, 1}};
}

/// The statistics that a modifier wants, with one tensor in the place of all values.
compression::Statistics statistics_of(const compression::Assignment& assignment, const at::Tensor& x) {
  compression::Statistics statistics;
  statistics.tokens = x.size(0);
  for (const compression::StatisticPtr& statistic : assignment.statistics_wanted(facts_of(assignment))) {
    at::Tensor figures =
        at::full({statistic->rows(x.size(1)), x.size(1)}, statistic->identity(), x.options().dtype(at::kFloat));
    const compression::StatisticInput input = sample_input(*statistic, x);
    statistic->add(figures, input, statistic->all_rows(x.size(1)));
    statistics.figures.emplace(statistic->name(), figures);
  }
  return statistics;
}

/// Collects every statistic that any modifier wants, for a small value.
void measure_statistics(const setup::RunSetup& setup, const at::Tensor& x, MachineRates& rates) {
  const auto tokens = static_cast<double>(x.size(0));
  const std::int64_t features = x.size(1);
  std::set<const compression::Quantizer*> seen;
  for (const auto& [node, assignment] : setup.assignments.linears) {
    if (!seen.insert(assignment.modifier).second) continue;
    for (const compression::StatisticPtr& statistic : assignment.statistics_wanted(facts_of(assignment))) {
      const compression::RowRange rows = statistic->all_rows(features);
      at::Tensor figures = at::full({rows.last, features}, statistic->identity(), x.options().dtype(at::kFloat));
      const compression::StatisticInput input = sample_input(*statistic, x);
      rates.flops[statistic->phase()] =
          rate_of(x.device(), statistic->flops(tokens, features, rows), [&] { statistic->add(figures, input, rows); });
    }
  }
}

double measure_read(const setup::OpenedModel& model) {
  constexpr std::uint64_t kPiece = 64u << 20;
  constexpr double kMemoryRate = 1e10;
  const std::vector<std::filesystem::path> files = model.checkpoint->weight_files();
  if (files.empty()) return kMemoryRate;  // in memory
  const auto file = MappedFile::open(files.back());
  const std::uint64_t length = std::min(kPiece, file->size());
  const Timer timer;
  file->fetch(file->size() - length, length);
  return static_cast<double>(length) / std::max(timer.seconds(), 1e-6);
}

/// Writes into an unnamed file, so that nothing is left behind. Returns 0 if that is not possible.
double measure_write(std::filesystem::path folder) {
  std::error_code failure;
  folder = std::filesystem::absolute(folder, failure);
  while (!std::filesystem::is_directory(folder, failure) && folder.has_relative_path()) folder = folder.parent_path();
  const int descriptor = ::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
  if (descriptor < 0) return 0;
  const std::vector<char> piece(8u << 20, 'x');
  const Timer timer;
  double written = 0;
  for (int i = 0; i < 8; ++i)
    written += static_cast<double>(std::max<ssize_t>(0, ::write(descriptor, piece.data(), piece.size())));
  (void)::fdatasync(descriptor);
  const double rate = written / std::max(timer.seconds(), 1e-6);
  ::close(descriptor);
  return rate;
}

}  // namespace

void finish_queued(at::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

// The modifiers measure their phases themselves.
ModifierRates measure_modifiers(const setup::RunSetup& setup) {
  ModifierRates rates;
  double flops = 0, seconds = 0;
  // About as wide as the model's linears, because large factorizations are faster per operation. The first run warms
  // up.
  const std::int64_t columns = sample_columns(setup);
  const at::Device device = setup.placement.device;
  const at::Tensor x = at::randn({512, columns}).to(device);
  std::set<const compression::Quantizer*> seen;
  for (const auto& [node, assignment] : setup.assignments.linears) {
    if (!seen.insert(assignment.modifier).second) continue;
    const at::Tensor weight = at::randn({512, columns}).to(device, assignment.scale_dtype);
    const std::vector<compression::LinearWeight> linears = {{"", weight, assignment.scheme, assignment.scale_dtype}};
    const compression::Statistics statistics = statistics_of(assignment, x);
    for (const bool warming : {true, false}) {
      PhaseTimes times;
      try {
        assignment.modifier->compress(linears, statistics.figures.empty() ? nullptr : &statistics, times);
      } catch (const Error&) {
        break;  // for example, the group size does not divide the columns: its rates stay unknown
      }
      for (const auto& [phase, measured] : times.phases()) {
        if (warming || measured.flops <= 0 || measured.seconds <= 0) continue;
        rates.by_phase[phase] = measured.flops / measured.seconds;
        flops += measured.flops, seconds += measured.seconds;
      }
    }
  }
  if (seconds > 0) rates.all = flops / seconds;
  return rates;
}

MachineRates measure_rates(const setup::RunSetup& setup, const std::filesystem::path& output) {
  const c10::InferenceMode inference;
  MachineRates rates;
  const at::Device device = setup.placement.device;
  const auto options = at::TensorOptions(device).dtype(setup.placement.dtype);
  rates.read_bytes = measure_read(setup.model);
  rates.write_bytes = measure_write(output);
  const at::Tensor x = at::randn({kTokens, kFeatures}).to(options),
                   weight = at::randn({kFeatures, kFeatures}).to(options);
  if (setup.pipeline->takes_data) {
    const auto tokens = static_cast<double>(kTokens), features = static_cast<double>(kFeatures);
    rates.flops["forward"] =
        rate_of(device, 2 * tokens * features * features, [&] { return kernels::linear(x, weight); });
    if (schedule::wants_original(setup.assignments)) rates.flops["original"] = rates.flops["forward"];
    measure_statistics(setup, x, rates);
    const kernels::AttentionShape shape{8, 8, 64, 0.125, 0};
    const at::Tensor heads = x.slice(1, 0, 512).contiguous();
    rates.flops["attention"] = rate_of(device, 4 * tokens / 2 * 513.0 * 512.0, [&] {
      return kernels::attention(heads, heads, heads, {0, 512, 1024, 1536, 2048}, shape);
    });
    const at::Tensor ones = at::ones({kFeatures}).to(options);
    rates.forward_bytes =
        rate_of(device, 2 * static_cast<double>(x.nbytes()), [&] { return kernels::rms_norm(x, ones, 1e-5); });
  }
  for (const auto& [phase, rate] : measure_modifiers(setup).by_phase) rates.flops[phase] = rate;
  return rates;
}

double planned_seconds(const setup::RunSetup& setup, const RunPlan& plan, const std::filesystem::path& output) {
  constexpr double kWorthMeasuring = 120, kDiskBytes = 1e9;
  double rough = 0;
  for (const SubgraphPlan& subgraph : plan.memory.subgraphs) {
    double flops = 0;
    for (const auto& [phase, count] : subgraph.flops) flops += count;
    rough += std::max(flops / (setup.division_rates.update_flops * setup.threads),
                      static_cast<double>(subgraph.read_bytes + subgraph.written_bytes) / kDiskBytes);
  }
  if (rough < kWorthMeasuring) return 0;
  const MachineRates rates = measure_rates(setup, output);
  double seconds = 0;
  for (const SubgraphPlan& subgraph : plan.memory.subgraphs) seconds += estimated_seconds(subgraph, rates);
  return seconds;
}

double estimated_seconds(const SubgraphPlan& plan, const MachineRates& rates) {
  double computing = 0;
  for (const auto& [phase, flops] : plan.flops) {
    const auto rate = rates.flops.find(phase);
    if (rate != rates.flops.end() && rate->second > 0) computing += flops / rate->second;
  }
  if (rates.forward_bytes > 0) computing += plan.forward_bytes / rates.forward_bytes;
  const double reading = rates.read_bytes > 0 ? static_cast<double>(plan.read_bytes) / rates.read_bytes : 0;
  const double writing = rates.write_bytes > 0 ? static_cast<double>(plan.written_bytes) / rates.write_bytes : 0;
  return std::max({computing, reading, writing});
}

}  // namespace layerpress::plan
