#include "layerpress/data/token_rows.h"

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "layerpress/base/file.h"
#include "layerpress/base/json.h"
#include "layerpress/base/text.h"
#include "layerpress/data/token_file.h"

namespace layerpress::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kColumn = "input_ids";
constexpr const char* kMaskColumn = "loss_mask";
constexpr const char* kKeptColumn = "attention_mask";  // 0 marks padding

/// Parses without exceptions: invalid text gives a discarded value.
Json try_parse(std::string_view text) { return Json::parse(text.begin(), text.end(), nullptr, false); }

bool has_token_ids(const Json& row) {
  if (!row.is_object()) return false;
  const auto found = row.find(kColumn);
  return found != row.end() && found->is_array();
}

/// 0 or 1 for each of a row's ids. `column` is a list of so many entries.
std::vector<std::uint8_t> flags_of(const Json& column, const char* name, const std::string& place) {
  std::vector<std::uint8_t> flags;
  for (const Json& value : column) {
    const bool known = value.is_boolean() || (value.is_number_unsigned() && value.get<std::uint64_t>() <= 1);
    if (!known)
      throw DataError("[data.rows] {}: '{}' entry {} is {}; entries are 0 or 1", place, name, flags.size(),
                      value.dump(-1, ' ', true).substr(0, 40));
    flags.push_back(value == Json(true) || value == Json(1u) ? 1 : 0);
  }
  return flags;
}

/// Removes the entries that stand for padding.
template <typename Value>
void remove_padding(const Json& row, std::vector<Value>& values, const std::string& place) {
  const auto found = row.find(kKeptColumn);
  if (found == row.end() || found->is_null()) return;
  if (!found->is_array() || found->size() != values.size())
    throw DataError(
        "[data.rows] {}: '{}' is no list with 0 or 1 for each of the {} token ids; mend it, or leave it out", place,
        kKeptColumn, values.size());
  const std::vector<std::uint8_t> kept = flags_of(*found, kKeptColumn, place);
  std::size_t next = 0;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (kept[i] != 0) values[next++] = values[i];
  values.resize(next);
}

/// Without padding. `place` names the row in messages: "file, line 3".
std::vector<std::int32_t> token_ids(const Json& row, const std::string& place) {
  if (!has_token_ids(row))
    throw DataError("[data.rows] {}: expected an object with a list 'input_ids', like the first row", place);
  const Json& column = row.at(kColumn);
  std::vector<std::int32_t> ids;
  ids.reserve(column.size());
  for (const Json& value : column) {
    constexpr std::uint64_t kLargest = std::numeric_limits<std::int32_t>::max();
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > kLargest)
      throw DataError("[data.rows] {}: 'input_ids' entry {} is {}; token ids are integers from 0 to {}", place,
                      ids.size(), value.dump(-1, ' ', true).substr(0, 40), kLargest);
    ids.push_back(value.get<std::int32_t>());
  }
  remove_padding(row, ids, place);
  return ids;
}

std::vector<std::uint8_t> loss_mask_of(const Json& row, const std::string& place) {
  (void)token_ids(row, place);  // is checked
  const std::size_t tokens = row.at(kColumn).size();
  const auto found = row.find(kMaskColumn);
  if (found == row.end() || !found->is_array() || found->size() != tokens)
    throw DataError(
        "[data.rows] {}: --use-loss-mask requires a list '{}' with 0 or 1 for each of its {} token ids; add it, or "
        "prepare the "
        "data from messages",
        place, kMaskColumn, tokens);
  std::vector<std::uint8_t> mask = flags_of(*found, kMaskColumn, place);
  remove_padding(row, mask, place);
  return mask;
}

/// One object per line; blank lines are skipped. The file is scanned only as far as rows are requested.
class JsonLines : public TokenRows {
 public:
  explicit JsonLines(const fs::path& path) : file_(MappedFile::open(path)) {
    constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
    if (text().starts_with(kByteOrderMark)) scanned_ = kByteOrderMark.size();
  }

  std::optional<std::vector<std::int32_t>> row(std::int64_t index) override {
    if (!scan_to(index)) return std::nullopt;
    return token_ids(parsed(index), place_of(index));
  }

  std::vector<std::uint8_t> loss_mask(std::int64_t index) override {
    return loss_mask_of(parsed(index), place_of(index));
  }

  std::int64_t count() override {
    scan_to(std::numeric_limits<std::int64_t>::max());
    return static_cast<std::int64_t>(lines_.size());
  }

  bool first_row_has_token_ids() {
    return scan_to(0) && has_token_ids(try_parse(text().substr(lines_[0].begin, lines_[0].length)));
  }

 private:
  struct Line {
    std::uint64_t begin;
    std::uint64_t length;
    std::int64_t number;  ///< from 1, including blank lines
  };

  std::string_view text() const { return {reinterpret_cast<const char*>(file_->data()), file_->size()}; }

  std::string place_of(std::int64_t index) const {
    return fmt::format("{}, line {}", file_->path().string(), lines_[static_cast<std::size_t>(index)].number);
  }

  /// REQUIRES: scan_to(index).
  Json parsed(std::int64_t index) const {
    const Line& line = lines_[static_cast<std::size_t>(index)];
    Json row = try_parse(text().substr(line.begin, line.length));
    if (row.is_discarded())
      throw DataError("[data.rows] {}: not JSON; each line must be one JSON object", place_of(index));
    return row;
  }

  /// Whether row `index` exists; scans the lines up to it.
  bool scan_to(std::int64_t index) {
    while (std::cmp_less_equal(lines_.size(), index) && scanned_ < file_->size()) {
      const std::uint64_t end = std::min<std::uint64_t>(text().find('\n', scanned_), file_->size());
      const std::string_view line = text().substr(scanned_, end - scanned_);
      ++line_number_;
      if (line.find_first_not_of(" \t\r\f\v") != std::string_view::npos)
        lines_.push_back({scanned_, line.size(), line_number_});
      scanned_ = end + 1;
      release_scanned();
    }
    return std::cmp_less(index, lines_.size());
  }

  /// Keeps the resident pages of a large file from growing while its lines are counted.
  void release_scanned() {
    constexpr std::uint64_t kStride = 64u << 20;
    if (scanned_ < released_ + kStride) return;
    file_->release(released_, scanned_ - released_);
    released_ = scanned_;
  }

  std::shared_ptr<const MappedFile> file_;
  std::vector<Line> lines_;
  std::uint64_t scanned_ = 0;
  std::uint64_t released_ = 0;
  std::int64_t line_number_ = 0;
};

/// A list of objects in one JSON document.
class JsonRows : public TokenRows {
 public:
  JsonRows(fs::path path, Json rows) : path_(std::move(path)), rows_(std::move(rows)) {}

  std::optional<std::vector<std::int32_t>> row(std::int64_t index) override {
    if (index >= count()) return std::nullopt;
    return token_ids(rows_[static_cast<std::size_t>(index)], place_of(index));
  }

  std::vector<std::uint8_t> loss_mask(std::int64_t index) override {
    return loss_mask_of(rows_[static_cast<std::size_t>(index)], place_of(index));
  }

  std::int64_t count() override { return static_cast<std::int64_t>(rows_.size()); }

 private:
  std::string place_of(std::int64_t index) const { return fmt::format("{}, row {}", path_.string(), index + 1); }

  fs::path path_;
  Json rows_;
};

/// The samples of a token file.
class StoredRows : public TokenRows {
 public:
  explicit StoredRows(const fs::path& path) : file_(path), path_(path) {}

  std::optional<std::vector<std::int32_t>> row(std::int64_t index) override {
    if (index >= count()) return std::nullopt;
    const std::int64_t* bounds = &file_.sample_offsets()[static_cast<std::size_t>(index)];
    return file_.tokens(bounds[0], bounds[1]);
  }

  std::vector<std::uint8_t> loss_mask(std::int64_t index) override {
    if (!file_.has_loss_mask())
      throw DataError(
          "[data.rows] {}: has no loss mask; make it again with `layerpress prepare --use-loss-mask`, or leave the "
          "option out",
          path_.string());
    const std::int64_t* bounds = &file_.sample_offsets()[static_cast<std::size_t>(index)];
    return file_.loss_mask(bounds[0], bounds[1]);
  }

  bool has_images() const override { return file_.has_images(); }
  SampleImages images(std::int64_t index) override { return file_.images(index); }

  std::int64_t count() override { return static_cast<std::int64_t>(file_.sample_offsets().size()) - 1; }

  const std::vector<std::int64_t>* offsets() const override { return &file_.sample_offsets(); }

 private:
  TokenFile file_;
  fs::path path_;
};

std::unique_ptr<TokenRows> open_json_lines(const fs::path& path) {
  auto lines = std::make_unique<JsonLines>(path);
  return lines->first_row_has_token_ids() ? std::move(lines) : nullptr;
}

std::unique_ptr<TokenRows> open_json(const fs::path& path) {
  const auto file = MappedFile::open(path);
  const std::string_view text(reinterpret_cast<const char*>(file->data()), file->size());
  // Most .json files contain text. Parsing them here only to find no token ids would cost time and memory.
  if (text.find("\"input_ids\"") == std::string_view::npos) return nullptr;
  Json rows = try_parse(text);
  if (!rows.is_array() || rows.empty() || !has_token_ids(rows[0])) return nullptr;
  return std::make_unique<JsonRows>(path, std::move(rows));
}

}  // namespace

std::unique_ptr<TokenRows> open_token_rows(const fs::path& path) {
  const std::string ending = lower_case(path.extension().string());
  if (ending != ".safetensors" && ending != ".jsonl" && ending != ".json") return nullptr;
  std::error_code failure;
  if (!fs::exists(path, failure)) throw DataError("[data.open] {}: no such file; check --dataset", path.string());
  if (ending == ".safetensors") return std::make_unique<StoredRows>(path);
  try {
    return ending == ".jsonl" ? open_json_lines(path) : open_json(path);
  } catch (const IoError& fault) {
    throw DataError("{}", fault.what());
  }
}

}  // namespace layerpress::data
