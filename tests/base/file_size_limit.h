#pragma once

#include <signal.h>
#include <sys/resource.h>

namespace layerpress::test {

/// No file may grow beyond `bytes` inside the scope: what a full disk looks like.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    previous_handler_ = ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &previous_);
    const struct rlimit limited { bytes, previous_.rlim_max };
    ::setrlimit(RLIMIT_FSIZE, &limited);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &previous_);
    ::signal(SIGXFSZ, previous_handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  struct rlimit previous_ {};
  void (*previous_handler_)(int) = nullptr;
};

}  // namespace layerpress::test
