#include "layerpress/base/system/machine.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "layerpress/base/file.h"
#include "layerpress/base/system/memory_sampler.h"
#include "tests/checkpoint/temporary_folder.h"

namespace layerpress {
namespace {

using test::TemporaryFolder;

constexpr std::uint64_t kGigabyte = 1'000'000'000;

/// Trees like /proc and /sys/fs/cgroup on a machine with 8 GiB available.
class FakeMachine {
 public:
  FakeMachine() {
    proc("meminfo", "MemTotal:       16777216 kB\nMemFree:         1048576 kB\nMemAvailable:    8388608 kB\n");
    group("x", "");  // the folder exists
  }
  void proc(const std::string& name, const std::string& text) { folder_.write("proc/" + name, text); }
  void group(const std::string& name, const std::string& text) { folder_.write("cgroup/" + name, text); }
  void v2_group(const std::string& name, const std::string& limit, std::uint64_t used, std::uint64_t file_pages) {
    group(name + "/memory.max", limit + "\n");
    group(name + "/memory.current", std::to_string(used) + "\n");
    group(name + "/memory.stat",
          fmt::format("anon 77\nfile {}\ninactive_file {}\nactive_file 1000\nslab 5\n", file_pages, file_pages - 1000));
  }
  double quota() const { return cpu_quota(folder_ / "proc", folder_ / "cgroup"); }
  std::uint64_t available() const { return available_memory(folder_ / "proc", folder_ / "cgroup"); }

 private:
  TemporaryFolder folder_;
};

constexpr std::uint64_t kMachineHas = 8388608ull * 1024;

TEST(AvailableMemory, WithoutLimitsItIsTheMachines) {
  FakeMachine machine;
  EXPECT_EQ(machine.available(), kMachineHas);
  machine.proc("self/cgroup", "0::/user/session\n");
  machine.group("cgroup.controllers", "memory");
  machine.v2_group("user/session", "max", 3 * kGigabyte, 2000);
  EXPECT_EQ(machine.available(), kMachineHas);
}

TEST(AvailableMemory, NothingKnownIsZero) {
  const TemporaryFolder folder;
  EXPECT_EQ(available_memory(folder / "proc", folder / "cgroup"), 0u);
}

TEST(AvailableMemory, EveryLevelOfTheUnifiedTreeCounts) {
  FakeMachine machine;
  machine.proc("self/cgroup", "0::/outer/inner\n");
  machine.group("cgroup.controllers", "memory");
  machine.v2_group("outer/inner", std::to_string(5 * kGigabyte), kGigabyte, 400'000'000);
  EXPECT_EQ(machine.available(), 5 * kGigabyte - 600'000'000);
  machine.v2_group("outer", std::to_string(4 * kGigabyte), 2 * kGigabyte, kGigabyte);
  EXPECT_EQ(machine.available(), 3 * kGigabyte);
  machine.group("outer/memory.high", "3500000000\n");
  EXPECT_EQ(machine.available(), 2'500'000'000u);
  machine.v2_group("outer/inner", std::to_string(kGigabyte), 2 * kGigabyte, 5000);
  EXPECT_EQ(machine.available(), 1u);  // nothing left, which is not "unknown"
}

TEST(AvailableMemory, AContainerSeesItsOwnGroupAsTheRoot) {
  FakeMachine machine;
  machine.proc("self/cgroup", "0::/docker/0123abcd\n");  // the host's name for it
  machine.group("cgroup.controllers", "memory");
  machine.v2_group(".", "2000000000", 500'000'000, 2000);
  EXPECT_EQ(machine.available(), 1'500'002'000u);
  machine.proc("self/cgroup", "0::/../../elsewhere\n");
  EXPECT_EQ(machine.available(), 1'500'002'000u);
}

TEST(AvailableMemory, OldControllersCount) {
  FakeMachine machine;
  machine.proc("self/cgroup", "9:name=systemd:/x\n4:cpuset,memory:/job/one\n1:cpu:/\n0::/\n");
  const std::string unlimited = "9223372036854771712\n";
  const auto group = [&](const std::string& name, const std::string& limit, const std::string& stat) {
    machine.group("memory/" + name + "/memory.limit_in_bytes", limit);
    machine.group("memory/" + name + "/memory.usage_in_bytes", "1000000000\n");
    machine.group("memory/" + name + "/memory.stat", stat);
  };
  group("job/one", unlimited, "");
  EXPECT_EQ(machine.available(), kMachineHas);
  group("job", "3000000000\n", "inactive_file 1\nactive_file 2\ntotal_inactive_file 300\ntotal_active_file 400\n");
  EXPECT_EQ(machine.available(), 2'000'000'700u);
  group("job/one", "1500000000\n", "inactive_file 10\nactive_file 20\n");
  EXPECT_EQ(machine.available(), 500'000'030u);
}

TEST(AvailableMemory, UlimitCounts) {
  FakeMachine machine;
  const auto limits = [&](const char* data, const char* address_space) {
    machine.proc("self/limits",
                 fmt::format("Limit                     Soft Limit           Hard Limit           Units     \n"
                             "Max data size             {}           unlimited            bytes     \n"
                             "Max address space         {}           unlimited            bytes     \n",
                             data, address_space));
  };
  machine.proc("self/status", "Name:\tVmSize: 1 kB\nVmPeak:\t  9000 kB\nVmSize:\t   2000 kB\nVmData:\t    1000 kB\n");
  limits("unlimited", "unlimited");
  EXPECT_EQ(machine.available(), kMachineHas);
  limits("unlimited", "1000000000");
  EXPECT_EQ(machine.available(), kGigabyte - 2000 * 1024);
  limits("500000000", "1000000000");
  EXPECT_EQ(machine.available(), kGigabyte / 2 - 1000 * 1024);
}

TEST(Cores, HardwareThreadsOfOneCoreCountOnce) {
  const TemporaryFolder machine;
  const auto core = [&](int processor, const char* threads) {
    machine.write(fmt::format("cpu{}/topology/thread_siblings_list", processor), std::string(threads) + "\n");
  };
  core(0, "0,2"), core(1, "1,3"), core(2, "0,2"), core(3, "1,3");
  EXPECT_EQ(one_per_core({0, 1, 2, 3}, machine / ""), (std::vector<int>{0, 1}));
  EXPECT_EQ(one_per_core({2, 3}, machine / ""), (std::vector<int>{2, 3})) << "bound to the second threads";
  EXPECT_EQ(one_per_core({0, 7, 8}, machine / ""), (std::vector<int>{0, 7, 8})) << "nothing is known of two";
}

TEST(Cores, QuotasOfAllLevelsCount) {
  FakeMachine machine;
  machine.group("cgroup.controllers", "cpu memory\n");
  machine.group("pod/own/cpu.weight", "100\n");
  machine.proc("self/cgroup", "0::/pod/own\n");
  EXPECT_EQ(machine.quota(), std::numeric_limits<double>::infinity());
  machine.group("pod/own/cpu.max", "max 100000\n");
  EXPECT_EQ(machine.quota(), std::numeric_limits<double>::infinity());
  machine.group("pod/cpu.max", "250000 100000\n");
  EXPECT_EQ(machine.quota(), 2.5);
  machine.group("pod/own/cpu.max", "60000 50000\n");
  EXPECT_EQ(machine.quota(), 1.2);
  FakeMachine old;
  old.proc("self/cgroup", "4:cpu,cpuacct:/own\n");
  old.group("cpu/own/cpu.cfs_quota_us", "200000\n");
  old.group("cpu/own/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(old.quota(), 2);
}

TEST(Cores, ThreadsAreThoseOfTheEnvironment) {
  const char* before = std::getenv("OMP_NUM_THREADS");
  const std::string kept = before == nullptr ? "" : before;
  ::setenv("OMP_NUM_THREADS", "3,2", 1);
  EXPECT_EQ(usual_threads(), 3);
  for (const char* none : {"", "0", "-1", "many", "1e9"}) {
    ::setenv("OMP_NUM_THREADS", none, 1);
    EXPECT_EQ(usual_threads(), usable_cores()) << none;
  }
  ::unsetenv("OMP_NUM_THREADS");
  EXPECT_EQ(usual_threads(), usable_cores());
  if (before != nullptr) ::setenv("OMP_NUM_THREADS", kept.c_str(), 1);
}

TEST(Machine, KnowsItself) {
  EXPECT_GE(usable_cores(), 1);
  EXPECT_GT(peak_resident_bytes(), 1'000'000u);
  EXPECT_GT(available_memory(), 1'000'000u);
  EXPECT_GT(anonymous_bytes(), 100'000u);
  EXPECT_LE(anonymous_bytes(), peak_resident_bytes() + 1'000'000);
}

TEST(MemorySampler, SeesMemoryThatIsGoneAgain) {
  constexpr std::size_t kBlock = 96u << 20;
  MemorySampler sampler(1);
  const std::uint64_t before = anonymous_bytes();
  // Not by an allocator, which may keep what is freed.
  void* block = ::mmap(nullptr, kBlock, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(block, MAP_FAILED);
  std::memset(block, 'x', kBlock);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  ASSERT_EQ(::munmap(block, kBlock), 0);
  EXPECT_LT(anonymous_bytes(), before + kBlock / 2);
  EXPECT_GE(sampler.peak_bytes(), before + kBlock * 9 / 10);
}

TEST(MemorySampler, PagesOfFilesAreNotCounted) {
  const TemporaryFolder folder;
  constexpr std::uint64_t kSize = 32u << 20;
  const auto file = MappedFile::open(folder.write("weights", std::string(kSize, 'x')));
  const std::uint64_t before = anonymous_bytes();
  file->fetch(0, kSize);
  EXPECT_LT(anonymous_bytes(), before + kSize / 4);
}

TEST(MemorySampler, StopsAtOnce) {
  const auto begin = std::chrono::steady_clock::now();
  { MemorySampler sampler(60'000); }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

}  // namespace
}  // namespace layerpress
