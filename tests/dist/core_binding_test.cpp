#include "layerpress/dist/core_binding.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace layerpress::dist {
namespace {

Peer peer(int rank, std::vector<int> cores, std::string machine = "a") {
  return {rank, "host", std::move(machine), 100 + rank, "127.0.0.1", std::move(cores)};
}

std::vector<int> cores_now() {
  cpu_set_t set;
  ::sched_getaffinity(0, sizeof(set), &set);
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  return cores;
}

TEST(OwnCores, RanksOfAMachineDivideItsCores) {
  const std::vector<int> cores{0, 2, 4, 6, 8};
  const std::vector<Peer> peers{peer(0, cores), peer(1, {1}, "b"), peer(2, cores), peer(3, {1}, "b")};
  EXPECT_EQ(own_cores(peers, peers[0], 5), (std::vector<int>{0, 2}));
  EXPECT_EQ(own_cores(peers, peers[2], 5), (std::vector<int>{4, 6, 8}));
}

TEST(OwnCores, NoneWhereRanksWereGivenTheirs) {
  const std::vector<Peer> peers{peer(0, {0, 1}), peer(1, {2, 3})};
  EXPECT_TRUE(own_cores(peers, peers[0], 4).empty());
}

TEST(OwnCores, NoneForRanksOfOneProcess) {
  std::vector<Peer> peers{peer(0, {0, 1}), peer(1, {0, 1})};
  peers[1].process = peers[0].process;
  EXPECT_TRUE(own_cores(peers, peers[0], 2).empty());
}

TEST(OwnCores, NoneForMoreRanksThanCoresAQuotaOrOneRank) {
  const std::vector<Peer> peers{peer(0, {0, 1}), peer(1, {0, 1}), peer(2, {0, 1})};
  EXPECT_TRUE(own_cores(peers, peers[0], 2).empty());
  const std::vector<Peer> two{peers[0], peers[1]};
  EXPECT_TRUE(own_cores(two, two[0], 1).empty());
  EXPECT_FALSE(own_cores(two, two[0], 2).empty());
  EXPECT_TRUE(own_cores({peers[0]}, peers[0], 2).empty());
}

TEST(CoreBinding, HoldsAllThreadsAndGivesTheirCoresBack) {
  const std::vector<int> before = cores_now();
  const int threads = at::get_num_threads();
  std::mutex mutex;
  std::set<std::vector<int>> seen;
  const auto look = [&] {
    seen.clear();
    at::parallel_for(0, threads, 1, [&](std::int64_t, std::int64_t) {
      const std::lock_guard lock(mutex);
      seen.insert(cores_now());
    });
  };
  look();  // the team exists
  {
    const CoreBinding binding({before.back()});
    EXPECT_TRUE(binding.holds());
    look();
    EXPECT_EQ(seen, (std::set<std::vector<int>>{{before.back()}}));
  }
  look();
  EXPECT_EQ(seen, std::set<std::vector<int>>{before});
}

TEST(CoreBinding, EndsWhereOthersCrowdTheCores) {
  const std::vector<int> before = cores_now();
  CoreBinding binding({before.front()});
  const auto work = [](std::chrono::milliseconds duration) {
    const auto until = std::chrono::steady_clock::now() + duration;
    while (std::chrono::steady_clock::now() < until) continue;
  };
  binding.release_if_crowded(60);
  EXPECT_TRUE(binding.holds()) << "the period has not passed";
  std::atomic<bool> stop = false;
  std::thread other([&] {  // inherits the binding
    while (!stop) continue;
  });
  work(std::chrono::milliseconds(300));
  binding.release_if_crowded(0.2);
  stop = true;
  other.join();
  EXPECT_FALSE(binding.holds());
  EXPECT_EQ(cores_now(), before);
}

TEST(CoreBinding, StaysWhereTheThreadOnlySleeps) {
  CoreBinding binding({cores_now().front()});
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // so long that one slow awakening does not count
  binding.release_if_crowded(0.2);
  EXPECT_TRUE(binding.holds());
}

}  // namespace
}  // namespace layerpress::dist
