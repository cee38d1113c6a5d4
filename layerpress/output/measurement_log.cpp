#include "layerpress/output/measurement_log.h"

#include <system_error>
#include <utility>

#include "layerpress/base/file.h"

namespace layerpress::output {
namespace {

namespace fs = std::filesystem;

fs::path path_for(const std::string& output) {
  fs::path path = PendingDirectory::pending_path(output);
  return path.replace_extension(".measured");  // of ".NAME.unfinished"
}

}  // namespace

MeasurementLog::MeasurementLog(const OneshotOptions& options, const setup::RunIdentity& identity, dist::Group& group)
    : group_(group), path_(path_for(options.output)) {
  if (group_.is_first() && options.resume) read(options.output, identity);
  // Only one rank reads, because storage may show other ranks something else.
  records_ = Json::parse(group_.broadcast_text(Json(records_).dump(), 0)).get<std::vector<Json>>();
  if (records_.empty()) records_.push_back(identity.to_json());
  if (group_.is_first() && records_.size() > 1) journal_.emplace(path_, records_);
}

void MeasurementLog::read(const std::string& output, const setup::RunIdentity& identity) {
  records_ = Journal::read(path_);
  if (records_.empty()) return;
  if (const std::string found = setup::difference(records_.front(), identity); !found.empty())
    throw UsageError(
        "[resume] {}: the unfinished measurement cannot be continued: {}; use the same options and files, or start "
        "over with --overwrite",
        output, found);
}

std::vector<Json> MeasurementLog::found(const std::string& part) const {
  std::vector<Json> own;
  for (const Json& record : records_)
    if (record.value("record", Json()) == "measured" && record.value("part", Json()) == part) own.push_back(record);
  return own;
}

void MeasurementLog::refuse(const std::string& fault) const {
  throw CheckpointError("[resume] {}: is damaged: {}; start over with --overwrite", path_.string(), fault);
}

void MeasurementLog::add(const std::string& part, Json record) {
  if (path_.empty() || !group_.is_first()) return;
  if (!journal_) {
    std::error_code failure;
    fs::create_directories(path_.parent_path(), failure);
    journal_.emplace(path_, records_);
  }
  record["record"] = "measured", record["part"] = part;
  journal_->append(record);
}

bool MeasurementLog::is_there(const std::string& output) {
  std::error_code failure;
  return fs::exists(path_for(output), failure);
}

void MeasurementLog::remove(const std::string& output) noexcept {
  std::error_code ignored;
  fs::remove(path_for(output), ignored);
}

}  // namespace layerpress::output
