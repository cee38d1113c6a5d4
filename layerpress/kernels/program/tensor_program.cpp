#include "layerpress/kernels/program/tensor_program.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>

#include "layerpress/base/error.h"
#include "layerpress/kernels/program/program_argument.h"
#include "layerpress/kernels/program/program_numbers.h"
#include "layerpress/kernels/program/sequence_operators.h"

namespace layerpress::kernels {
namespace {

constexpr std::size_t kMostSteps = 100'000;

/// Arguments of type text that say how to compute. An operator with any other text, such as a file's name, is refused.
bool is_harmless_text(const std::string& name) {
  static const std::set<std::string> kKnown = {"rounding_mode", "approximate", "reduce",   "mode",
                                               "padding_mode",  "indexing",    "equation", "ord"};
  return kKnown.count(name) != 0;
}

/// Operators whose results depend on more than their arguments, that reach other memory, or that wait or print.
bool is_excluded(const std::string& name) {
  static const std::set<std::string> kExcluded = {
      "as_strided",  "as_strided_copy", "from_file",  "empty_strided", "rand",
      "randn",       "randint",         "randperm",   "normal",        "bernoulli",
      "multinomial", "rand_like",       "randn_like", "randint_like",  "sym_storage_offset",
      "data",        "is_leaf",         "resize",     "set",           "resize_as"};
  static const std::set<std::string> kUnderscored = {
      "_to_copy", "_unsafe_view", "_softmax", "_log_softmax", "_conj",      "_fused_rms_norm",
      "__and__",  "__or__",       "__xor__",  "__lshift__",   "__rshift__", "_assert_tensor_metadata"};
  return kExcluded.count(name) != 0 || (name.front() == '_' && kUnderscored.count(name) == 0);
}

struct OperatorName {
  std::string space, name, overload;
};

OperatorName split_name(const std::string& text) {
  const auto first = text.find('.'), last = text.rfind('.');
  const bool plain =
      std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '.'; });
  if (first == std::string::npos || first == last || last - first < 2 || text.size() > 200 || !plain)
    throw CheckpointError("[kernels.program] '{}' is not the name of an operator", text.substr(0, 80));
  const std::string overload = text.substr(last + 1);
  return {text.substr(0, first), text.substr(first + 1, last - first - 1), overload == "default" ? "" : overload};
}

c10::OperatorHandle find_operator(const std::string& text) {
  const OperatorName name = split_name(text);
  register_sequence_operators();
  if ((name.space != "aten" && name.space != "layerpress") || is_excluded(name.name))
    throw CheckpointError(
        "[kernels.program] operator '{}' may not be called; only those that compute tensors of ATen are", text);
  const auto found = c10::Dispatcher::singleton().findSchema({name.space + "::" + name.name, name.overload});
  if (!found) throw CheckpointError("[kernels.program] operator '{}' is not known to this release of PyTorch", text);
  const c10::FunctionSchema& schema = found->schema();
  bool harmless = !schema.is_mutable() && !schema.returns().empty();
  for (const c10::Argument& argument : schema.arguments()) {
    const c10::TypeKind kind = argument.real_type()->kind();
    const bool is_text = argument.type()->str().find("str") != std::string::npos;
    harmless = harmless && (!is_text || name.space == "layerpress" || is_harmless_text(argument.name())) &&
               kind != c10::TypeKind::StorageType && kind != c10::TypeKind::GeneratorType;
  }
  if (!harmless)
    throw CheckpointError("[kernels.program] operator '{}' may not be called: it does not only compute new tensors",
                          text);
  return *found;
}

struct Step {
  std::string name;
  std::optional<c10::OperatorHandle> handle;
  NumberFunction number = nullptr;  ///< if there is no handle
  std::vector<ProgramArgument> arguments;
  std::int64_t slot = -1;
  std::vector<std::int64_t> dead;  ///< slots that no later step reads
};

struct InputShape {
  std::vector<std::int64_t> shape;  ///< -1: tokens
  at::ScalarType dtype = at::kFloat;
  std::int64_t axis = 0;
};

/// Slots: inputs, weights, constants, token ids, positions, the number of tokens, steps.
class CompiledProgram : public TensorProgram {
 public:
  explicit CompiledProgram(const Json& json) {
    for (const Json& input : json.at("inputs")) inputs_.push_back(read_input(input));
    for (const Json& weight : json.at("weights")) weight_types_.push_back(dtype_of_name(weight.get<std::string>()));
    constants_ = static_cast<std::size_t>(json_integer(json.at("constants")));
    axis_ = json_integer(json.at("axis"));
    if (constants_ > kMostSteps || axis_ < 0) throw CheckpointError("[kernels.program] counts are out of range");
    const Json& steps = json.at("steps");
    if (steps.size() > kMostSteps)
      throw CheckpointError("[kernels.program] {} steps are more than {}", steps.size(), kMostSteps);
    slots_ = first_step() + steps.size();
    for (const Json& step : steps) add_step(step);
    result_ = read_program_argument(json.at("result"), nullptr, [&](const Json& r) { return slot_of(r); });
    find_dead();
  }

  const std::vector<at::ScalarType>& weight_types() const override { return weight_types_; }

  at::Tensor run(const ProgramInputs& given, std::int64_t tokens) const override {
    const at::Device device = given.values.empty() ? given.token_ids.device() : given.values.front().device();
    std::vector<c10::IValue> slots = filled(given, tokens);
    torch::jit::Stack stack;
    for (const Step& step : steps_) {
      try {
        run_step(step, slots, stack, device);
      } catch (const c10::Error& error) {
        throw CheckpointError("[kernels.program] {}: {}", step.name, first_line(error.what_without_backtrace()));
      }
      for (const std::int64_t slot : step.dead) slots[static_cast<std::size_t>(slot)] = c10::IValue();
    }
    const c10::IValue result = result_.value(slots, device);
    if (!result.isTensor() || axis_ >= result.toTensor().dim() || result.toTensor().size(axis_) != tokens)
      throw CheckpointError("[kernels.program] expected one row per token ({} rows)", tokens);
    const at::Tensor rows = result.toTensor().movedim(axis_, 0);
    return rows.reshape({tokens, c10::multiply_integers(rows.sizes().slice(1))}).contiguous();
  }

 private:
  static std::string first_line(const std::string& text) {
    return text.substr(0, std::min(text.find('\n'), std::size_t{300}));
  }

  std::size_t first_weight() const { return inputs_.size(); }
  std::size_t first_constant() const { return first_weight() + weight_types_.size(); }
  std::size_t token_ids() const { return first_constant() + constants_; }
  std::size_t first_step() const { return token_ids() + 3; }

  static InputShape read_input(const Json& json) {
    InputShape input;
    input.shape = json_integers(json.at("shape"));
    input.dtype = dtype_of_name(json.at("dtype").get<std::string>());
    const auto axis = std::find(input.shape.begin(), input.shape.end(), -1);
    const auto valid = [](std::int64_t size) { return size == -1 || (size > 0 && size < (std::int64_t{1} << 40)); };
    if (axis == input.shape.end() || std::count(input.shape.begin(), input.shape.end(), -1) != 1 ||
        !std::all_of(input.shape.begin(), input.shape.end(), valid))
      throw CheckpointError("[kernels.program] input shape {} must have exactly one dimension of tokens",
                            json.at("shape").dump());
    input.axis = axis - input.shape.begin();
    return input;
  }

  std::int64_t slot_of(const Json& reference) const {
    const auto in = [&](const char* key, std::size_t first, std::size_t count) -> std::int64_t {
      const auto index = json_integer(reference.at(key));
      if (index < 0 || static_cast<std::size_t>(index) >= count)
        throw CheckpointError("[kernels.program] {} is out of range", reference.dump());
      return static_cast<std::int64_t>(first) + index;
    };
    if (reference.contains("i")) return in("i", 0, inputs_.size());
    if (reference.contains("w")) return in("w", first_weight(), weight_types_.size());
    if (reference.contains("c")) return in("c", first_constant(), constants_);
    if (reference.contains("token_ids")) return static_cast<std::int64_t>(token_ids());
    if (reference.contains("positions")) return static_cast<std::int64_t>(token_ids() + 1);
    if (reference.contains("tokens")) return static_cast<std::int64_t>(token_ids() + 2);
    if (!reference.contains("v"))
      throw CheckpointError("[kernels.program] {} refers to nothing", reference.dump().substr(0, 80));
    const auto found = made_.find(json_integer(reference.at("v")));
    if (found == made_.end())
      throw CheckpointError("[kernels.program] step {} is read before it is computed", reference.at("v").dump());
    return found->second;
  }

  void add_step(const Json& json) {
    Step step;
    step.name = json.at(0).get<std::string>();
    const Json& given = json.at(1);
    const auto slot = [&](const Json& reference) { return slot_of(reference); };
    if (step.name.rfind("sym.", 0) == 0) {
      step.number = find_number_function(step.name.substr(4));
      for (const Json& argument : given) step.arguments.push_back(read_program_argument(argument, nullptr, slot));
    } else {
      step.handle = find_operator(step.name);
      read_arguments(step, given, slot);
    }
    step.slot = static_cast<std::int64_t>(first_step() + steps_.size());
    if (!made_.emplace(json_integer(json.at(2)), step.slot).second)
      throw CheckpointError("[kernels.program] step {} is computed twice", json.at(2).dump());
    steps_.push_back(std::move(step));
  }

  static void read_arguments(Step& step, const Json& given, const std::function<std::int64_t(const Json&)>& slot) {
    const c10::FunctionSchema& schema = step.handle->schema();
    if (given.size() > schema.arguments().size())
      throw CheckpointError("[kernels.program] {} has {} arguments, not {}", step.name, schema.arguments().size(),
                            given.size());
    for (std::size_t k = 0; k < schema.arguments().size(); ++k) {
      const c10::Argument& argument = schema.arguments()[k];
      if (k < given.size() && !(given[k].is_object() && given[k].contains("default"))) {
        step.arguments.push_back(read_program_argument(given[k], argument.real_type().get(), slot));
        continue;
      }
      ProgramArgument usual;
      if (argument.default_value())
        usual.constant = *argument.default_value();
      else if (argument.type()->kind() != c10::TypeKind::OptionalType)
        throw CheckpointError("[kernels.program] {} lacks its argument '{}'", step.name, argument.name());
      step.arguments.push_back(std::move(usual));
    }
  }

  void find_dead() {
    std::vector<std::ptrdiff_t> last(slots_, -1);
    for (std::size_t s = 0; s < steps_.size(); ++s) {
      last[static_cast<std::size_t>(steps_[s].slot)] = static_cast<std::ptrdiff_t>(s);
      for (const ProgramArgument& argument : steps_[s].arguments)
        argument.each_slot(
            [&](std::int64_t slot) { last[static_cast<std::size_t>(slot)] = static_cast<std::ptrdiff_t>(s); });
    }
    result_.each_slot([&](std::int64_t slot) { last[static_cast<std::size_t>(slot)] = -1; });
    for (std::size_t slot = 0; slot < slots_; ++slot)
      if (last[slot] >= 0) steps_[static_cast<std::size_t>(last[slot])].dead.push_back(static_cast<std::int64_t>(slot));
  }

  std::vector<c10::IValue> filled(const ProgramInputs& given, std::int64_t tokens) const {
    std::vector<c10::IValue> slots;
    slots.reserve(slots_);
    for (std::size_t i = 0; i < inputs_.size(); ++i)
      slots.emplace_back(restored(given.values.at(i), inputs_[i], tokens));
    for (const at::Tensor& weight : given.weights) slots.emplace_back(weight);
    for (const at::Tensor& constant : given.constants) slots.emplace_back(constant);
    slots.emplace_back(given.token_ids.defined() ? c10::IValue(given.token_ids.view({1, tokens})) : c10::IValue());
    const at::Tensor& positions = given.positions;
    slots.emplace_back(positions.defined() ? c10::IValue(positions.unsqueeze(positions.dim() - 1)) : c10::IValue());
    slots.emplace_back(tokens);
    slots.resize(slots_);
    return slots;
  }

  /// A value [tokens, features] in the shape and dtype that the program knows.
  static at::Tensor restored(const at::Tensor& value, const InputShape& input, std::int64_t tokens) {
    std::vector<std::int64_t> shape{tokens};
    for (const std::int64_t size : input.shape)
      if (size != -1) shape.push_back(size);
    const at::Tensor typed = value.scalar_type() == input.dtype ? value : value.contiguous().view(input.dtype);
    return typed.reshape(shape).movedim(0, input.axis);
  }

  static void run_step(const Step& step, std::vector<c10::IValue>& slots, torch::jit::Stack& stack, at::Device device) {
    stack.clear();
    for (const ProgramArgument& argument : step.arguments) stack.push_back(argument.value(slots, device));
    c10::IValue& result = slots[static_cast<std::size_t>(step.slot)];
    if (!step.handle) {
      result = step.number(stack);
      return;
    }
    step.handle->callBoxed(stack);
    result = stack.size() == 1
                 ? std::move(stack[0])
                 : c10::IValue(c10::ivalue::Tuple::create(std::vector<c10::IValue>(stack.begin(), stack.end())));
  }

  std::vector<InputShape> inputs_;
  std::vector<at::ScalarType> weight_types_;
  std::size_t constants_ = 0, slots_ = 0;
  std::int64_t axis_ = 0;
  std::vector<Step> steps_;
  std::map<std::int64_t, std::int64_t> made_;  // slots by the numbers of steps
  ProgramArgument result_;
};

}  // namespace

void check_operator(const std::string& name) {
  if (name.rfind("sym.", 0) == 0)
    find_number_function(name.substr(4));
  else
    find_operator(name);
}

at::ScalarType dtype_of_name(const std::string& name) {
  static const std::map<std::string, at::ScalarType> kNames = {{"float32", at::kFloat},
                                                               {"float64", at::kDouble},
                                                               {"float16", at::kHalf},
                                                               {"bfloat16", at::kBFloat16},
                                                               {"int64", at::kLong},
                                                               {"int32", at::kInt},
                                                               {"int16", at::kShort},
                                                               {"int8", at::kChar},
                                                               {"uint8", at::kByte},
                                                               {"bool", at::kBool},
                                                               {"complex64", at::kComplexFloat},
                                                               {"complex128", at::kComplexDouble}};
  const auto found = kNames.find(name);
  if (found == kNames.end()) throw CheckpointError("[kernels.program] dtype '{}' is not known", name.substr(0, 40));
  return found->second;
}

std::shared_ptr<const TensorProgram> TensorProgram::compile(const std::string& text) {
  static std::mutex mutex;
  static std::unordered_map<std::string, std::shared_ptr<const TensorProgram>> known;
  const std::lock_guard lock(mutex);
  auto& program = known[text];
  if (program != nullptr) return program;
  try {
    program = std::make_shared<CompiledProgram>(parse_json(text, "program"));
  } catch (const nlohmann::json::exception& fault) {
    known.erase(text);
    throw CheckpointError("[kernels.program] the text is not a program: {}", fault.what());
  } catch (...) {
    known.erase(text);
    throw;
  }
  return program;
}

}  // namespace layerpress::kernels
