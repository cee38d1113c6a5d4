#include "layerpress/target/gguf_target.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <span>
#include <utility>

#include "layerpress/base/text.h"
#include "layerpress/gguf/architectures/architecture.h"
#include "layerpress/gguf/container/file.h"
#include "layerpress/gguf/placed_values.h"
#include "layerpress/gguf/tokenizers/tokenizer.h"
#include "layerpress/quant/block_scheme.h"

namespace layerpress::target {
namespace {

using gguf::keeps_rows;
using gguf::placed;
using gguf::TensorPlace;

constexpr char kPart = '|';                      // behind the name of a tensor that is stored in parts
constexpr const char* kFileName = "model.gguf";  // in the unfinished folder

/// llama.cpp computes with these in fp32.
bool is_small(const TensorPlace& place, const std::vector<std::int64_t>& shape) {
  const auto has = [&](const char* part) { return place.name.find(part) != std::string::npos; };
  return shape.size() < 2 || place.name.ends_with("_norm.weight") || has("ffn_gate_inp") || has("ssm_conv1d") ||
         has("shortconv.conv");
}

const gguf::BlockType& type_of(at::ScalarType dtype) {
  return *gguf::find_block_type(dtype == at::kHalf ? "F16" : dtype == at::kBFloat16 ? "BF16" : "F32");
}

class GgufTarget final : public Target {
 public:
  GgufTarget(const checkpoint::Checkpoint& model, const GgufDescription& description)
      : architecture_(gguf::architecture_for(model.config())),
        metadata_(architecture_.metadata),
        parts_(description.parts) {
    gguf::TokenizerKeys keys;
    if (description.source) {
      add_inherited(*description.source);
    } else {
      keys = gguf::tokenizer_keys(model.directory(), architecture_.vocab_size, description.name);
      metadata_.emplace_back("general.name", keys.name);
    }
    metadata_.emplace_back("general.quantization_version", std::uint32_t{2});
    if (description.file_type) metadata_.emplace_back("general.file_type", *description.file_type);
    std::move(keys.metadata.begin(), keys.metadata.end(), std::back_inserter(metadata_));
    std::move(keys.notes.begin(), keys.notes.end(), std::back_inserter(architecture_.notes));
    if (description.importance) add_importance(*description.importance);
    metadata_.emplace_back("layerpress.version", std::string(LAYERPRESS_VERSION));
    metadata_.emplace_back("layerpress.recipe", description.recipe);
  }

  std::string format() const override { return "a GGUF for llama.cpp"; }
  std::string engines() const override { return "llama.cpp"; }
  std::string refusal(const quant::QuantizationScheme& scheme) const override {
    if (!scheme.weights) return "";
    return "a GGUF holds weights in llama.cpp's types; use a scheme such as Q4_K_M, or groups with format: Q4_K";
  }

  bool holds_activation_scales() const override { return false; }
  bool fuses_linears() const override { return false; }
  bool keeps_ties() const override { return true; }

  bool reads_scale_of_blocks(const std::string& weight) const override {
    const gguf::Placement placement = architecture_.place(weight);
    return placement.places.size() == 1 && architecture_.names.has_scale(placement.places.front().name);
  }

  std::vector<std::string> notes() const override { return architecture_.notes; }

  std::optional<std::string> left_out(const std::string& tensor) const override {
    gguf::Placement placement = architecture_.place(tensor);
    return placement.places.empty() ? std::optional(std::move(placement.left_out)) : std::nullopt;
  }

  std::vector<checkpoint::TensorSpec> plain_forms(const checkpoint::TensorSpec& original) const override {
    const std::vector<TensorPlace> places = architecture_.place(original.name).places;
    std::vector<checkpoint::TensorSpec> forms;
    for (const TensorPlace& place : places) {
      const at::Tensor form =
          placed(at::empty(original.shape, at::TensorOptions(original.dtype).device(at::kMeta)), place);
      forms.push_back({places.size() == 1 ? original.name : original.name + kPart + place.name,
                       plain_dtype(place, form), form.sizes().vec()});
    }
    return forms;
  }

  at::Tensor stored(const std::string& name, const at::Tensor& value) const override {
    const TensorPlace place = place_of(name);
    const at::Tensor form = placed(value, place).contiguous();
    return value.scalar_type() == at::kByte ? form : form.to(plain_dtype(place, form));
  }

  at::Tensor restored(const std::string& name, const at::Tensor& stored) const override {
    const TensorPlace place = place_of(name);
    if (!keeps_rows(place) && stored.scalar_type() == at::kByte)
      throw InternalError("[target.gguf] blocks of {} were changed on their way into the file", name);
    return gguf::restored_order(stored, place);
  }

  std::vector<std::pair<checkpoint::TensorSpec, at::Tensor>> own_tensors() const override {
    std::vector<std::pair<checkpoint::TensorSpec, at::Tensor>> tensors;
    for (const gguf::MadeTensor& made : architecture_.made) {
      const at::Tensor value = at::tensor(made.values, at::kFloat);
      tensors.emplace_back(checkpoint::TensorSpec{made.name, at::kFloat, value.sizes().vec()}, value);
    }
    return tensors;
  }

  checkpoint::CheckpointLayout layout(const std::vector<checkpoint::TensorSpec>& specs,
                                      const checkpoint::FileDivision& division,
                                      const SchemeOf& scheme_of) const override {
    std::vector<gguf::TensorInfo> tensors;
    std::map<std::string, std::size_t> index;                  // of tensors, by name
    std::vector<std::pair<std::size_t, std::int64_t>> places;  // of each spec: the tensor, and the expert
    for (const checkpoint::TensorSpec& spec : specs) {
      const TensorPlace place = is_own(spec.name) ? TensorPlace{.name = spec.name} : place_of(spec.name);
      gguf::TensorInfo info = info_of(spec, place, scheme_of(spec.name));
      const auto [found, is_new] = index.emplace(place.name, tensors.size());
      if (is_new)
        tensors.push_back(std::move(info));
      else
        add_expert(tensors[found->second], info, spec.name, place);
      places.emplace_back(found->second, place.expert.value_or(0));
    }
    return files_of(specs, tensors, places, division);
  }

  bool has_config() const override { return false; }

  std::pair<std::string, Json> config_of(const CompressedModules&) const override {
    throw InternalError("[target.gguf] a GGUF has no config.json");
  }
  void write_others(const Finished&, const std::filesystem::path&) const override {}
  std::string only_file() const override { return parts_.empty() ? kFileName : ""; }

  std::optional<std::string> kernel_gap(const quant::QuantizationScheme&, std::int64_t, std::int64_t,
                                        bool) const override {
    return std::nullopt;
  }
  std::optional<std::string> cache_gap(const quant::QuantizationArgs&) const override { return std::nullopt; }
  std::string sparsity_gap(std::int64_t, std::int64_t) const override { return ""; }
  std::vector<std::string> vocabulary_gaps(const std::string&, bool, bool) const override { return {}; }
  Serving serving(const std::string& output, const std::vector<CompressedShape>&,
                  const CompressedParts&) const override {
    const std::string first = parts_.empty() ? "" : "/" + shell_word(parts_) + "-00001-of-*.gguf";
    return {"llama-server -m " + shell_word(output) + first,
            "llama.cpp, Ollama or LM Studio, on any CPU or GPU that they run on"};
  }

 private:
  /// The keys that llama-quantize writes.
  void add_importance(const GgufDescription::Importance& importance) {
    metadata_.emplace_back("quantize.imatrix.file", importance.file);
    if (!importance.origin.datasets.empty())
      metadata_.emplace_back("quantize.imatrix.dataset", importance.origin.datasets.front());
    metadata_.emplace_back("quantize.imatrix.entries_count", static_cast<std::uint32_t>(importance.entries));
    metadata_.emplace_back("quantize.imatrix.chunks_count", importance.origin.chunks);
  }

  /// All that is not about the weights' types, or that another run of ours wrote.
  void add_inherited(const gguf::Metadata& source) {
    const auto* architecture = gguf::find_value<std::string>(source, "general.architecture");
    if (architecture != nullptr && *architecture != architecture_.name)
      throw CheckpointError(
          "[target.gguf] the source is the text part of a model for images ({}), which a GGUF made of it would not be "
          "any "
          "more; make it from the original checkpoint",
          *architecture);
    for (const auto& [key, value] : source) {
      const bool own = key.starts_with(architecture_.name + ".") || key.starts_with("layerpress.") ||
                       key.starts_with("quantize.") || key.starts_with("split.");
      const bool about_types = key == "general.file_type" || key == "general.quantization_version" ||
                               key == "general.alignment" || key == "general.architecture" || key == "general.type";
      if (!own && !about_types) metadata_.emplace_back(key, value);
    }
  }

  bool is_own(const std::string& tensor) const {
    return std::any_of(architecture_.made.begin(), architecture_.made.end(),
                       [&](const gguf::MadeTensor& made) { return made.name == tensor; });
  }

  /// Of a tensor, or of a part of one that has several places.
  TensorPlace place_of(const std::string& tensor) const {
    const std::size_t part = tensor.find(kPart);
    gguf::Placement placement = architecture_.place(tensor.substr(0, part));
    for (TensorPlace& place : placement.places)
      if (part == std::string::npos ? placement.places.size() == 1 : place.name == tensor.substr(part + 1))
        return std::move(place);
    throw RecipeError("[target.gguf] {}: llama.cpp stores it as {} tensors, which stay unquantized; ignore its module",
                      tensor, placement.places.size());
  }

  static at::ScalarType plain_dtype(const TensorPlace& place, const at::Tensor& form) {
    const at::ScalarType dtype = form.scalar_type();
    return is_small(place, form.sizes().vec()) || (dtype != at::kHalf && dtype != at::kBFloat16) ? at::kFloat : dtype;
  }

  /// The first matrix of a stack stands for all of them until the others come.
  static gguf::TensorInfo info_of(const checkpoint::TensorSpec& spec, const TensorPlace& place,
                                  const quant::QuantizationScheme* scheme) {
    gguf::TensorInfo info{place.name, spec.shape, &type_of(spec.dtype)};
    if (scheme != nullptr && spec.dtype == at::kByte) {
      info.type = quant::block_type(*scheme);
      if (info.type == nullptr || !keeps_rows(place))
        throw RecipeError("[target.gguf] {}: a GGUF cannot hold it in this scheme; leave it out of the targets",
                          spec.name);
      info.shape.back() = info.shape.back() / info.type->block_bytes() * info.type->block_values();
      const std::int64_t heads = std::max<std::int64_t>(1, place.tiled_columns.count());
      if (info.shape.back() / heads % info.type->block_values() != 0)
        throw RecipeError(
            "[target.gguf] {}: llama.cpp has its heads of {} columns in another order, and blocks of {} have {}; give "
            "it a type of smaller blocks, such as Q8_0 or Q5_0",
            spec.name, info.shape.back() / heads, info.type->name(), info.type->block_values());
    }
    if (place.expert && !place.name.ends_with(".scale")) info.shape.insert(info.shape.begin(), 1);
    return info;
  }

  static void add_expert(gguf::TensorInfo& stack, const gguf::TensorInfo& matrix, const std::string& tensor,
                         const TensorPlace& place) {
    const auto same = [](std::vector<std::int64_t> a, std::vector<std::int64_t> b) {
      a.front() = b.front() = 1;
      return a == b;
    };
    if (!place.expert || !same(stack.shape, matrix.shape))
      throw RecipeError(
          "[target.gguf] {}: a GGUF stores the experts of a layer as one tensor, so they must have one shape", tensor);
    if (stack.type != matrix.type)
      throw RecipeError(
          "[target.gguf] {} would be {}, but other experts of its layer {}: a GGUF stores them as one tensor; give "
          "all of them one format",
          tensor, matrix.type->name(), stack.type->name());
    ++stack.shape.front();
  }

  /// Where each file's tensors end among all of them: filled in their order, a tensor larger than the limit alone.
  std::vector<std::size_t> ends_of_files(const std::vector<gguf::TensorInfo>& tensors, std::uint64_t most) const {
    std::vector<std::size_t> ends;
    std::uint64_t filled = 0;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      if (!parts_.empty() && filled > 0 && filled + tensors[t].nbytes() > most) {
        ends.push_back(t);
        filled = 0;
      }
      filled += tensors[t].nbytes();
    }
    ends.push_back(tensors.size());
    return ends;
  }

  /// A file of some tensors. The first has all keys, and each part what divided files say.
  checkpoint::FileLayout file_of(std::span<gguf::TensorInfo> own, std::size_t number, std::size_t count,
                                 std::size_t all) const {
    const bool is_part = !parts_.empty();
    gguf::Metadata of_part = is_part && number == 0 ? metadata_ : gguf::Metadata();
    if (is_part)
      for (auto& pair : gguf::part_keys(number, count, all)) of_part.push_back(std::move(pair));
    checkpoint::FileLayout file{is_part ? gguf::part_name(parts_, number, count) : kFileName,
                                0,
                                gguf::file_header(is_part ? of_part : metadata_, own),
                                {},
                                0};
    file.size = file.header.size();
    if (!own.empty()) file.size += own.back().offset + own.back().nbytes();
    return file;
  }

  checkpoint::CheckpointLayout files_of(const std::vector<checkpoint::TensorSpec>& specs,
                                        std::vector<gguf::TensorInfo>& tensors,
                                        const std::vector<std::pair<std::size_t, std::int64_t>>& places,
                                        const checkpoint::FileDivision& division) const {
    checkpoint::CheckpointLayout layout{{}, /*has_index=*/false};
    const std::vector<std::size_t> ends = ends_of_files(tensors, division.max_shard_bytes);
    if (ends.size() > std::numeric_limits<std::uint16_t>::max())
      throw UsageError("[options] --max-shard-size: the file would have {} parts; choose a larger size", ends.size());
    for (std::size_t f = 0; f < ends.size(); ++f) {
      const std::size_t begin = f == 0 ? 0 : ends[f - 1];
      layout.files.push_back(
          file_of(std::span(tensors).subspan(begin, ends[f] - begin), f, ends.size(), tensors.size()));
    }
    for (std::size_t i = 0; i < specs.size(); ++i) {
      const auto [t, expert] = places[i];
      if (expert > 0 && expert >= tensors[t].shape.front())
        throw CheckpointError("[target.gguf] {}: expert {} of {} is there; some of them are missing", specs[i].name,
                              expert, tensors[t].shape.front());
      const auto f = static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), t) - ends.begin());
      checkpoint::FileLayout& file = layout.files[f];
      file.tensors.push_back(
          {specs[i], file.header.size() + tensors[t].offset + static_cast<std::uint64_t>(expert) * specs[i].nbytes()});
      if (division.sets > 1) file.set_of_tensor.push_back(division.set_of_spec[i]);
    }
    return layout;
  }

  gguf::Architecture architecture_;
  gguf::Metadata metadata_;
  const std::string parts_;
};

}  // namespace

std::unique_ptr<Target> gguf_target(const checkpoint::Checkpoint& model, const GgufDescription& description) {
  return std::make_unique<GgufTarget>(model, description);
}

}  // namespace layerpress::target
