#include "layerpress/setup/opening/open_model.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <utility>
#include <variant>

#include "layerpress/base/system/machine.h"
#include "layerpress/base/text.h"
#include "layerpress/checkpoint/model_location.h"
#include "layerpress/graph/facts/attention_heads.h"
#include "layerpress/graph/facts/expert_inputs.h"
#include "layerpress/graph/facts/image_geometry.h"
#include "layerpress/kernels/instruction_set.h"
#include "layerpress/model/blocks/weight_names.h"
#include "layerpress/setup/opening/helper_request.h"
#include "layerpress/setup/opening/model_graph.h"
#include "layerpress/setup/opening/quantized_source.h"
#include "layerpress/setup/opening/rewriting.h"
#include "layerpress/setup/opening/stacked_experts.h"
#include "layerpress/setup/opening/tied_heads.h"
#include "layerpress/source/gguf_file.h"

namespace layerpress::setup {
namespace {

/// The dtype of the first weight of the graph that is not quantized, or of what the checkpoint has most of.
at::ScalarType stored_dtype(const OpenedModel& opened) {
  if (opened.traced.computing_dtype.empty())
    for (const graph::Node& node : opened.traced.graph.nodes)
      for (const graph::WeightUse& use : graph::weights_of(node.operation))
        if (opened.quantized.count(use.name) == 0 && opened.stored->contains(use.name))
          return opened.stored->spec(use.name).dtype;
  return usual_dtype(*opened.stored);
}

model::TracedModel traced(const checkpoint::Checkpoint& checkpoint, const ModelChoice& choice,
                          const RunControl& control) {
  model::TracedModel traced = traced_model(checkpoint, choice, control);
  if (choice.tokens == ExpertTokens::kAll) traced.graph = graph::without_selection(traced.graph);
  return traced;
}

void read_attentions(const quant::QuantizationConfig& config, OpenedModel& opened) {
  const graph::Graph& graph = opened.traced.graph;
  std::map<int, std::shared_ptr<const quant::QuantizationScheme>> schemes;
  for (const graph::Node& node : graph.nodes) {
    if (!graph::cached_attention(node.operation)) continue;
    const std::string& name = graph.module_name(node);
    const std::vector<int> groups = quant::assign_groups(
        config, {{name, {graph.modules[node.module].class_name}, model::other_names(opened.traced, name)}});
    const quant::QuantizationScheme* group =
        groups[0] < 0 ? nullptr : &config.groups[static_cast<std::size_t>(groups[0])].second;
    if (group != nullptr && !group->weights && group->input_activations) {
      auto& scheme = schemes[groups[0]];
      if (!scheme) scheme = std::make_shared<quant::QuantizationScheme>(*group);
      opened.quantized_attentions[name] = {*scheme->input_activations, scheme};
    } else if (config.kv_cache_scheme)
      opened.quantized_attentions[name] = {*config.kv_cache_scheme};
  }
}

void read_quantized_attentions(OpenedModel& opened) {
  const Json& config = opened.stored->quantization_config();
  if (!config.is_object() || config.value("quant_method", "") != "compressed-tensors") return;
  read_attentions(quant::parse_quantization_config(config, "config.json: quantization_config"), opened);
}

/// What makes the rows of images, as a helper finds that runs the vision part.
std::function<rewrite::OutsideWriters()> image_writers(const std::filesystem::path& folder, const RunControl& control) {
  return [folder, control, found = std::make_shared<std::optional<rewrite::OutsideWriters>>()] {
    if (*found) return **found;
    const Json answer = ask_helper({"prepare.py", "[data.prepare]", {{"image_writers", folder.string()}}}, control);
    const auto names = [&](const char* key) {
      return json_get<std::vector<std::string>>(answer, key, "the data helper's answer");
    };
    const std::vector<std::string> used = names("used");
    *found = {.rows = names("rows"), .columns = names("columns"), .used = {used.begin(), used.end()}};
    return **found;
  };
}

OpenedModel open_at(const std::filesystem::path& path, const ModelChoice& choice, const RunControl& control) {
  OpenedModel opened;
  if (choice.in_memory)
    opened.stored = checkpoint::Checkpoint::in_memory(choice.in_memory->config, choice.in_memory->tensors);
  std::optional<at::ScalarType> dtype;  // of a model that is one file
  if (source::is_gguf_file(path))
    dtype = open_file(path, opened, control);
  else if (!choice.in_memory)
    opened.stored = checkpoint::Checkpoint::open(path);
  if (!dtype) find_quantized_weights(opened);
  show_values(opened, dtype.value_or(usual_dtype(*opened.stored)));
  opened.traced = traced(*opened.checkpoint, choice, control);
  opened.trace = [choice, control](const checkpoint::Checkpoint& changed) {
    ModelChoice again = choice;
    again.config_is_changed = true;
    return traced(changed, again, control);
  };
  if (!choice.in_memory && graph::merging_node(opened.traced.graph) != nullptr)
    opened.image_writers = image_writers(path, control);
  opened.stored_dtype = dtype ? *dtype : stored_dtype(opened);
  opened.keeps_codes = choice.dtype == "auto";
  const bool as_computed = choice.dequantize_for_computing || choice.dtype != "auto";
  divide_quantized_experts(opened);
  show_values(opened, as_computed ? choose_placement(choice.device, choice.dtype, opened.stored_dtype).dtype
                                  : opened.stored_dtype);
  opened.checkpoint = opened.checkpoint->unfused(opened.traced.fused_tensors);
  divide_stacked_experts(opened);
  read_quantized_attentions(opened);
  const auto names =
      json_get_or<std::vector<std::string>>(opened.checkpoint->config(), "architectures", "config.json", {});
  opened.architecture =
      names.empty() ? json_get_or<std::string>(opened.checkpoint->config(), "model_type", "config.json", "") : names[0];
  apply(own_stored_heads(opened), opened);
  model::check_weights(opened.traced.graph, *opened.checkpoint);
  return opened;
}

}  // namespace

std::unique_ptr<residency::WeightSource> OpenedModel::weights() const {
  return std::make_unique<residency::CheckpointWeights>(checkpoint);
}

OpenedModel open_model(const std::string& model, const ModelChoice& choice, const RunControl& control) {
  const std::filesystem::path path = choice.in_memory ? "" : checkpoint::locate_model(model);
  try {
    return open_at(path, choice, control);
  } catch (const CheckpointError& failure) {
    if (!source::is_gguf_file(path)) throw;
    throw CheckpointError("{}", source::about_gguf(failure.what(), path));
  }
}

Json config_of(const std::string& model) {
  const std::filesystem::path path = checkpoint::locate_model(model);
  return source::is_gguf_file(path) ? source::open_gguf(path).checkpoint->config()
                                    : checkpoint::Checkpoint::open(path)->config();
}

std::string dtype_word(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16:
      return "bfloat16";
    case at::kHalf:
      return "float16";
    default:
      return "float32";
  }
}

residency::Placement choose_placement(const std::string& device, const std::string& dtype, at::ScalarType stored) {
  residency::Placement placement;
  if (device == "auto") {
    placement.device = at::hasCUDA() ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
  } else {
    try {
      placement.device = at::Device(device);
    } catch (const c10::Error&) {
      throw UsageError("[options] --device: '{}' is not a device; use cpu, cuda or cuda:N", device);
    }
  }
  if (!placement.device.is_cpu() && !placement.device.is_cuda())
    throw UsageError("[options] --device: '{}' is not supported; use cpu, cuda or cuda:N", device);
  if (placement.device.is_cuda()) {
    if (!at::hasCUDA())
      throw UsageError("[options] --device: no CUDA device is available in this build or on this machine; use cpu");
    if (!placement.device.has_index()) placement.device.set_index(0);
    if (const std::size_t devices = at::getNumGPUs(); std::cmp_greater_equal(placement.device.index(), devices))
      throw UsageError("[options] --device: '{}' does not exist; this machine has {} CUDA devices", device, devices);
  }
  if (dtype == "auto") {
    placement.dtype = stored == at::kHalf && placement.device.is_cpu() ? at::kFloat : stored;
    return placement;
  }
  constexpr std::array<std::pair<const char*, at::ScalarType>, 3> kShort{
      {{"bf16", at::kBFloat16}, {"fp16", at::kHalf}, {"fp32", at::kFloat}}};
  for (const auto& [name, known] : kShort)
    if (dtype == name || dtype == dtype_word(known)) {
      placement.dtype = known;
      return placement;
    }
  throw UsageError("[options] --dtype: '{}' is not known; auto, bf16, fp16 and fp32 are", dtype);
}

std::string arithmetic_words(const residency::Placement& placement) {
  if (!placement.device.is_cpu()) return fmt::format("{} on {}", dtype_word(placement.dtype), placement.device.str());
  return fmt::format("{} on {}", dtype_word(kernels::arithmetic(placement.dtype)), kernels::instruction_set());
}

int set_threads(int threads) {
  constexpr int kMost = 4096;
  if (threads < 0) throw UsageError("[options] --threads: {} is negative", threads);
  if (threads > kMost)
    throw UsageError("[options] --threads: {} is more than {}; name the cores to use", threads, kMost);
  const int count = threads > 0 ? threads : usual_threads();
  at::set_num_threads(count);
  // MKL chooses its vector functions in the first call. Where two threads make it at once, one of them may get values that are
  // off by 5e-5.
  at::tanh(at::zeros({1}, at::kFloat));
  return count;
}

std::int64_t choose_batch_tokens(std::int64_t asked, const graph::Graph& graph, at::Device device) {
  if (asked < 0) throw UsageError("[options] --batch-tokens: {} is negative", asked);
  if (asked > 0) return asked;
  std::int64_t widest = 1;
  for (std::size_t v = 0; v < graph.values.size(); ++v)
    if (static_cast<graph::ValueId>(v) != graph.output) widest = std::max(widest, graph.values[v].features);
  // A CPU's caches hold more of small batches. A GPU adds to sums that do not fit into its caches once for each batch.
  const std::int64_t elements = device.is_cpu() ? 16 << 20 : 128 << 20;
  return std::clamp<std::int64_t>(elements / widest, 1024, 8192);
}

namespace {

/// Throws DataError if these images do not fit the model's geometry.
void check_images(const data::SampleImages& images, const graph::ImageGeometry& geometry, std::int64_t sample) {
  const auto require = [&](bool condition, const std::string& what) {
    if (!condition)
      throw DataError("[data.images] sample {} (from 1): {}; prepare the data with this model's processor", sample + 1,
                      what);
  };
  for (const at::Tensor& pixels : images.pixels)
    require(pixels.size(1) == geometry.channels && pixels.size(2) == geometry.image_size &&
                pixels.size(3) == geometry.image_size,
            fmt::format("tiles are {} x {} x {}, but the model takes {} x {} x {}", pixels.size(1), pixels.size(2),
                        pixels.size(3), geometry.channels, geometry.image_size, geometry.image_size));
  for (const std::int64_t ratio : images.aspect_ratios)
    require(ratio >= 1 && ratio <= geometry.aspect_ratios,
            fmt::format("aspect ratio id {} is not among the model's, 1 to {}", ratio, geometry.aspect_ratios));
  require(images.mask.size(2) == geometry.tiles,
          fmt::format("images have room for {} tiles, but the model's have room for {}", images.mask.size(2),
                      geometry.tiles));
}

execution::BatchImages batch_images(const data::CalibrationSet& set, const data::BatchRange& range,
                                    const std::optional<graph::ImageGeometry>& geometry) {
  execution::BatchImages batch;
  if (geometry) batch.geometry = *geometry;
  batch.offsets.push_back(0);
  for (std::int64_t sample = range.first_sample; sample < range.last_sample; ++sample) {
    batch.offsets.push_back(batch.offsets.back() + set.image_count(sample));
    batch.masks.emplace_back();
    if (set.image_count(sample) == 0) continue;
    if (!geometry)
      throw DataError("[data.images] sample {} (from 1) has images, but the model takes none; leave them out",
                      sample + 1);
    const data::SampleImages& images = set.images[static_cast<std::size_t>(sample)];
    check_images(images, *geometry, sample);
    for (const at::Tensor& pixels : images.pixels) batch.filled_tiles.push_back(pixels.size(0));
    batch.aspect_ratios.insert(batch.aspect_ratios.end(), images.aspect_ratios.begin(), images.aspect_ratios.end());
    batch.pixels.insert(batch.pixels.end(), images.pixels.begin(), images.pixels.end());
    batch.masks.back() = images.mask;
  }
  return batch;
}

/// The runs of tokens that are of one group.
std::vector<std::array<std::int64_t, 2>> spans_of(const at::Tensor& groups) {
  std::vector<std::array<std::int64_t, 2>> spans;
  const at::Tensor own = groups.defined() ? groups.contiguous() : at::empty({0}, at::kLong);
  const auto* group = own.const_data_ptr<std::int64_t>();
  for (std::int64_t first = 0, last = 0; first < own.numel(); first = last) {
    while (last < own.numel() && group[last] == group[first]) ++last;
    if (group[first] >= 0) spans.push_back({first, last});
  }
  return spans;
}

/// What a graph takes of images that another program embedded.
struct TakenEmbeddings {
  std::int64_t features = -1;  ///< -1: none are taken
  std::int64_t axes = 1;       ///< of positions
  std::int64_t layers = 0;     ///< to which more is added
  bool mutual = false;         ///< tokens of one image attend to each other
};

TakenEmbeddings taken_embeddings(const graph::Graph& graph) {
  const graph::Node* merge = graph::merging_node(graph);
  if (merge == nullptr) return {};
  return {graph.values[merge->output].features, std::get<graph::MergeImages>(merge->operation).axes,
          graph::layers_adding_images(graph), graph::has_mutual_attention(graph)};
}

/// `mutual`: whether tokens of the sample attend to later ones.
void check_embeddings(const data::GivenEmbeddings& given, bool mutual, const TakenEmbeddings& taken,
                      std::int64_t sample) {
  const auto require = [&](bool condition, const std::string& what) {
    if (!condition) throw DataError("[data.images] sample {} (from 1) {}", sample + 1, what);
  };
  require(taken.features >= 0,
          "has embeddings of images, but this graph takes none; use --model-graph export, or leave the sample out");
  require(given.values.size(1) == taken.features,
          fmt::format("has embeddings of {} features, but the model's have {}; prepare the data with this model",
                      given.values.size(1), taken.features));
  const std::int64_t layers = given.added.defined() ? given.added.size(1) : 0;
  require(layers == taken.layers,
          fmt::format("has embeddings for {} layers to add, but the model adds {}; prepare the data with this model",
                      layers, taken.layers));
  require(taken.mutual || !mutual, "uses bidirectional image attention, which this graph lacks; leave its images out");
  const std::int64_t axes = given.positions.defined() ? given.positions.size(0) : taken.axes;
  require(axes == taken.axes,
          fmt::format("has {} positions per token, but the model has {}; prepare the data with this model", axes,
                      taken.axes));
  require(axes > 1 || !given.positions.defined(),
          "has image positions, which this graph does not take; leave its images out");
}

/// What the samples' images give the language model, where the graph takes it.
void add_embeddings(const data::CalibrationSet& set, const data::BatchRange& range, const graph::Graph& graph,
                    execution::Batch& batch) {
  const TakenEmbeddings taken = taken_embeddings(graph);
  if (taken.axes > 1) batch.positions = batch.counted_positions().repeat({taken.axes, 1});
  for (std::int64_t sample = range.first_sample; sample < range.last_sample && !set.images.empty(); ++sample) {
    const data::GivenEmbeddings& given = set.images[static_cast<std::size_t>(sample)].embeddings;
    if (!given.are_there()) continue;
    auto spans = spans_of(given.groups);
    check_embeddings(given, !spans.empty(), taken, sample);
    const auto place = static_cast<std::size_t>(sample - range.first_sample);
    batch.embeddings.resize(batch.offsets.size() - 1);
    batch.embeddings[place] = {given.places, given.values, given.added, std::move(spans)};
    if (taken.axes > 1 && given.positions.defined())
      batch.positions.slice(1, batch.offsets[place], batch.offsets[place + 1]).copy_(given.positions);
  }
}

/// The class that LLM Compressor gives each routed expert of a model, whatever the model's own.
constexpr const char* kLinearExpertClass = "ExpertMLP";

/// The modules of single routed experts.
std::set<graph::ModuleId> routed_experts(const graph::Graph& graph) {
  std::set<graph::ModuleId> modules;
  for (const graph::Node& node : graph.nodes)
    if (std::holds_alternative<graph::Expert>(node.operation)) modules.insert(node.module);
  return modules;
}

}  // namespace

std::vector<execution::Batch> make_batches(const data::CalibrationSet& set, std::int64_t batch_tokens,
                                           const graph::Graph& graph) {
  const std::optional<graph::ImageGeometry> geometry = graph::image_geometry(graph);
  std::vector<execution::Batch> batches;
  const std::int64_t image_rows = geometry ? geometry->tiles * geometry->tile_rows() : 0;
  for (const data::BatchRange& range : data::pack_batches(set, batch_tokens, image_rows)) {
    const std::int64_t begin = set.sample_offsets[range.first_sample], end = set.sample_offsets[range.last_sample];
    execution::Batch batch;
    for (std::int64_t i = range.first_sample; i < range.last_sample; ++i)
      batch.places.push_back(set.places.empty() ? i : set.places[static_cast<std::size_t>(i)]);
    batch.offsets.clear();
    for (std::int64_t i = range.first_sample; i <= range.last_sample; ++i)
      batch.offsets.push_back(set.sample_offsets[i] - begin);
    batch.token_ids = at::empty({end - begin}, at::kLong);
    std::copy(set.tokens.begin() + begin, set.tokens.begin() + end, batch.token_ids.data_ptr<std::int64_t>());
    if (!set.loss_mask.empty()) batch.count_only({set.loss_mask.begin() + begin, set.loss_mask.begin() + end});
    batch.images = batch_images(set, range, geometry);
    add_embeddings(set, range, graph, batch);
    batches.push_back(std::move(batch));
  }
  return batches;
}

std::vector<graph::Subgraph> cut_model(const model::TracedModel& model, const std::vector<std::string>& targets,
                                       std::int64_t targets_per_subgraph) {
  if (targets_per_subgraph < 1 || targets_per_subgraph > 1'000'000)
    throw UsageError("[options] --sequential-targets-per-subgraph must be from 1 to 1000000");
  const std::vector<std::string>& names = targets.empty() ? model.default_sequential_targets : targets;
  const quant::TargetList list(names, "--sequential-targets");
  const std::set<graph::ModuleId> experts = routed_experts(model.graph);
  const auto classes_of = [&](const graph::Module& module) -> std::vector<std::string> {
    if (experts.count(static_cast<graph::ModuleId>(&module - model.graph.modules.data())) == 0)
      return {module.class_name};
    return {module.class_name, kLinearExpertClass};
  };
  auto subgraphs = graph::partition(
      model.graph,
      [&](const graph::Module& module) {
        return !module.name.empty() &&
               list.matches({module.name, classes_of(module), model::other_names(model, module.name)});
      },
      static_cast<int>(targets_per_subgraph));
  const std::vector<std::string> unmatched = list.unmatched();
  // No node of a layer may be left of an imported graph whose operators could not be divided: it is run as one.
  if (!unmatched.empty() && !targets.empty())
    throw UsageError("[options] --sequential-targets: '{}' matches no module of this model; its layers are {}",
                     join(unmatched), join(model.default_sequential_targets));
  return subgraphs;
}

}  // namespace layerpress::setup
