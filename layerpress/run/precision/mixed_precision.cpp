#include "layerpress/run/precision/mixed_precision.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "layerpress/base/file.h"
#include "layerpress/base/text.h"
#include "layerpress/gguf/mixture.h"
#include "layerpress/graph/weight_matrix.h"
#include "layerpress/model/blocks/weight_names.h"
#include "layerpress/output/journal.h"
#include "layerpress/output/measurement_log.h"
#include "layerpress/output/output_parts.h"
#include "layerpress/output/run_folder.h"
#include "layerpress/recipe/candidate_schemes.h"
#include "layerpress/recipe/gguf_recipe.h"
#include "layerpress/recipe/recipe_of_options.h"
#include "layerpress/run/compression/calibration.h"
#include "layerpress/run/compression/rank.h"
#include "layerpress/run/compression/run_together.h"
#include "layerpress/run/compression/settled_setup.h"
#include "layerpress/run/decisions/decisions.h"
#include "layerpress/run/decisions/measuring_run.h"
#include "layerpress/run/decisions/scheme_comparison.h"
#include "layerpress/run/precision/precision_decision.h"
#include "layerpress/run/results/hub_transfers.h"

namespace layerpress {
namespace run {
namespace {

using Names = std::vector<std::string>;

/// What tensors' entries take in the headers of a result, alignment included, at most.
class HeaderBytes {
 public:
  explicit HeaderBytes(const setup::RunSetup& setup)
      : is_gguf_(!setup.target->has_config()), last_(2 * setup.model.stored->total_bytes()) {}

  /// What stands around the entries; a GGUF has the tokenizer there.
  std::uint64_t of_files(const setup::RunSetup& setup, std::uint64_t largest_shard) const {
    if (!is_gguf_)
      return (1 + setup.model.stored->total_bytes() / largest_shard) *
             (checkpoint::safetensors_header({}, {{"format", "pt"}}).size() + 8);  // 8: padding
    std::uint64_t bytes = 0;
    for (const checkpoint::FileLayout& file : output::layout_of(setup, {}, setup::kUnlimited, 1).files) {
      bytes += file.header.size();
      for (const checkpoint::StoredTensor& tensor : file.tensors) bytes -= of_entry(tensor) - gguf::kAlignment;
    }
    return bytes;
  }
  std::uint64_t of_entry(const checkpoint::TensorSpec& tensor) const {
    if (is_gguf_) return tensor.name.size() + 24 + 8 * tensor.shape.size() + gguf::kAlignment;
    return checkpoint::safetensors_entry(tensor, last_, last_).size();
  }

 private:
  bool is_gguf_;
  std::uint64_t last_;  ///< no offset has more digits
};

bool has_bits(const OneshotOptions& options) { return options.target_bits != 0 || options.is_given("target-bits"); }

void check_choice(const OneshotOptions& options) {
  if (has_bits(options) && !options.target_size.empty())
    throw UsageError("[options] --target-bits and --target-size both limit the result; give one of them");
  if (!has_bits(options) && options.target_size.empty())
    throw UsageError("[options] --schemes requires --target-bits or --target-size");
  if (has_bits(options) && (!(options.target_bits > 0) || options.target_bits > 64))
    throw UsageError("[options] --target-bits: {} is no number of bits for a weight; pass one such as 4.5",
                     options.target_bits);
  if (options.schemes.empty())
    throw UsageError("[options] --{} chooses among schemes; add --schemes, such as {}",
                     has_bits(options) ? "target-bits" : "target-size",
                     recipe::asks_for_gguf(options) ? "Q4_K,Q6_K,Q8_0" : "NVFP4,FP8_DYNAMIC,none");
  if (!options.recipe.empty())
    throw UsageError("[options] --schemes and --recipe: a recipe names the scheme of every module; give only one");
  if (options.scheme != OneshotOptions().scheme || options.is_given("scheme"))
    throw UsageError("[options] --schemes and --scheme: give only one of them");
  if (!options.from_imatrix.empty())
    throw UsageError("[options] --schemes measures inputs itself; leave out --from-imatrix");
  if (options.algorithm != "gptq" && options.algorithm != "rtn")
    throw UsageError("[options] --algorithm: unknown value '{}'; choose from gptq, rtn", options.algorithm);
  if (options.dataset.empty())
    throw UsageError("[options] --schemes: what each scheme costs is measured on data; add --dataset");
  recipe::check_candidates(options, options.schemes, /*takes_none=*/true);
  if (std::all_of(options.schemes.begin(), options.schemes.end(),
                  [](const std::string& name) { return name == recipe::kLeftAlone; }))
    throw UsageError("[options] --schemes: {} alone compresses nothing; add a scheme", recipe::kLeftAlone);
}

/// The options of the run that follows: the recipe says what the others have led to.
OneshotOptions with_recipe(OneshotOptions options, const std::string& recipe) {
  const OneshotOptions defaults;
  options.recipe = recipe;
  options.algorithm = defaults.algorithm, options.group_size = 0, options.observer.clear();
  options.targets = defaults.targets, options.ignore = defaults.ignore;
  options.schemes.clear(), options.target_bits = 0, options.target_size.clear();
  std::erase_if(options.given, [](const std::string& name) {
    return name == "algorithm" || name == "group-size" || name == "observer" || name == "targets" || name == "ignore" ||
           name == "schemes" || name == "target-bits" || name == "target-size";
  });
  return options;
}

/// What the chosen schemes are, for the log and the model card: "NVFP4 in 120 modules, FP8_DYNAMIC in 80".
std::string chosen_text(const Json& decision) {
  Names parts;
  for (const Json& scheme : decision.at("schemes"))
    parts.push_back(fmt::format("{} in {}", scheme.at("scheme").get<std::string>(),
                                counted(scheme.at("modules").get<std::size_t>(), "module")));
  return join(parts);
}

/// A choice as this program writes it; null for anything else.
Json known_decision(const Json& run) {
  try {
    Json decision = run.at("decision");
    (void)decision.at("recipe").get<std::string>();
    (void)chosen_text(decision);
    for (const char* figure : {"bits", "predicted_kl"}) (void)decision.at(figure).get<double>();
    return decision;
  } catch (const nlohmann::json::exception&) {
    return nullptr;
  }
}

/// The choice of the run that is resumed, which may have finished; null: there is none. Rank 0 reads.
Json earlier_choice(const OneshotOptions& options, dist::Group& group) {
  Json found = {{"decision", nullptr}, {"is_finished", false}};
  if (group.is_first() && options.resume) {
    const std::vector<Json> journal = output::Journal::read_all(PendingDirectory::pending_path(options.output));
    const Json run = journal.empty() ? output::RunFolder::run_of_output(options.output) : journal.front();
    found = {{"decision", known_decision(run)}, {"is_finished", journal.empty()}};
  }
  found = Json::parse(group.broadcast_text(found.dump(), 0));
  Json decision = found["decision"];
  const bool is_finished = found["is_finished"];
  if (decision.is_null()) return decision;
  const Json then = decision.value("request", Json::object()), now = precision_request(options);
  for (const auto& [name, value] : now.items()) {
    if (then.value(name, Json()) == value) continue;
    if (is_finished && options.overwrite) return nullptr;
    const std::string change =
        fmt::format("--{} was {} and is {}", name, then.value(name, Json()).dump(), value.dump());
    if (is_finished)
      throw UsageError(
          "[resume] {}: is the complete result of another run: {}; choose another --output or pass --overwrite",
          options.output, change);
    throw UsageError(
        "[resume] {}: the unfinished run cannot be continued: {}; use the same options and files, or start over with "
        "--overwrite",
        options.output, change);
  }
  return decision;
}

/// Embeddings and the output of a GGUF, which are not chosen for.
struct Vocabulary {
  recipe::CandidateTargets group{};  ///< without a name: they stay as they are
  std::set<std::string> weights{};
};

/// They get what llama.cpp gives the output: Q6_K, or Q8_0 if 256 does not divide the width or no scheme is smaller. Options that name modules
/// replace this.
Vocabulary vocabulary_of(const OneshotOptions& options, const setup::RunSetup& setup) {
  const OneshotOptions defaults;
  if (!recipe::asks_for_gguf(options) || options.targets != defaults.targets || options.ignore != defaults.ignore ||
      options.is_given("targets") || options.is_given("ignore"))
    return {};
  const quant::TargetList heads(defaults.ignore, "ignore");
  const graph::Graph& graph = setup.model.traced.graph;
  Vocabulary vocabulary;
  std::int64_t divisor = 0;  // of all widths
  for (const bool linears : {false, true})
    for (const graph::Node& node : graph.nodes) {
      const auto matrix = graph::weight_matrix(node.operation);
      if (!matrix || graph::is_linear(node.operation) != linears) continue;
      const std::string& module = graph.module_name(node);
      if ((linears && !heads.matches({module, {}, model::other_names(setup.model.traced, module)})) ||
          setup.target->left_out(matrix->weight) || !vocabulary.weights.insert(matrix->weight).second)
        continue;
      vocabulary.group.targets.push_back(module);
      divisor = std::gcd(divisor, matrix->columns);
    }
  const bool large = std::none_of(options.schemes.begin(), options.schemes.end(), [](const std::string& name) {
    return name != recipe::kLeftAlone && gguf::find_block_type(name)->bits_per_value() < 8;
  });
  const std::string type = gguf::type_for_columns(large ? "Q8_0" : "Q6_K", divisor);
  if (type == "F16") return {};
  vocabulary.group.name = type;
  return vocabulary;
}

/// Of the entries of a linear's tensors, in the scheme whose entries are the longest.
std::uint64_t entries_of_linear(const SchemeComparison& comparison, const HeaderBytes& header,
                                const std::string& module, const compression::LinearShape& shape) {
  std::uint64_t most = header.of_entry({module + ".weight", shape.dtype, {shape.rows, shape.columns}});
  for (const quant::QuantizationScheme* scheme : comparison.schemes) {
    std::uint64_t bytes = 0;
    for (const quant::NamedTensorSpec& part : stored_parts(*scheme, shape))
      bytes += header.of_entry({module + "." + part.suffix, part.dtype, part.shape});
    most = std::max(most, bytes);
  }
  return most;
}

/// Bytes of everything in the result but the weights of the measured linears.
std::uint64_t other_bytes(const OneshotOptions& options, const SchemeComparison& comparison,
                          const Vocabulary& vocabulary) {
  const setup::RunSetup& setup = comparison.setup();
  const gguf::BlockType* type = gguf::find_block_type(vocabulary.group.name);
  const HeaderBytes header(setup);
  std::uint64_t bytes = header.of_files(setup, parse_bytes(options.max_shard_size, "--max-shard-size"));
  for (const auto& [module, linear] : linears_of(setup))
    bytes += entries_of_linear(comparison, header, module, linear.shape);
  for (const output::OutputPart& part : output::output_parts(setup, {})) {
    if (part.linear) continue;
    for (const checkpoint::TensorSpec& tensor : part.tensors)
      bytes += header.of_entry(tensor) +
               (type != nullptr && vocabulary.weights.contains(tensor.name)
                    ? static_cast<std::uint64_t>(tensor.shape[0] * type->row_bytes(tensor.shape[1]))
                    : tensor.nbytes());
  }
  return bytes;
}

/// Unfinished runs of earlier versions have none.
std::string measured_words(const Json& decision) {
  return json_has(decision, "measured_kl")
             ? fmt::format(", measured {:.4g} rounded to nearest", decision["measured_kl"].get<double>())
             : "";
}

/// Refuses a disk that is too small for the least that the schemes take.
void require_space(const OneshotOptions& options, const MeasuredUnits& units, std::uint64_t other_bytes) {
  std::uint64_t bytes = other_bytes;
  for (const recipe::PrecisionUnit& unit : units.options) bytes += recipe::least_bits(unit) / 8;
  std::filesystem::path place = std::filesystem::absolute(options.output).parent_path();
  std::error_code failure;
  while (!std::filesystem::exists(place, failure) && place.has_relative_path()) place = place.parent_path();
  const std::filesystem::space_info space = std::filesystem::space(place, failure);
  if (!failure && space.available < bytes)
    throw IoError(
        "[output] {}: the result takes at least {}, and {} are free; free some space or choose another --output",
        options.output, format_bytes(bytes), format_bytes(space.available));
}

/// All that the measurement refers to.
struct Measured {
  SchemeComparison comparison;
  MeasuredUnits units;
  Vocabulary vocabulary;
  std::uint64_t others = 0;  ///< bytes
};

Measured prepare(Rank& rank) {
  const OneshotOptions& options = rank.options;
  Names rounded = options.schemes;
  std::erase(rounded, recipe::kLeftAlone);
  Measured measured;
  measured.comparison = set_up_comparison(rank, rounded, options.algorithm == "gptq");
  measured.units = sized_units(rank, options.schemes, measured.comparison);
  measured.vocabulary = vocabulary_of(options, measured.comparison.setup());
  measured.others = other_bytes(options, measured.comparison, measured.vocabulary);
  require_useful_limit(options, measured.units, measured.others);
  return measured;
}

/// A run that may follow: as if a unit lost the less, the more bits it has.
MixedPrecision assumed_choice(const OneshotOptions& options, const Measured& measured) {
  MeasuredUnits units = measured.units;
  units.left.assign(units.units.size(), 1);
  for (std::size_t u = 0; u < units.units.size(); ++u)
    for (std::size_t c = 0; c < options.schemes.size(); ++c)
      units.options[u][c].loss = units.predicted[u][c] = 1.0 / static_cast<double>(1 + units.options[u][c].bits);
  MixedPrecision assumed;
  assumed.decision = precision_decision(options, units, measured.others, measured.vocabulary.group);
  assumed.options = with_recipe(options, assumed.decision["recipe"].get<std::string>());
  return assumed;
}

/// Refuses first what would refuse the run that follows, with any choice.
void check_following(const Rank& rank, const Measured& measured) {
  const OneshotOptions following = assumed_choice(rank.options, measured).options;
  RunControl quiet = rank.control;
  quiet.events = nullptr;
  settle(setup::set_up(following, rank.group, quiet, assume_decisions), following, rank.group, quiet);
}

/// The places of the candidates that would take the next fewer and the next more bits than the choice, if all units had them. Units left alone lose
/// nothing, which needs no measurement.
std::vector<std::size_t> neighbours(const Json& decision) {
  const Json& uniform = decision["uniform"];
  const auto bits = decision["bits"].get<double>();
  const auto bits_of = [&](std::size_t c) { return uniform[c]["bits"].get<double>(); };
  std::optional<std::size_t> below, above;
  for (std::size_t c = 0; c < uniform.size(); ++c) {
    if (uniform[c]["scheme"] == recipe::kLeftAlone) continue;
    if (bits_of(c) < bits && (!below || bits_of(c) > bits_of(*below))) below = c;
    if (bits_of(c) > bits && (!above || bits_of(c) < bits_of(*above))) above = c;
  }
  std::vector<std::size_t> places;
  if (below) places.push_back(*below);
  if (above) places.push_back(*above);
  return places;
}

/// Measures what the choice and its neighbours lose together, which the prediction adds up from units.
void add_measured(Rank& rank, const Names& candidates, const SchemeComparison& comparison, const MeasuredUnits& units,
                  Json& decision) {
  std::vector<std::size_t> chosen;
  for (const Json& unit : decision["units"])
    chosen.push_back(static_cast<std::size_t>(
        std::find(candidates.begin(), candidates.end(), unit["scheme"].get<std::string>()) - candidates.begin()));
  std::vector<std::vector<std::size_t>> models = {std::move(chosen)};
  const std::vector<std::size_t> places = neighbours(decision);
  for (const std::size_t place : places) models.emplace_back(units.units.size(), place);
  const std::vector<double> measured = measure_choices(rank, candidates, comparison, units, models);
  decision["measured_kl"] = measured.front();
  for (std::size_t i = 0; i < places.size(); ++i) decision["uniform"][places[i]]["measured_kl"] = measured[i + 1];
}

/// Without the options of the run that follows.
MixedPrecision measured_precision(OneshotOptions options, const RunControl& control, dist::Group& group, bool writes) {
  options.imatrix.clear();  // the run that follows writes it
  Rank rank{options, control, group};
  Measured measured = prepare(rank);
  if (writes) {
    require_output(options, measured.comparison.setup(), group);
    if (group.is_first()) require_space(options, measured.units, measured.others);
    check_following(rank, measured);
  }
  measure_units(rank, options.schemes, measured.comparison, measured.units, writes);
  Json decision = precision_decision(options, measured.units, measured.others, measured.vocabulary.group);
  add_measured(rank, options.schemes, measured.comparison, measured.units, decision);
  decision["seconds"] = rank.timer.seconds();
  return {.options = {}, .decision = std::move(decision), .planned_bytes = measured.units.planned_bytes};
}

}  // namespace

bool asks_for_mixed_precision(const OneshotOptions& options) {
  return has_bits(options) || !options.target_size.empty() || !options.schemes.empty();
}

MixedPrecision choose_precision(const OneshotOptions& options, const RunControl& control, dist::Group& group,
                                bool writes) {
  const c10::InferenceMode inference;
  check_choice(options);
  MixedPrecision chosen;
  if (writes) chosen.decision = earlier_choice(options, group);
  const bool is_new = chosen.decision.is_null();
  if (is_new) chosen = measured_precision(options, control, group, writes);
  chosen.options = with_recipe(options, chosen.decision["recipe"].get<std::string>());
  control.message(LogLevel::kInfo,
                  fmt::format("[mixed_precision] {}{}: {:.3f} bits per weight, predicted KL divergence {:.4g}{}",
                              is_new ? "" : "the earlier run's choice: ", chosen_text(chosen.decision),
                              chosen.decision["bits"].get<double>(), chosen.decision["predicted_kl"].get<double>(),
                              measured_words(chosen.decision)));
  return chosen;
}

PlannedPrecision plan_precision(OneshotOptions options, const RunControl& control, dist::Group& group) {
  const c10::InferenceMode inference;
  check_choice(options);
  options.imatrix.clear();
  Rank rank{options, control, group};
  const Measured measured = prepare(rank);
  const setup::RunSetup& setup = measured.comparison.setup();
  const data::CalibrationSet set =
      load_set(options, setup, setup::agree_on_data(options.dataset_split, group), group, control);
  PlannedPrecision planned;
  planned.assumed = assumed_choice(options, measured);
  planned.steps = Json::array();
  for (const MeasuringStep& step : plan_measurement(rank, options.schemes, measured.comparison, measured.units, set))
    planned.steps.push_back(report_of(step, options.model));
  return planned;
}

std::string in_words_of_recipe(const OneshotOptions& given, std::string refusal) {
  constexpr std::string_view kBegin = "[options] --";
  const bool is_own = !given.schemes.empty() || has_bits(given) || !given.target_size.empty();
  if (given.recipe.empty() || is_own || !refusal.starts_with(kBegin)) return refusal;
  refusal.replace(0, kBegin.size(), "[recipe.modifier] MixedPrecisionModifier: --");
  for (const char* argument : {"target_bits", "target_size", "schemes", "group_size", "algorithm"}) {
    std::string option = fmt::format("--{}", argument);
    std::ranges::replace(option, '_', '-');
    for (std::size_t at = refusal.find(option); at != std::string::npos; at = refusal.find(option, at))
      refusal.replace(at, option.size(), argument);
  }
  return refusal;
}

}  // namespace run

Json mixed_precision(const OneshotOptions& given, const RunControl& control, Distributed* ranks) {
  dist::Group alone;
  dist::Group& group = ranks != nullptr ? *ranks : alone;
  return run::run_together(group, [&] {
    const OneshotOptions options = recipe::with_mixed_precision(given);
    const RunControl own = run::control_of(control, group);
    run::fetch_model(options, group, own);
    return run::choose_as_given(given, [&] { return run::choose_precision(options, own, group, /*writes=*/false); })
        .decision;
  });
}

}  // namespace layerpress
