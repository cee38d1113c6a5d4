// print_gguf architecture CONFIG.json: for the tensor names on stdin, one a line, what the room gguf says of the model, as JSON.
// print_gguf tokenizer MODEL_FOLDER VOCAB_SIZE: the tokenizer's keys.
// print_gguf types MIXTURE CONFIG.json importance|none: the types of the tensors on stdin, lines NAME COLUMNS ROWS MATRICES.
// print_gguf files FILE.gguf: the tokenizer files that the file's keys become.
// For tests that compare it with what other programs write.
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "layerpress/base/error.h"
#include "layerpress/base/file.h"
#include "layerpress/base/json.h"
#include "layerpress/gguf/architectures/architecture.h"
#include "layerpress/gguf/container/file.h"
#include "layerpress/gguf/mixture.h"
#include "layerpress/gguf/tokenizers/tokenizer.h"
#include "layerpress/gguf/tokenizers/tokenizer_files.h"

namespace {

using namespace layerpress;

template <typename T>
constexpr const char* kTypeName = "";
template <>
constexpr const char* kTypeName<std::uint8_t> = "u8";
template <>
constexpr const char* kTypeName<std::int8_t> = "i8";
template <>
constexpr const char* kTypeName<std::uint16_t> = "u16";
template <>
constexpr const char* kTypeName<std::int16_t> = "i16";
template <>
constexpr const char* kTypeName<std::uint32_t> = "u32";
template <>
constexpr const char* kTypeName<std::int32_t> = "i32";
template <>
constexpr const char* kTypeName<float> = "f32";
template <>
constexpr const char* kTypeName<bool> = "bool";
template <>
constexpr const char* kTypeName<std::string> = "string";
template <>
constexpr const char* kTypeName<std::uint64_t> = "u64";
template <>
constexpr const char* kTypeName<std::int64_t> = "i64";
template <>
constexpr const char* kTypeName<double> = "f64";

template <typename T>
Json typed(const T& value) {
  return {kTypeName<T>, value};
}

template <typename T>
Json typed(const std::vector<T>& values) {
  return {std::string(kTypeName<T>) + "[]", values};
}

Json printed(const gguf::Metadata& metadata) {
  Json all = Json::array();
  for (const auto& [key, value] : metadata)
    std::visit([&, &name = key](const auto& held) { all.push_back({name, typed(held)}); }, value);
  return all;
}

Json printed(const gguf::TensorPlace& place) {
  Json all = {{"name", place.name}};
  if (place.expert) all["expert"] = *place.expert;
  if (place.transposed_first) all["transposed_first"] = true;
  if (place.rows.count > 0) all["rows"] = {place.rows.parts, place.rows.first, place.rows.count};
  if (place.stacked_parts) all["stacked_parts"] = true;
  if (place.transposed_last) all["transposed_last"] = true;
  if (place.paired_heads > 0) all["paired_heads"] = place.paired_heads;
  const auto heads = [](const gguf::TiledHeads& tiled) { return Json{tiled.keys, tiled.of_key, tiled.first}; };
  if (place.tiled_rows.keys > 0) all["tiled_rows"] = heads(place.tiled_rows);
  if (place.tiled_columns.keys > 0) all["tiled_columns"] = heads(place.tiled_columns);
  if (place.added != 0) all["added"] = place.added;
  if (place.negative_exponential) all["negative_exponential"] = true;
  if (place.squeezed) all["squeezed"] = true;
  return all;
}

Json architecture(const std::string& config_file) {
  const gguf::Architecture found = gguf::architecture_for(read_json_file(config_file));
  Json tensors = Json::object(), made = Json::object();
  for (std::string name; std::getline(std::cin, name);) {
    const gguf::Placement placement = found.place(name);
    tensors[name] = {{"left_out", placement.left_out}, {"places", Json::array()}};
    for (const gguf::TensorPlace& place : placement.places) tensors[name]["places"].push_back(printed(place));
  }
  for (const gguf::MadeTensor& tensor : found.made) made[tensor.name] = tensor.values;
  return {{"name", found.name}, {"metadata", printed(found.metadata)}, {"made", made}, {"tensors", tensors}};
}

Json types(const std::string& mixture, const std::string& config_file, bool has_importance) {
  std::vector<gguf::TensorShape> tensors;
  for (gguf::TensorShape shape; std::cin >> shape.name >> shape.columns >> shape.rows >> shape.matrices;)
    tensors.push_back(shape);
  const auto chosen =
      gguf::mixture_types(mixture, gguf::architecture_for(read_json_file(config_file)), tensors, has_importance);
  Json all = {{"file_type", gguf::mixture_file_type(mixture)}, {"types", Json::object()}};
  for (std::size_t i = 0; i < tensors.size(); ++i) all["types"][tensors[i].name] = chosen[i];
  return all;
}

Json files(const std::string& path) {
  const auto file = MappedFile::open(path);
  return gguf::tokenizer_files(gguf::read_header(file->data(), file->size(), path).metadata);
}

Json run(const std::vector<std::string>& arguments) {
  if (arguments.size() == 2 && arguments[0] == "architecture") return architecture(arguments[1]);
  if (arguments.size() == 3 && arguments[0] == "tokenizer")
    return printed(gguf::tokenizer_keys(arguments[1], std::stoll(arguments[2]), "").metadata);
  if (arguments.size() == 4 && arguments[0] == "types")
    return types(arguments[1], arguments[2], arguments[3] == "importance");
  if (arguments.size() == 2 && arguments[0] == "files") return files(arguments[1]);
  throw UsageError("[print_gguf] usage: print_gguf architecture ... | tokenizer ... | types ...");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    std::puts(run({argv + 1, argv + argc}).dump().c_str());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
