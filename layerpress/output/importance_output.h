#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "layerpress/base/json.h"
#include "layerpress/checkpoint/writer.h"
#include "layerpress/compression/modifier.h"
#include "layerpress/setup/run_setup.h"

namespace layerpress::output {

/// Writes an importance file (gguf/importance.h) into the folder of an unfinished run, as figures arrive; linears that are missing at
/// the end have a count of 0. A later run continues it. The first rank writes it, which has the figures of all ranks.
class ImportanceOutput {
 public:
  static constexpr const char* kFileName = ".layerpress-importance.gguf";

  /// `reopen`: the folder may have the file of an earlier run with the same identity.
  ImportanceOutput(const setup::RunSetup& setup, const gguf::ImportanceOrigin& origin,
                   const std::filesystem::path& directory, bool reopen);

  /// Writes the figures about a module's inputs, if the file has a place for them.
  void take(const std::string& module, const compression::InputSquares& inputs);
  /// Checksums of what was written since the last call, for the journal.
  Json take_checksums();
  /// Takes over what an earlier run has written for these modules. False: something is missing or has changed; nothing is taken over.
  bool accept(const std::set<std::string>& modules, const Json& checksums);
  /// Reverts accept().
  void retract(const Json& checksums);

  void sync() { writer_->sync(); }
  /// Gives the figures that no run has to count 0, and closes the file.
  void finish();

 private:
  void write(const std::string& name, const at::Tensor& values);
  std::map<std::string, std::vector<std::string>> names_;  // by module: of its tensors, without suffix
  std::map<std::string, gguf::InputPlace> places_;         // by such a name
  std::set<std::string> missing_;                          // tensors that are not written
  std::vector<std::string> written_;
  std::unique_ptr<checkpoint::CheckpointWriter> writer_;
};

}  // namespace layerpress::output
