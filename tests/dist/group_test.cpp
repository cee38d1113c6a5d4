#include "layerpress/dist/group.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "layerpress/base/error.h"
#include "tests/dist/thread_ranks.h"

namespace layerpress::dist {
namespace {

using namespace std::chrono_literals;

const std::vector<std::string> kNoErrors2(2), kNoErrors3(3);

TEST(Group, OfOneDoesNothing) {
  Group group;
  EXPECT_EQ(group.size(), 1);
  const at::Tensor values = at::arange(5, at::kFloat);
  const at::Tensor before = values.clone();
  group.all_reduce(values);
  group.broadcast(values, 0);
  group.start_reduce(values, 0).wait();
  EXPECT_TRUE(at::equal(values, before));
  EXPECT_EQ(group.all_gather(values).size(), 1u);
  EXPECT_EQ(group.all_gather_text("words"), std::vector<std::string>{"words"});
  EXPECT_EQ(group.broadcast_text("words", 0), "words");
  group.barrier();
  group.fail("nobody listens");
  group.check();
  EXPECT_TRUE(group.reports_failure());
  EXPECT_EQ(group.sent_bytes(), 0u);
}

TEST(Group, AddsUp) {
  const auto errors = run_ranks(3, [](Group& group) {
    const at::Tensor values = at::full({1000}, static_cast<float>(group.rank() + 1));
    group.all_reduce(values);
    EXPECT_TRUE(at::equal(values, at::full({1000}, 6.0f)));
    const at::Tensor counts = at::full({2}, std::int64_t{1} << 40, at::kLong);
    group.all_reduce(counts);
    EXPECT_EQ(counts[1].item<std::int64_t>(), std::int64_t{3} << 40);
    const at::Tensor part = at::full({7}, static_cast<float>(group.rank()));
    group.start_reduce(part, 2).wait();
    EXPECT_TRUE(group.rank() != 2 || at::equal(part, at::full({7}, 3.0f)));
    EXPECT_GT(group.sent_bytes(), 0u);
  });
  EXPECT_EQ(errors, kNoErrors3);
}

/// Two ranks exchange what they have, three and more go round a ring.
TEST(Group, FindsLargest) {
  for (const int size : {2, 3}) {
    const auto errors = run_ranks(size, [size](Group& group) {
      const auto own = static_cast<float>(group.rank());
      const auto last = static_cast<float>(size - 1);
      const float infinity = std::numeric_limits<float>::infinity();
      const at::Tensor most = at::tensor({own, -own, -infinity, group.rank() == 0 ? -5.0f : -infinity});
      group.all_reduce(most, Reduction::kMax);
      EXPECT_TRUE(at::equal(most, at::tensor({last, 0.0f, -infinity, -5.0f}))) << most;
      const at::Tensor least = at::tensor({-own - 1, own});
      Group::Pending pending = group.start_all_reduce(least, Reduction::kMax);
      const at::Tensor of_last = at::tensor({own, 7.0f});
      group.start_reduce(of_last, size - 1, Reduction::kMax).wait();
      pending.wait();
      EXPECT_TRUE(at::equal(least, at::tensor({-1.0f, last}))) << least;
      EXPECT_TRUE(group.rank() != size - 1 || at::equal(of_last, at::tensor({last, 7.0f}))) << of_last;
    });
    EXPECT_EQ(errors, std::vector<std::string>(static_cast<std::size_t>(size)));
  }
}

TEST(Group, KeepsSeveralOperationsUnderWay) {
  const auto errors = run_ranks(2, [](Group& group) {
    std::vector<at::Tensor> values;
    std::vector<Group::Pending> pending;
    for (int i = 0; i < 6; ++i) {
      values.push_back(at::full({100000}, static_cast<float>(i + group.rank())));
      pending.push_back(group.start_all_reduce(values.back()));
    }
    for (int i = 5; i >= 0; --i) {
      pending[static_cast<std::size_t>(i)].wait();
      EXPECT_TRUE(at::equal(values[static_cast<std::size_t>(i)], at::full({100000}, 2.0f * static_cast<float>(i) + 1)));
    }
  });
  EXPECT_EQ(errors, kNoErrors2);
}

TEST(Group, SharesTensorsAndTexts) {
  const auto errors = run_ranks(3, [](Group& group) {
    const auto tensors = group.all_gather(at::full({4}, group.rank(), at::kByte));
    ASSERT_EQ(tensors.size(), 3u);
    for (int rank = 0; rank < 3; ++rank)
      EXPECT_TRUE(at::equal(tensors[static_cast<std::size_t>(rank)], at::full({4}, rank, at::kByte)));
    const std::string own(static_cast<std::size_t>(group.rank()) * 100000, static_cast<char>('a' + group.rank()));
    const auto texts = group.all_gather_text(own);
    for (std::size_t rank = 0; rank < 3; ++rank)
      EXPECT_EQ(texts[rank], std::string(rank * 100000, static_cast<char>('a' + rank)));
    EXPECT_EQ(group.broadcast_text(group.rank() == 1 ? std::string("one\0two", 7) : "", 1), std::string("one\0two", 7));
    EXPECT_EQ(group.broadcast_text("", 2), "");
    group.barrier();
  });
  EXPECT_EQ(errors, kNoErrors3);
}

TEST(Group, CarriesAnErrorToRanksThatWait) {
  const auto errors = run_ranks(3, [](Group& group) {
    if (group.rank() == 1) throw DataError("[data] row 7: is no text");
    group.barrier();
    ADD_FAILURE() << "the barrier was passed";
  });
  EXPECT_EQ(errors[1], "[data] row 7: is no text");
  for (const int rank : {0, 2}) {
    EXPECT_NE(errors[static_cast<std::size_t>(rank)].find("rank 1 ("), std::string::npos) << errors[0];
    EXPECT_NE(errors[static_cast<std::size_t>(rank)].find("): [data] row 7: is no text"), std::string::npos);
  }
}

TEST(Group, CarriesAnErrorToRanksThatCompute) {
  const auto errors = run_ranks(2, [](Group& group) {
    if (group.rank() == 1) throw MemoryError("[plan] too little");
    for (int i = 0; i < 200; ++i) {
      group.check();
      std::this_thread::sleep_for(50ms);
    }
    ADD_FAILURE() << "nothing was noticed in ten seconds";
  });
  EXPECT_NE(errors[0].find("[plan] too little"), std::string::npos) << errors[0];
}

TEST(Group, ARequestToStopIsNoFailure) {
  run_ranks(2, [](Group& group) {
    if (group.rank() == 1) {
      group.fail("stopped on request", FailureKind::kOnRequest);
      return;
    }
    EXPECT_THROW(group.barrier(), InterruptedError);
  });
}

TEST(Group, OnlyOneRankOfAMachineReports) {
  std::atomic<int> reporters{0};
  run_ranks(3, [&](Group& group) {
    if (group.rank() == 2) group.fail("a reason");
    try {
      for (;;) group.barrier();
    } catch (const DistributedError& error) {
      reporters += group.reports_failure() ? 1 : 0;
      EXPECT_NE(group.failure().find("rank 2 ("), std::string::npos);
    }
  });
  EXPECT_EQ(reporters, 1);
}

TEST(Group, NamesARankThatDoesNothing) {
  const auto errors = run_ranks(
      2,
      [](Group& group) {
        group.on_step("model.layers.3");
        if (group.rank() == 1) std::this_thread::sleep_for(4s);
        group.barrier();
      },
      1s);
  EXPECT_NE(errors[0].find("rank 1 ("), std::string::npos) << errors[0];
  EXPECT_NE(errors[0].find("gave no sign of life for 1 s in step model.layers.3"), std::string::npos) << errors[0];
}

TEST(Group, WaitsForARankThatWorksLonger) {
  const auto errors = run_ranks(
      2,
      [](Group& group) {
        const auto until = std::chrono::steady_clock::now() + 3s;
        volatile double sum = 0;
        if (group.rank() == 1)
          while (std::chrono::steady_clock::now() < until) sum = sum + 1;
        group.barrier();
      },
      1s);
  EXPECT_EQ(errors, kNoErrors2);
}

TEST(Group, NamesRanksThatDoNotCome) {
  const int port = free_port();
  try {
    Group group(rank_environment(0, 3, port), 500ms);
    FAIL();
  } catch (const DistributedError& error) {
    EXPECT_NE(std::string(error.what()).find("ranks 1, 2 of 3 did not join at 127.0.0.1"), std::string::npos)
        << error.what();
  }
  try {
    Group group(rank_environment(1, 2, free_port()), 500ms);
    FAIL();
  } catch (const DistributedError& error) {
    EXPECT_NE(std::string(error.what()).find("no store answers at 127.0.0.1"), std::string::npos) << error.what();
  }
}

TEST(Group, SaysThatThePortIsInUse) {
  sockaddr_in6 address{};
  const int any = ::socket(AF_INET6, SOCK_STREAM, 0);
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_any;
  socklen_t length = sizeof(address);
  ASSERT_EQ(::bind(any, reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(::listen(any, 1), 0);
  ASSERT_EQ(::getsockname(any, reinterpret_cast<sockaddr*>(&address), &length), 0);
  const int port = ntohs(address.sin6_port);
  try {
    Group group(rank_environment(0, 2, port), 500ms);
    FAIL();
  } catch (const DistributedError& error) {
    EXPECT_NE(std::string(error.what()).find(fmt::format(":{}", port)), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("check that MASTER_ADDR is this machine, or set another MASTER_PORT"),
              std::string::npos);
  }
  ::close(any);
}

}  // namespace
}  // namespace layerpress::dist
