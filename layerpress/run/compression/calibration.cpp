#include "layerpress/run/compression/calibration.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "layerpress/data/row_slice.h"
#include "layerpress/data/token_rows.h"
#include "layerpress/graph/graph.h"
#include "layerpress/run/compression/dataset_options.h"
#include "layerpress/setup/opening/sample_lengths.h"
#include "layerpress/setup/run_identity.h"

namespace layerpress::run {
namespace {

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

/// Identity of all ranks' parts together, independent of their division. `counted_tokens`: tokens that count in
/// statistics.
Json identity_of_all(const data::CalibrationSet& set, dist::Group& group, std::int64_t& counted_tokens) {
  const at::Tensor sums = at::empty({4}, at::kLong);
  auto* sum = sums.data_ptr<std::int64_t>();
  sum[0] = set.sample_count();
  sum[1] = set.token_count();
  sum[2] = static_cast<std::int64_t>(setup::checksum_of_samples(set));  // wraps around, which sums may
  sum[3] = set.counted_tokens();
  group.all_reduce(sums);
  counted_tokens = sum[3];
  if (sum[0] == 0) return nullptr;
  return setup::identity_of_data(sum[0], sum[1], static_cast<std::uint64_t>(sum[2]));
}

/// Numbers the samples of all ranks. Where nothing else is known, ranks have consecutive parts.
void place_samples(dist::Group& group, Calibration& calibration) {
  int rank = 0;
  std::int64_t before = 0;
  for (const at::Tensor& count : group.all_gather(at::full({1}, calibration.set.sample_count(), at::kLong))) {
    if (rank++ < group.rank()) before += count.item<std::int64_t>();
    calibration.all_samples += count.item<std::int64_t>();
  }
  if (!calibration.set.places.empty()) return;
  calibration.set.places.resize(static_cast<std::size_t>(calibration.set.sample_count()));
  std::iota(calibration.set.places.begin(), calibration.set.places.end(), before);
}

void say_long_samples(Rank& rank, const setup::RunSetup& setup, const data::CalibrationSet& set) {
  std::int64_t longest = setup::longest_sample(set);
  for (const at::Tensor& other : rank.group.all_gather(at::full({1}, longest, at::kLong)))
    longest = std::max(longest, other.item<std::int64_t>());
  setup::warn_beyond_context(longest, setup.model.traced.max_position_embeddings, rank.control);
}

data::CalibrationSet read_set(const OneshotOptions& options, const setup::RunSetup& setup,
                              const setup::DataDivision& division, dist::Group& group, const RunControl& control) {
  if (!setup.pipeline->takes_data) return {};
  if (options.dataset.empty()) {
    const std::string use = setup::data_use(options, setup.modifiers);
    const bool rounds = options.recipe.empty() && options.algorithm == "gptq" && !use.empty();
    throw UsageError("[options] --dataset is missing: calibration data is needed by {}{}",
                     use.empty() ? "--pipeline " + std::string(setup.pipeline->name) : use,
                     rounds ? "; without data, --algorithm rtn rounds to nearest" : "");
  }
  if (options.model_in_memory && data::open_token_rows(options.dataset) == nullptr)
    throw UsageError(
        "[options] --dataset: data for a model in memory must be tokenized, because no tokenizer is beside it");
  data::DatasetOptions dataset = dataset_options(options);
  dataset.has_tokenizer = setup.model.has_tokenizer;
  if (group.is_first()) warn_of_unused(dataset, /*draws=*/false, control);
  if (division.own_slices) return load_own_slice(dataset, setup, control);
  const std::filesystem::path& model = setup.model.checkpoint->directory();
  if (group.size() == 1) return data::load_samples(dataset, model, setup.model.traced.vocab_size, control);
  setup::RankLoaders loaders(group);
  return data::load_partition(dataset, model, setup.model.traced.vocab_size, loaders, control);
}

/// Leaves out samples that are too short for the model, and numbers the others of all ranks without gaps.
void leave_out_short(const model::TracedModel& model, const std::string& dataset, data::CalibrationSet& set,
                     dist::Group& group, const RunControl& control) {
  const std::int64_t least = setup::least_tokens(model);
  if (least == 1) return;
  const std::vector<std::int64_t> own = set.take_shorter(least);
  std::vector<std::int64_t> removed;
  std::int64_t left = 0;
  for (const std::string& text : group.all_gather_text(Json{set.sample_count(), own}.dump())) {
    const Json counts = Json::parse(text);
    left += counts[0].get<std::int64_t>();
    removed.insert(removed.end(), counts[1].begin(), counts[1].end());
  }
  if (removed.empty()) return;
  if (left == 0)
    throw DataError(
        "[data] {}: all samples have fewer than the {} tokens that the model's imported graph needs; pass longer texts",
        dataset, least);
  for (std::int64_t& place : set.places)
    place -= std::count_if(removed.begin(), removed.end(), [&](std::int64_t gone) { return gone < place; });
  if (group.is_first()) control.message(LogLevel::kWarning, setup::short_samples_text(removed.size(), least, dataset));
}

}  // namespace

data::CalibrationSet load_set(const OneshotOptions& options, const setup::RunSetup& setup,
                              const setup::DataDivision& division, dist::Group& group, const RunControl& control) {
  data::CalibrationSet set = read_set(options, setup, division, group, control);
  leave_out_short(setup.model.traced, options.dataset, set, group, control);
  setup::require_lengths(setup.model.traced, set, options.dataset);
  return set;
}

Calibration load_calibration(Rank& rank, const setup::RunSetup& setup, const setup::DataDivision& division) {
  const auto phase = rank.times.measure("data");
  const auto unfinished = rank.options.resume ? find_unfinished_run(rank.options.output) : std::nullopt;
  rank.control.step(unfinished ? unfinished->finished : 0, setup.subgraphs.size(), "data");
  Calibration calibration;
  calibration.set = load_set(rank.options, setup, division, rank.group, rank.control);
  calibration.identity = identity_of_all(calibration.set, rank.group, calibration.all_tokens);
  place_samples(rank.group, calibration);
  say_long_samples(rank, setup, calibration.set);
  if (!calibration.identity.is_null() && calibration.all_tokens == 0)
    throw DataError("[data.loss_mask] {}: the loss mask excludes every token, so nothing can be calibrated",
                    rank.options.dataset);
  if (calibration.identity.is_null() && setup.pipeline->takes_data)
    throw DataError("[data] {}, split {}: gives no samples; pass another dataset or split", rank.options.dataset,
                    division.split);
  return calibration;
}

}  // namespace layerpress::run
