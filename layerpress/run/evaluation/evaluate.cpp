#include "layerpress/evaluate.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "layerpress/base/file.h"
#include "layerpress/data/load_samples.h"
#include "layerpress/execution/body_run.h"
#include "layerpress/graph/facts/image_geometry.h"
#include "layerpress/output/run_folder.h"
#include "layerpress/residency/host_memory.h"
#include "layerpress/run/evaluation/evaluation_tasks.h"
#include "layerpress/run/evaluation/model_head.h"
#include "layerpress/run/evaluation/token_divergences.h"
#include "layerpress/run/results/card_quality.h"
#include "layerpress/run/results/run_report.h"
#include "layerpress/setup/assignment/rounded_inputs.h"
#include "layerpress/setup/opening/hub.h"
#include "layerpress/setup/opening/open_model.h"
#include "layerpress/setup/opening/sample_lengths.h"
#include "layerpress/setup/run_identity.h"

namespace layerpress {
namespace {

class RunningModel;

/// A model, its samples, and its hidden states before the head, one tensor per batch.
struct Evaluated {
  setup::OpenedModel model;
  residency::Placement placement;
  data::CalibrationSet samples;
  std::vector<execution::Batch> batches;
  std::vector<at::Tensor> hidden;
  std::unique_ptr<RunningModel> running;  // refers to the others

  /// Logits after tokens [begin, end) of a batch, all of one sample: [tokens, vocabulary].
  at::Tensor logits(std::size_t batch, std::int64_t begin, std::int64_t end) const;
};

/// A model that runs over the batches up to its head, with all objects that the run refers to.
class RunningModel {
 public:
  RunningModel(Evaluated& evaluated, const RunControl& control)
      : graph_(evaluated.model.traced.graph),
        head_(graph_),
        weights_(evaluated.model.weights()),
        context_{graph_, *weights_, evaluated.placement, evaluated.batches, control, times_, alone_},
        body_(context_, setup::cut_model(evaluated.model.traced, {}), head_.hidden()) {}
  RunningModel(const RunningModel&) = delete;
  RunningModel& operator=(const RunningModel&) = delete;

  execution::BodyRun& body() { return body_; }

  void load_head() { parameters_.emplace(*weights_, graph::weight_names(graph_, head_.nodes()), context_.placement); }

  /// Of consecutive tokens of one sample.
  at::Tensor logits(std::size_t batch, std::int64_t begin, std::int64_t end, const at::Tensor& hidden) const {
    const at::Tensor ids = context_.batches[batch].token_ids.slice(0, begin, end);
    return head_.logits(context_, *parameters_, ids, hidden.slice(0, begin, end));
  }

 private:
  const graph::Graph& graph_;
  const ModelHead head_;
  std::unique_ptr<residency::WeightSource> weights_;
  PhaseTimes times_;
  dist::Group alone_;
  execution::RunContext context_;
  execution::BodyRun body_;
  std::optional<residency::Onload> parameters_;
};

at::Tensor Evaluated::logits(std::size_t batch, std::int64_t begin, std::int64_t end) const {
  return running->logits(batch, begin, end, hidden[batch]);
}

Evaluated open(const std::string& name, const EvaluateOptions& options, const RunControl& control) {
  Evaluated evaluated;
  evaluated.model = setup::open_model(name,
                                      {.graph = options.model_graph,
                                       .trust_remote_code = options.trust_remote_code,
                                       .device = options.device,
                                       .dtype = options.dtype,
                                       .dequantize_for_computing = true},
                                      control);
  evaluated.placement = setup::choose_placement(options.device, options.dtype, evaluated.model.stored_dtype);
  return evaluated;
}

/// Whether both models pass on the same values after each subgraph.
bool same_layers(const execution::BodyRun& a, const execution::BodyRun& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t s = 0; s < a.size(); ++s)
    if (a.name(s) != b.name(s) || a.features(s) != b.features(s)) return false;
  return true;
}

/// Means over the rows x behind a subgraph and the reference's x̃.
struct StreamDifference {
  double error = 0;   ///< ‖x - x̃‖ / ‖x̃‖
  double cosine = 0;  ///< of the angle between x and x̃
  double length = 0;  ///< ‖x‖ / ‖x̃‖

  /// Whether a rotation, such as SpinQuant's R1, tells the streams apart: rows keep their lengths and lose their directions.
  bool is_rotation() const { return std::abs(cosine) < 0.3 && std::abs(length - 1) < 0.2; }
};

StreamDifference stream_difference(const execution::BodyRun& model, const execution::BodyRun& reference, std::size_t s,
                                   std::size_t batches) {
  StreamDifference sums;
  double rows = 0;
  const auto sum_of = [](const at::Tensor& values) { return values.sum(at::kDouble).item<double>(); };
  for (std::size_t b = 0; b < batches; ++b) {
    const at::Tensor wanted = reference.stream(s, b).to(at::kFloat), own = model.stream(s, b).to(wanted.device());
    const at::Tensor wanted_length = wanted.norm(2, {1}).clamp_min(std::numeric_limits<float>::min());
    const at::Tensor length = own.norm(2, {1}, false, at::kFloat).clamp_min(std::numeric_limits<float>::min());
    sums.error += sum_of((own - wanted).norm(2, {1}) / wanted_length);
    sums.cosine += sum_of((own * wanted).sum(1) / wanted_length / length);
    sums.length += sum_of(length / wanted_length);
    rows += static_cast<double>(wanted.size(0));
  }
  return {sums.error / rows, sums.cosine / rows, sums.length / rows};
}

bool has_embeddings(const std::vector<execution::Batch>& batches) {
  return std::any_of(batches.begin(), batches.end(),
                     [](const execution::Batch& batch) { return !batch.embeddings.empty(); });
}

/// Runs the model and, if there is one, the reference, layer by layer in turn, so that only one layer's values of both
/// are in memory.
std::vector<Evaluation::LayerError> run_bodies(Evaluated& model, Evaluated* reference, const std::string& dataset,
                                               const RunControl& control) {
  std::vector<Evaluated*> models = {&model};
  if (reference != nullptr) models.push_back(reference);
  std::vector<execution::BodyRun*> bodies;
  for (Evaluated* each : models) {
    each->running = std::make_unique<RunningModel>(*each, control);
    bodies.push_back(&each->running->body());
  }
  bool compares = bodies.size() == 2 && same_layers(*bodies[0], *bodies[1]);
  const execution::BodyRun& longest = **std::max_element(
      bodies.begin(), bodies.end(), [](const auto* left, const auto* right) { return left->size() < right->size(); });
  const std::size_t most = longest.size();
  std::vector<Evaluation::LayerError> errors;
  for (std::size_t s = 0; s < most; ++s) {
    control.step(s, most, longest.name(s));
    for (execution::BodyRun* body : bodies)
      if (s < body->size()) body->run(s);
    if (!compares || !bodies[0]->is_layer(s)) continue;
    const StreamDifference difference = stream_difference(*bodies[0], *bodies[1], s, model.batches.size());
    if (errors.empty() && difference.is_rotation()) {
      if (dataset.ends_with(".safetensors") && has_embeddings(model.batches))
        throw DataError(
            "[evaluate] {}: has embeddings of images that one vision part made, but one of the two models is a "
            "rotation of the other, whose vision part makes others; pass the rows with their images",
            dataset);
      compares = false;
      control.message(LogLevel::kInfo,
                      "the model's residual stream is a rotation of the reference's; no errors of single layers");
      continue;
    }
    errors.push_back({bodies[0]->name(s), difference.error});
  }
  control.step(most, most, "");
  for (Evaluated* each : models) {
    each->hidden = each->running->body().results();
    each->running->load_head();
  }
  return errors;
}

/// Sums over tokens, in double precision.
struct Predictions {
  double negative_log_likelihood = 0;
  std::int64_t predicted = 0;

  double perplexity() const { return std::exp(negative_log_likelihood / static_cast<double>(predicted)); }
};

struct Sums {
  Predictions model, reference;
  run::TokenDivergences divergences;
  double agreements = 0;
  std::int64_t samples = 0, tokens = 0;
};

/// A sample's tokens, -1 at images, which are not text and cannot be predicted.
at::Tensor targets_of(const execution::Batch& batch, std::size_t sample) {
  at::Tensor ids = batch.token_ids.slice(0, batch.offsets[sample], batch.offsets[sample + 1]);
  if (batch.embeddings.empty() || !batch.embeddings[sample].places.defined()) return ids;
  return ids.index_fill(0, batch.embeddings[sample].places, -1);
}

/// Adds the predictions of the next tokens by `logits`. Tokens beyond the head's vocabulary are images, too; they do not count.
void add_predictions(const at::Tensor& logs, const at::Tensor& next, Predictions& sums) {
  const at::Tensor predictable = next.ge(0).logical_and(next.lt(logs.size(1)));
  const at::Tensor given = logs.gather(1, next.clamp(0, logs.size(1) - 1).unsqueeze(1)).squeeze(1);
  const at::Tensor counted = given.masked_select(predictable);
  sums.negative_log_likelihood -= counted.to(at::kDouble).sum().item<double>();
  sums.predicted += counted.size(0);
}

/// Log-probabilities in fp32 of some rows of logits.
at::Tensor log_probabilities(const at::Tensor& logits, std::int64_t first, std::int64_t count) {
  return at::log_softmax(logits.narrow(0, first, count).to(at::kFloat), -1);
}

/// Adds one sample, in chunks of tokens so that logits stay small. On a CPU, few rows of them at a time stay in its caches.
void add_sample(const Evaluated& model, const Evaluated* reference, std::size_t batch, std::size_t sample, Sums& sums) {
  const execution::Batch& own = model.batches[batch];
  const std::int64_t begin = own.offsets[sample], end = own.offsets[sample + 1];
  const at::Tensor targets = targets_of(own, sample);
  constexpr std::int64_t kLeast = 16;  // an imported graph may not hold for a single token
  const bool on_cpu = model.placement.device.is_cpu();
  const std::int64_t chunk = on_cpu ? 512 : 256, step = on_cpu ? 32 : chunk + kLeast;
  for (std::int64_t first = begin; first < end;) {
    const std::int64_t last = end - first < chunk + kLeast ? end : first + chunk;
    const at::Tensor logits = model.logits(batch, first, last);
    const at::Tensor others = reference == nullptr ? at::Tensor() : reference->logits(batch, first, last);
    for (std::int64_t row = first; row < last; row += step) {
      const std::int64_t count = std::min(step, last - row);
      const at::Tensor logs = log_probabilities(logits, row - first, count);
      const std::int64_t predicted = std::min(row + count, end - 1) - row;  // the sample's last token predicts nothing
      const at::Tensor next = targets.slice(0, row + 1 - begin, row + 1 - begin + predicted).to(logs.device());
      if (predicted > 0) add_predictions(logs.slice(0, 0, predicted), next, sums.model);
      sums.tokens += count;
      if (reference == nullptr) continue;
      const at::Tensor wanted = log_probabilities(others, row - first, count);
      if (predicted > 0) add_predictions(wanted.slice(0, 0, predicted), next, sums.reference);
      sums.divergences.add((wanted.exp() * (wanted - logs)).sum(-1), sums.samples, own.token_ids.slice(0, begin, end),
                           row - begin);
      sums.agreements += wanted.argmax(-1).eq(logs.argmax(-1)).sum().item<double>();
    }
    first = last;
  }
  ++sums.samples;
}

/// Figures of a broken model would look like a result.
void require_numbers(const Predictions& sums, const std::string& model) {
  if (std::isnan(sums.negative_log_likelihood))
    throw CheckpointError(
        "[evaluate] {}: its predictions are not numbers (NaN); look for damaged weights with layerpress verify", model);
}

std::int64_t quantize_activations(setup::OpenedModel& model) {
  const std::optional<std::size_t> linears = setup::round_inputs(model);
  if (!linears)
    throw UsageError("[options] --quantize-activations: no scheme of {} quantizes inputs of linears; leave it out",
                     model.checkpoint->location().string());
  return static_cast<std::int64_t>(*linears);
}

[[noreturn]] void refuse_short_texts(const EvaluateOptions& options) {
  throw DataError("[evaluate] {}: no sample has two tokens, so no token can be predicted; pass longer texts",
                  options.dataset);
}

/// Without samples that are too short for the model.
data::CalibrationSet samples_of(const EvaluateOptions& options, const setup::OpenedModel& model,
                                const RunControl& control) {
  data::CalibrationSet samples = data::load_samples({.dataset = options.dataset,
                                                     .split = options.dataset_split,
                                                     .text_column = options.text_column,
                                                     .num_samples = options.num_samples,
                                                     .max_seq_length = options.max_seq_length,
                                                     .has_tokenizer = model.has_tokenizer},
                                                    model.checkpoint->directory(), model.traced.vocab_size, control);
  const std::int64_t least = setup::least_tokens(model.traced);
  if (const std::size_t removed = samples.take_shorter(least).size(); removed > 0)
    control.message(LogLevel::kWarning, setup::short_samples_text(removed, least, options.dataset));
  return samples;
}

void load_samples(const EvaluateOptions& options, std::int64_t batch_tokens, Evaluated& evaluated,
                  const RunControl& control) {
  const setup::OpenedModel& model = evaluated.model;
  if (options.dataset.empty()) throw UsageError("[options] --dataset is missing");
  if (options.num_samples < 1) throw UsageError("[options] --num-samples must be positive");
  if (options.max_seq_length < 2) throw UsageError("[options] --max-seq-length must be at least 2");
  evaluated.samples = samples_of(options, model, control);
  if (evaluated.samples.sample_count() == 0) refuse_short_texts(options);
  setup::require_lengths(model.traced, evaluated.samples, options.dataset);
  evaluated.batches = setup::make_batches(evaluated.samples, batch_tokens, model.traced.graph);
}

/// Whether both models have a tokenizer.json, and these differ.
bool differ_in_tokenizers(const setup::OpenedModel& model, const setup::OpenedModel& reference) {
  const std::filesystem::path own = model.checkpoint->directory() / "tokenizer.json";
  const std::filesystem::path other = reference.checkpoint->directory() / "tokenizer.json";
  std::error_code failure;
  if (!std::filesystem::exists(own, failure) || !std::filesystem::exists(other, failure)) return false;
  return read_text_file(own) != read_text_file(other);
}

/// A reference that reads text otherwise is another model's, or its tokenizer was changed on the way; its predictions of these tokens
/// tell nothing.
void warn_of_other_tokens(const EvaluateOptions& options, const Evaluated& model, const Evaluated& reference,
                          const RunControl& control) {
  if (!differ_in_tokenizers(model.model, reference.model)) return;
  const data::CalibrationSet others = samples_of(options, reference.model, control);
  if (others.tokens == model.samples.tokens && others.sample_offsets == model.samples.sample_offsets) return;
  control.message(
      LogLevel::kWarning,
      fmt::format("[options] --reference: the tokenizer of {} makes other tokens of {} than that of {}; the "
                  "figures are those of the latter's tokens, which mean something else to the reference",
                  options.reference, options.dataset, options.model));
}

/// The reference's own vision part makes its rows of images: those of a rotated model are rotated.
void load_reference_samples(const EvaluateOptions& options, std::int64_t batch_tokens, const Evaluated& model,
                            Evaluated& reference, const RunControl& control) {
  if (!has_embeddings(model.batches)) {
    warn_of_other_tokens(options, model, reference, control);
    setup::require_lengths(reference.model.traced, model.samples, options.dataset);
    // Its graph may count positions otherwise, such as on three axes instead of one.
    reference.batches = setup::make_batches(model.samples, batch_tokens, reference.model.traced.graph);
    return;
  }
  load_samples(options, batch_tokens, reference, control);
  if (reference.samples.tokens != model.samples.tokens ||
      reference.samples.sample_offsets != model.samples.sample_offsets)
    throw UsageError(
        "[options] --reference: its processor makes other tokens of {} than the model's; name its original",
        options.dataset);
}

}  // namespace

Json Evaluation::to_json() const {
  Json json = {{"seconds", seconds}};
  if (tokens > 0) json["perplexity"] = perplexity, json["tokens"] = tokens;
  if (!tasks.is_null()) json.update(tasks);
  if (rounded_linears) json["rounded_linears"] = *rounded_linears;
  if (reference_perplexity) json["reference_perplexity"] = *reference_perplexity;
  if (kl_divergence) json["kl_divergence"] = *kl_divergence;
  if (kl_median) json["kl_median"] = *kl_median;
  if (kl_percentile_99) json["kl_percentile_99"] = *kl_percentile_99;
  for (const WorstToken& token : worst_tokens)
    json["worst_tokens"].push_back({{"kl_divergence", token.kl_divergence},
                                    {"sample", token.sample},
                                    {"position", token.position},
                                    {"id", token.id},
                                    {"text", token.text},
                                    {"before", token.before}});
  if (top1_agreement) json["top1_agreement"] = *top1_agreement;
  for (const LayerError& layer : layers)
    json["layers"].push_back({{"name", layer.name}, {"relative_error", layer.relative_error}});
  return json;
}

namespace {

/// The figures go into documents of a result, so they had better be those of its loss.
void warn_of_other_original(const EvaluateOptions& options, const setup::OpenedModel& reference,
                            const RunControl& control) {
  const Json run = output::RunFolder::run_of_output(options.model);
  const Json made_of = run.is_object() ? run.value("model", Json()) : Json();
  if (!made_of.is_object() || !made_of.contains("weights")) return;
  if (made_of["weights"] == setup::identity_of_model(reference)["weights"]) return;
  control.message(LogLevel::kWarning,
                  fmt::format("[options] --reference: {} stores other weights than the model that {} was made of; if "
                              "their values differ, too, the differences are not those of its compression",
                              options.reference, options.model));
}

Evaluation measure_on_text(const EvaluateOptions& options, const RunControl& control) {
  const c10::InferenceMode inference;
  const residency::HostMemory memory;
  const Timer timer;
  const int threads = setup::set_threads(options.threads);
  Evaluated model = open(options.model, options, control);
  Evaluation result;
  if (options.quantize_activations) result.rounded_linears = quantize_activations(model.model);
  std::optional<Evaluated> reference;
  if (!options.reference.empty()) {
    reference = open(options.reference, options, control);
    if (reference->model.traced.vocab_size != model.model.traced.vocab_size)
      throw UsageError("[options] --reference: its vocabulary has {} tokens, but the model's has {}",
                       reference->model.traced.vocab_size, model.model.traced.vocab_size);
    warn_of_other_original(options, reference->model, control);
    if (graph::image_geometry(reference->model.traced.graph) != graph::image_geometry(model.model.traced.graph))
      throw UsageError("[options] --reference: it does not take the images that the model takes; name its original");
  }
  control.message(LogLevel::kInfo,
                  fmt::format("products in {}, values in {}, {} threads", setup::arithmetic_words(model.placement),
                              setup::dtype_word(model.placement.dtype), threads));
  const std::int64_t batch_tokens =
      setup::choose_batch_tokens(options.batch_tokens, model.model.traced.graph, model.placement.device);
  load_samples(options, batch_tokens, model, control);
  setup::warn_beyond_context(setup::longest_sample(model.samples), model.model.traced.max_position_embeddings, control);
  if (reference) load_reference_samples(options, batch_tokens, model, *reference, control);
  std::vector<Evaluation::LayerError> layers =
      run_bodies(model, reference ? &*reference : nullptr, options.dataset, control);

  Sums sums;
  for (std::size_t b = 0; b < model.batches.size(); ++b)
    for (std::size_t i = 0; i + 1 < model.batches[b].offsets.size(); ++i) {
      control.check_stop();
      add_sample(model, reference ? &*reference : nullptr, b, i, sums);
    }
  if (sums.model.predicted == 0) refuse_short_texts(options);
  require_numbers(sums.model, options.model);
  if (reference) require_numbers(sums.reference, options.reference);
  result.perplexity = sums.model.perplexity();
  result.tokens = sums.model.predicted;
  result.seconds = timer.seconds();
  if (reference) {
    result.reference_perplexity = sums.reference.perplexity();
    result.kl_divergence = sums.divergences.mean();
    result.kl_median = sums.divergences.quantile(0.5);
    result.kl_percentile_99 = sums.divergences.quantile(0.99);
    result.worst_tokens = sums.divergences.worst(model.model.checkpoint->directory(), control);
    result.top1_agreement = sums.agreements / static_cast<double>(sums.tokens);
    result.layers = std::move(layers);
  }
  return result;
}

}  // namespace

Evaluation evaluate(const EvaluateOptions& options, const RunControl& control) {
  if (options.dataset.empty() && options.tasks.empty())
    throw UsageError("[options] nothing to measure; add --dataset or --tasks");
  run::check_tasks(options);
  run::check_report(options, control);
  if (options.download)
    for (const std::string& name : {options.model, options.reference}) setup::download_model(name, control);
  run::check_card(options);
  const Timer timer;
  Evaluation result;
  if (!options.dataset.empty()) result = measure_on_text(options, control);
  if (!options.tasks.empty()) result.tasks = run::run_tasks(options, control);
  result.seconds = timer.seconds();
  try {
    run::add_to_report(options, result, control);
    run::add_to_card(options, result);
  } catch (const IoError& error) {  // hours of measuring are not lost with a page
    control.message(LogLevel::kError, fmt::format("{}; the figures are complete", error.what()));
  }
  return result;
}

}  // namespace layerpress
