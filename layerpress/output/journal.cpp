#include "layerpress/output/journal.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <exception>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "layerpress/base/error.h"
#include "layerpress/base/file.h"
#include "layerpress/base/files/checksum.h"

namespace layerpress::output {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kOtherPrefix = ".layerpress-journal-", kOtherSuffix = ".jsonl";
constexpr int kMostSets = 1 << 20;  // beyond any number of processes

/// The rank whose journal has this name; 0 if it is not such a name or the first rank's.
int other_rank(std::string_view name) {
  if (name.size() <= kOtherPrefix.size() + kOtherSuffix.size() || !name.starts_with(kOtherPrefix) ||
      !name.ends_with(kOtherSuffix))
    return 0;
  name.remove_prefix(kOtherPrefix.size());
  name.remove_suffix(kOtherSuffix.size());
  int rank = 0;
  const auto [end, failure] = std::from_chars(name.data(), name.data() + name.size(), rank);
  return failure == std::errc() && end == name.data() + name.size() && rank > 0 && name[0] != '0' ? rank : 0;
}

/// The journals of a folder except rank 0's, by rank.
std::map<int, fs::path> other_journals(const fs::path& directory) {
  std::map<int, fs::path> journals;
  for (const auto& entry : fs::directory_iterator(directory))
    if (const int rank = other_rank(entry.path().filename().string()); rank > 0) journals[rank] = entry.path();
  return journals;
}

/// Member `key` of a record, null if missing.
Json member(const Json& record, const char* key) { return record.contains(key) ? record[key] : Json(); }

/// The sets in a record's "sets"; entries that are not set numbers are ignored.
std::set<int> sets_of(const Json& record) {
  std::set<int> sets;
  for (const Json& set : member(record, "sets"))
    if (set.is_number_unsigned() && set < kMostSets) sets.insert(set.get<int>());
  return sets;
}

/// Replaces "boundary" in a rank's record by "boundaries": {"<rank>": boundary}.
void name_boundary(Json& record, int rank) {
  if (!record.contains("boundary")) return;
  record["boundaries"] = Json::object({{std::to_string(rank), std::move(record["boundary"])}});
  record.erase("boundary");
}

/// Members that cannot be joined become null, so that one rank's member is not taken for all ranks'.
void join_objects(Json& into, const Json& part, const char* key) {
  Json& joined = into[key];
  const auto more = part.find(key);
  if (joined.is_object() && more != part.end() && more->is_object())
    joined.update(*more);
  else
    joined = nullptr;
}

void join_arrays(Json& into, const Json& part, const char* key) {
  Json& joined = into[key];
  const auto more = part.find(key);
  if (joined.is_array() && more != part.end() && more->is_array())
    joined.insert(joined.end(), more->begin(), more->end());
  else
    joined = nullptr;
}

/// Adds another rank's record of the same subgraph.
void join_record(Json& into, const Json& part) {
  if (member(into, "ranks") == member(part, "ranks"))
    join_objects(into, part, "boundaries");
  else
    into["boundaries"] = Json::object();
  // If rank 0 crashed right after taking over the other journals, these still exist, but their records are already
  // known.
  const std::set<int> known = sets_of(into), added = sets_of(part);
  if (std::includes(known.begin(), known.end(), added.begin(), added.end())) return;
  join_arrays(into, part, "sets");
  join_objects(into, part, "tensors");
  join_arrays(into, part, "modules");
}

/// Writes the records, one per line, to a new file.
int write_anew(const std::filesystem::path& path, const std::string& text) {
  write_text_file(path, text);
  return ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
}

std::string lines_of(const std::vector<Json>& records) {
  std::string text;
  for (const Json& record : records) text += Journal::line_of(record.dump());
  return text;
}

/// The last member of a line, of a length that is known, in place of the record's closing brace.
std::string checksum_member(std::string_view record) {
  return fmt::format(",\"checksum\":\"{}\"}}", checksum_of(record.data(), record.size()));
}

/// The record's text; nothing if the checksum differs.
std::optional<std::string> record_in(std::string_view line) {
  static const std::size_t kLength = checksum_member("").size();
  if (line.size() < kLength + 1) return std::nullopt;
  const std::string record = std::string(line.substr(0, line.size() - kLength)) + "}";
  return line.ends_with(checksum_member(record)) ? std::optional(record) : std::nullopt;
}

}  // namespace

std::vector<Json> Journal::read(const std::filesystem::path& path) {
  std::vector<Json> records;
  std::error_code failure;
  if (!std::filesystem::exists(path, failure)) return records;
  const std::string text = read_text_file(path);
  std::size_t begin = 0;
  for (std::size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin)) {
    try {
      const std::optional<std::string> own = record_in(std::string_view(text).substr(begin, end - begin));
      if (!own) break;
      Json record = parse_json(*own, path.string());
      if (!record.is_object()) break;
      records.push_back(std::move(record));
    } catch (const Error&) {
      break;
    }
    begin = end + 1;
  }
  return records;
}

std::string Journal::line_of(const std::string& record) {
  return record.substr(0, record.size() - 1) + checksum_member(record) + "\n";
}

std::string Journal::file_name(int rank) {
  return rank == 0 ? kFileName : fmt::format("{}{}{}", kOtherPrefix, rank, kOtherSuffix);
}

bool Journal::is_file_name(const std::string& name) { return name == kFileName || other_rank(name) > 0; }

int Journal::shard_sets(const Json& header) {
  const Json sets = member(header, "shard_sets");
  if (sets.is_null()) return 1;
  if (!sets.is_number_unsigned() || sets < 1 || sets > kMostSets)
    throw CheckpointError("[output.journal] {}: 'shard_sets' is {}, which is out of range; start over with --overwrite",
                          kFileName, sets.dump().substr(0, 80));
  return sets.get<int>();
}

bool Journal::has_all_sets(const Json& record, int shard_sets) {
  const std::set<int> sets = sets_of(record);
  return std::ssize(sets) == shard_sets && *sets.rbegin() == shard_sets - 1;
}

std::vector<Json> Journal::read_all(const fs::path& directory) {
  const std::vector<Json> first = read(directory / kFileName);
  if (first.empty()) return {};
  std::map<std::uint64_t, Json> joined;
  const auto add = [&](int rank, const std::vector<Json>& records) {
    for (std::size_t i = 1; i < records.size(); ++i) {  // after the header
      const Json index = member(records[i], "index");
      if (!index.is_number_unsigned()) continue;
      Json record = records[i];
      name_boundary(record, rank);
      const auto [place, is_new] = joined.emplace(index.get<std::uint64_t>(), record);
      if (!is_new) join_record(place->second, record);
    }
  };
  add(0, first);
  for (const auto& [rank, path] : other_journals(directory)) add(rank, read(path));
  const int sets = shard_sets(first.front());
  std::vector<Json> records = {first.front()};
  for (auto& [index, record] : joined)
    if (has_all_sets(record, sets)) records.push_back(std::move(record));
  return records;
}

void Journal::remove_others(const fs::path& directory) {
  for (const auto& [rank, path] : other_journals(directory)) {
    std::error_code failure;
    fs::remove(path, failure);
    if (failure) throw IoError("[output.journal] {}: cannot be removed: {}", path.string(), failure.message());
  }
  sync_directory(directory);
}

void Journal::remove_all(const fs::path& directory) noexcept {
  std::error_code ignored;
  try {
    for (const auto& [rank, path] : other_journals(directory)) fs::remove(path, ignored);
  } catch (const std::exception&) {  // the folder cannot be listed
  }
  fs::remove(directory / kFileName, ignored);
}

Journal::Journal(std::filesystem::path path, const std::vector<Json>& records)
    : path_(std::move(path)), descriptor_(write_anew(path_, lines_of(records))) {
  if (descriptor_.value() < 0) throw IoError("[output.journal] {}: {}", path_.string(), errno_text());
  end_ = std::filesystem::file_size(path_);
}

void Journal::append(const Json& record) {
  const std::string line = lines_of({record});
  if (!write_fully(descriptor_.value(), end_, line.data(), line.size()) || ::fdatasync(descriptor_.value()) != 0)
    throw IoError("[output.journal] {}: {}", path_.string(), errno_text());
  end_ += line.size();
}

}  // namespace layerpress::output
