#pragma once

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

#include "layerpress/base/file.h"

namespace layerpress::test {

/// What a child returns when the machine does not allow what it needs.
inline constexpr int kNotAllowed = 77;

/// A copy of this process that runs `body` and exits with what it returns; 99 when it throws. Killed at the end.
class ChildProcess {
 public:
  template <typename Body>
  explicit ChildProcess(const Body& body) {
    if (::pipe2(said_, O_CLOEXEC) != 0) return;
    process_ = ::fork();
    if (process_ != 0) return;
    int code = 99;
    try {
      code = body(*this);
    } catch (const std::exception& error) {
      say(error.what());
    }
    ::_exit(code);
  }
  ~ChildProcess() {
    kill();
    ::close(said_[0]);
    ::close(said_[1]);
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  /// In the child: tells the parent.
  void say(const std::string& text) const { (void)!::write(said_[1], text.data(), text.size()); }
  /// In the parent: waits for what the child says next.
  std::string hear() const {
    std::string text(4096, '\0');
    const ssize_t length = ::read(said_[0], text.data(), text.size());
    text.resize(length > 0 ? static_cast<std::size_t>(length) : 0);
    return text;
  }
  void kill() {
    if (process_ > 0) ::kill(process_, SIGKILL);
    (void)exit_code();
  }
  /// Waits; minus the signal's number when one ended the child.
  int exit_code() {
    int status = 0;
    if (process_ > 0 && ::waitpid(process_, &status, 0) == process_)
      code_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    process_ = -1;
    return code_;
  }

 private:
  int said_[2] = {-1, -1};
  pid_t process_ = -1;
  int code_ = 99;
};

/// From now on this process's system call `number` fails with `error`: an old kernel, a file system that cannot. With
/// `argument` >= 0 only when that argument is `value`. False where the machine does not allow it.
inline bool deny_system_call(int number, int error, int argument = -1, std::uint32_t value = 0) {
  const auto load = [](std::size_t offset) {
    return sock_filter{BPF_LD | BPF_W | BPF_ABS, 0, 0, static_cast<std::uint32_t>(offset)};
  };
  const auto index = static_cast<std::size_t>(argument < 0 ? 0 : argument);
  const std::size_t field = argument < 0 ? offsetof(seccomp_data, nr) : offsetof(seccomp_data, args) + 8 * index;
  const std::uint32_t wanted = argument < 0 ? static_cast<std::uint32_t>(number) : value;
  sock_filter program[] = {load(offsetof(seccomp_data, nr)),
                           {BPF_JMP | BPF_JEQ | BPF_K, 0, 3, static_cast<std::uint32_t>(number)},
                           load(field),
                           {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, wanted},
                           {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error)},
                           {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW}};
  const sock_fprog filter{6, program};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

/// Puts a disk of `bytes` on `folder`, for this process only. False where the machine does not allow it.
inline bool mount_small_disk(const std::filesystem::path& folder, std::uint64_t bytes) {
  const std::string size = "size=" + std::to_string(bytes);
  return (::unshare(CLONE_NEWNS) == 0 || ::unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0) &&
         ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("tmpfs", folder.c_str(), "tmpfs", 0, size.c_str()) == 0;
}

}  // namespace layerpress::test
