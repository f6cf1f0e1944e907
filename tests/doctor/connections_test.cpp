// SPDX-License-Identifier: Apache-2.0
//
// Why each connection is not accelerated, as it shows from outside.
#include "doctor/connections.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "doctor/fake_tree.hpp"

namespace farcall::test {
namespace {

using doctor::Connection;
using doctor::Findings;
using doctor::Severity;

constexpr const char* kHead =
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout "
    "inode\n";

// Of 127.0.0.1 on both sides.
std::string tcp_line(unsigned local, unsigned remote, unsigned state, unsigned inode) {
  return fmt::format(
      "   0: 0100007F:{:04X} 0100007F:{:04X} {:02X} 00000000:00000000 00:00000000 00000000  1000   "
      "  "
      "   0 {} 1 0000000000000000 20 4 30 10 -1\n",
      local, remote, state, inode);
}

// A server, 7, and a client, 8, with `count` connections to port 6379.
class DoctorConnections : public testing::Test {
 protected:
  DoctorConnections() { connect(1); }

  void connect(unsigned count) {
    fake_.process(7, "server").process(8, "client");
    std::string table = kHead + tcp_line(6379, 0, 10, 100);
    for (unsigned i = 0; i < count; ++i) {
      table += tcp_line(6379, 50'000 + i, 1, 1000 + i) + tcp_line(50'000 + i, 6379, 1, 2000 + i);
      fake_.descriptor(7, static_cast<int>(10 + i), fmt::format("socket:[{}]", 1000 + i));
      fake_.descriptor(8, static_cast<int>(10 + i), fmt::format("socket:[{}]", 2000 + i));
    }
    fake_.file("/proc/7/net/tcp", table).file("/proc/8/net/tcp", table);
  }

  // Memory that both have mapped.
  void share(unsigned inode) {
    for (const int pid : {7, 8})
      fake_.maps(pid, fmt::format("7f1000000000-7f1000081000 rw-s 00000000 00:01 {} "
                                  "/memfd:farcall-tcp (deleted)",
                                  inode));
  }
  void take_library(int pid) {
    fake_.file(fmt::format("/proc/{}/maps", pid),
               "7f0000000000-7f0000001000 r-xp 00000000 08:01 7 /lib/libc.so.6\n");
  }

  std::vector<Connection> find(pid_t pid) {
    const doctor::Tree tree = fake_.tree();
    const auto process = doctor::read_process(tree, pid);
    const doctor::Search search{
        .tree = tree,
        .process = *process,
        .unix_sockets = unix_sockets_,
        .wanted = [this](const doctor::Process&, const doctor::End&) { return wanted_; },
        .may_share = [](const doctor::Process& one,
                        const doctor::Process& other) { return one.user == other.user; },
        .told = told_};
    return doctor::find_connections(search);
  }
  // The only one; and its reason.
  Connection only(pid_t pid) {
    const auto all = find(pid);
    EXPECT_EQ(all.size(), 1U);
    return all.empty() ? Connection{} : all.front();
  }
  Findings judge(pid_t pid, const std::string& obstacle = {}) {
    Findings findings;
    doctor::judge(*doctor::read_process(fake_.tree(), pid), find(pid), obstacle, findings);
    expect_sentences(findings);
    return findings;
  }

  FakeTree fake_;
  std::vector<doctor::UnixSocket> unix_sockets_;
  std::function<std::optional<doctor::Told>(pid_t, int)> told_;
  bool wanted_ = true;
};

TEST_F(DoctorConnections, AreAcceleratedWhereBothMapTheirMemory) {
  share(500);
  const Connection one = only(7);
  EXPECT_EQ(one.accelerated, 1U);
  EXPECT_EQ(one.reason, "");
  EXPECT_EQ(one.endpoint, "127.0.0.1:6379");
  EXPECT_EQ(one.peer, "client (process 8)");
  EXPECT_EQ(only(8).endpoint, "127.0.0.1:6379") << "of the server, seen from the client";
  EXPECT_EQ(ids(judge(7)), "");
}

TEST_F(DoctorConnections, AreCountedTogetherWhereTheyAreAlike) {
  connect(3);
  share(500);
  share(501);
  const Connection one = only(7);
  EXPECT_EQ(one.count, 3U);
  EXPECT_EQ(one.accelerated, 2U);
  EXPECT_EQ(one.reason, "undecided");
  const Findings findings = judge(7);
  ASSERT_EQ(ids(findings), "undecided ");
  EXPECT_EQ(findings[0].about, "tcp 127.0.0.1:6379 with client (process 8), 1 of 3 connections");
}

TEST_F(DoctorConnections, AreNotAcceleratedByMemoryThatOthersShare) {
  fake_.maps(7, "7f1000000000-7f1000081000 rw-s 00000000 00:01 9 /memfd:farcall-tcp (deleted)");
  EXPECT_EQ(only(7).reason, "undecided");
}

TEST_F(DoctorConnections, NeedTheLibraryAtTheOtherEnd) {
  take_library(8);
  const Findings findings = judge(7);
  ASSERT_EQ(ids(findings), "peer-without-library ");
  EXPECT_EQ(findings[0].severity, Severity::warning);
}

TEST_F(DoctorConnections, NeedTheLibraryAtThisEnd) {
  take_library(7);
  const Findings findings = judge(7);
  ASSERT_EQ(ids(findings), "library-not-loaded ");
  EXPECT_EQ(findings[0].severity, Severity::fault);
  EXPECT_NE(findings[0].cause.find("1 of its connections"), std::string::npos);
  EXPECT_NE(findings[0].cure.find("farcall run"), std::string::npos);
}

TEST_F(DoctorConnections, TellWhyTheLibraryCannotBeLoaded) {
  take_library(7);
  EXPECT_NE(judge(7, "it is static")[0].cause.find("it is static"), std::string::npos);
}

TEST_F(DoctorConnections, TellWhereTheLibraryWasAskedForInVain) {
  take_library(7);
  fake_.file("/proc/7/environ", "LD_PRELOAD=/gone/libfarcall-preload.so");
  EXPECT_NE(judge(7)[0].cause.find("LD_PRELOAD names"), std::string::npos);
}

TEST_F(DoctorConnections, AreNotWantedBySettings) {
  wanted_ = false;
  EXPECT_EQ(ids(judge(7)), "switched-off ");
}

TEST_F(DoctorConnections, AreNotSharedWithOtherUsers) {
  fake_.file("/proc/8/status", status_of(8, "client", "Uid", "33\t33\t33\t33"));
  EXPECT_EQ(ids(judge(7)), "other-user ");
}

TEST_F(DoctorConnections, AreTheKernelsWhereOneEndHasAnIoUring) {
  fake_.descriptor(8, 3, "anon_inode:[io_uring]");
  EXPECT_EQ(ids(judge(7)), "io-uring ");
}

TEST_F(DoctorConnections, WaitForAPeerThatIsStopped) {
  fake_.file("/proc/8/status", status_of(8, "client", "State", "T (stopped)"));
  const Findings findings = judge(7);
  ASSERT_EQ(ids(findings), "peer-stopped ");
  EXPECT_EQ(findings[0].severity, Severity::fault);
}

TEST_F(DoctorConnections, MayBeHeldBySeveralProcesses) {
  fake_.process(9, "child").descriptor(9, 10, "socket:[1000]");
  EXPECT_EQ(ids(judge(7)), "held-by-several ");
}

TEST_F(DoctorConnections, MayLeadToSomebodyWhoMayNotBeSeen) {
  fake_.file("/proc/8/maps", "");
  EXPECT_EQ(ids(judge(7)), "peer-unseen ");
}

TEST_F(DoctorConnections, MayLeadToAnotherMachine) {
  fake_.file("/proc/7/net/tcp", kHead + tcp_line(50'000, 443, 1, 1000));
  EXPECT_EQ(ids(judge(7)), "not-local ");
}

TEST_F(DoctorConnections, MayLeadToAnotherNetworkNamespace) {
  fake_.file("/proc/7/net/tcp", kHead + tcp_line(6379, 50'000, 1, 1000))
      .file("/proc/8/net/tcp", kHead + tcp_line(50'000, 6379, 1, 2000))
      .link("/proc/8/ns/net", "net:[2]");
  const Findings findings = judge(7);
  ASSERT_EQ(ids(findings), "network-namespaces ");
  EXPECT_NE(findings[0].cure.find("docker run --network container:"), std::string::npos);
}

TEST_F(DoctorConnections, AreWhatTheProcessItselfTells) {
  told_ = [](pid_t, int fd) -> std::optional<doctor::Told> {
    EXPECT_EQ(fd, 10);
    return doctor::Told{.accelerated = true, .reason = {}};
  };
  EXPECT_EQ(only(7).accelerated, 1U);
  for (const char* const reason : {"no-proof", "too-many", "option", "broken"}) {
    told_ = [&](pid_t, int) { return doctor::Told{.accelerated = false, .reason = reason}; };
    EXPECT_EQ(ids(judge(7)), std::string(reason) + " ");
  }
  told_ = [](pid_t, int) { return doctor::Told{}; };
  EXPECT_EQ(ids(judge(7)), "undecided ");
}

// Who gave it back knows why, and the other end only that nothing comes of it.
TEST_F(DoctorConnections, AreWhatTheEndTellsThatGaveThemBack) {
  doctor::Told here;
  doctor::Told there{.accelerated = false, .reason = "option"};
  told_ = [&](pid_t pid, int) { return pid == 7 ? here : there; };
  for (const char* const reason : {"peer-silent", "peer-gave-back", ""}) {
    here = {.accelerated = false, .reason = reason};
    EXPECT_EQ(ids(judge(7)), "option ") << reason;
  }
  // It moves nothing, and so has not been told of that yet.
  here = {.accelerated = true, .reason = {}};
  EXPECT_EQ(only(7).accelerated, 0U);
  EXPECT_EQ(ids(judge(7)), "option ");
  here = {.accelerated = false, .reason = "passed"};
  EXPECT_EQ(ids(judge(7)), "passed ");
  here = {.accelerated = false, .reason = "peer-gave-back"};
  there = {.accelerated = false, .reason = {}};
  EXPECT_EQ(ids(judge(7)), "peer-gave-back ");
}

TEST_F(DoctorConnections, DoNotNeedTheLibraryWhereItIs) {
  told_ = [](pid_t, int) { return doctor::Told{.accelerated = false, .reason = "peer-silent"}; };
  const Findings findings = judge(7);
  ASSERT_EQ(ids(findings), "peer-silent ");
  EXPECT_EQ(findings[0].cure.find("farcall run"), std::string::npos) << findings[0].cure;
}

std::string udp(unsigned local, const char* address, unsigned remote, unsigned state,
                unsigned inode) {
  return fmt::format("  1: {}:{:04X} {}:{:04X} {:02X} 0:0 0:0 0 1000 0 {} 2 0 0\n",
                     remote == 0 ? "00000000" : "0100007F", local, address, remote, state, inode);
}

// Of two that are connected to each other one is told, and only of those.
TEST_F(DoctorConnections, OverUdpMayHaveBothEndsInOneProcess) {
  fake_.descriptor(7, 11, "socket:[900]").file("/proc/7/net/tcp", "");
  const std::string client = udp(40'000, "0100007F", 8125, 1, 1000);
  fake_.file("/proc/7/net/udp", kHead + client + udp(8125, "00000000", 0, 7, 900));
  EXPECT_EQ(only(7).endpoint, "127.0.0.1:8125");
  fake_.file("/proc/7/net/udp", kHead + client + udp(8125, "0100007F", 40'000, 1, 900));
  EXPECT_EQ(only(7).endpoint, "127.0.0.1:40000");
}

TEST_F(DoctorConnections, OverUdpAreMatchedWithWhoIsBoundThere) {
  fake_.file("/proc/7/net/tcp", "")
      .file("/proc/7/net/udp",
            kHead + udp(40'000, "0100007F", 8125, 1, 1000) + udp(8125, "00000000", 0, 7, 2000));
  const Connection one = only(7);
  EXPECT_EQ(one.endpoint, "127.0.0.1:8125");
  EXPECT_EQ(one.peer_pid, 8);
}

TEST_F(DoctorConnections, OverIpv6HaveAddressesInBrackets) {
  const auto six = [](unsigned local, unsigned remote, unsigned inode) {
    const char* const loopback = "00000000000000000000000001000000";
    return fmt::format("  0: {0}:{1:04X} {0}:{2:04X} 01 0:0 0:0 0 1000 0 {3} 1 0\n", loopback,
                       local, remote, inode);
  };
  fake_.file("/proc/7/net/tcp", "")
      .file("/proc/7/net/tcp6", kHead + six(80, 50'000, 1000) + six(50'000, 80, 2000));
  share(500);
  const Connection one = only(7);
  EXPECT_EQ(one.endpoint, "[::1]:50000") << "nobody listens there, so the other end is named";
  EXPECT_EQ(one.accelerated, 1U);
}

// --- unix sockets

class DoctorUnixConnections : public DoctorConnections {
 protected:
  DoctorUnixConnections() { fake_.file("/proc/7/net/tcp", "").file("/proc/8/net/tcp", ""); }
  void pair(int type, const char* name) {
    unix_sockets_ = {{.number = 1000, .peer = 2000, .type = type, .name = name},
                     {.number = 2000, .peer = 1000, .type = type, .name = ""}};
  }
};

TEST_F(DoctorUnixConnections, HaveTheServersName) {
  pair(SOCK_STREAM, "/run/redis.sock");
  fake_.maps(7, "7f1000000000-7f1000081000 rw-s 00000000 00:01 9 /memfd:farcall-unix (deleted)");
  fake_.maps(8, "7f1000000000-7f1000081000 rw-s 00000000 00:01 9 /memfd:farcall-unix (deleted)");
  EXPECT_EQ(only(7).accelerated, 1U);
  EXPECT_EQ(only(8).endpoint, "/run/redis.sock");
}

TEST_F(DoctorUnixConnections, OfDatagramsAreLeftToTheKernel) {
  pair(SOCK_DGRAM, "/run/log.sock");
  EXPECT_EQ(ids(judge(7)), "unix-datagrams ");
}

TEST_F(DoctorUnixConnections, ToServicesOfTheSystemAreANote) {
  pair(SOCK_STREAM, "/run/systemd/journal/stdout");
  take_library(8);
  const Findings findings = judge(7);
  ASSERT_EQ(ids(findings), "peer-without-library ");
  EXPECT_EQ(findings[0].severity, Severity::note);
}

TEST_F(DoctorUnixConnections, ThatAProcessKeepsForItselfAreNone) {
  pair(SOCK_STREAM, "");
  fake_.descriptor(7, 11, "socket:[2000]");
  fake_.descriptor(8, 10, "/dev/null");
  EXPECT_TRUE(find(7).empty());
}

// --- sockets that are there

TEST(DoctorSockets, AreFoundOfThisProcess) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(listener, 1), 0);
  ASSERT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const int client = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(::connect(client, reinterpret_cast<sockaddr*>(&address), size), 0);
  const int server = ::accept(listener, nullptr, nullptr);
  const doctor::Tree tree;
  const auto process = doctor::read_process(tree, ::getpid());
  ASSERT_TRUE(process);
  const doctor::Search search{
      .tree = tree,
      .process = *process,
      .unix_sockets = {},
      .wanted = [](const doctor::Process&, const doctor::End&) { return true; },
      .may_share = [](const doctor::Process&, const doctor::Process&) { return true; },
      .told = {}};
  const std::string endpoint = fmt::format("127.0.0.1:{}", ntohs(address.sin_port));
  const auto all = doctor::find_connections(search);
  const auto found = std::ranges::find(all, endpoint, &Connection::endpoint);
  ASSERT_NE(found, all.end());
  EXPECT_EQ(found->count, 1U) << "both ends are this process's";
  EXPECT_EQ(found->peer_pid, ::getpid());
  EXPECT_EQ(found->reason, "library-not-loaded");
  for (const int fd : {listener, client, server}) ::close(fd);
}

TEST(DoctorSockets, OfUnixAreAskedOfTheKernel) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const auto process = doctor::read_process(doctor::Tree(), ::getpid());
  ASSERT_TRUE(process);
  const auto all = doctor::ask_for_unix_sockets();
  const auto own = std::ranges::count_if(all, [&](const doctor::UnixSocket& socket) {
    return socket.type == SOCK_SEQPACKET && process->sockets.contains(socket.number) &&
           process->sockets.contains(socket.peer);
  });
  EXPECT_EQ(own, 2);
  ::close(ends[0]);
  ::close(ends[1]);
}

}  // namespace
}  // namespace farcall::test
