#include "layerpress/base/text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "layerpress/base/error.h"
#include "layerpress/base/json.h"

namespace layerpress {
namespace {

/// Letters of either case are equal, and so are "-" and "_".
char folded(char c) { return c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }

struct EditDistances {
  std::size_t whole = 0;  ///< of both texts
  std::size_t begin = 0;  ///< of the first text and some beginning of the second
};

EditDistances edit_distances(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (folded(a[i - 1]) == folded(b[j - 1]) ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return {row[b.size()], *std::min_element(row.begin(), row.end())};
}

/// "num", "samples" of "--num-samples".
std::set<std::string> words_of(std::string_view name) {
  std::set<std::string> words;
  std::string word;
  for (const char c : name) {
    if (std::isalnum(static_cast<unsigned char>(c))) {
      word += folded(c);
    } else if (!word.empty()) {
      words.insert(std::exchange(word, {}));
    }
  }
  if (!word.empty()) words.insert(word);
  return words;
}

/// How far a candidate is from a name; nothing if it is probably not meant.
std::optional<std::size_t> distance_to(std::string_view name, const std::string& candidate) {
  constexpr std::size_t kBehindEveryTypo = 1000, kBehindEveryBeginning = 2000;
  const EditDistances distances = edit_distances(name, candidate);
  if (distances.whole <= (name.size() < 4 ? 1 : std::max<std::size_t>(2, name.size() / 3))) return distances.whole;
  if (name.size() >= 4 && distances.begin <= name.size() / 5) return kBehindEveryTypo + distances.begin;
  const std::set<std::string> words = words_of(name), others = words_of(candidate);
  if (words.empty() || !std::includes(others.begin(), others.end(), words.begin(), words.end())) return std::nullopt;
  return kBehindEveryBeginning + candidate.size();
}

}  // namespace

std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates) {
  std::string best;
  std::optional<std::size_t> least;
  for (const std::string& candidate : candidates)
    if (const auto distance = distance_to(name, candidate); distance && (!least || *distance < *least)) {
      least = distance;
      best = candidate;
    }
  return best;
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates) {
  const std::string nearest = nearest_name(name, candidates);
  return nearest.empty() ? "" : fmt::format("did you mean {}?", nearest);
}

std::string nearest_or_all(std::string_view name, const std::vector<std::string>& candidates) {
  const std::string nearest = did_you_mean(name, candidates);
  return nearest.empty() ? "choose from " + join(candidates) : nearest;
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  return fmt::format("{}", fmt::join(parts, separator));
}

std::string join_first(std::vector<std::string> parts, std::size_t most) {
  const bool are_more = parts.size() > most;
  if (are_more) parts.resize(most);
  return join(parts) + (are_more ? ", ..." : "");
}

std::string join_both(const std::string& first, const std::string& second) {
  return first.empty() || second.empty() ? first + second : first + ", " + second;
}

std::string counted(std::uint64_t count, std::string_view one) {
  return fmt::format("{} {}{}", count, one, count == 1 ? "" : "s");
}

std::string upper_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

std::string lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

bool has_ending(const std::string& path, std::string_view ending) { return lower_case(path).ends_with(ending); }

bool all_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

std::vector<std::string> name_parts(std::string_view name) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    parts.emplace_back(name.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::string parent_name(std::string_view name) { return std::string(name.substr(0, name.rfind('.'))); }

std::string last_part(std::string_view name) { return std::string(name.substr(name.rfind('.') + 1)); }

std::string format_bytes(std::uint64_t bytes) {
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 999.5 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.{}f} {}", value, value < 9.995 ? 2 : 1, kUnits[unit]);
}

std::string format_duration(double seconds) {
  if (seconds < 59.95) return fmt::format("{:.1f} s", seconds);
  const auto whole = std::llround(seconds);
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
}

namespace {

/// The factor of a unit: a letter alone is binary, as in Docker's and systemd's options, and "GB" decimal, as in the names of
/// shard sizes. 0 if it is unknown.
double unit_factor(std::string unit) {
  unit = upper_case(std::move(unit));
  if (unit.empty() || unit == "B") return 1;
  const std::size_t power = std::string_view("KMGT").find(unit.front());
  if (power == std::string_view::npos) return 0;
  const std::string_view rest = std::string_view(unit).substr(1);
  const double thousand = rest == "B" ? 1000 : rest.empty() || rest == "IB" ? 1024 : 0;
  return std::pow(thousand, static_cast<double>(power + 1));
}

}  // namespace

std::uint64_t parse_bytes(std::string_view text, std::string_view option) {
  std::size_t digits = 0;
  while (digits < text.size() && (std::isdigit(static_cast<unsigned char>(text[digits])) || text[digits] == '.'))
    ++digits;
  const std::string number(text.substr(0, digits));
  const std::size_t unit = std::min(text.find_first_not_of(' ', digits), text.size());
  char* end = nullptr;
  const double value = number.empty() ? NAN : std::strtod(number.c_str(), &end);
  const double bytes = number.empty() || *end != '\0' ? NAN : value * unit_factor(std::string(text.substr(unit)));
  if (!(bytes >= 1 && bytes < 9e18))
    throw UsageError("[options] {}: '{}' is not a size; write for example 4GiB (4G) or 5GB", option, text);
  return static_cast<std::uint64_t>(bytes);
}

std::string environment_variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool is_utf8(const std::string& text) {
  try {
    (void)Json(text).dump();
    return true;
  } catch (const Json::type_error&) {
    return false;
  }
}

std::string shell_word(const std::string& word) {
  const bool plain = !word.empty() && word.find_first_not_of(
                                          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                          "0123456789_-./=:,+@%") == std::string::npos;
  if (plain) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

std::string one_line(std::string text) {
  constexpr std::size_t kLongest = 4000;
  const auto in_utf8 = [](const std::string& bytes, Json::error_handler_t others) {
    return Json::parse(Json(bytes).dump(-1, ' ', false, others)).get<std::string>();
  };
  const bool is_cut = text.size() > kLongest;
  if (is_cut) text.resize(kLongest);
  for (char& character : text)
    if (const auto code = static_cast<unsigned char>(character); code < 0x20 || code == 0x7f) character = '?';
  text = in_utf8(text, Json::error_handler_t::replace);
  if (text.size() > kLongest)  // a replacement character has three bytes
    return in_utf8(text.substr(0, kLongest), Json::error_handler_t::ignore) + "...";
  return is_cut ? text + "..." : text;
}

}  // namespace layerpress
