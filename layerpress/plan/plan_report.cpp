#include "layerpress/plan/plan_report.h"

#include <utility>

namespace layerpress::plan {
namespace {

Json subgraph_json(const SubgraphPlan& plan) {
  return {{"name", plan.name},
          {"mode", plan.mode},
          {"weight_bytes", plan.weight_bytes},
          {"onloaded_bytes", plan.onloaded_bytes},
          {"activation_bytes", plan.activation_bytes},
          {"activation_disk_bytes", plan.activation_disk_bytes},
          {"transient_bytes", plan.transient_bytes},
          {"statistics_bytes", plan.statistics_bytes},
          {"workspace_bytes", plan.workspace_bytes},
          {"peak_bytes", plan.peak.host},
          {"device_peak_bytes", plan.peak.device},
          {"flops", plan.flops},
          {"read_bytes", plan.read_bytes},
          {"written_bytes", plan.written_bytes}};
}

}  // namespace

Json plan_numbers(const setup::RunSetup& setup, const RunPlan& plan) {
  std::int64_t samples = 0, tokens = 0;
  for (const execution::Batch& batch : plan.batches) {
    samples += static_cast<std::int64_t>(batch.offsets.size()) - 1;
    tokens += batch.tokens();
  }
  return {{"pipeline", setup.pipeline->name},
          {"device", setup.placement.device.str()},
          {"dtype", setup::dtype_word(setup.placement.dtype)},
          {"arithmetic", setup::arithmetic_words(setup.placement)},
          {"threads", setup.threads},
          {"source_quantization", setup.model.source_format.empty() ? Json() : Json(setup.model.source_format)},
          {"peak_bytes", plan.memory.peak.host},
          {"spare_bytes", plan.spare},
          {"device_peak_bytes", plan.memory.peak.device},
          {"budget_bytes", setup.budget},
          {"smallest_budget_bytes", plan.smallest_budget},
          {"spilled_bytes", plan.memory.spilled_bytes},
          {"batch_tokens", plan.batch_tokens},
          {"batches", plan.batches.size()},
          {"samples", samples},
          {"tokens", tokens}};
}

Json plan_report(const setup::RunSetup& setup, const RunPlan& plan, const MachineRates& rates) {
  Json report = plan_numbers(setup, plan);
  report["rewrites"] = setup.model.rewrites;
  double seconds = 0;
  report["subgraphs"] = Json::array();
  for (const SubgraphPlan& subgraph : plan.memory.subgraphs) {
    Json entry = subgraph_json(subgraph);
    entry["seconds"] = estimated_seconds(subgraph, rates);
    seconds += entry["seconds"].get<double>();
    report["subgraphs"].push_back(std::move(entry));
  }
  report["estimated_seconds"] = seconds;
  report["machine"] = {{"flops_per_second", rates.flops},
                       {"forward_bytes_per_second", rates.forward_bytes},
                       {"read_bytes_per_second", rates.read_bytes},
                       {"write_bytes_per_second", rates.write_bytes}};
  return report;
}

}  // namespace layerpress::plan
