#include "layerpress/gguf/container/file.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <set>
#include <type_traits>
#include <utility>
#include <variant>

#include "layerpress/base/error.h"
#include "layerpress/base/json.h"
#include "layerpress/base/text.h"

namespace layerpress::gguf {
namespace {

constexpr std::uint32_t kVersion = 3;
constexpr std::size_t kLongestName = 63;
constexpr char kMagic[] = {'G', 'G', 'U', 'F'};

/// The number that the format gives a type of values.
template <typename T>
constexpr std::uint32_t type_number() {
  if constexpr (std::is_same_v<T, std::uint8_t>) return 0;
  if constexpr (std::is_same_v<T, std::int8_t>) return 1;
  if constexpr (std::is_same_v<T, std::uint16_t>) return 2;
  if constexpr (std::is_same_v<T, std::int16_t>) return 3;
  if constexpr (std::is_same_v<T, std::uint32_t>) return 4;
  if constexpr (std::is_same_v<T, std::int32_t>) return 5;
  if constexpr (std::is_same_v<T, float>) return 6;
  if constexpr (std::is_same_v<T, bool>) return 7;
  if constexpr (std::is_same_v<T, std::string>) return 8;
  if constexpr (std::is_same_v<T, std::uint64_t>) return 10;
  if constexpr (std::is_same_v<T, std::int64_t>) return 11;
  if constexpr (std::is_same_v<T, double>) return 12;
}
constexpr std::uint32_t kArray = 9;

template <typename T>
struct IsVector : std::false_type {};
template <typename T>
struct IsVector<std::vector<T>> : std::true_type {};

std::uint64_t aligned(std::uint64_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

class Writer {
 public:
  template <typename T>
  void number(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void text(const std::string& text) {
    number(static_cast<std::uint64_t>(text.size()));
    bytes_ += text;
  }
  void raw(const char* bytes, std::size_t size) { bytes_.append(bytes, size); }
  void value(const Value& value) {
    std::visit([this](const auto& held) { typed(held); }, value);
  }
  std::string take_aligned() {
    bytes_.resize(aligned(bytes_.size()), '\0');
    return std::move(bytes_);
  }

 private:
  template <typename T>
  void plain(const T& value) {
    if constexpr (std::is_same_v<T, std::string>)
      text(value);
    else
      number(value);
  }
  template <typename T>
  void typed(const T& value) {
    if constexpr (IsVector<T>::value) {
      using Element = typename T::value_type;
      number(kArray);
      number(type_number<Element>());
      number(static_cast<std::uint64_t>(value.size()));
      for (std::size_t i = 0; i < value.size(); ++i) plain<Element>(value[i]);
    } else {
      number(type_number<T>());
      plain(value);
    }
  }
  std::string bytes_;
};

/// Reads a file's beginning; nothing in it is believed.
class Reader {
 public:
  Reader(const std::byte* bytes, std::uint64_t size, const std::string& path)
      : bytes_(bytes), size_(size), path_(path) {}

  [[noreturn]] void refuse(const std::string& what, const char* advice = "the file is damaged or no GGUF") const {
    throw CheckpointError("[gguf.read] {}: {}; {}", path_, what, advice);
  }
  std::uint64_t place() const { return place_; }

  template <typename T>
  T number() {
    T value{};
    std::memcpy(&value, take(sizeof(T)), sizeof(T));
    return value;
  }
  std::string text() {
    const auto length = number<std::uint64_t>();
    if (length > size_ - place_) refuse("a text is longer than the file");
    return {reinterpret_cast<const char*>(take(length)), static_cast<std::size_t>(length)};
  }
  Value value() {
    const auto type = number<std::uint32_t>();
    return type == kArray ? array() : of_type(type, [this](auto sample) -> Value { return plain<decltype(sample)>(); });
  }
  /// How many things of at least `least` bytes follow.
  std::uint64_t count(std::uint64_t least, const char* what) {
    const auto count = number<std::uint64_t>();
    if (count > (size_ - place_) / least) refuse(fmt::format("it announces {} {}", count, what));
    return count;
  }

 private:
  const std::byte* take(std::uint64_t length) {
    if (length > size_ - place_) refuse("it ends inside its header");
    return bytes_ + std::exchange(place_, place_ + length);
  }
  template <typename T>
  T plain() {
    if constexpr (std::is_same_v<T, std::string>)
      return text();
    else if constexpr (std::is_same_v<T, bool>)
      return number<std::uint8_t>() != 0;
    else
      return number<T>();
  }
  Value array() {
    const auto type = number<std::uint32_t>();
    return of_type(type, [this](auto sample) -> Value {
      using Element = decltype(sample);
      constexpr std::uint64_t kLeast = std::is_same_v<Element, std::string> ? sizeof(std::uint64_t) : sizeof(Element);
      std::vector<Element> values(count(kLeast, "elements of an array"));
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = plain<Element>();
      return values;
    });
  }
  template <typename Function>
  Value of_type(std::uint32_t type, Function&& make) const {
    switch (type) {
      case type_number<std::uint8_t>():
        return make(std::uint8_t{});
      case type_number<std::int8_t>():
        return make(std::int8_t{});
      case type_number<std::uint16_t>():
        return make(std::uint16_t{});
      case type_number<std::int16_t>():
        return make(std::int16_t{});
      case type_number<std::uint32_t>():
        return make(std::uint32_t{});
      case type_number<std::int32_t>():
        return make(std::int32_t{});
      case type_number<float>():
        return make(float{});
      case type_number<bool>():
        return make(bool{});
      case type_number<std::string>():
        return make(std::string{});
      case type_number<std::uint64_t>():
        return make(std::uint64_t{});
      case type_number<std::int64_t>():
        return make(std::int64_t{});
      case type_number<double>():
        return make(double{});
      default:
        refuse(fmt::format("values of type {} are not known", type));
    }
  }
  const std::byte* bytes_;
  std::uint64_t size_, place_ = 0;
  const std::string& path_;
};

TensorInfo read_tensor(Reader& reader) {
  TensorInfo tensor;
  tensor.name = reader.text();
  const auto dimensions = reader.number<std::uint32_t>();
  constexpr std::uint32_t kMostDimensions = 4;
  if (dimensions < 1 || dimensions > kMostDimensions)
    reader.refuse(fmt::format("tensor {} has {} dimensions", in_words(tensor.name), dimensions));
  std::int64_t elements = 1;
  for (std::uint32_t d = 0; d < dimensions; ++d) {
    const auto size = reader.number<std::int64_t>();
    if (size < 1 || elements > std::numeric_limits<std::int64_t>::max() / 8 / size)
      reader.refuse(fmt::format("tensor {} has an impossible shape", in_words(tensor.name)));
    elements *= size;
    tensor.shape.insert(tensor.shape.begin(), size);
  }
  const auto type = reader.number<std::uint32_t>();
  tensor.type = find_block_type(type);
  constexpr std::uint32_t kMostTypes = 64;  // ggml has fewer
  if (tensor.type == nullptr && type < kMostTypes)
    reader.refuse(fmt::format("tensor {} has ggml's type {}, which is none of {}", in_words(tensor.name), type,
                              join(block_type_names())),
                  "open the original checkpoint");
  if (tensor.type == nullptr)
    reader.refuse(fmt::format("tensor {} has type {}, which is not known", in_words(tensor.name), type));
  if (tensor.shape.back() % tensor.type->block_values() != 0)
    reader.refuse(fmt::format("tensor {} has {} columns, which blocks of {} do not divide", in_words(tensor.name),
                              tensor.shape.back(), tensor.type->name()));
  tensor.offset = reader.number<std::uint64_t>();
  return tensor;
}

/// Of the tensors' offsets.
std::uint64_t alignment_of(const FileHeader& header, const Reader& reader) {
  const std::string key = "general.alignment";
  for (const auto& [name, value] : header.metadata) {
    if (name != key) continue;
    const auto* alignment = std::get_if<std::uint32_t>(&value);
    constexpr std::uint32_t kMost = 1u << 20;
    if (alignment == nullptr || !std::has_single_bit(*alignment) || *alignment > kMost)
      reader.refuse(key + " is no power of two in 32 bits");
    return *alignment;
  }
  return kAlignment;
}

void check_places(const FileHeader& header, std::uint64_t alignment, std::uint64_t size, const Reader& reader) {
  std::vector<const TensorInfo*> order;
  std::set<std::string> names;
  for (const TensorInfo& tensor : header.tensors) {
    order.push_back(&tensor);
    if (!names.insert(tensor.name).second) reader.refuse(fmt::format("two tensors are {}", in_words(tensor.name)));
  }
  std::sort(order.begin(), order.end(), [](const TensorInfo* a, const TensorInfo* b) { return a->offset < b->offset; });
  std::uint64_t end = 0;
  for (const TensorInfo* tensor : order) {
    if (tensor->offset % alignment != 0)
      reader.refuse(
          fmt::format("tensor {} lies at {}, no multiple of {}", in_words(tensor->name), tensor->offset, alignment));
    if (header.data > size || tensor->offset < end || tensor->offset > size - header.data ||
        tensor->nbytes() > size - header.data - tensor->offset)
      reader.refuse(fmt::format("tensor {} lies outside the file or on another tensor", in_words(tensor->name)));
    end = tensor->offset + tensor->nbytes();
  }
}

}  // namespace

std::string in_words(const std::string& name) { return Json(name).dump(-1, ' ', true, Json::error_handler_t::replace); }

std::int64_t TensorInfo::rows() const {
  std::int64_t rows = 1;
  for (std::size_t d = 0; d + 1 < shape.size(); ++d) rows *= shape[d];
  return rows;
}

std::uint64_t TensorInfo::nbytes() const { return static_cast<std::uint64_t>(rows() * type->row_bytes(shape.back())); }

std::string part_name(const std::string& name, std::size_t number, std::size_t count) {
  return fmt::format("{}-{:05}-of-{:05}.gguf", name, number + 1, count);
}

Metadata part_keys(std::size_t number, std::size_t count, std::size_t tensors) {
  return {{"split.no", static_cast<std::uint16_t>(number)},
          {"split.count", static_cast<std::uint16_t>(count)},
          {"split.tensors.count", static_cast<std::int32_t>(tensors)}};
}

std::string file_header(const Metadata& metadata, std::span<TensorInfo> tensors) {
  Writer writer;
  writer.raw(kMagic, sizeof(kMagic));
  writer.number(kVersion);
  writer.number(static_cast<std::uint64_t>(tensors.size()));
  writer.number(static_cast<std::uint64_t>(metadata.size()));
  for (const auto& [key, value] : metadata) {
    writer.text(key);
    writer.value(value);
  }
  std::uint64_t offset = 0;
  for (TensorInfo& tensor : tensors) {
    if (tensor.name.size() > kLongestName)
      throw CheckpointError("[gguf.write] the name {} has more than {} bytes, which llama.cpp refuses",
                            in_words(tensor.name), kLongestName);
    tensor.offset = offset;
    offset = aligned(offset + tensor.nbytes());
    writer.text(tensor.name);
    writer.number(static_cast<std::uint32_t>(tensor.shape.size()));
    for (std::size_t i = tensor.shape.size(); i-- > 0;) writer.number(tensor.shape[i]);
    writer.number(tensor.type->id());
    writer.number(tensor.offset);
  }
  return writer.take_aligned();
}

FileHeader read_header(const std::byte* bytes, std::uint64_t size, const std::string& path) {
  Reader reader(bytes, size, path);
  if (size < sizeof(kMagic) || std::memcmp(bytes, kMagic, sizeof(kMagic)) != 0)
    reader.refuse("it does not begin with GGUF");
  (void)reader.number<std::uint32_t>();
  const auto version = reader.number<std::uint32_t>();
  if (version == 2u << 24 || version == kVersion << 24)
    reader.refuse("its numbers are big-endian",
                  "convert it with `gguf-convert-endian FILE little` of the package gguf");
  if (version != 2 && version != kVersion) reader.refuse(fmt::format("it has version {}; 2 and 3 are known", version));
  constexpr std::uint64_t kLeastTensor = 32, kLeastPair = 13;
  const std::uint64_t tensors = reader.count(kLeastTensor, "tensors"), pairs = reader.count(kLeastPair, "values");
  FileHeader header;
  std::set<std::string> keys;
  for (std::uint64_t i = 0; i < pairs; ++i) {
    std::string key = reader.text();
    if (!keys.insert(key).second) reader.refuse(fmt::format("it has two values of {}", in_words(key)));
    header.metadata.emplace_back(std::move(key), reader.value());
  }
  for (std::uint64_t i = 0; i < tensors; ++i) header.tensors.push_back(read_tensor(reader));
  const std::uint64_t alignment = alignment_of(header, reader);
  header.data = (reader.place() + alignment - 1) / alignment * alignment;
  check_places(header, alignment, size, reader);
  return header;
}

}  // namespace layerpress::gguf
