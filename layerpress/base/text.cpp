#include "layerpress/base/text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "layerpress/base/error.h"

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

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  return fmt::format("{}", fmt::join(parts, separator));
}

std::string parent_name(std::string_view name) { return std::string(name.substr(0, name.rfind('.'))); }

std::string last_part(std::string_view name) { return std::string(name.substr(name.rfind('.') + 1)); }

std::string format_bytes(std::uint64_t bytes) {
  constexpr std::array kUnits = {"B", "kB", "MB", "GB", "TB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 999.5 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.{}f} {}", value, value < 10 ? 2 : 1, kUnits[unit]);
}

std::uint64_t parse_bytes(std::string_view text, std::string_view option) {
  struct Unit {
    std::string_view name;
    double factor;
  };
  constexpr std::array kUnits = {Unit{"", 1},
                                 Unit{"B", 1},
                                 Unit{"KB", 1e3},
                                 Unit{"MB", 1e6},
                                 Unit{"GB", 1e9},
                                 Unit{"TB", 1e12},
                                 Unit{"KIB", 1024},
                                 Unit{"MIB", 1048576.0},
                                 Unit{"GIB", 1073741824.0},
                                 Unit{"TIB", 1099511627776.0}};
  std::size_t digits = 0;
  while (digits < text.size() && (std::isdigit(static_cast<unsigned char>(text[digits])) || text[digits] == '.'))
    ++digits;
  std::string unit_name(text.substr(digits));
  std::transform(unit_name.begin(), unit_name.end(), unit_name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  const auto unit = std::find_if(kUnits.begin(), kUnits.end(), [&](const Unit& u) { return u.name == unit_name; });
  const std::string number(text.substr(0, digits));
  char* end = nullptr;
  const double value = number.empty() ? NAN : std::strtod(number.c_str(), &end);
  if (unit == kUnits.end() || !std::isfinite(value) || *end != '\0' || value * unit->factor >= 9e18 ||
      value * unit->factor < 1)
    throw UsageError("[options] {}: '{}' is not a size; write for example 5GB or 512MiB", option, text);
  return static_cast<std::uint64_t>(value * unit->factor);
}

}  // namespace layerpress
