#include "layerpress/dist/rendezvous.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/dist/thread_ranks.h"

namespace layerpress::dist {
namespace {

TEST(Rendezvous, FindsTheInterfaceOfAnAddress) {
  EXPECT_EQ(interface_of("127.0.0.1"), "lo");
  EXPECT_EQ(interface_of("192.0.2.1"), "");  // for documentation: nobody has it
}

/// Other libraries than Gloo are told of an interface only where it leads to other machines.
TEST(Rendezvous, NamesInterfacesToOtherMachines) {
  ASSERT_EQ(std::getenv("GLOO_SOCKET_IFNAME"), nullptr);
  const Environment environment = rank_environment(0, 1, free_port());
  EXPECT_EQ(network_interfaces(environment, {Peer::self(0, "127.0.0.1")}), "");
  EXPECT_EQ(network_interfaces(environment, {Peer::self(0, "")}), "");
  ::setenv("GLOO_SOCKET_IFNAME", "ib0,ib1", 1);
  EXPECT_EQ(network_interfaces(environment, {Peer::self(0, "127.0.0.1")}), "ib0,ib1");
  ::unsetenv("GLOO_SOCKET_IFNAME");
}

}  // namespace
}  // namespace layerpress::dist
