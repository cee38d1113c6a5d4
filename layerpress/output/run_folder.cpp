#include "layerpress/output/run_folder.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include "layerpress/base/files/checksum.h"
#include "layerpress/base/files/missing_folder.h"
#include "layerpress/base/text.h"
#include "layerpress/checkpoint/companion_files.h"
#include "layerpress/checkpoint/shard_index.h"
#include "layerpress/graph/weight_matrix.h"
#include "layerpress/model/blocks/decoder_config.h"
#include "layerpress/output/measurement_log.h"
#include "layerpress/output/output_parts.h"
#include "layerpress/output/output_writer.h"
#include "layerpress/rewrite/rewrite.h"
#include "layerpress/setup/assignment/compressed_modules.h"
#include "layerpress/setup/assignment/written_recipe.h"
#include "layerpress/setup/rank_agreement.h"

namespace layerpress::output {
namespace {

namespace fs = std::filesystem;

/// What --overwrite replaces as a whole may be a model, or a few files. Other folders than the templates' are somebody's work.
void check_replaced(const fs::path& output) {
  std::error_code failure;
  if (!fs::is_directory(output, failure)) return;
  for (const auto& entry : fs::directory_iterator(output, failure))
    if (entry.is_directory(failure) && entry.path().filename() != checkpoint::kTemplatesFolder)
      throw UsageError(
          "[output] {}: --overwrite would remove all that it holds, such as {}, which no run has written; name another "
          "folder, or remove it yourself",
          output.string(), entry.path().filename().string() + "/");
}

/// The finished folder takes the place of what is there, which must be nothing that the run or the user needs.
void check_output(const OneshotOptions& options, const fs::path& model_location) {
  std::error_code failure;
  if (std::any_of(options.output.begin(), options.output.end(), [](unsigned char c) { return std::iscntrl(c) != 0; }))
    throw UsageError("[options] --output: {} has characters that are no text, such as line breaks; choose another name",
                     options.output);
  for (const fs::path& place : real_places(model_location))
    if (lies_in(options.output, place))
      throw UsageError("[options] --output: {} is the model itself or inside it; choose another", options.output);
  for (const NamedPath& input : {NamedPath{"the model", model_location},
                                 {"the dataset", options.dataset},
                                 {"the recipe", options.recipe},
                                 {"the importance file", options.from_imatrix}})
    for (const fs::path& place : real_places(input.path))
      if (lies_in(place, options.output))
        throw UsageError("[options] --output: {} holds {}; choose another", options.output, input.what);
  if (lies_in(fs::current_path(failure), options.output))
    throw UsageError(
        "[options] --output: {} is the current directory or holds it, and would be replaced; choose another",
        options.output);
  const fs::path imatrix = fs::absolute(options.imatrix, failure).parent_path();
  if (!options.imatrix.empty() && fs::is_directory(options.output, failure) && lies_in(imatrix, options.output))
    throw UsageError("[options] --imatrix: {} lies in the output, which will be replaced; name a file elsewhere",
                     options.imatrix);
  if (options.overwrite) check_replaced(options.output);
  if (!options.offload_dir.empty() && !fs::is_directory(options.offload_dir, failure))
    throw UsageError("[options] --offload-dir: {} is not a directory; name an existing one", options.offload_dir);
}

/// Checked now rather than after the work.
void check_files(const OneshotOptions& options, const setup::RunSetup& setup) {
  if (setup.target->has_config()) checkpoint::require_companions(*setup.model.checkpoint);
  if (!options.summary.empty()) require_summary(options.summary);
  if (!options.imatrix.empty()) require_writable("--imatrix", options.imatrix);
}

/// The original's own quantization is not the output's, but its numbers of experts are.
Json without_quantization(Json config) {
  for (const char* key : {"quantization_config", "compression_config"}) {
    if (const Json own = config.value(key, Json()); own.is_object() && json_has(own, model::kExpertCountsKey))
      config[model::kExpertCountsKey] = own[model::kExpertCountsKey];
    config.erase(key);
    if (config.contains("text_config") && config["text_config"].is_object()) config["text_config"].erase(key);
  }
  return config;
}

}  // namespace

Json output_config(const setup::RunSetup& setup) {
  Json config = without_quantization(setup.model.checkpoint->config());
  if (setup.assignments.quantizes() || !setup.model.kept.empty()) {
    auto [member, value] = setup.target->config_of(setup::compressed_modules(setup.model, setup.assignments));
    for (const Json* section : {&config, json_has(config, "text_config") ? &config["text_config"] : nullptr})
      if (section != nullptr && json_has(*section, model::kExpertCountsKey))
        value[model::kExpertCountsKey] = (*section)[model::kExpertCountsKey];
    config[member] = std::move(value);
  }
  if (setup::unties_head(setup.model, setup.assignments)) config.merge_patch(rewrite::untied_config(config));
  return config;
}

RunFolder::RunFolder(const OneshotOptions& options, const setup::RunSetup& setup, dist::Group& group)
    : options_(options), setup_(setup), group_(group), path_(PendingDirectory::pending_path(options.output)) {
  check_output(options_, setup_.model.checkpoint->location());
  if (group_.is_first()) check_files(options_, setup_);
}

bool RunFolder::is_complete() const {
  const auto looks_complete = [&] {
    std::error_code failure;
    const fs::path target = options_.output;
    if (is_file() ? !fs::is_regular_file(target, failure) : !fs::is_directory(target, failure)) return false;
    if (!options_.resume || fs::is_empty(target, failure)) return false;
    if (!is_file() && fs::exists(path_ / Journal::kFileName)) return false;
    if (setup_.target->has_config() ? holds_this_output() : has_these_headers()) {
      if (options_.imatrix.empty() || fs::exists(options_.imatrix, failure)) return true;
      throw UsageError("[output] {}: is already complete, but {} is not there; start over with --overwrite",
                       options_.output, options_.imatrix);
    }
    if (options_.overwrite) return false;
    throw UsageError(
        "[output] {}: already holds something else than this run's result (another model, another recipe, damaged "
        "files, or no checkpoint); choose another --output or pass --overwrite",
        options_.output);
  };
  return group_.broadcast_text(group_.is_first() && looks_complete() ? "yes" : "no", 0) == "yes";
}

/// Compares everything before the tensors, which includes the recipe and all that a config would say.
bool RunFolder::has_these_headers() const {
  const std::uint64_t most = parse_bytes(options_.max_shard_size, "--max-shard-size");
  const fs::path target = options_.output;
  for (const checkpoint::FileLayout& layout : layout_of(setup_, output_parts(setup_, {}), most, 1).files) {
    const fs::path path = is_file() ? target : target / layout.name;
    std::error_code failure;
    if (fs::file_size(path, failure) != layout.size || failure) return false;
    const auto file = MappedFile::open(path);
    if (std::memcmp(file->data(), layout.header.data(), layout.header.size()) != 0) return false;
  }
  return true;
}

/// Compares config, recipe, and all copied weights.
bool RunFolder::holds_this_output() const {
  const fs::path folder = options_.output;
  try {
    const auto complete = checkpoint::Checkpoint::open(folder);
    if (complete->config() != output_config(setup_) ||
        read_text_file(folder / "recipe.yaml") != setup::recipe_text(setup_.model, setup_.recipe, setup_.modifiers))
      return false;
    const checkpoint::Checkpoint& original = *setup_.model.checkpoint;
    const std::set<std::string> changed = setup_.assignments.changed(setup_.model.traced.graph);
    for (const std::string& name : original.names())
      if (complete->contains(name) && changed.count(name) == 0 &&
          complete->spec(name).dtype == original.spec(name).dtype &&
          !at::equal(complete->tensor(name), original.tensor(name)))
        return false;
    return true;
  } catch (const IoError&) {
    return false;  // no checkpoint
  } catch (const CheckpointError&) {
    return false;  // a damaged checkpoint
  }
}

void RunFolder::write_run(const Json& identity) const {
  if (setup_.target->has_config()) write_text_file(path_ / kRunFileName, identity.dump() + "\n");
}

Json RunFolder::run_of_output(const std::string& output) {
  const fs::path path = fs::path(output) / kRunFileName;
  std::error_code failure;
  if (!fs::is_regular_file(path, failure)) return nullptr;
  const Json found = Json::parse(read_text_file(path), nullptr, /*allow_exceptions=*/false);
  return found.is_object() ? found : Json();
}

void RunFolder::open() {
  if (group_.is_first()) {
    if (options_.resume && !options_.overwrite) refuse_unfinished_replacement();
    // An unfinished folder is kept, whatever the options, until its contents are known.
    pending_ = std::make_unique<PendingDirectory>(
        options_.output, PendingDirectory::Options{.overwrite = options_.overwrite,
                                                   .resume = options_.resume || !options_.overwrite,
                                                   .marker = Journal::kFileName,
                                                   .only_file = setup_.target->only_file()});
    continued_ = pending_->continued();
    if (continued_) read_journal();
  }
  setup::require_shared_folder(path_, group_);
  // Only one rank reads, because storage may show other ranks something else.
  const Json found =
      Json::parse(group_.broadcast_text(Json{{"continued", continued_}, {"journal", journal_}}.dump(), 0));
  continued_ = found["continued"].get<bool>();
  journal_ = found["journal"].get<std::vector<Json>>();
}

void RunFolder::refuse_unfinished_replacement() const {
  std::error_code failure;
  if (!fs::exists(options_.output, failure) || fs::is_empty(options_.output, failure)) return;
  if (const auto found = find_unfinished_run(options_.output))
    throw UsageError(
        "[output] {}: an earlier run that replaces it did not finish ({} of {} subgraphs are done); continue that one "
        "with --overwrite --resume",
        options_.output, found->finished, found->subgraphs);
}

void RunFolder::read_journal() {
  journal_ = Journal::read_all(path_);
  if (journal_.empty() || options_.resume) return;
  if (pending_) pending_->keep();
  refuse_unfinished(options_.output, find_unfinished_run(options_.output).value_or(UnfinishedRun{}));
}

void RunFolder::refuse_unfinished(const std::string& output, const UnfinishedRun& found) {
  throw UsageError(
      "[output] {}: an earlier run did not finish ({} of {} subgraphs are done); continue it with --resume or start "
      "over with --overwrite",
      output, found.finished, found.subgraphs);
}

fs::path RunFolder::scratch() const {
  if (!setup::may_use_disk(setup_.place)) return {};
  const std::string suffix = group_.size() > 1 ? fmt::format("-{}", group_.rank()) : "";
  if (options_.offload_dir.empty()) return path_ / (OutputWriter::kScratchName + suffix);
  const std::string output = path_.string();
  return fs::path(options_.offload_dir) /
         fmt::format(".layerpress-activations-{}{}", checksum_of(output.data(), output.size()), suffix);
}

void RunFolder::commit() {
  if (!pending_) return;
  pending_->commit();
  MeasurementLog::remove(options_.output);
  // The last step, because the journal is needed until the folder has its name.
  if (!is_file()) remove_leftovers(options_.output);
}

void RunFolder::remove_leftovers(const fs::path& output) noexcept {
  std::error_code ignored;
  fs::remove(output / ImportanceOutput::kFileName, ignored);
  Journal::remove_all(output);
}

void RunFolder::keep() {
  if (pending_) pending_->keep();
}

void RunFolder::remove_scratch() const {
  std::error_code ignored;
  if (!scratch().empty()) fs::remove(scratch(), ignored);
}

}  // namespace layerpress::output

namespace layerpress {

std::optional<UnfinishedRun> find_unfinished_run(const std::string& output) {
  const std::vector<Json> records = output::Journal::read_all(PendingDirectory::pending_path(output));
  if (records.empty()) return std::nullopt;
  UnfinishedRun run;
  run.finished = records.size() - 1;
  run.subgraphs = json_get_or<std::size_t>(records.front(), "subgraphs", "journal", 0);
  return run;
}

bool can_resume(const std::string& output) {
  return find_unfinished_run(output) || output::MeasurementLog::is_there(output);
}

}  // namespace layerpress
