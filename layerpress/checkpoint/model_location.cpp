// The cache's layout: <hub>/models--org--name/refs/<revision> holds a commit, snapshots/<commit>/ the files (links).
#include "layerpress/checkpoint/model_location.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <string_view>
#include <system_error>
#include <vector>

#include "layerpress/base/error.h"
#include "layerpress/base/file.h"
#include "layerpress/base/files/missing_folder.h"
#include "layerpress/base/text.h"
#include "layerpress/checkpoint/strict_json.h"

namespace layerpress::checkpoint {
namespace {

namespace fs = std::filesystem;

std::optional<fs::path> environment_path(const char* variable) {
  const std::string text = environment_variable(variable);
  if (text.empty()) return std::nullopt;
  const char* home = std::getenv("HOME");
  if (home != nullptr && (text == "~" || text.starts_with("~/"))) return fs::path(home + text.substr(1));
  return fs::path(text);
}

fs::path hub_cache() {
  if (const auto path = environment_path("HF_HUB_CACHE")) return *path;
  if (const auto path = environment_path("HF_HOME")) return *path / "hub";
  if (const auto path = environment_path("XDG_CACHE_HOME")) return *path / "huggingface" / "hub";
  return environment_path("HOME").value_or("/") / ".cache" / "huggingface" / "hub";
}

bool is_word(std::string_view text, std::string_view more_characters) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [&](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || more_characters.find(c) != std::string_view::npos;
  });
}

/// The Hub's rule for the parts of an id. It also keeps every id inside the cache folder.
bool is_id_part(std::string_view part) {
  constexpr std::size_t kLongest = 96;
  const auto is_edge = [](char c) { return c == '-' || c == '.'; };
  return is_word(part, "._-") && part.size() <= kLongest && part.find("--") == std::string_view::npos &&
         part.find("..") == std::string_view::npos && !is_edge(part.front()) && !is_edge(part.back());
}

bool is_revision(std::string_view revision) {
  return is_word(revision, "._-/+") && revision.find("..") == std::string_view::npos && revision.front() != '/' &&
         revision.front() != '.';
}

fs::path cache_folder(const HubModel& model) {
  std::string name = "models--" + model.id;
  if (const auto slash = name.find('/'); slash != std::string::npos) name.replace(slash, 1, "--");
  return hub_cache() / name;
}

/// The commit that a ref file names, or nothing if there is no such ref.
std::optional<std::string> read_ref(const fs::path& path) {
  std::error_code failure;
  if (!fs::is_regular_file(path, failure)) return std::nullopt;
  std::string commit = read_text_file(path, 4096);
  while (!commit.empty() && std::isspace(static_cast<unsigned char>(commit.back()))) commit.pop_back();
  if (!is_word(commit, ""))
    throw CheckpointError("[checkpoint.locate] {}: {} is not a commit; download the model again", path.string(),
                          in_quotes(commit));
  return commit;
}

/// Whether a name that no folder has can hardly mean a model of the hub.
bool looks_like_a_path(const std::string& model) {
  if (model.find('@') != std::string::npos) return false;
  for (const char* beginning : {"/", "./", "../", "~/"})
    if (model.starts_with(beginning)) return true;
  return std::count(model.begin(), model.end(), '/') > 1;
}

/// "models/smolm2" where a folder models has a folder smollm2.
bool has_near_folder(const std::string& model) {
  return model.find('/') != std::string::npos && hint_for_missing_folder(model).starts_with("did you mean");
}

/// Of a folder that holds nothing but a GGUF file, whole or divided, the file or the part that stands for it.
std::optional<fs::path> only_gguf_file(const fs::path& folder) {
  std::error_code failure;
  if (fs::exists(folder / "config.json", failure)) return std::nullopt;
  std::vector<fs::path> first, later;
  for (const auto& entry : fs::directory_iterator(folder, failure)) {
    const std::string name = entry.path().filename().string();
    if (!has_ending(name, ".gguf")) continue;
    const bool is_later = name.find("-of-") != std::string::npos && name.find("-00001-of-") == std::string::npos;
    (is_later ? later : first).push_back(entry.path());
  }
  if (first.size() > 1)
    throw CheckpointError("[checkpoint.locate] {} holds several GGUF files; name one, such as {}", folder.string(),
                          in_quotes(std::min_element(first.begin(), first.end())->string()));
  if (first.empty() && !later.empty())
    throw CheckpointError(
        "[checkpoint.locate] {} holds later parts of a GGUF file, but not the first (-00001-of-); fetch it",
        folder.string());
  return first.empty() ? std::nullopt : std::optional(first.front());
}

[[noreturn]] void refuse_missing_folder(const std::string& model) {
  const std::string hint = hint_for_missing_folder(model);
  throw CheckpointError("[checkpoint.locate] no such folder {}; {}", in_quotes(model),
                        hint.empty() ? "pass a model's folder, or a model id (org/name or org/name@revision)" : hint);
}

}  // namespace

std::optional<HubModel> parse_hub_model(const std::string& model) {
  HubModel parsed;
  const auto at_sign = model.find('@');
  parsed.id = model.substr(0, at_sign);
  if (at_sign != std::string::npos) {
    parsed.revision = model.substr(at_sign + 1);
    if (!is_revision(parsed.revision)) return std::nullopt;
  }
  const auto slash = parsed.id.find('/');
  const bool valid = slash == std::string::npos
                         ? is_id_part(parsed.id)
                         : is_id_part(parsed.id.substr(0, slash)) && is_id_part(parsed.id.substr(slash + 1));
  return valid ? std::optional(parsed) : std::nullopt;
}

fs::path locate_model(const std::string& model) {
  std::error_code failure;
  if (model.empty())
    throw CheckpointError("[checkpoint.locate] the model's name is empty; pass a directory or org/name");
  if (fs::is_directory(model, failure)) return only_gguf_file(model).value_or(model);
  if (fs::is_regular_file(model, failure) && has_ending(model, ".gguf")) return model;
  if (fs::exists(model, failure))
    throw CheckpointError(
        "[checkpoint.locate] {} is a file; pass the directory that holds config.json, or a .gguf file",
        in_quotes(model));
  if (has_ending(model, ".gguf")) throw CheckpointError("[checkpoint.locate] {}: no such file", in_quotes(model));
  const auto hub_model = parse_hub_model(model);
  if (looks_like_a_path(model)) refuse_missing_folder(model);
  if (!hub_model)
    throw CheckpointError(
        "[checkpoint.locate] {} is neither a directory nor a model id (org/name or org/name@revision)",
        in_quotes(model));
  const fs::path folder = cache_folder(*hub_model);
  const std::string revision = hub_model->revision.empty() ? "main" : hub_model->revision;
  const std::string commit = read_ref(folder / "refs" / revision).value_or(revision);
  fs::path snapshot = folder / "snapshots" / commit;
  // A revision with a slash can only be a ref. As a path below snapshots/ it would name a folder inside a model.
  if (commit.find('/') == std::string::npos && fs::is_directory(snapshot, failure)) return snapshot;
  if (has_near_folder(model)) refuse_missing_folder(model);
  throw CheckpointError(
      "[checkpoint.locate] {} is neither a directory nor in the local Hugging Face cache ({}); add --download, or: "
      "hf download {}{}",
      in_quotes(model), hub_cache().string(), hub_model->id,
      hub_model->revision.empty() ? "" : " --revision " + hub_model->revision);
}

}  // namespace layerpress::checkpoint
