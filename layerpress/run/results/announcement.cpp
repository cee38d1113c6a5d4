#include "layerpress/run/results/announcement.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "layerpress/base/text.h"
#include "layerpress/checkpoint/shard_index.h"
#include "layerpress/graph/graph.h"
#include "layerpress/graph/weight_matrix.h"
#include "layerpress/model/blocks/weight_names.h"
#include "layerpress/plan/machine_rates.h"
#include "layerpress/run/compression/model_name.h"
#include "layerpress/run/results/result_facts.h"
#include "layerpress/setup/opening/kept_weights.h"
#include "layerpress/setup/recipe_notes.h"

namespace layerpress::run {
namespace {

std::string place_text(const setup::RunSetup& setup) {
  const std::string ranks = setup.ranks > 1 ? fmt::format("{} ranks, each on ", setup.ranks) : "";
  if (!setup.placement.device.is_cpu()) return ranks + setup.placement.device.str();
  return ranks + counted(setup.threads, "CPU thread");
}

std::string time_text(double seconds) {
  return seconds > 0 ? "about " + format_duration(seconds) : "less than 2 minutes";
}

/// `measured`: whether data has been measured before.
std::string announcement_text(const Work& work, bool measured, double seconds) {
  std::string text = measured ? ", without further data" : ", without data";
  if (work.all_samples > 0)
    text = fmt::format(", {} ({})", counted(static_cast<std::uint64_t>(work.all_samples), "sample"),
                       counted(static_cast<std::uint64_t>(work.all_tokens), "token"));
  const plan::Memory& peak = work.plan.memory.peak;
  text += fmt::format(", on {}; plan: {} of memory{}", place_text(work.setup), format_bytes(peak.host),
                      work.setup.ranks > 1 ? " for each rank" : "");
  if (peak.device > 0) text += fmt::format(", {} on the device", format_bytes(peak.device));
  return text + ", " + time_text(seconds);
}

/// Says what rewrites have changed in the model.
void say_rewrites(const Rank& rank, const setup::OpenedModel& model) {
  for (const std::string& line : model.rewrites) rank.control.message(LogLevel::kInfo, line);
}

/// Further parameters of modules that the graph computes, such as the bias of a linear that has none by the config. Weights that are
/// stored quantized have parameters of their own.
std::vector<std::string> unread_parts(const setup::OpenedModel& model, const std::vector<std::string>& copied) {
  std::set<std::string> computed;
  for (const std::string& name : graph::weights_read(model.traced.graph))
    if (model.quantized.count(name) == 0) computed.insert(parent_name(name));
  std::vector<std::string> parts;
  std::copy_if(copied.begin(), copied.end(), std::back_inserter(parts), [&](const std::string& name) {
    return computed.count(parent_name(name)) != 0 && (name.ends_with(".bias") || name.ends_with(".weight"));
  });
  return parts;
}

/// Reports the tensors that the model's graph does not read, which users would otherwise not notice.
void say_unread(const Rank& rank, const setup::OpenedModel& model, const setup::SourceTensors& source) {
  if (const std::vector<std::string> parts = unread_parts(model, source.copied); !parts.empty())
    rank.control.message(
        LogLevel::kWarning,
        fmt::format("{} is copied, but by config.json its module has no such parameter, and nothing is computed "
                    "with it{}",
                    parts.front(), parts.size() == 1 ? "" : fmt::format(" ({} such tensors)", parts.size())));
  if (!source.copied_text.empty())
    rank.control.message(LogLevel::kInfo,
                         "copied as stored, because the model's graph does not read them: " + source.copied_text);
  std::map<std::string, std::vector<std::string>> dropped;  // by reason
  for (const setup::SourceTensors::Dropped& tensor : source.dropped) dropped[tensor.reason].push_back(tensor.name);
  for (const auto& [reason, names] : dropped) {
    const std::string others = names.size() > 1 ? fmt::format(" and {} more are", names.size() - 1) : " is";
    rank.control.message(LogLevel::kInfo, fmt::format("{}{} left out: {}", names.front(), others, reason));
  }
}

/// Says that the source is quantized, and what follows from that.
void say_quantized(const Rank& rank, const setup::RunSetup& setup) {
  if (setup.model.source_format.empty()) return;
  if (!setup.model.quantized.empty())
    rank.control.message(LogLevel::kInfo,
                         fmt::format("the source is quantized ({}): {} weights are dequantized as they are loaded",
                                     setup.model.source_format, setup.model.quantized.size()));
  if (const auto& alike = setup.assignments.stored_alike; !alike.empty())
    rank.control.message(LogLevel::kInfo,
                         fmt::format("codes that are already in the requested scheme stay: {} ({}{})",
                                     counted(alike.size(), "module"), alike.front(), alike.size() > 1 ? ", ..." : ""));
  if (const auto kept = std::count_if(setup.assignments.linears.begin(), setup.assignments.linears.end(),
                                      [](const auto& entry) { return entry.second.stored != nullptr; });
      kept > 0)
    rank.control.message(LogLevel::kInfo,
                         fmt::format("{} {} the values that the source stores, in blocks that hold them",
                                     counted(kept, "module"), kept == 1 ? "keeps" : "keep"));
  if (const std::string text = setup::dequantized_text(setup.model, setup.assignments); !text.empty())
    rank.control.message(rank.options.dtype == "auto" ? LogLevel::kWarning : LogLevel::kInfo, text);
  std::map<std::string, std::size_t> lossy;  // modules by the scheme in which they are stored
  for (const setup::RequantizedModule& module : setup::requantized_modules(setup.model, setup.assignments))
    if (!module.may_be_exact) ++lossy[setup::source_scheme(setup.model, module.name)];
  for (const auto& [scheme, count] : lossy)
    rank.control.message(
        LogLevel::kWarning,
        fmt::format("stored in {} and quantized again, which adds to the error: {}", scheme, counted(count, "module")));
}

/// The share of the source's bytes that is in these modules.
double share_of(const std::vector<std::string>& modules, const checkpoint::Checkpoint& stored) {
  std::uint64_t own = 0, all = 0;
  for (const std::string& tensor : stored.names()) {
    const std::uint64_t bytes = stored.spec(tensor).nbytes();
    all += bytes;
    if (std::any_of(modules.begin(), modules.end(), [&](const auto& name) { return tensor.starts_with(name + "."); }))
      own += bytes;
  }
  return all == 0 ? 0 : static_cast<double>(own) / static_cast<double>(all);
}

/// Whether a module of a model that also takes images or sound belongs to the part that its graph computes.
std::function<bool(const std::string&)> in_language_part(const setup::OpenedModel& model) {
  const Json& config = model.checkpoint->config();
  if (!json_has(config, "vision_config") && !json_has(config, "audio_config"))
    return [](const std::string&) { return true; };
  const auto part = [](const std::string& name) {
    const std::string inner = name.starts_with("model.") ? name.substr(6) : name;
    return inner.substr(0, inner.find('.'));
  };
  std::set<std::string> own;
  for (const graph::Node& node : model.traced.graph.nodes)
    if (graph::is_linear(node.operation)) {
      own.insert(part(model.traced.graph.module_name(node)));
      for (const std::string& other : model::other_names(model.traced, model.traced.graph.module_name(node)))
        own.insert(part(other));
    }
  return [own, part](const std::string& name) { return own.contains(part(name)); };
}

/// What an imported graph has no nodes for; lists of experts, which may be most of a model, apart from linears.
void say_left_out(const setup::RunSetup& setup, const RunControl& control) {
  const setup::OpenedModel& model = setup.model;
  std::vector<std::string> linears = model.traced.left_out, experts;
  std::erase_if(linears, [&](const std::string& name) {
    if (model.stored->contains(name + ".weight"))  // the log says that the target has no place for it
      return setup.target->left_out(name + ".weight").has_value();
    return std::ranges::none_of(model.stored->names(),
                                [&](const std::string& tensor) {  // another linear's by another name
                                  return tensor.starts_with(name + ".");
                                });
  });
  const auto first = std::stable_partition(linears.begin(), linears.end(),
                                           [](const std::string& name) { return !name.ends_with(".experts"); });
  experts.assign(first, linears.end());
  linears.erase(first, linears.end());
  const auto outside = std::stable_partition(linears.begin(), linears.end(), in_language_part(model));
  const std::vector<std::string> others(outside, linears.end());
  linears.erase(outside, linears.end());
  const auto say = [&](LogLevel level, const std::vector<std::string>& modules, const std::string& what,
                       bool outside_text) {
    if (modules.empty()) return;
    const char* where = outside_text ? "in a part for images or sound" : "without a node in the imported graph";
    control.message(level, fmt::format("[importer] no recipe compresses {} {} ({:.0f} % of the model): {}", what, where,
                                       100 * share_of(modules, *model.stored), join_first(modules, 4)));
  };
  say(LogLevel::kWarning, experts, "the experts of " + counted(experts.size(), "layer"), false);
  say(LogLevel::kWarning, linears, counted(linears.size(), "linear"), false);
  say(LogLevel::kInfo, others, counted(others.size(), "linear"), true);
}

/// Experts that the result has one by one, although transformers knows the layer's stacked tensors only.
void say_divided_experts(const setup::RunSetup& setup, const RunControl& control) {
  const setup::OpenedModel& model = setup.model;
  std::int64_t layers = 0;
  for (const std::vector<model::StackedTensor>& layer : model.traced.stacked_tensors) {
    const std::string& stacked = layer.front().name;
    if (!model.stored->contains(stacked) && model.stacked_quantized.count(stacked) == 0) continue;
    if (layer.front().divided) continue;
    layers += 1 - static_cast<std::int64_t>(model.written_stacked.count(layer.front().members.front().front()));
  }
  if (layers > 0 && setup.target->has_config())
    control.message(LogLevel::kWarning,
                    fmt::format("the experts of {} are written one by one, as vLLM reads them; transformers "
                                "knows them as one tensor of a layer only and would leave them at random values (for "
                                "transformers, leave them uncompressed: --ignore lm_head 're:.*experts.*')",
                                counted(layers, "layer")));
}

/// What is in the model's folder and will not be in the result. An adapter's weights would go unseen.
void say_not_copied(const Rank& rank, const setup::RunSetup& setup) {
  const std::vector<std::string> names = setup.model.checkpoint->other_entries();
  if (std::find(names.begin(), names.end(), checkpoint::kAdapterConfigName) != names.end())
    rank.control.message(
        LogLevel::kWarning,
        fmt::format("[checkpoint.files] {}: the adapter that is in the folder is not part of the result; if it should "
                    "be, merge it first (peft: merge_and_unload(), then save_pretrained)",
                    rank.options.model));
  if (!names.empty() && setup.target->has_config())
    rank.control.message(LogLevel::kInfo,
                         fmt::format("not copied from {}: {}", rank.options.model, join_first(names, 8)));
}

}  // namespace

std::string compressed_words(const OneshotOptions& options, const setup::RunSetup& setup) {
  return fmt::format("{} to {}", last_part(std::filesystem::path(options.model)), scheme_names(setup));
}

void announce(const Rank& rank, const Work& work, const std::string& what, const std::filesystem::path& folder) {
  if (!rank.group.is_first()) return;
  const setup::RunSetup& setup = work.setup;
  rank.control.message(LogLevel::kInfo,
                       what + announcement_text(work, rank.earlier_planned_bytes > 0 || !setup.decision.is_null(),
                                                plan::planned_seconds(setup, work.plan, folder)));
  if (setup.pipeline->takes_data)
    rank.control.message(LogLevel::kInfo,
                         fmt::format("products in {}, values in {}, batches of up to {} tokens",
                                     setup::arithmetic_words(setup.placement), setup::dtype_word(setup.placement.dtype),
                                     work.plan.batch_tokens));
}

void say_notes(const OneshotOptions& options, const setup::RunSetup& setup, const RunControl& control) {
  say_left_out(setup, control);
  say_divided_experts(setup, control);
  for (const std::string& note : setup.target->notes()) control.message(LogLevel::kWarning, "[target] " + note);
  for (const std::string& note : setup::recipe_notes(options, setup)) control.message(LogLevel::kWarning, note);
  if (const std::vector<std::string>& names = setup.without_importance; !names.empty())
    control.message(
        LogLevel::kWarning,
        fmt::format("[oneshot] --from-imatrix: {} has no figures for {} tensors, which are rounded without: {}",
                    options.from_imatrix, names.size(), join_first(names, 4)));
  for (const std::string& warning : setup::kernel_warnings(setup.model, setup.assignments, *setup.target))
    control.message(LogLevel::kWarning, warning);
}

void say_source(const Rank& rank, const setup::RunSetup& setup) {
  if (!rank.group.is_first()) return;
  say_not_copied(rank, setup);
  say_quantized(rank, setup);
  say_rewrites(rank, setup.model);
  say_unread(rank, setup.model, setup.source);
}

}  // namespace layerpress::run
