#include "layerpress/pipeline/trials.h"

#include <ATen/ATen.h>

#include <utility>

#include "layerpress/kernels/products/relative_error.h"
#include "layerpress/schedule/trial_stages.h"

namespace layerpress::pipeline {
namespace {

/// Parameters that differ until the end of the scope.
class OtherParameters {
 public:
  OtherParameters(residency::Onload& parameters, const std::map<std::string, at::Tensor>& values)
      : parameters_(parameters) {
    for (const auto& [name, value] : values) {
      before_.emplace(name, parameters.saved(name));
      parameters.change(name, value);
    }
  }
  ~OtherParameters() {
    for (auto& [name, before] : before_) parameters_.restore(name, std::move(before));
  }
  OtherParameters(const OtherParameters&) = delete;
  OtherParameters& operator=(const OtherParameters&) = delete;

 private:
  residency::Onload& parameters_;
  std::map<std::string, residency::Onload::Saved> before_;
};

std::uint64_t bytes_of(const std::map<graph::ValueId, at::Tensor>& values) {
  std::uint64_t bytes = 0;
  for (const auto& [value, tensor] : values) bytes += tensor.nbytes();
  return bytes;
}

}  // namespace

std::vector<double> TrialRunner::run(const schedule::TrialStages& stages, const compression::Trial& trial,
                                     residency::Onload& parameters) const {
  std::vector<double> losses(trial.candidates, 0);
  for (std::size_t b = 0; b < run_.batches.size();) {
    std::vector<Prepared> some;
    for (std::uint64_t bytes = 0; b < run_.batches.size() && bytes < schedule::kTrialBytes; ++b) {
      run_.control.check_stop();
      Prepared& own = some.emplace_back();
      own.batch = b;
      own.before = run_stage(stages.before, b, parameters, {});
      own.outputs = run_stage(stages.tried, b, parameters, own.before);
      bytes += bytes_of(own.before) + bytes_of(own.outputs);
    }
    for (std::size_t candidate = 0; candidate < trial.candidates; ++candidate) {
      run_.control.check_stop();
      const OtherParameters other(parameters, trial.parameters(candidate));
      for (const Prepared& own : some) losses[candidate] += loss(stages.tried, own, parameters);
    }
  }
  run_.group.all_reduce(at::from_blob(losses.data(), {static_cast<std::int64_t>(losses.size())}, at::kDouble));
  return losses;
}

/// The squared differences of a batch's outputs that count.
double TrialRunner::loss(const graph::Stage& tried, const Prepared& prepared,
                         const residency::Onload& parameters) const {
  double sum = 0;
  for (const auto& [value, rows] : run_stage(tried, prepared.batch, parameters, prepared.before)) {
    const auto counted = [&, kind = run_.graph.values[value].rows](const at::Tensor& all) {
      return execution::select_counted_rows(run_.batches[prepared.batch], kind, all);
    };
    sum += kernels::squared_difference(counted(rows), counted(prepared.outputs.at(value)));
  }
  return sum;
}

TrialRunner::Values TrialRunner::run_stage(const graph::Stage& stage, std::size_t b,
                                           const residency::Onload& parameters, const Values& before) const {
  Values kept;
  if (stage.nodes.empty()) return kept;
  const auto phase = run_.times.measure("forward");
  const execution::StageValues values{[&](graph::ValueId stored) {
                                        const auto found = before.find(stored);
                                        return found == before.end() ? store_.get(stored, b) : found->second;
                                      },
                                      [&](graph::ValueId value, at::Tensor rows) { kept[value] = std::move(rows); }};
  execution::run_stage(run_, stage, parameters, run_.batches[b], values, {.surveys = &surveys_});
  return kept;
}

}  // namespace layerpress::pipeline
