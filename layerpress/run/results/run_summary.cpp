#include "layerpress/run/results/run_summary.h"

#include <map>
#include <utility>

#include "layerpress/base/system/machine.h"
#include "layerpress/dist/peers.h"
#include "layerpress/plan/plan_report.h"
#include "layerpress/run/compression/model_name.h"
#include "layerpress/run/results/result_facts.h"
#include "layerpress/setup/assignment/written_recipe.h"
#include "layerpress/setup/opening/kept_weights.h"

namespace layerpress::run {
namespace {

Json phases_json(const PhaseTimes& times) {
  Json phases = Json::object();
  for (const auto& [name, phase] : times.phases())
    phases[name] = {{"seconds", phase.seconds}, {"flops", phase.flops}, {"peak_bytes", phase.peak_resident_bytes}};
  return phases;
}

/// What a report draws: when each subgraph was worked on, and memory over time beside the plan.
void add_course(Json& rank, const RankReport& report) {
  std::map<std::string, std::uint64_t> planned;
  for (const plan::SubgraphPlan& subgraph : report.plan.memory.subgraphs) planned[subgraph.name] = subgraph.peak.host;
  rank["sections"] = Json::array();
  for (const PhaseTimes::Section& section : report.times.sections())
    rank["sections"].push_back({{"name", section.name},
                                {"start", section.start},
                                {"seconds", section.seconds},
                                {"phases", section.phases},
                                {"planned_bytes", planned.count(section.name) ? planned[section.name] : 0}});
  rank["memory"] = {{"interval_seconds", report.memory.interval_seconds}, {"bytes", report.memory.bytes}};
}

double save_seconds(const PhaseTimes& times) {
  double seconds = 0;
  for (const char* phase : {"write", "finish"})
    if (const auto found = times.phases().find(phase); found != times.phases().end()) seconds += found->second.seconds;
  return seconds;
}

Json rank_json(const setup::RunSetup& setup, const RankReport& report, const dist::Group& group) {
  Json plan = plan::plan_numbers(setup, report.plan);
  plan["peak_bytes"] = std::max(plan["peak_bytes"].get<std::uint64_t>(), report.earlier_planned_bytes);
  Json modules = Json::array();
  for (const compression::ModuleReport& module : report.modules) modules.push_back(module.to_json());
  return {{"rank", group.rank()},
          {"host", dist::host_name()},
          {"threads", setup.threads},
          {"cores", allowed_cores()},
          {"samples", plan["samples"]},
          {"tokens", plan["tokens"]},
          {"seconds", report.seconds},
          {"save_seconds", save_seconds(report.times)},
          {"wait_seconds", group.waited_seconds()},
          {"sent_bytes", group.sent_bytes()},
          {"plan", plan},
          {"peak_bytes", peak_resident_bytes()},
          {"peak_anonymous_bytes", report.peak_anonymous_bytes},
          {"peak_device_bytes", report.peak_device_bytes},
          {"spilled_bytes", report.spilled_bytes},
          {"phases", phases_json(report.times)},
          {"modules", std::move(modules)}};
}

/// Modules of all ranks in the order of the model.
Json modules_in_order(const setup::RunSetup& setup, std::vector<Json>& ranks) {
  std::map<std::string, Json> by_name;
  for (Json& rank : ranks) {
    for (Json& module : rank["modules"]) {
      const auto name = module["module"].get<std::string>();
      if (const std::string scheme = setup::source_scheme(setup.model, name); !scheme.empty())
        module["source_scheme"] = scheme;
      by_name[name] = module;
    }
    rank.erase("modules");
  }
  Json modules = Json::array();
  for (const auto& [node, assignment] : setup.assignments.linears) {
    const auto found = by_name.find(setup.model.traced.graph.module_name(setup.model.traced.graph.nodes[node]));
    if (found != by_name.end()) modules.push_back(std::move(found->second));
  }
  return modules;
}

/// Of the weights, or of whole files if these are all that there is of the model.
std::uint64_t source_bytes(const setup::OpenedModel& model) {
  return model.file_metadata ? model.stored->file_bytes() : model.stored->total_bytes();
}

/// What the choices of a run that then takes no data were measured on; null: there were none.
Json measured_on(const recipe::Recipe& recipe) {
  for (const recipe::ModifierEntry& entry : recipe.modifiers)
    if (json_has(entry.arguments, "measured_on")) return entry.arguments["measured_on"];
  return nullptr;
}

}  // namespace

Json run_summary(const OneshotOptions& options, const setup::RunSetup& setup, const RankReport& report,
                 dist::Group& group) {
  Json own = rank_json(setup, report, group);
  add_course(own, report);
  const std::vector<std::string> all = group.all_gather_text(own.dump(-1, ' ', true, Json::error_handler_t::replace));
  if (!group.is_first()) return nullptr;
  std::vector<Json> ranks;
  std::int64_t samples = 0, tokens = 0;
  for (const std::string& text : all) {
    ranks.push_back(Json::parse(text));
    samples += ranks.back()["samples"].get<std::int64_t>();
    tokens += ranks.back()["tokens"].get<std::int64_t>();
  }
  if (const Json measured = measured_on(setup.recipe); samples == 0 && measured.is_object())
    samples = measured.value("samples", samples), tokens = measured.value("tokens", tokens);
  Json modules = modules_in_order(setup, ranks);
  return {{"model", options.model},
          {"model_name", name_of_model(options.model).shown},
          {"source_bytes", source_bytes(setup.model)},
          {"architecture", setup.model.architecture},
          {"output", options.output},
          {"scheme", scheme_names(setup)},
          {"serving", serving(options.output, setup)},
          {"recipe", setup::recipe_text(setup.model, setup.recipe, setup.modifiers)},
          {"mixed_precision", setup.decision},
          {"device", setup.placement.device.str()},
          {"dtype", setup::dtype_word(setup.placement.dtype)},
          {"arithmetic", setup::arithmetic_words(setup.placement)},
          {"world_size", group.size()},
          {"threads", setup.threads},
          {"samples", samples},
          {"tokens", tokens},
          {"seconds", report.seconds},
          {"plan", own["plan"]},
          {"peak_bytes", own["peak_bytes"]},
          {"peak_anonymous_bytes", own["peak_anonymous_bytes"]},
          {"peak_device_bytes", own["peak_device_bytes"]},
          {"spilled_bytes", own["spilled_bytes"]},
          {"source_quantization", setup.model.source_format.empty() ? Json() : Json(setup.model.source_format)},
          {"rewrites", setup.model.rewrites},
          {"kept_weights", setup.model.kept.size()},
          {"source_tensors", setup.source.to_json()},
          {"phases", own["phases"]},
          {"ranks", std::move(ranks)},
          {"worst_modules", worst_modules(modules)},
          {"modules", std::move(modules)}};
}

}  // namespace layerpress::run
