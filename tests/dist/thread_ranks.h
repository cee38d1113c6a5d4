#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "layerpress/dist/group.h"

namespace layerpress::dist {

/// A port of the loopback interface that nobody uses at the moment.
inline int free_port() {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  (void)::bind(descriptor, reinterpret_cast<sockaddr*>(&address), length);
  ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length);
  ::close(descriptor);
  return ntohs(address.sin_port);
}

inline Environment rank_environment(int rank, int size, int port) {
  Environment environment;
  environment.rank = rank;
  environment.world_size = size;
  environment.master_address = "127.0.0.1";
  environment.master_port = port;
  return environment;
}

inline std::vector<std::string> run_ranks_once(int size, const std::function<void(Group&)>& work,
                                               std::chrono::milliseconds timeout) {
  const int port = free_port();
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      try {
        Group group(rank_environment(rank, size, port), timeout);
        try {
          work(group);
        } catch (const std::exception& error) {
          errors[static_cast<std::size_t>(rank)] = error.what();
          group.fail(error.what());
        }
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}

/// Runs `work` on `size` ranks, each in a thread with a group of its own; returns what each threw ("" for nothing). Ranks that a busy machine
/// does not connect within a short time try again.
inline std::vector<std::string> run_ranks(int size, const std::function<void(Group&)>& work,
                                          std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  std::vector<std::string> errors;
  for (int attempt = 0; attempt < 3; ++attempt) {
    errors = run_ranks_once(size, work, timeout);
    if (std::none_of(errors.begin(), errors.end(),
                     [](const std::string& error) { return error.starts_with("[dist.join]"); }))
      break;
  }
  return errors;
}

}  // namespace layerpress::dist
