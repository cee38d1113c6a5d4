#include "layerpress/cli/text/sensitivity_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "layerpress/base/text.h"
#include "layerpress/cli/text/wrapped_text.h"

namespace layerpress::cli {
namespace {

constexpr std::size_t kTableColumns = 80, kModuleColumns = 30, kSchemeColumns = 8;

using Names = std::vector<std::string>;

/// "model.layers.0" of "model.layers.0.mlp.experts.7.up_proj" and "mlp.experts.*.up_proj"; "" if no part is a number.
struct ModulePlace {
  std::string layer, name;
};

ModulePlace module_place(const std::string& module) {
  Names parts = name_parts(module);
  const auto number = std::find_if(parts.begin(), parts.end(), all_digits);
  if (number == parts.end() || number + 1 == parts.end()) return {"", module};
  Names layer(parts.begin(), number + 1), rest(number + 1, parts.end());
  for (std::string& part : rest)
    if (all_digits(part)) part = "*";
  return {join(layer, "."), join(rest, ".")};
}

/// A line of the table: a module, or all that differ in the number of an expert.
struct ErrorRow {
  ModulePlace place;
  std::size_t modules = 0;
  std::vector<std::optional<double>> errors{};  ///< by scheme, the greatest
};

std::vector<ErrorRow> error_rows(const Json& modules, const Names& schemes) {
  std::vector<ErrorRow> rows;
  for (const Json& module : modules) {
    const ModulePlace place = module_place(module["module"].get<std::string>());
    auto row = std::find_if(rows.rbegin(), rows.rend(), [&](const ErrorRow& known) {
      return known.place.layer != place.layer || known.place.name == place.name;
    });
    if (row == rows.rend() || row->place.layer != place.layer) {
      rows.push_back({place, 0, std::vector<std::optional<double>>(schemes.size())});
      row = rows.rbegin();
    }
    ++row->modules;
    for (std::size_t s = 0; s < schemes.size(); ++s) {
      const Json& error = module["schemes"][schemes[s]]["error"];
      if (error.is_number()) row->errors[s] = std::max(row->errors[s].value_or(0), error.get<double>());
    }
  }
  return rows;
}

std::size_t width_of(const std::string& scheme) { return std::max(kSchemeColumns, scheme.size() + 2); }

/// Schemes [first, last) fit beside the names.
std::size_t end_of_block(const Names& schemes, std::size_t first) {
  std::size_t last = first, columns = kModuleColumns;
  while (last < schemes.size() && (last == first || columns + width_of(schemes[last]) <= kTableColumns))
    columns += width_of(schemes[last++]);
  return last;
}

std::string percent_text(const std::optional<double>& error) {
  return error ? fmt::format("{:.3f}", 100 * *error) : "-";
}

/// A long name has a line of its own.
std::string padded_name(const std::string& name) {
  if (name.size() < kModuleColumns) return name + std::string(kModuleColumns - name.size(), ' ');
  return name + "\n" + std::string(kModuleColumns, ' ');
}

std::string table_text(const std::vector<ErrorRow>& rows, const Names& schemes, std::size_t first, std::size_t last) {
  std::string text = padded_name("output error in %"), layer;
  for (std::size_t s = first; s < last; ++s) text += fmt::format("{:>{}}", schemes[s], width_of(schemes[s]));
  text += "\n";
  for (const ErrorRow& row : rows) {
    if (row.place.layer != layer && !row.place.layer.empty()) text += row.place.layer + "\n";
    layer = row.place.layer;
    const std::string several = row.modules > 1 ? fmt::format(" x{}", row.modules) : "";
    text += padded_name((layer.empty() ? "" : "  ") + row.place.name + several);
    for (std::size_t s = first; s < last; ++s)
      text += fmt::format("{:>{}}", percent_text(row.errors[s]), width_of(schemes[s]));
    text += "\n";
  }
  return text + "\n";
}

std::optional<double> figure(const Json& value) {
  return value.is_number() ? std::optional(value.get<double>()) : std::nullopt;
}

std::string totals_text(const Json& figures, const Names& schemes) {
  std::size_t columns = 6;
  for (const std::string& name : schemes) columns = std::max(columns, name.size());
  std::string text = fmt::format("{:<{}}{:>8}{:>9}{:>9}  {}\n", "scheme", columns, "bits", "mean", "worst", "in");
  for (const std::string& name : schemes) {
    const Json& own = figures["schemes"][name];
    text += fmt::format("{:<{}}{:>8.3f}{:>9}{:>9}  {}\n", name, columns, own["bits"].get<double>(),
                        percent_text(figure(own["mean_error"])), percent_text(figure(own["greatest_error"])),
                        own["greatest_in"].is_string() ? own["greatest_in"].get<std::string>() : "-");
  }
  return text;
}

}  // namespace

std::string sensitivity_text(const Json& figures) {
  const Names schemes = figures["order"].get<Names>();
  const std::vector<ErrorRow> rows = error_rows(figures["modules"], schemes);
  std::string text;
  for (std::size_t first = 0, last = 0; first < schemes.size(); first = last) {
    last = end_of_block(schemes, first);
    text += table_text(rows, schemes, first, last);
  }
  text += totals_text(figures, schemes);
  text += wrapped_words(
      fmt::format("{} on {} samples ({} tokens) in {}, peak memory {}. Errors are those of rounded weights in "
                  "one linear at a time; the rounding of inputs is not counted.",
                  counted(figures["modules"].size(), "module"), figures["samples"].get<std::int64_t>(),
                  figures["tokens"].get<std::int64_t>(), format_duration(figures["seconds"].get<double>()),
                  format_bytes(figures["peak_anonymous_bytes"].get<std::uint64_t>())),
      0, {});
  return text;
}

}  // namespace layerpress::cli
