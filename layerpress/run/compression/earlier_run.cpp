#include "layerpress/run/compression/earlier_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "layerpress/base/json.h"
#include "layerpress/output/journal.h"
#include "layerpress/schedule/pipelines.h"

namespace layerpress::run {
namespace {

/// Of the journal of an unfinished run; null: there is none.
Json header_of(const std::string& output) {
  const std::vector<Json> records = output::Journal::read_all(PendingDirectory::pending_path(output));
  return records.empty() ? Json() : records.front();
}

/// The number of leading subgraphs that are all finished, behind which the run continues; 0 if it starts anew.
std::size_t finished_in_order(const std::vector<bool>& finished) {
  const auto next = std::find(finished.begin(), finished.end(), false);
  if (next == finished.end() || std::find(next, finished.end(), true) != finished.end()) return 0;
  return static_cast<std::size_t>(next - finished.begin());
}

/// The shapes of the values that the scratch file must have for the boundary after subgraph `index`; nothing if they
/// are known only after recomputation, because tokens are selected.
std::optional<residency::ActivationStore::Expected> expected_at(const graph::Graph& graph,
                                                                const std::vector<execution::Batch>& batches,
                                                                std::size_t index,
                                                                const std::vector<graph::ValueId>& boundary) {
  residency::ActivationStore::Expected expected;
  expected.index = index;
  for (const graph::ValueId id : boundary) {
    const graph::Value& value = graph.values[graph::OriginalStream::value_of(graph, id)];
    if (value.rows == graph::Rows::kSelected) return std::nullopt;
    for (const execution::Batch& batch : batches)
      expected.shapes[id].push_back({batch.rows(value.rows), value.features});
  }
  return expected;
}

/// If the scratch file still has every value that the next subgraph reads, nothing has to be recomputed.
void restore_boundary(const Rank& rank, const output::RunFolder& folder, const output::OutputWriter& output,
                      const plan::PlanInput& input, Leftovers& leftovers) {
  const std::size_t next = finished_in_order(input.finished);
  if (next == 0 || folder.scratch().empty() || input.samples.empty()) return;
  const Json boundary = output.boundary(next - 1);
  if (boundary.is_null()) return;
  const setup::RunSetup& setup = input.run;
  const auto schedule =
      setup.pipeline->make_schedule({setup.model.traced.graph, setup.subgraphs, setup.assignments, input.finished});
  const auto batches = plan::batches_of(input.samples, input.batch_tokens, setup.model.traced.graph);
  const auto expected = expected_at(setup.model.traced.graph, batches, next - 1, schedule[next - 1].boundary);
  if (!expected) return;
  residency::ActivationStore::Options options;
  options.scratch = folder.scratch();
  auto store = std::make_unique<residency::ActivationStore>(batches.size(), std::move(options));
  if (!store->restore(boundary, *expected)) return;
  leftovers.store = std::move(store);
  leftovers.available = schedule[next - 1].boundary;
  rank.control.message(LogLevel::kInfo,
                       fmt::format("activations behind {} are still there", setup.subgraphs[next - 1].name));
}

}  // namespace

EarlierRun earlier_run(const Rank& rank) {
  EarlierRun earlier;
  if (!rank.options.resume) return earlier;
  // Only one rank reads, because storage may show other ranks something else.
  const Json header =
      Json::parse(rank.group.broadcast_text(rank.group.is_first() ? header_of(rank.options.output).dump() : "", 0));
  if (header.is_null()) return earlier;
  const Json plan = header.contains("plan") ? header["plan"] : Json::object();
  earlier.shard_sets = output::Journal::shard_sets(header);
  earlier.same_ranks = json_get_or<int>(plan, "ranks", "journal", 1) == rank.group.size();
  if (!earlier.same_ranks) return earlier;
  if (rank.options.threads == 0) {
    const auto threads = json_get<std::vector<int>>(plan, "threads", "journal");
    const auto own = static_cast<std::size_t>(rank.group.rank());
    if (own >= threads.size() || threads[own] < 1)
      throw CheckpointError("[resume] {}: the journal has no threads of rank {}; start over with --overwrite",
                            rank.options.output, own);
    earlier.threads = threads[own];
  }
  earlier.batch_tokens = json_get_or<std::int64_t>(plan, "batch_tokens", "journal", 0);
  return earlier;
}

setup::RunIdentity identity_of(const OneshotOptions& options, const setup::RunSetup& setup) {
  setup::RunIdentity identity;
  identity.options = setup::identity_of_options(options);
  identity.recipe = recipe::to_yaml(setup.recipe);
  identity.software = setup::identity_of_software(setup.placement);
  identity.model = setup::identity_of_model(setup.model);
  identity.subgraphs = setup.subgraphs.size();
  identity.decision = setup.decision;
  return identity;
}

void require_same_run(const Rank& rank, const output::RunFolder& folder, const setup::RunIdentity& identity) {
  if (folder.journal().empty() || !rank.group.is_first()) return;
  const std::string found = setup::difference(folder.journal().front(), identity);
  if (!found.empty())
    throw UsageError(
        "[resume] {}: the unfinished run cannot be continued: {}; use the same options and files, or start over with "
        "--overwrite",
        rank.options.output, found);
}

void require_same_run_but_data(const Rank& rank, const output::RunFolder& folder, setup::RunIdentity identity) {
  if (folder.journal().empty()) return;
  identity.dataset = folder.journal().front().value("dataset", Json());
  require_same_run(rank, folder, identity);
}

bool is_result_of(const Rank& rank, const setup::RunIdentity& identity, const setup::OpenedModel& model) {
  const auto is_same = [&] {
    const Json then = output::RunFolder::run_of_output(rank.options.output);
    const setup::RunIdentity now = setup::identity_of_result(identity, model);
    if (then.is_null() || then.value("format", Json()) != now.to_json()["format"]) {
      rank.control.message(LogLevel::kWarning,
                           fmt::format("[output] {}: is complete, but does not say which data and options it was made "
                                       "with, so they were not compared; start over with --overwrite if they differ",
                                       rank.options.output));
      return true;
    }
    const std::string found = setup::difference(then, now);
    if (!found.empty() && !rank.options.overwrite)
      throw UsageError(
          "[resume] {}: is the complete result of another run: {}; choose another --output or pass --overwrite",
          rank.options.output, found);
    return found.empty();
  };
  return rank.group.broadcast_text(rank.group.is_first() && is_same() ? "yes" : "no", 0) == "yes";
}

std::size_t accept_finished(const Rank& rank, const setup::RunSetup& setup, const output::RunFolder& folder,
                            output::OutputWriter& output) {
  output.accept(folder.journal());
  std::string own;
  for (const bool finished : output.finished()) own += finished ? '1' : '0';
  std::string all = own;  // all ranks repeat the subgraphs that one of them finds damaged
  for (const std::string& other : rank.group.all_gather_text(own))
    for (std::size_t s = 0; s < all.size(); ++s)
      if (other[s] == '0') all[s] = '0';
  for (const Json& record : folder.journal()) {
    const auto index = json_get_or<std::size_t>(record, "index", "journal", all.size());
    if (index >= all.size() || all[index] == '1') continue;
    output.reject(index);
    rank.control.message(LogLevel::kWarning, fmt::format("{}: its tensors in {} are damaged and will be made again",
                                                         setup.subgraphs[index].name, rank.options.output));
  }
  const auto accepted = static_cast<std::size_t>(std::count(all.begin(), all.end(), '1'));
  rank.control.message(LogLevel::kInfo,
                       fmt::format("{} of {} subgraphs are done already", accepted, setup.subgraphs.size()));
  return accepted;
}

Leftovers find_leftovers(const Rank& rank, const output::RunFolder& folder, const output::OutputWriter& output,
                         const plan::PlanInput& input) {
  const setup::RunSetup& setup = input.run;
  Leftovers leftovers;
  leftovers.weights = std::make_unique<output::ResumedWeights>(setup.model, setup.assignments, setup.subgraphs, output,
                                                               setup.placement.dtype);
  restore_boundary(rank, folder, output, input, leftovers);
  return leftovers;
}

}  // namespace layerpress::run
