#include "layerpress/verify.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "layerpress/base/file.h"
#include "layerpress/base/text.h"
#include "layerpress/checkpoint/companion_files.h"
#include "layerpress/checkpoint/model_location.h"
#include "layerpress/compression/edit.h"
#include "layerpress/compression/transform.h"
#include "layerpress/gguf/architectures/architecture.h"
#include "layerpress/gguf/container/metadata.h"
#include "layerpress/gguf/tokenizers/tokenizer.h"
#include "layerpress/graph/facts/scale_absorbers.h"
#include "layerpress/graph/weight_matrix.h"
#include "layerpress/model/blocks/weight_names.h"
#include "layerpress/modifier/pruning/reap.h"
#include "layerpress/quant/block_scheme.h"
#include "layerpress/recipe/gguf_recipe.h"
#include "layerpress/recipe/recipe.h"
#include "layerpress/setup/assignment/assignment.h"
#include "layerpress/setup/assignment/edited_linears.h"
#include "layerpress/setup/assignment/recipe_rewrites.h"
#include "layerpress/setup/assignment/written_recipe.h"
#include "layerpress/setup/opening/hub.h"
#include "layerpress/setup/opening/model_graph.h"
#include "layerpress/setup/opening/open_model.h"
#include "layerpress/setup/result_target.h"
#include "layerpress/verification/agreement.h"
#include "layerpress/verification/comparison.h"
#include "layerpress/verification/file_keys.h"
#include "layerpress/verification/stored_values.h"

namespace layerpress {
namespace {

constexpr std::size_t kWorst = 10;

std::optional<setup::OpenedModel> opened(const std::string& model, const VerifyOptions& options,
                                         const RunControl& control, verification::Findings& findings) {
  try {
    return setup::open_model(model, {.graph = options.model_graph, .trust_remote_code = options.trust_remote_code},
                             control);
  } catch (const UnsupportedError&) {
    throw;
  } catch (const CheckpointError& error) {
    findings.fault("files", model, error.what());
  } catch (const RecipeError& error) {  // in quantization_config
    findings.fault("config", model, error.what());
  }
  return std::nullopt;
}

void check_values(const setup::OpenedModel& model, const RunControl& control, verification::Findings& findings) {
  std::set<std::string> parts;
  std::uint64_t done = 0;
  const std::uint64_t total = model.quantized.size();
  for (const auto& [name, weight] : model.quantized) {
    control.check_stop();
    control.phase("check codes", done++, total);
    parts.insert(weight.parts.begin(), weight.parts.end());
    const std::size_t before = findings.all().size();
    verification::check_scales(*model.stored, weight, findings);
    if (findings.all().size() == before) verification::check_codes(weight, findings);
    for (const std::string& part : weight.parts)
      if (model.stored->contains(part)) model.stored->release(part);
  }
  for (const std::string& name : model.stored->names()) {
    control.check_stop();
    const std::string suffix = last_part(name);
    const bool is_parameter = suffix.starts_with("input_") || suffix.starts_with("output_");
    if (parts.count(name) == 0 || is_parameter) verification::check_plain(*model.stored, name, findings);
  }
}

Json as_json(const verification::Findings& findings, bool faults) {
  Json list = Json::array();
  for (const verification::Finding& finding : findings.all())
    if (finding.fault == faults)
      list.push_back({{"check", finding.check}, {"where", finding.where}, {"what", finding.what}});
  return list;
}

Json worst_of(verification::Comparison comparison) {
  std::stable_sort(comparison.errors.begin(), comparison.errors.end(),
                   [](const auto& a, const auto& b) { return a.error > b.error; });
  comparison.errors.resize(std::min(comparison.errors.size(), kWorst));
  Json worst = Json::array();
  for (const verification::WeightError& error : comparison.errors)
    worst.push_back({{"module", error.module}, {"error", error.error}});
  return worst;
}

/// Whether a rotation has random numbers, which other tools draw otherwise.
bool is_random(const recipe::ModifierEntry& entry) {
  return json_get_or<std::string>(entry.arguments, "transform_type", entry.where, "") == "random-hadamard" ||
         json_get_or<bool>(entry.arguments, "randomize", entry.where, false);
}

/// Where scales may be hidden, whatever mappings of modules the modifier has.
void add_scales(const graph::Graph& graph, verification::Changes& changes) {
  for (const graph::ScaleAbsorber& place : graph::scale_absorbers(graph)) {
    const graph::Operation& source = graph.nodes[place.source].operation;
    const auto* linear = std::get_if<graph::Linear>(&source);
    const auto* norm = std::get_if<graph::RmsNorm>(&source);
    const graph::WeightUses parameters = graph::weights_of(source);
    for (const graph::WeightUse& use : parameters) {
      verification::Change& change = changes.tensors[use.name];
      if (linear != nullptr && use.name == linear->weight)
        change.scales_rows = true;
      else
        change.divided = norm != nullptr ? norm->weight_offset : 0;
    }
    for (const graph::ScaleReader& reader : place.readers) {
      verification::Change& change = changes.tensors[reader.weight];
      if (linear != nullptr)
        change.scales_columns = true;
      else
        change.norms.push_back({parameters.front().name, norm != nullptr ? norm->weight_offset : 0, reader.columns});
    }
  }
}

void add_edits(const compression::EditingModifier& modifier, const model::TracedModel& traced,
               verification::Changes& changes) {
  const auto edits = modifier.edits_of(setup::modules_of(traced));
  for (const graph::Node& node : traced.graph.nodes)
    if (edits.contains(traced.graph.module_name(node)))
      if (const auto matrix = graph::weight_matrix(node.operation)) {
        verification::Change& change = changes.tensors[matrix->weight];
        change.prunes |= modifier.prunes();
        change.moves |= modifier.moves();
      }
}

/// Weights that a file has as floats, because no blocks fit, are moved as the others are.
void add_moved_floats(const compression::Quantizer& quantizer, const model::TracedModel& traced,
                      verification::Changes& changes) {
  for (const graph::Node& node : traced.graph.nodes) {
    const auto matrix = graph::weight_matrix(node.operation);
    if (!matrix || !graph::is_linear(node.operation)) continue;
    const std::string& module = traced.graph.module_name(node);
    const quant::QuantizationScheme* scheme =
        quantizer.scheme_for({module, {"Linear"}, model::other_names(traced, module)});
    const gguf::BlockType* type = scheme == nullptr ? nullptr : quant::block_type(*scheme);
    if (type != nullptr && type->block_values() == 1) changes.tensors[matrix->weight].moves = true;
  }
}

/// Adds what a modifier changes in the weights beside what its rewrite has already changed in the source.
void add_changes(const compression::Modifier& modifier, const model::TracedModel& traced,
                 verification::Changes& changes) {
  if (const auto* pruning = dynamic_cast<const modifier::ExpertPruning*>(&modifier))
    changes.unknown |= !pruning->is_decided();
  else if (const auto* editing = dynamic_cast<const compression::EditingModifier*>(&modifier))
    add_edits(*editing, traced, changes);
  else if (const auto* quantizer = dynamic_cast<const compression::Quantizer*>(&modifier);
           quantizer != nullptr && quantizer->wants_original()) {
    changes.follow_original = true;
    add_moved_floats(*quantizer, traced, changes);
  }
}

/// The recipes that a checkpoint was made by, the last one last, without those that `source` was made by, too.
std::vector<recipe::Recipe> recipes_of(const setup::OpenedModel& result, const setup::OpenedModel& source) {
  const std::string of_source = setup::recipe_of(source);
  std::vector<recipe::Recipe> recipes;
  for (std::string text = setup::recipe_of(result); !text.empty() && text != of_source;
       text = setup::earlier_recipe(text))
    recipes.insert(recipes.begin(), recipe::parse_recipe(text, "recipe.yaml"));
  return recipes;
}

/// Weights that an earlier run has rounded, where the result does not hold the codes of then.
void add_rounded(const compression::Quantizer& quantizer, const model::TracedModel& traced,
                 const setup::OpenedModel& result, verification::Changes& changes) {
  for (const graph::Node& node : traced.graph.nodes) {
    const auto matrix = graph::weight_matrix(node.operation);
    if (!matrix) continue;
    const std::string& module = traced.graph.module_name(node);
    const quant::QuantizationScheme* scheme = quantizer.scheme_for(
        {module, {graph::is_linear(node.operation) ? "Linear" : "Embedding"}, model::other_names(traced, module)});
    if (scheme == nullptr || quant::is_dense(*scheme)) continue;
    const auto found = result.quantized.find(matrix->weight);
    const bool is_kept = found != result.quantized.end() && scheme->weights && found->second.scheme.weights &&
                         found->second.scheme.weights->num_bits == scheme->weights->num_bits &&
                         found->second.scheme.weights->type == scheme->weights->type;
    if (!is_kept) changes.tensors[matrix->weight].moves = true;
  }
}

/// Makes those changes in the source that a recipe makes before any data, such as rotations and the removal of experts, and adds what
/// other changes it allows. `is_last`: the result was made by it, and not by another one behind it.
void follow(const recipe::Recipe& recipe, bool is_last, const setup::OpenedModel& result, setup::OpenedModel& source,
            verification::Changes& changes) {
  const bool makes_file = is_last ? result.file_metadata.has_value()
                                  : std::ranges::any_of(recipe.modifiers, [](const recipe::ModifierEntry& entry) {
                                      return !recipe::mixture_of(entry, /*for_gguf=*/true).empty();
                                    });
  const setup::Modifiers modifiers =
      setup::make_modifiers(setup::with_block_types(recipe, source, makes_file, /*has_importance_file=*/true));
  setup::apply_rewrites(modifiers, source);
  changes.unknown |= std::any_of(recipe.modifiers.begin(), recipe.modifiers.end(), is_random);
  changes.only_rounds = changes.only_rounds &&
                        std::all_of(modifiers.begin(), modifiers.end(),
                                    [](const auto& modifier) { return modifier->type() == "QuantizationModifier"; });
  for (const auto& modifier : modifiers) {
    add_changes(*modifier, source.traced, changes);
    if (const auto* quantizer = dynamic_cast<const compression::Quantizer*>(modifier.get()); quantizer && !is_last)
      add_rounded(*quantizer, source.traced, result, changes);
  }
  if (std::any_of(modifiers.begin(), modifiers.end(), [](const auto& modifier) {
        return dynamic_cast<const compression::Transform*>(modifier.get()) != nullptr;
      }))
    add_scales(source.traced.graph, changes);
}

/// Follows the recipes of all runs between the source and the result; nothing if that is not possible.
std::optional<verification::Changes> apply_recipes(const setup::OpenedModel& result, setup::OpenedModel& source,
                                                   verification::Findings& findings) {
  try {
    const std::vector<recipe::Recipe> recipes = recipes_of(result, source);
    verification::Changes changes{.only_rounds = recipes.size() == 1};
    std::set<std::string> rewritten;
    for (const recipe::Recipe& recipe : recipes) {
      source.rewritten.clear();  // a run begins with a model as it is stored
      follow(recipe, &recipe == &recipes.back(), result, source, changes);
      rewritten.insert(source.rewritten.begin(), source.rewritten.end());
    }
    source.rewritten = rewritten;
    return changes;
  } catch (const Error& failure) {  // of another tool, or damaged
    findings.warning("source", "the recipe", fmt::format("cannot be followed here: {}", failure.what()));
    return std::nullopt;
  }
}

/// Codes that stand for the source's values are as they should be, however they look.
void excuse_faithful(const verification::Comparison& comparison, verification::Findings& findings) {
  constexpr double kFaithful = 0.15;
  std::set<std::string> places;
  for (const verification::WeightError& error : comparison.errors)
    if (error.error <= kFaithful) places.insert(error.module + ".weight");
  findings.excuse({"constant", "saturated"}, places, "the source's values are the same");
}

/// The keys that a GGUF of the model has; nothing for a model that llama.cpp does not know.
std::optional<gguf::Metadata> keys_of(const setup::OpenedModel& model) {
  if (model.file_metadata) return model.file_metadata;
  std::optional<gguf::Metadata> keys;
  try {
    gguf::Architecture architecture = gguf::architecture_for(model.checkpoint->config());
    keys = std::move(architecture.metadata);
    for (auto& pair : gguf::tokenizer_keys(model.stored->directory(), architecture.vocab_size, "").metadata)
      keys->push_back(std::move(pair));
  } catch (const Error&) {  // nothing to compare with, or only a tokenizer that llama.cpp does not know
  }
  return keys;
}

/// Files of tokenizers: tokenizer.json, tokenizer.model, vocab.json, vocab.txt, spiece.model, tekken.json, *.tiktoken.
bool has_tokens(const std::filesystem::path& file) {
  const std::string name = file.filename().string();
  return name == "tokenizer.json" || name.starts_with("vocab.") || name == "tekken.json" ||
         file.extension() == ".model" || file.extension() == ".tiktoken";
}

/// The files beside the weights that readers parse. A source tells whether there has to be a tokenizer.
void check_companions(const checkpoint::Checkpoint& stored, bool has_source, verification::Findings& findings) {
  if (stored.directory().empty()) return;
  const std::vector<std::filesystem::path> files = stored.companion_files();
  for (const std::filesystem::path& file : checkpoint::damaged_companions(stored))
    findings.fault("files", file.string(), "is no JSON; copy it from the original again");
  if (!has_source && std::none_of(files.begin(), files.end(), has_tokens))
    findings.warning("files", stored.directory().string(),
                     "has no tokenizer, without which no engine reads text; copy it from the original");
}

/// Those of the source that belong to the result, too.
void compare_companions(const checkpoint::Checkpoint& stored, const checkpoint::Checkpoint& source,
                        verification::Findings& findings) {
  std::error_code failure;
  if (source.directory().empty() || stored.directory().empty()) return;
  for (const char* name : {"tokenizer.json", "tokenizer.model", "tokenizer_config.json", "preprocessor_config.json"})
    if (std::filesystem::exists(source.directory() / name, failure) &&
        !std::filesystem::exists(stored.directory() / name, failure))
      findings.warning("files", name, "is missing, but the source has it");
}

void compare_with_source(const setup::OpenedModel& model, const VerifyOptions& options, const RunControl& control,
                         verification::Findings& findings, Json& result) {
  // An exported graph has casts to the dtype that it computes in. A file of blocks alone has another than its source.
  const at::ScalarType dtype = setup::choose_placement("auto", "auto", setup::usual_dtype(*model.checkpoint)).dtype;
  setup::OpenedModel source = setup::open_model(
      options.source,
      {.graph = options.model_graph, .trust_remote_code = options.trust_remote_code, .dtype = setup::dtype_word(dtype)},
      control);
  const bool says_recipe = !setup::recipe_of(model).empty();
  const auto followed = apply_recipes(model, source, findings);
  const verification::Changes changes = followed.value_or(verification::Changes{.unknown = true});
  if (changes.unknown)
    findings.warning("source", options.model,
                     "its recipe does not tell how it changes weights, so that values are not compared");
  compare_companions(*model.stored, *source.stored, findings);
  verification::Comparison comparison = verification::compare(model, source, changes, control, findings);
  excuse_faithful(comparison, findings);
  const auto has_fault = [&](const char* check) {
    return std::ranges::any_of(findings.all(), [&](const auto& own) { return own.fault && own.check == check; });
  };
  if (!says_recipe && has_fault("source"))
    findings.warning(
        "source", options.model,
        "does not say how it was made, by a recipe.yaml for example; if it was rotated, smoothed or pruned, "
        "other values than the source's are right");
  if (const auto keys = model.file_metadata ? keys_of(source) : std::nullopt)
    verification::compare_keys(*model.file_metadata, *keys, findings);
  if (!has_fault("config"))
    verification::compare_attention(model.traced, source.traced.graph, model.file_metadata.has_value(), findings);
  result["compared"] = comparison.tensors;
  result["worst"] = worst_of(std::move(comparison));
}

/// An index beside a model.safetensors that it does not name: vLLM loads the files of the index.
void check_other_index(const checkpoint::Checkpoint& stored, const std::set<std::string>& own,
                       verification::Findings& findings) {
  constexpr const char* kIndex = "model.safetensors.index.json";
  std::error_code failure;
  const std::filesystem::path path = stored.location() / kIndex;
  if (!own.contains("model.safetensors") || !std::filesystem::exists(path, failure)) return;
  const Json index = Json::parse(read_text_file(path), nullptr, /*allow_exceptions=*/false);
  const Json map = index.is_object() ? index.value("weight_map", Json()) : Json();
  if (!map.is_object()) return findings.fault("files", kIndex, "is no index, but vLLM reads it; remove it");
  for (const auto& [tensor, file] : map.items())
    if (!file.is_string() || !own.contains(file.get<std::string>()))
      return findings.fault("files", kIndex,
                            "names other files than model.safetensors, and vLLM loads these; remove it");
}

/// Weights beside the checkpoint's own: transformers prefers model.safetensors to an index, and vLLM an index to other files; vLLM prefers
/// Mistral's consolidated files to both.
void check_other_files(const checkpoint::Checkpoint& stored, verification::Findings& findings) {
  std::error_code failure;
  if (!std::filesystem::is_directory(stored.location(), failure)) return;
  std::set<std::string> own;
  for (const std::filesystem::path& file : stored.weight_files()) own.insert(file.filename().string());
  for (const auto& entry : std::filesystem::directory_iterator(stored.location(), failure)) {
    const std::string name = entry.path().filename().string();
    const bool has_weights =
        ((name.starts_with("model") || name.starts_with("consolidated")) && name.ends_with(".safetensors")) ||
        (name.starts_with("pytorch_model") && name.ends_with(".bin"));
    if (has_weights && !own.contains(name))
      findings.warning("files", name, "is not a part of the checkpoint, but some readers take it; remove it");
  }
  check_other_index(stored, own, findings);
}

Json checked(const VerifyOptions& options, const RunControl& control) {
  const Timer timer;
  setup::set_threads(options.threads);
  if (options.download) setup::download_model(options.model, control);
  (void)checkpoint::locate_model(options.model);  // a wrong name is no fault of a checkpoint
  verification::Findings findings;
  Json result = {{"model", options.model}};
  if (const auto model = opened(options.model, options, control, findings)) {
    const verification::Subject subject{*model->stored, model->quantized, model->traced};
    check_other_files(*model->stored, findings);
    check_companions(*model->stored, !options.source.empty(), findings);
    verification::check_config(subject, findings);
    verification::check_attentions(*model, findings);
    verification::check_fused(subject, findings);
    verification::check_routers(subject, findings);
    verification::check_doubles(subject, findings);
    verification::check_head(*model, findings);
    verification::check_layers(subject, findings);
    if (model->file_metadata)
      verification::check_vocabulary(*model->file_metadata, model->checkpoint->config().value("vocab_size", 0),
                                     findings);
    check_values(*model, control, findings);
    result["format"] = model->source_format.empty() ? "plain" : model->source_format;
    result["tensors"] = model->stored->names().size();
    result["bytes"] = model->stored->total_bytes();
    result["quantized"] = model->quantized.size();
    if (!options.source.empty()) compare_with_source(*model, options, control, findings, result);
  }
  result["faults"] = as_json(findings, true);
  result["warnings"] = as_json(findings, false);
  result["seconds"] = timer.seconds();
  return result;
}

}  // namespace

Json verify(const VerifyOptions& options, const RunControl& control) {
  try {
    return checked(options, control);
  } catch (const InterruptedError&) {
    throw InterruptedError("[verify] stopped on request; {} is not checked to the end, so there is no result",
                           options.model);
  }
}

}  // namespace layerpress
