#include "layerpress/source/gguf_file.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "layerpress/base/file.h"
#include "layerpress/base/text.h"
#include "layerpress/gguf/blocks/block_rows.h"
#include "layerpress/gguf/container/file.h"
#include "layerpress/gguf/placed_values.h"
#include "layerpress/gguf/read_architecture.h"
#include "layerpress/gguf/tokenizers/tokenizer_files.h"
#include "layerpress/quant/block_scheme.h"

namespace layerpress::source {
namespace {

using checkpoint::Checkpoint;
using checkpoint::StoredTensor;
using CheckpointPointer = std::shared_ptr<const Checkpoint>;

/// A tensor, and the place of its file among those of the model.
struct FileTensor : gguf::TensorInfo {
  std::size_t file = 0;
};
using Tensors = std::map<std::string, FileTensor>;

/// A file, or a part of one that was divided.
struct Piece {
  std::shared_ptr<const MappedFile> file;
  gguf::FileHeader header;
};

constexpr std::int64_t kDecodedAtOnce = 4 << 20;  // values

/// The dtype of a type of floats; nothing: the tensor is in blocks.
std::optional<at::ScalarType> float_dtype(const gguf::BlockType& type) {
  for (const auto& [name, dtype] : {std::pair{"F32", at::kFloat}, {"F16", at::kHalf}, {"BF16", at::kBFloat16}})
    if (type.name() == name) return dtype;
  return std::nullopt;
}

/// A tensor as it lies in the file; of one in blocks, its bytes.
StoredTensor as_stored(const gguf::TensorInfo& tensor, const std::string& name, std::uint64_t data) {
  StoredTensor stored;
  stored.name = name;
  stored.shape = tensor.shape;
  stored.offset = data + tensor.offset;
  if (const auto dtype = float_dtype(*tensor.type)) {
    stored.dtype = *dtype;
  } else {
    stored.dtype = at::kByte;
    stored.shape.back() = tensor.type->row_bytes(tensor.shape.back());
  }
  return stored;
}

/// A tensor of the file that a checkpoint's tensor, or a part of it, is made of.
struct Part {
  gguf::TensorInfo info;  ///< without the dimension of experts
  gguf::TensorPlace place;
  std::string scale;  ///< the tensor with a factor of the weight, or of each expert's; "": it has none
};

/// The tensor that holds a weight's factor, if the file has it.
std::string scale_of(const std::string& weight, const Tensors& tensors) {
  constexpr std::string_view kWeight = ".weight";
  if (!weight.ends_with(kWeight)) return "";
  const auto scale = tensors.find(weight.substr(0, weight.size() - kWeight.size()) + ".scale");
  if (scale == tensors.end()) return "";
  const std::vector<std::int64_t>& shape = tensors.at(weight).shape;
  if (scale->second.type->name() != "F32" ||
      scale->second.shape != std::vector<std::int64_t>{shape.size() == 3 ? shape[0] : 1})
    throw CheckpointError("[source.gguf] tensor '{}' is no list of one number for each matrix of '{}'", scale->first,
                          weight);
  return scale->first;
}

std::vector<Part> parts_of(const std::vector<gguf::PlacedTensor>& placed, const Tensors& tensors) {
  std::vector<Part> parts;
  for (const gguf::PlacedTensor& each : placed) {
    parts.push_back({tensors.at(each.tensor), each.place, scale_of(each.tensor, tensors)});
    std::vector<std::int64_t>& shape = parts.back().info.shape;
    if (each.place.expert && shape.size() > 1) shape.erase(shape.begin());
  }
  return parts;
}

/// Of all tensors of the file.
std::vector<std::string> names_of(const std::vector<Part>& parts) {
  std::vector<std::string> names;
  for (const Part& part : parts) {
    names.push_back(part.info.name);
    if (!part.scale.empty()) names.push_back(part.scale);
  }
  return names;
}

/// The stored bytes or values of a part.
at::Tensor stored_part(const Checkpoint& stored, const Part& part) {
  const at::Tensor whole = stored.tensor(part.info.name);
  return part.place.expert ? whole[*part.place.expert] : whole;
}

void multiply_by_scale(const Checkpoint& stored, const Part& part, at::Tensor& values) {
  if (!part.scale.empty()) values.mul_(stored.tensor(part.scale)[part.place.expert.value_or(0)]);
}

at::Tensor decoded(const Checkpoint& stored, const Part& part, const at::Tensor& blocks) {
  const std::int64_t columns = part.info.shape.back();
  at::Tensor values = gguf::decode_rows(*part.info.type, blocks.reshape({-1, blocks.size(-1)}), columns);
  multiply_by_scale(stored, part, values);
  // A block's scale that is no number makes its values so.
  if (!std::isfinite(values.sum().item<float>()) && !at::isfinite(values).all().item<bool>())
    throw DamagedWeightsError("[source.gguf] {}: holds values that are not finite; the file is damaged",
                              part.info.name);
  return values;
}

/// A matrix whose rows are in the file, perhaps in another order: some rows at a time.
at::Tensor matrix_of(const Checkpoint& stored, const Part& part, at::ScalarType dtype) {
  const std::int64_t rows = part.info.rows(), columns = part.info.shape.back();
  const at::Tensor blocks = stored_part(stored, part).reshape({rows, -1});
  const std::int64_t step = std::max<std::int64_t>(1, kDecodedAtOnce / columns);
  const at::Tensor order = gguf::row_order(part.place, rows, /*back=*/true);
  at::Tensor values = at::empty(part.info.shape, dtype);
  const at::Tensor target = values.view({rows, columns});
  for (std::int64_t first = 0; first < rows; first += step) {
    const std::int64_t count = std::min(step, rows - first);
    const at::Tensor own =
        order.defined() ? blocks.index_select(0, order.narrow(0, first, count)) : blocks.narrow(0, first, count);
    const at::Tensor values_of_rows = decoded(stored, part, own);
    target.narrow(0, first, count)
        .copy_(gguf::with_tiled_columns(values_of_rows, part.place.tiled_columns, /*back=*/true));
  }
  return values;
}

/// A tensor that is made of values in another form.
at::Tensor rearranged(const Checkpoint& stored, const std::vector<Part>& parts, const std::vector<std::int64_t>& shape,
                      at::ScalarType dtype) {
  at::Tensor whole = at::empty(shape, dtype);
  for (const Part& part : parts) {
    at::Tensor own = stored_part(stored, part);
    if (!float_dtype(*part.info.type)) {
      own = decoded(stored, part, own).view(part.info.shape);
    } else if (!part.scale.empty()) {
      own = own.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
      multiply_by_scale(stored, part, own);
    }
    take_back(own, part.place, whole);
  }
  return whole;
}

std::uint64_t fp32_bytes(const std::vector<Part>& parts) {
  std::uint64_t most = 0;
  for (const Part& part : parts)
    most = std::max(most, static_cast<std::uint64_t>(part.info.rows() * part.info.shape.back()) * sizeof(float));
  return most;
}

/// Everything that reading the file makes.
class Opening {
 public:
  explicit Opening(const std::filesystem::path& path) { add(path); }

  GgufFile open() {
    require_model();
    add_parts();
    const gguf::FileFacts facts = read_facts();
    gguf::ReadArchitecture model = read_architecture(facts);
    opened_.metadata = metadata();
    describe();
    add_tensors(checkpoint_tensors(model, facts));
    add_to_config(model.config);
    std::vector<Checkpoint::OtherFile> files;
    for (std::size_t p = 0; p < pieces_.size(); ++p) files.push_back({pieces_[p].file, std::move(plain_[p])});
    CheckpointPointer raw = Checkpoint::of_files(files, folder_of(model.config), model.config);
    for (const auto& make : makers_) make(raw);
    opened_.checkpoint = computed_.empty() ? raw : raw->with_computed(computed_);
    return std::move(opened_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const { refuse(pieces_.front(), what); }
  [[noreturn]] static void refuse(const Piece& piece, const std::string& what) {
    throw CheckpointError("[source.gguf] {}: {}", piece.file->path().string(), what);
  }

  const gguf::Metadata& metadata() const { return pieces_.front().header.metadata; }

  void add(const std::filesystem::path& path) {
    const auto file = MappedFile::open(path);
    pieces_.push_back({file, gguf::read_header(file->data(), file->size(), path.string())});
    plain_.emplace_back();
    for (const gguf::TensorInfo& tensor : pieces_.back().header.tensors)
      if (!tensors_.emplace(tensor.name, FileTensor{tensor, pieces_.size() - 1}).second)
        refuse(pieces_.back(),
               "tensor " + gguf::in_words(tensor.name) + " is in an earlier part, too; fetch all again");
  }

  void require_model() const {
    const auto* type = gguf::find_value<std::string>(metadata(), "general.type");
    if (type != nullptr && *type != "model")
      refuse("its general.type is " + type->substr(0, 40) + "; name a file with a model");
  }

  std::uint16_t said_of_parts(const char* key) const {
    const gguf::Metadata& metadata = pieces_.back().header.metadata;
    const auto* value = gguf::find_value<std::uint16_t>(metadata, key);
    if (value == nullptr && gguf::has_key(metadata, key))
      refuse(pieces_.back(), std::string(key) + " is no u16, which readers insist on; fetch it again");
    return value == nullptr ? std::uint16_t{0} : *value;
  }

  /// The other parts of a divided file, which lie beside its first one.
  void add_parts() {
    const std::uint16_t count = said_of_parts("split.count");
    if (count < 2) return;
    if (said_of_parts("split.no") != 0) refuse("it is one of several parts; name the first one");
    const std::filesystem::path first = pieces_.front().file->path();
    const std::string name = first.filename().string(), ending = gguf::part_name("", 0, count);
    if (!name.ends_with(ending))
      refuse("it is the first of several parts, but its name does not end in " + ending + "; give it back its name");
    for (std::uint16_t number = 1; number < count; ++number) {
      const std::filesystem::path path =
          first.parent_path() / gguf::part_name(name.substr(0, name.size() - ending.size()), number, count);
      std::error_code failure;
      if (!std::filesystem::exists(path, failure))
        refuse("its part " + path.filename().string() + " is missing; fetch it, too");
      add(path);
      if (said_of_parts("split.count") != count || said_of_parts("split.no") != number)
        refuse(pieces_.back(), "it does not say that it is part " + std::to_string(number + 1) + " of " +
                                   std::to_string(count) + "; fetch it again");
    }
    const auto* all = gguf::find_value<std::int32_t>(metadata(), "split.tensors.count");
    if (all != nullptr && *all != static_cast<std::int32_t>(tensors_.size()))
      refuse("the parts have " + std::to_string(tensors_.size()) + " tensors together, but the first one says " +
             std::to_string(*all) + "; fetch them again");
  }

  gguf::FileFacts read_facts() const {
    gguf::FileFacts facts{.metadata = metadata()};
    if (const auto* name = gguf::find_value<std::string>(metadata(), "general.architecture"))
      facts.architecture = *name;
    else
      refuse("it does not say what the model is (general.architecture); fetch it again");
    for (const auto& [name, tensor] : tensors_) facts.shapes[name] = tensor.shape;
    facts.values = [this](const std::string& name) { return small_tensor(name); };
    return facts;
  }

  std::vector<float> small_tensor(const std::string& name) const {
    const auto found = tensors_.find(name);
    constexpr std::int64_t kMost = 1 << 20;
    if (found == tensors_.end() || found->second.shape.size() != 1 || found->second.shape[0] > kMost ||
        found->second.type->name() != "F32")
      refuse("tensor " + name + " is missing, or is no list of floats");
    std::vector<float> values(static_cast<std::size_t>(found->second.shape[0]));
    const Piece& piece = pieces_[found->second.file];
    std::memcpy(values.data(), piece.file->data() + piece.header.data + found->second.offset,
                values.size() * sizeof(float));
    return values;
  }

  /// The type of most bytes, and the dtype that its values get.
  void describe() {
    std::map<std::string, std::uint64_t> bytes;
    for (const auto& [name, tensor] : tensors_) bytes[tensor.type->name()] += tensor.nbytes();
    const auto most =
        std::max_element(bytes.begin(), bytes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    opened_.description = most == bytes.end() ? "GGUF" : "GGUF, mostly " + most->first;
    if (most != bytes.end()) opened_.dtype = float_dtype(*gguf::find_block_type(most->first)).value_or(at::kBFloat16);
  }

  void add_to_config(Json& config) const {
    config["torch_dtype"] = opened_.dtype == at::kHalf    ? "float16"
                            : opened_.dtype == at::kFloat ? "float32"
                                                          : "bfloat16";
    const auto* tokens = gguf::find_value<std::vector<std::string>>(metadata(), "tokenizer.ggml.tokens");
    for (const auto& [entry, role] :
         {std::pair{"bos_token_id", "bos"}, {"eos_token_id", "eos"}, {"pad_token_id", "padding"}}) {
      const auto* id = gguf::find_value<std::uint32_t>(metadata(), std::string("tokenizer.ggml.") + role + "_token_id");
      config[entry] = id == nullptr || (tokens != nullptr && *id >= tokens->size()) ? Json() : Json(*id);
    }
  }

  std::shared_ptr<const TemporaryDirectory> folder_of(const Json& config) {
    auto folder = std::make_shared<TemporaryDirectory>();
    write_text_file(folder->path() / "config.json", config.dump(2) + "\n");
    try {
      for (const auto& [name, text] : gguf::tokenizer_files(metadata())) {
        std::filesystem::create_directories((folder->path() / name).parent_path());
        write_text_file(folder->path() / name, text);
      }
    } catch (const CheckpointError& failure) {
      opened_.missing_tokenizer = failure.what();
    }
    return folder;
  }

  void add_tensors(const gguf::PlacedTensors& placed) {
    std::set<std::string> stored;
    for (const auto& [name, of] : placed) {
      if (of.front().tensor.ends_with(".scale")) continue;  // a part of the weight beside it
      const std::vector<Part> parts = parts_of(of, tensors_);
      const bool plain = std::all_of(parts.begin(), parts.end(),
                                     [](const Part& part) { return float_dtype(*part.info.type).has_value(); });
      if (plain && parts.size() == 1 && is_unchanged(parts[0].place) && !parts[0].place.expert &&
          parts[0].scale.empty()) {
        add_stored(tensors_.at(parts[0].info.name), name);
        continue;
      }
      for (const std::string& own : names_of(parts))
        if (stored.insert(own).second) add_stored(tensors_.at(own), own);
      add_made(name, parts, plain);
    }
  }

  void add_stored(const FileTensor& tensor, const std::string& name) {
    plain_[tensor.file].push_back(as_stored(tensor, name, pieces_[tensor.file].header.data));
  }

  void add_made(const std::string& name, const std::vector<Part>& parts, bool plain) {
    std::vector<gguf::TensorPlace> places;
    std::vector<std::vector<std::int64_t>> shapes;
    for (const Part& part : parts) {
      places.push_back(part.place);
      shapes.push_back(part.info.shape);
    }
    const std::vector<std::int64_t> shape = gguf::shape_before(places, shapes);
    if (shape.empty() || (!plain && shape.size() < 2))  // only matrices are stored in blocks
      refuse("tensor " + parts[0].info.name + " has a shape that its place in the model does not allow");
    makers_.emplace_back([this, name, parts, plain, shape](const CheckpointPointer& raw) {
      plain ? add_computed(raw, name, parts, shape) : add_weight(raw, name, parts, shape);
    });
  }

  void add_computed(const CheckpointPointer& raw, const std::string& name, const std::vector<Part>& parts,
                    const std::vector<std::int64_t>& shape) {
    const at::ScalarType dtype = *float_dtype(*parts[0].info.type);
    checkpoint::ComputedTensor made{.spec = {name, dtype, shape}, .parts = names_of(parts), .compute = {}};
    made.compute = [raw, parts, shape, dtype] { return rearranged(*raw, parts, shape, dtype); };
    made.workspace_bytes = fp32_bytes(parts);
    made.expert = parts[0].place.expert.value_or(-1);
    computed_.push_back(std::move(made));
  }

  void add_weight(const CheckpointPointer& raw, const std::string& name, const std::vector<Part>& parts,
                  const std::vector<std::int64_t>& shape) {
    StoredWeight weight{.name = name, .shape = shape, .parts = names_of(parts)};
    const auto blocks =
        std::find_if(parts.begin(), parts.end(), [](const Part& part) { return !float_dtype(*part.info.type); });
    weight.scheme = quant::block_scheme(*blocks->info.type);
    weight.expert = parts[0].place.expert.value_or(-1);
    if (parts.size() == 1 && keeps_rows(parts[0].place)) {
      weight.workspace_bytes = std::min<std::uint64_t>(fp32_bytes(parts), kDecodedAtOnce * 2 * sizeof(float));
      weight.dequantize = [raw, part = parts[0]](at::ScalarType dtype) { return matrix_of(*raw, part, dtype); };
    } else {
      weight.workspace_bytes = 2 * fp32_bytes(parts);
      weight.dequantize = [raw, parts, shape](at::ScalarType dtype) { return rearranged(*raw, parts, shape, dtype); };
    }
    opened_.weights.push_back(std::move(weight));
  }

  std::vector<Piece> pieces_;
  Tensors tensors_;
  GgufFile opened_;
  std::vector<std::vector<StoredTensor>> plain_;  // of each piece
  std::vector<checkpoint::ComputedTensor> computed_;
  std::vector<std::function<void(const CheckpointPointer& raw)>> makers_;
};

}  // namespace

bool is_gguf_file(const std::filesystem::path& path) {
  std::error_code failure;
  return has_ending(path.string(), ".gguf") && std::filesystem::is_regular_file(path, failure);
}

std::string about_gguf(std::string message, const std::filesystem::path& path) {
  for (const auto& [of_config, of_file] :
       {std::pair<std::string, std::string>{"config.json:", "metadata, as config.json:"},
        {"config.json implies", "the metadata implies"}})
    if (const auto at = message.find(of_config); at != std::string::npos && message.find(of_file) == std::string::npos)
      message.replace(at, of_config.size(), of_file);
  return message.find(path.string()) != std::string::npos ? message : message + " (" + path.string() + ")";
}

GgufFile open_gguf(const std::filesystem::path& path) {
  try {
    return Opening(path).open();
  } catch (const CheckpointError& failure) {
    throw CheckpointError("{}", about_gguf(failure.what(), path));
  }
}

}  // namespace layerpress::source
