// The functions of the extension module; python/layerpress gives them the form that users see.
#include <ATen/DLConvertor.h>
#include <c10/util/Exception.h>
#include <c10/util/Logging.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <new>
#include <optional>

#include "layerpress/base/files/temporary_directory.h"
#include "layerpress/bindings/options.h"
#include "layerpress/bindings/running.h"
#include "layerpress/distributed.h"
#include "layerpress/evaluate.h"
#include "layerpress/inspect.h"
#include "layerpress/model_in_memory.h"
#include "layerpress/modifiers.h"
#include "layerpress/oneshot.h"
#include "layerpress/prepare.h"
#include "layerpress/verify.h"

namespace nb = nanobind;

namespace layerpress::bindings {
namespace {

template <typename Options>
Options options_of(const std::string& model, const nb::dict& given) {
  auto options = options_from<Options>(given);
  if constexpr (std::is_same_v<Options, InspectOptions>)
    options.run.model = model;
  else
    options.model = model;
  return options;
}

/// A tensor of torch, by DLPack, in place.
at::Tensor tensor_of(nb::handle tensor) {
  const nb::object capsule = tensor.attr("__dlpack__")();
  auto* managed = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
  if (managed == nullptr) throw nb::python_error();
  PyCapsule_SetName(capsule.ptr(), "used_dltensor");
  return at::fromDLPack(managed);
}

std::shared_ptr<ModelInMemory> model_in_memory(const std::string& config, const nb::dict& tensors,
                                               const std::string& graph, const std::string& code) {
  auto model = std::make_shared<ModelInMemory>();
  model->config = parse_json(config, "the model's config");
  for (const auto& [name, tensor] : tensors) model->tensors.emplace(nb::cast<std::string>(name), tensor_of(tensor));
  model->graph = graph;
  model->code = code;
  return model;
}

OneshotOptions oneshot_options(const std::string& model, const nb::dict& given,
                               const std::shared_ptr<ModelInMemory>& in_memory, bool own_dataset) {
  auto options = options_of<OneshotOptions>(model, given);
  for (const auto& [name, value] : given) options.given.push_back(nb::cast<std::string>(name));
  options.model_in_memory = in_memory;
  options.own_dataset = own_dataset;
  return options;
}

Json result_of(const OneshotSummary& summary) {
  return {{"already_complete", summary.already_complete},
          {"seconds", summary.seconds},
          {"output_bytes", summary.output_bytes},
          {"modules", summary.modules},
          {"fallbacks", summary.fallbacks},
          {"output", summary.output},
          {"uploaded", summary.uploaded},
          {"details", summary.details}};
}

std::string tables() {
  Json modifiers = Json::array();
  for (const ModifierKind& kind : list_modifiers())
    modifiers.push_back({{"type", kind.type}, {"arguments", kind.arguments}, {"implemented", kind.implemented}});
  return Json{{"oneshot", table_of<OneshotOptions>()}, {"evaluate", table_of<EvaluateOptions>()},
              {"inspect", table_of<InspectOptions>()}, {"prepare", table_of<PrepareOptions>()},
              {"verify", table_of<VerifyOptions>()},   {"modifiers", modifiers}}
      .dump();
}

const char* class_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kUsage:
      return "UsageError";
    case ErrorKind::kIo:
      return "IoError";
    case ErrorKind::kCheckpoint:
      return "CheckpointError";
    case ErrorKind::kRecipe:
      return "RecipeError";
    case ErrorKind::kData:
      return "DataError";
    case ErrorKind::kMemory:
      return "MemoryError";
    case ErrorKind::kDistributed:
      return "DistributedError";
    case ErrorKind::kInterrupted:
      return "InterruptedError";
    case ErrorKind::kInternal:
      break;
  }
  return "InternalError";
}

void raise(const char* class_name, const char* message) {
  PyErr_SetString(nb::module_::import_("layerpress.errors").attr(class_name).ptr(), message);
}

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const DamagedWeightsError& error) {
    raise("DamagedWeightsError", error.what());
  } catch (const Error& error) {
    raise(class_of(error.kind()), error.what());
  } catch (const c10::OutOfMemoryError&) {
    raise("MemoryError", "[memory] the device is out of memory; use a smaller device_memory_budget or batch_tokens");
  } catch (const c10::Error& error) {
    raise("InternalError", error.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    raise("MemoryError", "[memory] out of memory; use smaller batch_tokens or fewer samples");
  }
}

/// A model in memory, or none.
using InMemory = std::shared_ptr<ModelInMemory>;

/// A function of options, control and ranks that returns JSON. It is given what every long call is given, too.
template <typename Function>
void define_for_ranks(nb::module_& module, const char* name, Function function) {
  module.def(
      name,
      [function](const std::string& model, const nb::dict& given, nb::handle events, bool in_main_thread,
                 Distributed* ranks, const InMemory& in_memory, bool own_dataset) {
        const OneshotOptions options = oneshot_options(model, given, in_memory, own_dataset);
        return run(events, in_main_thread,
                   [&](const RunControl& control) { return function(options, control, ranks).dump(); });
      },
      nb::arg("model"), nb::arg("options"), nb::arg("events"), nb::arg("in_main_thread"), nb::arg("ranks").none(),
      nb::arg("in_memory").none(), nb::arg("own_dataset"));
}

/// The same for a function of options and control.
template <typename Options, typename Function>
void define_alone(nb::module_& module, const char* name, Function function) {
  module.def(name, [function](const std::string& model, const nb::dict& given, nb::handle events, bool in_main_thread) {
    const auto options = options_of<Options>(model, given);
    return run(events, in_main_thread, [&](const RunControl& control) { return function(options, control).dump(); });
  });
}

void define_oneshot(nb::module_& module) {
  define_for_ranks(module, "oneshot", [](const OneshotOptions& options, const RunControl& control, Distributed* ranks) {
    return result_of(oneshot(options, control, ranks));
  });
  define_for_ranks(module, "plan", plan_oneshot);
  define_for_ranks(module, "mixed_precision", mixed_precision);
  module.def("unfinished", [](const std::string& output) {
    const std::optional<UnfinishedRun> run = find_unfinished_run(output);
    return run ? Json{{"finished", run->finished}, {"subgraphs", run->subgraphs}}.dump() : std::string("null");
  });
}

void define_others(nb::module_& module) {
  define_alone<EvaluateOptions>(module, "evaluate", [](const EvaluateOptions& options, const RunControl& control) {
    return evaluate(options, control).to_json();
  });
  define_alone<InspectOptions>(module, "inspect", [](const InspectOptions& options, const RunControl& control) {
    return inspect(options, control);
  });
  define_alone<PrepareOptions>(module, "prepare", [](const PrepareOptions& options, const RunControl& control) {
    const Prepared prepared = prepare(options, control);
    return Json{{"samples", prepared.samples}, {"tokens", prepared.tokens}};
  });
  define_alone<VerifyOptions>(module, "verify", verify);
  nb::class_<TemporaryDirectory>(module, "TemporaryDirectory", "Removed with its last reference.")
      .def(nb::init<>())
      .def_prop_ro("path", [](const TemporaryDirectory& folder) { return folder.path().string(); });
  module.def("architectures", [] { return list_architectures().dump(); });
  module.def("tables", tables);
  module.def("check_modifier", [](const std::string& type, const std::string& arguments) {
    check_modifier(type, OrderedJson::parse(arguments));
  });
}

void define_models(nb::module_& module) {
  nb::class_<ModelInMemory>(module, "ModelInMemory");
  module.def("model_in_memory", model_in_memory);
  module.def("load_result", [](const InMemory& model, const std::string& output) {
    const nb::gil_scoped_release released;
    return load_result(*model, output);
  });
}

void define_ranks(nb::module_& module) {
  nb::class_<Distributed>(module, "Distributed", "The ranks of a run.")
      .def_prop_ro("rank", &Distributed::rank)
      .def_prop_ro("size", &Distributed::size)
      .def_prop_ro("local_rank", &Distributed::local_rank)
      .def_prop_ro("is_first", &Distributed::is_first)
      .def("all_gather_text", &Distributed::all_gather_text, nb::call_guard<nb::gil_scoped_release>())
      .def("barrier", &Distributed::barrier, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "fail", [](Distributed& ranks, const std::string& cause) { ranks.fail(cause); },
          nb::call_guard<nb::gil_scoped_release>())
      .def("reports_failure", &Distributed::reports_failure)
      .def("failure", &Distributed::failure);
  module.def("init_dist", [](std::int64_t timeout, nb::handle events, bool in_main_thread) {
    return run(events, in_main_thread, [&](const RunControl& control) {
      return std::shared_ptr<Distributed>(init_dist(std::chrono::seconds(timeout), control));
    });
  });
  module.def("rank_partition", [](const Distributed& ranks, const std::string& split, std::int64_t samples) {
    return get_rank_partition(ranks, split, samples);
  });
}

}  // namespace
}  // namespace layerpress::bindings

NB_MODULE(_native, module) {
  using namespace layerpress::bindings;
  // Errors are raised as exceptions, in our own words; the libraries' messages with stack traces are for developers.
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) FLAGS_caffe2_log_level = c10::GLOG_FATAL;
  nb::register_exception_translator(translate);
  module.attr("__version__") = LAYERPRESS_VERSION;
  module.attr("torch_version") = LAYERPRESS_TORCH_VERSION;
  define_oneshot(module);
  define_others(module);
  define_models(module);
  define_ranks(module);
}
