#include "layerpress/gguf/tokenizers/sentencepiece_model.h"

#include <cstring>
#include <optional>
#include <string_view>

#include "layerpress/base/error.h"
#include "layerpress/base/file.h"

namespace layerpress::gguf {
namespace {

/// A field of a message of Protocol Buffers: a number, or bytes.
struct Field {
  std::uint64_t number = 0;
  std::uint64_t value = 0;
  std::string_view bytes{};
};

/// The fields of a message, in the order of the file.
class MessageReader {
 public:
  MessageReader(std::string_view message, const std::string& file) : rest_(message), file_(file) {}

  std::optional<Field> next() {
    if (rest_.empty()) return std::nullopt;
    const std::uint64_t key = varint();
    Field field{.number = key >> 3};
    switch (key & 7) {
      case 0:
        field.value = varint();
        break;
      case 1:
        field.bytes = take(8);
        break;
      case 2:
        field.bytes = take(varint());
        break;
      case 5:
        field.bytes = take(4);
        break;
      default:
        damaged("a field of an unknown kind");
    }
    return field;
  }

  [[noreturn]] void damaged(const std::string& what) const {
    throw CheckpointError("[gguf.tokenizer] {}: {}; the file is damaged or is none of SentencePiece", file_, what);
  }

 private:
  std::string_view take(std::uint64_t size) {
    if (size > rest_.size()) damaged("a field that ends behind the file's end");
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }

  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= static_cast<std::uint64_t>(byte & 127) << shift;
      if (byte < 128) return value;
    }
    damaged("a number of more than 64 bits");
  }

  std::string_view rest_;
  std::string file_;
};

struct Piece {
  std::string text;
  float score = 0;
  std::uint64_t type = 1;
};

Piece read_piece(std::string_view message, const std::string& file) {
  Piece piece;
  MessageReader fields(message, file);
  while (const auto field = fields.next()) {
    if (field->number == 1) piece.text = field->bytes;
    if (field->number == 2) {
      if (field->bytes.size() != sizeof(float)) fields.damaged("a score that is no float");
      std::memcpy(&piece.score, field->bytes.data(), sizeof(float));
    }
    if (field->number == 3) piece.type = field->value;
  }
  if (piece.type < 1 || piece.type > 6) fields.damaged("a token of an unknown type");
  return piece;
}

void check_trainer(std::string_view message, const std::string& file) {
  constexpr std::uint64_t kModelType = 3, kPairs = 2;
  std::uint64_t type = 1;
  MessageReader fields(message, file);
  while (const auto field = fields.next())
    if (field->number == kModelType) type = field->value;
  if (type != kPairs)
    throw CheckpointError(
        "[gguf.tokenizer] {}: not a BPE model, and others have no GGUF form here; write compressed-tensors instead",
        file);
}

/// Whether text gets a space before it.
bool read_normalizer(std::string_view message, const std::string& file) {
  bool adds_space = true, removes_spaces = true;
  bool has_map = false;
  MessageReader fields(message, file);
  while (const auto field = fields.next()) {
    if (field->number == 2) has_map = !field->bytes.empty();
    if (field->number == 3) adds_space = field->value != 0;
    if (field->number == 4) removes_spaces = field->value != 0;
  }
  if (has_map || removes_spaces)
    throw CheckpointError(
        "[gguf.tokenizer] {}: the tokenizer normalizes text, which llama.cpp does not; write compressed-tensors "
        "instead",
        file);
  return adds_space;
}

void add_piece(Vocabulary& vocabulary, std::int64_t id, const Piece& piece) {
  const auto type = static_cast<TokenType>(piece.type);
  vocabulary.set(id, piece.text, type, piece.score);
  if (type == TokenType::kUserDefined) vocabulary.set_added(id, piece.text, /*special=*/false, /*spaces=*/true);
}

}  // namespace

SentencePieceModel read_sentencepiece(const std::filesystem::path& path, std::int64_t vocab_size) {
  const std::string file = path.filename().string();
  const auto mapped = MappedFile::open(path);
  const std::string_view contents(reinterpret_cast<const char*>(mapped->data()), mapped->size());
  SentencePieceModel model{.vocabulary = Vocabulary(vocab_size)};
  std::int64_t id = 0;
  MessageReader fields(contents, file);
  while (const auto field = fields.next()) {
    if (field->number == 1) add_piece(model.vocabulary, id++, read_piece(field->bytes, file));
    if (field->number == 2) check_trainer(field->bytes, file);
    if (field->number == 3) model.adds_space_prefix = read_normalizer(field->bytes, file);
  }
  if (id == 0) fields.damaged("no tokens");
  return model;
}

}  // namespace layerpress::gguf
