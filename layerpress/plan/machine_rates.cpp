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
#include "layerpress/kernels/gram.h"
#include "layerpress/kernels/linear.h"
#include "layerpress/kernels/transformer.h"
#include "layerpress/schedule/group_work.h"

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
  for (const auto& [node, assignment] : setup.assignments)
    widest = std::max(widest, graph::weight_matrix(setup.model.traced.graph.nodes[node].operation).value().columns);
  std::int64_t columns = 512;
  while (columns < 4096 && 2 * columns <= widest) columns *= 2;
  return columns;
}

double measure_read(const setup::OpenedModel& model) {
  constexpr std::uint64_t kPiece = 64u << 20;
  const auto file = MappedFile::open(model.checkpoint->weight_files().back());
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
  compression::Statistics statistics;
  statistics.gram = at::mm(x.t(), x);
  statistics.tokens = x.size(0);
  std::set<const compression::Modifier*> seen;
  for (const auto& [node, assignment] : setup.assignments) {
    if (!seen.insert(assignment.modifier).second) continue;
    const at::Tensor weight = at::randn({512, columns}).to(device, assignment.scale_dtype);
    const std::vector<compression::LinearWeight> linears = {{"", weight, assignment.scheme, assignment.scale_dtype}};
    const compression::StatisticsWanted wanted = assignment.modifier->statistics_wanted();
    statistics.cross = wanted.cross ? at::zeros_like(statistics.gram) : at::Tensor();
    for (const bool warming : {true, false}) {
      PhaseTimes times;
      try {
        assignment.modifier->compress(linears, wanted.gram ? &statistics : nullptr, times);
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
  at::Tensor gram = at::zeros({kFeatures, kFeatures}, at::TensorOptions(device).dtype(at::kFloat));
  if (setup.pipeline != setup::Pipeline::kDatafree) {
    const auto tokens = static_cast<double>(kTokens), features = static_cast<double>(kFeatures);
    rates.flops["forward"] =
        rate_of(device, 2 * tokens * features * features, [&] { return kernels::linear(x, weight); });
    rates.flops["gram"] =
        rate_of(device, tokens * features * (features + 1), [&] { kernels::accumulate_gram(gram, x); });
    if (schedule::wants_reference(setup.assignments)) {
      rates.flops["reference"] = rates.flops["forward"];
      rates.flops["cross"] =
          rate_of(device, 2 * tokens * features * features, [&] { kernels::accumulate_cross_gram(gram, x, x); });
    }
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
