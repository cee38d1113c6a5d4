#include <ATen/ATen.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "layerpress/base/error.h"
#include "layerpress/execution/operation_execution.h"
#include "layerpress/kernels/layers/transformer.h"
#include "layerpress/kernels/products/hadamard.h"
#include "layerpress/kernels/program/tensor_program.h"

namespace layerpress::execution {
namespace {

at::Tensor constant_tensor(const graph::Constant& constant, at::Device device) {
  const at::ScalarType dtype = kernels::dtype_of_name(constant.dtype);
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): from_blob wants it, programs never write
  auto* bytes = const_cast<char*>(constant.bytes.data());
  const at::Tensor mapped = at::from_blob(bytes, constant.shape, at::TensorOptions(dtype));
  return device.is_cpu() ? mapped : mapped.to(device);
}

/// Runs a program on all tokens of a batch at once, or sample by sample if it mixes tokens. Where it is taken to treat
/// tokens alone, its first run on a batch of several samples is compared with runs on the first two samples alone. Throws
/// CheckpointError naming the module if the program or the comparison fails, and DataError for a sample of a length that
/// the program does not hold for.
class ProgramRun {
 public:
  ProgramRun(const graph::Aten& op, const std::string& module, const std::vector<at::Tensor>& inputs,
             const residency::Onload& parameters, BatchContext& context)
      : op_(op),
        module_(module),
        program_(kernels::TensorProgram::compile(op.program)),
        offsets_(context.batch().offsets) {
    whole_.values = inputs;
    const residency::Placement& placement = context.placement();
    for (std::size_t i = 0; i < op.weight_names.size(); ++i) {
      const at::ScalarType type = program_->weight_types().at(i);
      const bool computes = type == placement.dtype;
      whole_.weights.push_back(computes ? parameters.parameter(op.weight_names[i])
                                        : converted(op.weight_names[i], parameters, type));
    }
    for (const std::int64_t constant : op.constants)
      whole_.constants.push_back(
          constant_tensor(context.graph().constants.at(static_cast<std::size_t>(constant)), placement.device));
    whole_.token_ids = context.token_ids();
    whole_.positions = context.positions();
    dtype_ = placement.dtype;
    check_lengths();
  }

  at::Tensor result() const {
    if (sample_count() == 1) return stored(part(0, 1));
    if (op_.mixes.empty()) {
      const at::Tensor result = part(0, sample_count());
      if (is_first_run()) compare(result);
      return stored(result);
    }
    at::Tensor result;
    for (std::size_t i = 0; i < sample_count(); ++i) {
      const at::Tensor own = part(i, i + 1);
      if (!result.defined()) result = at::empty({offsets_.back(), own.size(1)}, own.options());
      result.slice(0, offsets_[i], offsets_[i + 1]).copy_(own);
    }
    return stored(result);
  }

 private:
  /// A weight that is not computed with. Fractions must not be cut off.
  at::Tensor converted(const std::string& name, const residency::Onload& parameters, at::ScalarType type) const {
    const at::Tensor stored = parameters.original(name);
    if (stored.is_floating_point() && !at::isFloatingType(type))
      throw CheckpointError("[execution.aten] module {}: '{}' is {}, the imported graph takes it for {}", module_, name,
                            c10::toString(stored.scalar_type()), c10::toString(type));
    return stored.to(type);
  }

  std::size_t sample_count() const { return offsets_.size() - 1; }

  void check_lengths() const {
    for (std::size_t i = 0; i < sample_count(); ++i) {
      const std::int64_t length = offsets_[i + 1] - offsets_[i];
      if (length >= op_.least_tokens && (op_.most_tokens == 0 || length <= op_.most_tokens)) continue;
      throw DataError(
          "[execution.aten] {}: a sample has {} tokens, the imported graph holds for {} to {}; leave such "
          "samples out",
          module_, length, op_.least_tokens,
          op_.most_tokens == 0 ? std::string("any number") : std::to_string(op_.most_tokens));
    }
  }

  /// The result for samples [first, last).
  at::Tensor part(std::size_t first, std::size_t last) const {
    const std::int64_t begin = offsets_[first], end = offsets_[last];
    kernels::ProgramInputs own = whole_;
    for (at::Tensor& value : own.values) value = value.slice(0, begin, end);
    own.token_ids = own.token_ids.slice(0, begin, end);
    own.positions = own.positions.slice(-1, begin, end);
    try {
      return program_->run(own, end - begin);
    } catch (const CheckpointError& error) {
      throw CheckpointError("[execution.aten] module {}: {}", module_, error.what());
    }
  }

  /// Other dtypes are kept bit by bit in the computing dtype.
  at::Tensor stored(const at::Tensor& result) const {
    at::Tensor kept = result;
    // Flat first: a single column counts as contiguous with any stride, but a view as another dtype wants stride 1.
    if (kept.scalar_type() != dtype_) kept = kept.flatten().view(dtype_).view({result.size(0), -1});
    if (kept.size(1) != op_.features)
      throw CheckpointError("[execution.aten] module {}: {} features, the graph says {}", module_, kept.size(1),
                            op_.features);
    return kept;
  }

  /// Whether this program has not run on several samples before.
  bool is_first_run() const {
    static std::mutex mutex;
    static std::set<const kernels::TensorProgram*> compared;  // programs are never freed
    const std::lock_guard lock(mutex);
    return compared.insert(program_.get()).second;
  }

  static at::Tensor reals(const at::Tensor& values) { return values.is_complex() ? at::view_as_real(values) : values; }

  void compare(const at::Tensor& packed) const {
    for (std::size_t i = 0; i < 2; ++i) {
      const at::Tensor apart = reals(part(i, i + 1)), together = reals(packed.slice(0, offsets_[i], offsets_[i + 1]));
      const double difference = (apart - together).to(at::kFloat).abs().max().item<double>();
      const double size = apart.to(at::kFloat).abs().max().item<double>();
      const double tolerance = dtype_ == at::kFloat ? 1e-4 : 2e-2;
      if (!(difference <= tolerance * std::max(size, 1e-3)))
        throw CheckpointError(
            "[execution.aten] module {}: samples computed together and apart differ by {:.2g} of {:.2g}; "
            "its operators mix tokens of different samples: use --batch-tokens 1, and report this model",
            module_, difference, size);
    }
  }

  const graph::Aten& op_;
  const std::string& module_;
  std::shared_ptr<const kernels::TensorProgram> program_;
  const std::vector<std::int64_t>& offsets_;
  kernels::ProgramInputs whole_;
  at::ScalarType dtype_ = at::kFloat;
};

struct ImportedFunctions {
  static at::Tensor execute(const graph::Aten& op, const NodeRun& run) {
    if (run.context.graph().values[run.node.output].rows == graph::Rows::kSelected) return on_selected_rows(op, run);
    return ProgramRun(op, run.context.graph().module_name(run.node), run.inputs, run.parameters, run.context).result();
  }

  /// A function of an expert's rows, without parameters.
  static at::Tensor on_selected_rows(const graph::Aten& op, const NodeRun& run) {
    kernels::ProgramInputs inputs;
    inputs.values = run.inputs;
    try {
      return kernels::TensorProgram::compile(op.program)->run(inputs, run.inputs.at(0).size(0));
    } catch (const CheckpointError& error) {
      throw CheckpointError("[execution.aten] module {}: {}", run.context.graph().module_name(run.node), error.what());
    }
  }

  static at::Tensor execute(const graph::MergeImages& op, const NodeRun& run) {
    return at_images(run, [&](at::Tensor& rows, const at::Tensor& places, const Batch::Embeddings& given) {
      rows.index_copy_(0, places, turned(given.values, op.rotation).to(rows.options()));
    });
  }

  static at::Tensor execute(const graph::AddImages& op, const NodeRun& run) {
    return at_images(run, [&](at::Tensor& rows, const at::Tensor& places, const Batch::Embeddings& given) {
      rows.index_add_(0, places, turned(given.added.select(1, op.layer), op.rotation).to(rows.options()));
    });
  }

  static at::Tensor turned(const at::Tensor& rows, const graph::ImageRotation& rotation) {
    if (rotation.order == 0) return rows;
    return kernels::rotated(rows.to(at::kFloat).contiguous(), matrix_of(rotation));
  }

  static kernels::MatrixRotation matrix_of(const graph::ImageRotation& rotation) {
    const auto seeded = static_cast<kernels::Hadamard::Seeded>(rotation.seeded);
    return {.of_columns = kernels::Hadamard::of_size(rotation.order, seeded)};
  }

  /// The input, in which `change(rows, places, given)` has changed the rows of images.
  template <typename Change>
  static at::Tensor at_images(const NodeRun& run, const Change& change) {
    const Batch& batch = run.context.batch();
    if (batch.embeddings.empty()) return run.inputs[0];
    at::Tensor rows = run.inputs[0].clone();
    for (std::size_t i = 0; i < batch.embeddings.size(); ++i)
      if (const Batch::Embeddings& given = batch.embeddings[i]; given.places.defined())
        change(rows, (given.places + batch.offsets[i]).to(rows.device()), given);
    return rows;
  }

  static std::uint64_t workspace_bytes(const graph::MergeImages& op, const NodeShape& shape, const Workplace& place) {
    return values_bytes(op.rotation, shape, place);
  }
  static std::uint64_t workspace_bytes(const graph::AddImages& op, const NodeShape& shape, const Workplace& place) {
    return values_bytes(op.rotation, shape, place);
  }

  /// The values of a sample, rounded to the computing dtype, perhaps after they were turned in fp32.
  static std::uint64_t values_bytes(const graph::ImageRotation& rotation, const NodeShape& shape,
                                    const Workplace& place) {
    const std::int64_t features = shape.graph.values[shape.node.output].features;
    const std::int64_t rows = kernels::longest_sample(shape.batch.offsets);
    const auto values = static_cast<std::uint64_t>(rows * features);
    if (rotation.order == 0) return values * c10::elementSize(place.placement.dtype);
    return values * (2 * sizeof(float) + c10::elementSize(place.placement.dtype)) +
           kernels::rotation_workspace({rows, features}, matrix_of(rotation));
  }

  static std::uint64_t workspace_bytes(const graph::Aten& op, const NodeShape& shape, const Workplace&) {
    const std::int64_t tokens = op.mixes.empty() ? shape.batch.tokens() : kernels::longest_sample(shape.batch.offsets);
    const graph::TokenBytes bytes = op.workspace();
    return static_cast<std::uint64_t>(bytes.fixed + tokens * bytes.per_token + tokens * tokens * bytes.per_pair);
  }
};

}  // namespace

FamilyExecution executions(graph::ImportedOperations family) { return executions_by<ImportedFunctions>(family); }

}  // namespace layerpress::execution
