#include "layerpress/evaluate.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "layerpress/data/load_samples.h"
#include "layerpress/execution/body_run.h"
#include "layerpress/graph/image_geometry.h"
#include "layerpress/kernels/linear.h"
#include "layerpress/setup/open_model.h"
#include "layerpress/setup/rounded_inputs.h"

namespace layerpress {
namespace {

/// A model and its hidden states before the head, one tensor per batch.
struct Evaluated {
  setup::OpenedModel model;
  residency::Placement placement;
  std::vector<at::Tensor> hidden;
  at::Tensor head_weight, head_bias;

  /// fp32 log-probabilities after tokens [begin, end) of a batch: [tokens, vocabulary].
  at::Tensor log_probabilities(std::size_t batch, std::int64_t begin, std::int64_t end) const {
    const at::Tensor x = hidden[batch].slice(0, begin, end);
    const at::Tensor logits = kernels::linear(x, head_weight, head_bias);
    return at::log_softmax(logits.to(at::kFloat), -1);
  }
};

Evaluated open(const std::string& name, const EvaluateOptions& options) {
  Evaluated evaluated;
  evaluated.model = setup::open_model(name, {.graph = options.model_graph,
                                             .trust_remote_code = options.trust_remote_code,
                                             .device = options.device,
                                             .dtype = options.dtype});
  evaluated.placement = setup::choose_placement(options.device, options.dtype, evaluated.model.stored_dtype);
  return evaluated;
}

const graph::Node& head_of(const graph::Graph& graph) {
  const graph::Node& head = graph.nodes.at(graph.values.at(graph.output).producer);
  if (!std::holds_alternative<graph::Linear>(head.operation))
    throw InternalError("[evaluate] the graph does not end in a head");
  return head;
}

/// A model that runs over the batches up to its head, with all objects that the run refers to.
class RunningModel {
 public:
  RunningModel(Evaluated& evaluated, const std::vector<execution::Batch>& batches, const RunControl& control)
      : evaluated_(evaluated),
        head_(head_of(evaluated.model.traced.graph)),
        weights_(evaluated.model.weights(evaluated.placement.dtype)),
        context_{evaluated.model.traced.graph, *weights_, evaluated.placement, batches, control, times_, alone_},
        body_(context_, setup::cut_model(evaluated.model.traced, {}), head_.inputs[0]) {}
  RunningModel(const RunningModel&) = delete;
  RunningModel& operator=(const RunningModel&) = delete;

  execution::BodyRun& body() { return body_; }

  void finish() {
    const auto& head = std::get<graph::Linear>(head_.operation);
    const auto parameter = [&](const std::string& name) {
      return weights_->load(name).to(evaluated_.placement.device, evaluated_.placement.dtype);
    };
    evaluated_.hidden = body_.results();
    evaluated_.head_weight = parameter(head.weight);
    if (!head.bias.empty()) evaluated_.head_bias = parameter(head.bias);
  }

 private:
  Evaluated& evaluated_;
  const graph::Node& head_;
  std::unique_ptr<residency::WeightSource> weights_;
  PhaseTimes times_;
  dist::Group alone_;
  execution::RunContext context_;
  execution::BodyRun body_;
};

/// Whether both models pass on the same values after each subgraph.
bool same_layers(const execution::BodyRun& a, const execution::BodyRun& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t s = 0; s < a.size(); ++s)
    if (a.name(s) != b.name(s) || a.features(s) != b.features(s)) return false;
  return true;
}

/// Mean over the rows of ‖x - x̃‖ / ‖x̃‖ behind subgraph `s`, x̃ the reference's.
double stream_error(const execution::BodyRun& model, const execution::BodyRun& reference, std::size_t s,
                    std::size_t batches) {
  double sum = 0, rows = 0;
  for (std::size_t b = 0; b < batches; ++b) {
    const at::Tensor wanted = reference.stream(s, b).to(at::kFloat), own = model.stream(s, b).to(wanted.device());
    const at::Tensor lengths = wanted.norm(2, {1}).clamp_min(std::numeric_limits<float>::min());
    sum += ((own - wanted).norm(2, {1}) / lengths).sum(at::kDouble).item<double>();
    rows += static_cast<double>(wanted.size(0));
  }
  return sum / rows;
}

/// Runs the model and, if there is one, the reference, layer by layer in turn, so that only one layer's values of both
/// are in memory.
std::vector<Evaluation::LayerError> run_bodies(Evaluated& model, Evaluated* reference,
                                               const std::vector<execution::Batch>& batches,
                                               const RunControl& control) {
  std::vector<std::unique_ptr<RunningModel>> running;
  running.push_back(std::make_unique<RunningModel>(model, batches, control));
  if (reference != nullptr) running.push_back(std::make_unique<RunningModel>(*reference, batches, control));
  const bool compares = running.size() == 2 && same_layers(running[0]->body(), running[1]->body());
  std::size_t most = 0;
  for (const auto& each : running) most = std::max(most, each->body().size());
  std::vector<Evaluation::LayerError> errors;
  for (std::size_t s = 0; s < most; ++s) {
    for (const auto& each : running) {
      if (s >= each->body().size()) continue;
      control.step(s, most, each->body().name(s));
      each->body().run(s);
    }
    if (compares && running[0]->body().is_layer(s))
      errors.push_back(
          {running[0]->body().name(s), stream_error(running[0]->body(), running[1]->body(), s, batches.size())});
  }
  control.step(most, most, "");
  for (const auto& each : running) each->finish();
  return errors;
}

/// Sums over tokens, in double precision.
struct Sums {
  double negative_log_likelihood = 0, divergence = 0, agreements = 0;
  std::int64_t predicted = 0, tokens = 0;
};

/// Adds the predictions of the next tokens by `logits`. Tokens beyond the head's vocabulary (images) are not text and
/// cannot be predicted; they do not count.
void add_predictions(const at::Tensor& logs, const at::Tensor& next, Sums& sums) {
  const at::Tensor predictable = next.lt(logs.size(1));
  const at::Tensor given = logs.gather(1, next.clamp_max(logs.size(1) - 1).unsqueeze(1)).squeeze(1);
  const at::Tensor counted = given.masked_select(predictable);
  sums.negative_log_likelihood -= counted.to(at::kDouble).sum().item<double>();
  sums.predicted += counted.size(0);
}

/// Adds one sample, in chunks of tokens so that logits stay small.
void add_sample(const Evaluated& model, const Evaluated* reference, std::size_t batch, const at::Tensor& ids,
                std::int64_t begin, std::int64_t end, Sums& sums) {
  constexpr std::int64_t kChunk = 256;
  for (std::int64_t first = begin; first < end; first += kChunk) {
    const std::int64_t last = std::min(first + kChunk, end);
    const at::Tensor logs = model.log_probabilities(batch, first, last);
    const std::int64_t predicted = std::min(last, end - 1) - first;  // the sample's last token predicts nothing
    if (predicted > 0)
      add_predictions(logs.slice(0, 0, predicted), ids.slice(0, first + 1, first + 1 + predicted).to(logs.device()),
                      sums);
    sums.tokens += last - first;
    if (reference == nullptr) continue;
    const at::Tensor wanted = reference->log_probabilities(batch, first, last);
    sums.divergence += (wanted.exp() * (wanted - logs)).sum(-1).to(at::kDouble).sum().item<double>();
    sums.agreements += wanted.argmax(-1).eq(logs.argmax(-1)).sum().item<double>();
  }
}

std::int64_t quantize_activations(setup::OpenedModel& model) {
  const std::size_t count = setup::round_inputs(model);
  if (count == 0)
    throw UsageError("[options] --quantize-activations: no scheme of {} quantizes inputs of linears; leave it out",
                     model.checkpoint->directory().string());
  return static_cast<std::int64_t>(count);
}

data::CalibrationSet load(const EvaluateOptions& options, const setup::OpenedModel& model, const RunControl& control) {
  if (options.dataset.empty()) throw UsageError("[options] --dataset is missing");
  if (options.num_samples < 1) throw UsageError("[options] --num-samples must be positive");
  if (options.max_seq_length < 2) throw UsageError("[options] --max-seq-length must be at least 2");
  return data::load_samples({.dataset = options.dataset,
                             .split = options.dataset_split,
                             .text_column = options.text_column,
                             .num_samples = options.num_samples,
                             .max_seq_length = options.max_seq_length},
                            model.checkpoint->directory(), model.traced.vocab_size, control);
}

}  // namespace

Json Evaluation::to_json() const {
  Json json = {{"perplexity", perplexity}, {"tokens", tokens}, {"seconds", seconds}};
  if (rounded_linears) json["rounded_linears"] = *rounded_linears;
  if (kl_divergence) json["kl_divergence"] = *kl_divergence;
  if (top1_agreement) json["top1_agreement"] = *top1_agreement;
  for (const LayerError& layer : layers)
    json["layers"].push_back({{"name", layer.name}, {"relative_error", layer.relative_error}});
  return json;
}

Evaluation evaluate(const EvaluateOptions& options, const RunControl& control) {
  const c10::InferenceMode inference;
  const Timer timer;
  const int threads = setup::set_threads(options.threads);
  Evaluated model = open(options.model, options);
  Evaluation result;
  if (options.quantize_activations) result.rounded_linears = quantize_activations(model.model);
  std::optional<Evaluated> reference;
  if (!options.reference.empty()) {
    reference = open(options.reference, options);
    if (reference->model.traced.vocab_size != model.model.traced.vocab_size)
      throw UsageError("[options] --reference: its vocabulary has {} tokens, the model's {}",
                       reference->model.traced.vocab_size, model.model.traced.vocab_size);
    if (graph::image_geometry(reference->model.traced.graph) != graph::image_geometry(model.model.traced.graph))
      throw UsageError("[options] --reference: it does not take the images that the model takes; name its original");
  }
  control.message(LogLevel::kInfo,
                  fmt::format("products in {}, values in {}, {} threads", setup::arithmetic_words(model.placement),
                              setup::dtype_word(model.placement.dtype), threads));
  const data::CalibrationSet set = load(options, model.model, control);
  const graph::Graph& graph = model.model.traced.graph;
  const auto batches = setup::make_batches(set, setup::choose_batch_tokens(options.batch_tokens, graph), graph);
  std::vector<Evaluation::LayerError> layers = run_bodies(model, reference ? &*reference : nullptr, batches, control);

  Sums sums;
  for (std::size_t b = 0; b < batches.size(); ++b)
    for (std::size_t i = 0; i + 1 < batches[b].offsets.size(); ++i) {
      control.check_stop();
      add_sample(model, reference ? &*reference : nullptr, b, batches[b].token_ids, batches[b].offsets[i],
                 batches[b].offsets[i + 1], sums);
    }
  if (sums.predicted == 0)
    throw DataError("[evaluate] {}: no sample has two tokens; there is nothing to predict", options.dataset);
  result.perplexity = std::exp(sums.negative_log_likelihood / static_cast<double>(sums.predicted));
  result.tokens = sums.predicted;
  result.seconds = timer.seconds();
  if (reference) {
    result.kl_divergence = sums.divergence / static_cast<double>(sums.tokens);
    result.top1_agreement = sums.agreements / static_cast<double>(sums.tokens);
    result.layers = std::move(layers);
  }
  return result;
}

}  // namespace layerpress
