#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace layerpress {

/// The candidate with the smallest edit distance to `name` (case-insensitive), or "" if none is near.
std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates);

/// "did you mean NEAREST?" (nearest_name), or "" if no candidate is near.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates);

/// The same; all candidates if none is near: "choose from a, b".
std::string nearest_or_all(std::string_view name, const std::vector<std::string>& candidates);

/// Joins with ", ".
std::string join(const std::vector<std::string>& parts, std::string_view separator = ", ");

/// The same of the first `most`, and ", ..." if there are more.
std::string join_first(std::vector<std::string> parts, std::size_t most);

/// Both texts with ", " between them, or the one that is not empty.
std::string join_both(const std::string& first, const std::string& second);

/// "1 module", "3 modules".
std::string counted(std::uint64_t count, std::string_view one);

/// Letters as upper or lower case.
std::string upper_case(std::string text);
std::string lower_case(std::string text);
/// Whether a path ends so ("model.GGUF" in ".gguf"); `ending` has small letters.
bool has_ending(const std::string& path, std::string_view ending);

/// Whether it is a number without a sign, in digits only.
bool all_digits(std::string_view text);

bool is_utf8(const std::string& text);

/// A word of a command as a shell takes it: in quotes where it needs them.
std::string shell_word(const std::string& word);

/// The parts of a dotted name, {"layers", "3", "mlp"} of "layers.3.mlp"; one for a name without dots.
std::vector<std::string> name_parts(std::string_view name);

/// A dotted name without its last part, "layers.3.mlp.weight" -> "layers.3.mlp"; a name without dots is returned
/// unchanged.
std::string parent_name(std::string_view name);

/// The last part of a dotted name, "layers.3.mlp.weight" -> "weight".
std::string last_part(std::string_view name);

/// "1.21 GiB": the units of every size that is shown.
std::string format_bytes(std::uint64_t bytes);

/// "12.3 s", "4 min 5 s", "2 h 05 min".
std::string format_duration(double seconds);

/// The text of a variable of this process's environment, or "" if it is not set.
std::string environment_variable(const char* name);

/// Bytes of "1024", "5GB" = 5 * 10^9, "4G" = "4 GiB" = 4 * 2^30; throws UsageError naming `option`.
std::uint64_t parse_bytes(std::string_view text, std::string_view option);

}  // namespace layerpress
