#include "layerpress/base/system/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <optional>
#include <sstream>
#include <system_error>
#include <thread>

#include "layerpress/base/error.h"
#include "layerpress/base/files/descriptor.h"
#include "layerpress/base/system/child_environment.h"

namespace layerpress {
namespace {

constexpr std::size_t kKeptBytes = 64u << 10;
constexpr int kPollMilliseconds = 100;

std::string error_text(int code) { return std::generic_category().message(code); }

/// Both ends of a stream: `ours` stays in this process, `theirs` becomes a standard stream of the child. It is a socket
/// pair, because a send on a socket can suppress SIGPIPE if the child has ended.
struct Stream {
  Descriptor ours;
  Descriptor theirs;

  Stream() {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
      throw DataError("[base.run_child] cannot open a stream to a child process: {}", error_text(errno));
    ours = Descriptor(ends[0]);
    theirs = Descriptor(ends[1]);
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  }
};

/// Settings for posix_spawn: the child's streams, default signal handling and no blocked signals.
class SpawnSettings {
 public:
  SpawnSettings(const Stream& input, const Stream& output, const Stream& errors) {
    posix_spawn_file_actions_init(&actions_);
    posix_spawn_file_actions_adddup2(&actions_, input.theirs.value(), STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions_, output.theirs.value(), STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions_, errors.theirs.value(), STDERR_FILENO);
    // Not all libraries mark their sockets close-on-exec. A connection that a child holds open does not look lost to
    // its peer.
    posix_spawn_file_actions_addclosefrom_np(&actions_, STDERR_FILENO + 1);
    sigset_t reset;
    sigset_t blocked;
    sigemptyset(&blocked);
    sigemptyset(&reset);
    for (const int signal_number : {SIGINT, SIGTERM, SIGPIPE}) sigaddset(&reset, signal_number);
    posix_spawnattr_init(&attributes_);
    posix_spawnattr_setsigdefault(&attributes_, &reset);
    posix_spawnattr_setsigmask(&attributes_, &blocked);
    posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  }
  ~SpawnSettings() {
    posix_spawn_file_actions_destroy(&actions_);
    posix_spawnattr_destroy(&attributes_);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;

  const posix_spawn_file_actions_t* actions() const { return &actions_; }
  const posix_spawnattr_t* attributes() const { return &attributes_; }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

/// A running child. The destructor ends it if it still runs, so that no child outlives an exception.
class Child {
 public:
  explicit Child(pid_t process) : process_(process) {}
  ~Child() {
    if (!wait_status_) end();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  /// Whether it has ended; does not wait.
  bool ended() {
    int status = 0;
    if (!wait_status_ && ::waitpid(process_, &status, WNOHANG) == process_) wait_status_ = status;
    return wait_status_.has_value();
  }

  /// REQUIRES: ended().
  int exit_code() const {
    const int status = wait_status_.value();
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  void end() {
    using namespace std::chrono_literals;
    ::kill(process_, SIGTERM);
    for (int waited = 0; waited < 200 && !ended(); ++waited) std::this_thread::sleep_for(10ms);
    if (ended()) return;
    ::kill(process_, SIGKILL);
    while (::waitpid(process_, nullptr, 0) < 0 && errno == EINTR) continue;
  }

  pid_t process_;
  std::optional<int> wait_status_;
};

std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

pid_t spawn(const ChildProgram& program, const SpawnSettings& settings) {
  const std::vector<std::string> environment = child_environment(program.gets_hub_token);
  std::vector<char*> arguments = pointers_to(program.arguments), variables = pointers_to(environment);
  pid_t process = -1;
  const int failure = ::posix_spawnp(&process, arguments[0], settings.actions(), settings.attributes(),
                                     arguments.data(), variables.data());
  if (failure != 0)
    throw DataError("[base.run_child] cannot run '{}': {}; {}", arguments[0], error_text(failure), program.hint);
  return process;
}

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

/// Sends as much as the stream accepts; closes it when all is sent or the child no longer reads.
void send_some(Descriptor& stream, std::string_view& rest) {
  const ssize_t sent = ::send(stream.value(), rest.data(), rest.size(), MSG_NOSIGNAL);
  if (sent > 0) rest.remove_prefix(static_cast<std::size_t>(sent));
  if (rest.empty() || (sent < 0 && !would_block())) stream.close();
}

/// Appends received bytes, returns them and keeps the last part; closes the stream at its end.
std::string receive_some(Descriptor& stream, std::string& kept) {
  std::array<char, 16384> buffer;
  const ssize_t received = ::read(stream.value(), buffer.data(), buffer.size());
  std::string bytes(buffer.data(), received > 0 ? static_cast<std::size_t>(received) : 0);
  kept += bytes;
  if (kept.size() > 2 * kKeptBytes) kept.erase(0, kept.size() - kKeptBytes);
  if (received == 0 || (received < 0 && !would_block())) stream.close();
  return bytes;
}

/// Cuts a stream into lines. A line that grows beyond what is kept of a stream is dropped.
class Lines {
 public:
  explicit Lines(const std::function<void(std::string_view)>& on_line) : on_line_(on_line) {}

  void add(const std::string& bytes) {
    if (!on_line_) return;
    rest_ += bytes;
    std::size_t begin = 0;
    for (std::size_t end; (end = rest_.find('\n', begin)) != std::string::npos; begin = end + 1)
      on_line_(std::string_view(rest_).substr(begin, end - begin));
    rest_.erase(0, rest_.size() - begin > kKeptBytes ? rest_.size() : begin);
  }

 private:
  const std::function<void(std::string_view)>& on_line_;
  std::string rest_;
};

/// What the child is sent, and what its output is passed to.
struct Dialogue {
  std::string_view input;
  Lines lines;
};

/// Transfers bytes until the child has ended and no more output comes from it. A grandchild that keeps a stream open
/// does not delay this.
void exchange(Child& child, std::array<Descriptor*, 3> streams, Dialogue dialogue, ChildResult& result,
              const RunControl& control) {
  auto& [to_child, output, errors] = streams;
  for (;;) {
    control.check_stop();
    std::array<pollfd, 3> waiting = {pollfd{to_child->value(), POLLOUT, 0}, pollfd{output->value(), POLLIN, 0},
                                     pollfd{errors->value(), POLLIN, 0}};
    // Check before waiting: the output of an ended child has already arrived.
    const bool ended = child.ended();
    const bool all_closed = output->value() < 0 && errors->value() < 0;
    const int ready = ::poll(waiting.data(), waiting.size(), ended ? 0 : all_closed ? 5 : kPollMilliseconds);
    if (ended && (ready == 0 || all_closed)) return;
    if (waiting[0].revents != 0) send_some(*to_child, dialogue.input);
    if (waiting[1].revents != 0) dialogue.lines.add(receive_some(*output, result.output));
    if (waiting[2].revents != 0) receive_some(*errors, result.errors);
  }
}

}  // namespace

ChildResult run_child(const ChildProgram& program, const RunControl& control,
                      const std::function<void(std::string_view)>& on_line) {
  Stream to_child;
  Stream output;
  Stream errors;
  Child child(spawn(program, SpawnSettings(to_child, output, errors)));
  for (Stream* stream : {&to_child, &output, &errors}) stream->theirs.close();
  ChildResult result;
  exchange(child, {&to_child.ours, &output.ours, &errors.ours}, {program.input, Lines(on_line)}, result, control);
  result.exit_code = child.exit_code();
  return result;
}

std::string reported_error(const std::string& errors) {
  constexpr std::string_view kPrefix = "error: ";
  std::string reported;
  std::istringstream lines(errors);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(kPrefix)) reported = line.substr(kPrefix.size());
  return reported;
}

std::string reported_error(const ChildResult& result, const std::string& where) {
  const std::string found = reported_error(result.errors);
  std::string last;
  std::istringstream lines(result.errors);
  for (std::string line; std::getline(lines, line);)
    if (!line.empty()) last = line;
  return found.empty() ? fmt::format("{} the helper ended with code {}: {}", where, result.exit_code, last) : found;
}

}  // namespace layerpress
