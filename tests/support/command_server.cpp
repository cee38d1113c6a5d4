// Preloaded into a program, starts it again and again from a process that has loaded libtorch already, which takes longer than
// most tests. Each request on standard input is a fork whose main gets the arguments, folder, environment and output files of
// the request; the answer on standard output is the process and, when it has ended, its exit code, negative for a signal.
//
// A request: the number of bytes that follow in decimal and a line feed; then, each ended by a zero byte: the folder, the files
// for stdout and stderr, the number of arguments, the arguments, and the variables of the environment.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

using Main = int (*)(int, char**, char**);
using Start = int (*)(Main, int, char**, void (*)(), void (*)(), void (*)(), void*);

Main program_main = nullptr;

[[noreturn]] void give_up(const char* what) {
  std::perror(what);
  std::_Exit(125);
}

/// False at the end of input.
bool read_request(std::vector<std::string>& fields) {
  std::size_t size = 0;
  if (std::scanf("%zu", &size) != 1 || std::getchar() != '\n') return false;
  std::string bytes(size, '\0');
  if (std::fread(bytes.data(), 1, size, stdin) != size) return false;
  fields.clear();
  for (std::size_t at = 0; at < size; at += fields.back().size() + 1) fields.emplace_back(bytes.c_str() + at);
  return fields.size() >= 5;
}

void replace_file(int descriptor, const char* path, int flags) {
  const int opened = ::open(path, flags, 0600);
  if (opened < 0 || ::dup2(opened, descriptor) < 0 || ::close(opened) != 0) give_up(path);
}

/// What the program would be had it been started by the request.
[[noreturn]] void run(std::vector<std::string>& fields) {
  if (::chdir(fields[0].c_str()) != 0) give_up("chdir");
  replace_file(STDIN_FILENO, "/dev/null", O_RDONLY);
  std::clearerr(stdin);
  replace_file(STDOUT_FILENO, fields[1].c_str(), O_WRONLY | O_CREAT | O_TRUNC);
  replace_file(STDERR_FILENO, fields[2].c_str(), O_WRONLY | O_CREAT | O_TRUNC);
  const std::size_t count = std::stoul(fields[3]), first = 4;
  std::vector<char*> arguments;
  for (std::size_t i = 0; i < count; ++i) arguments.push_back(fields.at(first + i).data());
  arguments.push_back(nullptr);
  if (::clearenv() != 0) give_up("clearenv");
  for (std::size_t i = first + count; i < fields.size(); ++i) ::putenv(fields[i].data());
  const int code = program_main(static_cast<int>(count), arguments.data(), environ);
  std::fflush(nullptr);
  std::_Exit(code);  // destroying libtorch's registries takes as long as loading it
}

int serve(int, char**, char**) {
  std::vector<std::string> fields;
  while (read_request(fields)) {
    const pid_t child = ::fork();
    if (child < 0) give_up("fork");
    if (child == 0) run(fields);
    int status = 0;
    std::printf("%d\n", static_cast<int>(child));
    std::fflush(stdout);
    if (::waitpid(child, &status, 0) != child) give_up("waitpid");
    std::printf("%d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
    std::fflush(stdout);
  }
  std::_Exit(0);
}

}  // namespace

/// Stands before the C library's, which calls `main`.
extern "C" int __libc_start_main(Main main, int argc, char** argv, void (*init)(), void (*fini)(),
                                 void (*loader_fini)(), void* stack_end) {
  program_main = main;
  const auto start = reinterpret_cast<Start>(::dlsym(RTLD_NEXT, "__libc_start_main"));
  return start(serve, argc, argv, init, fini, loader_fini, stack_end);
}
