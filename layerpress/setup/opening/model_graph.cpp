#include "layerpress/setup/opening/model_graph.h"

#include <map>
#include <memory>
#include <string_view>

#include "layerpress/base/error.h"
#include "layerpress/base/file.h"
#include "layerpress/base/files/temporary_directory.h"
#include "layerpress/base/system/child_process.h"
#include "layerpress/base/text.h"
#include "layerpress/data/load_samples.h"
#include "layerpress/importer/import_graph.h"
#include "layerpress/model/blocks/weight_names.h"

namespace layerpress::setup {
namespace {

/// All tensors by name if some of them are not what the folder's files have.
Json values_of(const checkpoint::Checkpoint& checkpoint, const ModelChoice& choice) {
  Json tensors = Json::object();
  bool computed =
      checkpoint.directory().empty() || checkpoint.directory() != checkpoint.location() || choice.config_is_changed;
  for (const std::string& name : checkpoint.names()) {
    computed = computed || checkpoint.is_computed(name);
    const checkpoint::StoredTensor& tensor = checkpoint.spec(name);
    tensors[name] = {checkpoint::dtype_name(tensor.dtype), tensor.shape};
  }
  return computed ? tensors : Json::object();
}

/// A folder with a config.json that no other folder has, of a model in memory or a changed one, and the code beside it; or none.
std::unique_ptr<TemporaryDirectory> folder_of_config(const checkpoint::Checkpoint& checkpoint,
                                                     const ModelChoice& choice) {
  if (!checkpoint.directory().empty() && !choice.config_is_changed) return nullptr;
  auto folder = std::make_unique<TemporaryDirectory>();
  write_text_file(folder->path() / "config.json", checkpoint.config().dump());
  const std::filesystem::path code =
      choice.in_memory ? std::filesystem::path(choice.in_memory->code) : checkpoint.directory();
  if (choice.trust_remote_code && !code.empty())
    for (const auto& file : std::filesystem::directory_iterator(code))
      if (file.path().extension() == ".py" && file.is_regular_file())
        std::filesystem::copy_file(file.path(), folder->path() / file.path().filename());
  return folder;
}

std::filesystem::path exported_folder(const checkpoint::Checkpoint& checkpoint, const ModelChoice& choice,
                                      const std::string& dtype, const RunControl& control) {
  const std::unique_ptr<TemporaryDirectory> config = folder_of_config(checkpoint, choice);
  const std::filesystem::path script = data::helper_script().parent_path() / "export_graph.py";
  Json request = {{"model", (config ? config->path() : checkpoint.directory()).string()},
                  {"dtype", dtype},
                  {"trust_remote_code", choice.trust_remote_code}};
  if (const Json tensors = values_of(checkpoint, choice); !tensors.empty()) request["tensors"] = tensors;
  const ChildResult result =
      run_child({{data::helper_interpreter(), "-s", script.string()},
                 request.dump() + "\n",
                 "set LAYERPRESS_PYTHON to a Python 3 that has the packages of requirements.txt"},
                control);
  if (result.exit_code != 0) throw CheckpointError("{}", reported_error(result, "[graph.export]"));
  const Json answer = Json::parse(result.output, nullptr, false);
  if (!answer.is_object() || !answer.contains("graph") || !answer["graph"].is_string())
    throw CheckpointError("[graph.export] the helper gave no answer; check LAYERPRESS_PYTHON and LAYERPRESS_HELPER");
  return answer["graph"].get<std::string>();
}

/// The name that the checkpoint has for a module that the graph does not reach, where it lacks the one that parts in the graph suggest.
std::string stored_module(const std::string& name, const checkpoint::Checkpoint& checkpoint) {
  if (checkpoint.contains(name + ".weight")) return name;
  for (std::size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
    const std::string rest = name.substr(dot + 1);
    for (const std::string& own : {"model." + rest, rest})
      if (checkpoint.contains(own + ".weight")) return own;
  }
  return name;
}

/// Parts outside of the graph may have other prefixes than those in it.
model::TracedModel with_stored_modules(model::TracedModel model, const checkpoint::Checkpoint& checkpoint) {
  const auto rename = [](auto& by_name, const std::string& name, const std::string& stored) {
    if (auto node = by_name.extract(name)) {
      node.key() = stored;
      by_name.insert(std::move(node));
    }
  };
  for (std::string& name : model.left_out) {
    const std::string stored = stored_module(name, checkpoint);
    if (stored == name) continue;
    rename(model.left_out_reasons, name, stored);
    rename(model.aliases, name, stored);
    model.aliases[stored].push_back(name);
    name = stored;
  }
  return model;
}

model::TracedModel exported_model(const checkpoint::Checkpoint& checkpoint, const ModelChoice& choice,
                                  const RunControl& control) {
  const residency::Placement placement = choose_placement(choice.device, choice.dtype, usual_dtype(checkpoint));
  return with_stored_modules(
      importer::import_graph(exported_folder(checkpoint, choice, dtype_word(placement.dtype), control)), checkpoint);
}

/// A failure also says what Layerpress knows itself.
model::TracedModel exported_if_possible(const checkpoint::Checkpoint& checkpoint, const ModelChoice& choice,
                                        const RunControl& control) {
  try {
    return exported_model(checkpoint, choice, control);
  } catch (const CheckpointError& failure) {
    if (choice.config_is_changed) throw;  // the model before was exported
    // What helps, whatever Layerpress knows.
    for (const std::string_view remedy : {"--trust-remote-code", "XDG_CACHE_HOME"})
      if (std::string_view(failure.what()).find(remedy) != std::string_view::npos) throw;
    try {
      return model::trace_model(checkpoint.config());
    } catch (const CheckpointError& unknown) {
      throw CheckpointError("{}; PyTorch's export was tried, too: {}", unknown.what(), failure.what());
    }
  }
}

}  // namespace

at::ScalarType usual_dtype(const checkpoint::Checkpoint& checkpoint) {
  std::map<at::ScalarType, std::uint64_t> bytes{{at::kBFloat16, 0}, {at::kHalf, 0}, {at::kFloat, 0}};
  for (const std::string& name : checkpoint.names()) {
    const checkpoint::StoredTensor& tensor = checkpoint.spec(name);
    if (const auto known = bytes.find(tensor.dtype); known != bytes.end()) known->second += tensor.nbytes();
  }
  at::ScalarType most = at::kBFloat16;
  for (const auto& [dtype, count] : bytes)
    if (count > bytes[most]) most = dtype;
  return most;
}

model::TracedModel traced_model(const checkpoint::Checkpoint& checkpoint, const ModelChoice& choice,
                                const RunControl& control) {
  if (choice.graph != "auto" && choice.graph != "builtin" && choice.graph != "export")
    throw UsageError("[options] --model-graph: unknown value '{}'; {}", choice.graph,
                     nearest_or_all(choice.graph, {"auto", "builtin", "export"}));
  const std::string& given = choice.in_memory ? choice.in_memory->graph : choice.exported_graph;
  if (!given.empty() && choice.config_is_changed)
    throw UsageError(
        "[oneshot] this model's graph was exported beforehand and cannot follow a changed config; pass the "
        "model's folder");
  if (!given.empty()) return with_stored_modules(importer::import_graph(given), checkpoint);
  const bool built_in = model::is_built_in(checkpoint.config());
  if (choice.graph == "export") return exported_model(checkpoint, choice, control);
  if (choice.graph == "auto" && !built_in) return exported_if_possible(checkpoint, choice, control);
  try {
    model::TracedModel model = model::trace_model(checkpoint.config());
    model::use_stored_names(model, checkpoint);
    return model;
  } catch (const model::UnknownVariantError& failure) {
    if (choice.graph == "builtin") throw CheckpointError("{}; leave out --model-graph builtin", failure.what());
    return exported_if_possible(checkpoint, choice, control);
  }
}

}  // namespace layerpress::setup
