#include "layerpress/base/temporary_directory.h"

#include <stdlib.h>

#include <cerrno>
#include <string>
#include <system_error>

#include "layerpress/base/error.h"

namespace layerpress {

TemporaryDirectory::TemporaryDirectory(std::filesystem::path parent) {
  std::error_code failure;
  const bool own = parent.empty();
  if (own) parent = std::filesystem::temp_directory_path(failure);
  if (failure)
    throw IoError("[file.temporary] no folder for temporary files: {}; set TMPDIR to a writable one",
                  failure.message());
  std::string pattern = (parent / "layerpress-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr)
    throw IoError("[file.temporary] {}: {}; {} a writable folder", pattern, std::generic_category().message(errno),
                  own ? "set TMPDIR to" : "name");
  path_ = pattern;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace layerpress
