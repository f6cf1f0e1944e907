// SPDX-License-Identifier: Apache-2.0
//
// Names in the abstract namespace: which there are, whose they are, who gets in.
#include <grp.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "farcall/error.hpp"
#include "farcall/socket.hpp"
#include "harness/child.hpp"
#include "harness/error_of.hpp"
#include "harness/forbidden_call.hpp"
#include "harness/lingering.hpp"
#include "harness/scratch.hpp"
#include "socket/acceptor.hpp"
#include "socket/listener.hpp"
#include "socket/peer.hpp"

namespace farcall::names {
namespace {

using namespace std::chrono_literals;
using test::become;
using test::Child;
using test::error_of;
using test::kNobody;

std::string a_name(const char* what) {
  return std::string("name-test-") + what + "-" + std::to_string(::getpid());
}

UniqueFd bound_to(const AbstractAddress& address, int type) {
  UniqueFd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::bind(socket.get(), address.get(), address.size()), 0);
  return socket;
}

TEST(AbstractAddress, HasOneToAsManyBytesAsThereIsRoomFor) {
  EXPECT_EQ(error_of([] { AbstractAddress(""); }), EINVAL);
  const std::string longest = a_name("longest");
  const AbstractAddress address(longest +
                                std::string(AbstractAddress::kLongest - longest.size(), 'x'));
  const UniqueFd socket = bound_to(address, SOCK_STREAM);
  const auto found = AbstractAddress::of(socket.get());
  ASSERT_TRUE(found);
  EXPECT_EQ(found->name(), address.name());
  EXPECT_EQ(found->name().size(), AbstractAddress::kLongest);
  EXPECT_EQ(error_of([] { AbstractAddress(std::string(AbstractAddress::kLongest + 1, 'x')); }),
            ENAMETOOLONG);
}

TEST(AbstractAddress, IsNoneOfASocketThatHasNoSuchName) {
  EXPECT_FALSE(AbstractAddress::of(-1));
  const UniqueFd unnamed(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_FALSE(AbstractAddress::of(unnamed.get()));
  const UniqueFd other(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_FALSE(AbstractAddress::of(other.get()));
  // One that has no bytes, which the kernel permits once.
  const UniqueFd empty(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const socklen_t size = offsetof(sockaddr_un, sun_path) + 1;
  if (::bind(empty.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0) {
    EXPECT_FALSE(AbstractAddress::of(empty.get()));
  }
  // One of a path.
  const UniqueFd file(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const test::ScratchDirectory folder;
  const std::string path = folder.file("name");
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(file.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_FALSE(AbstractAddress::of(file.get()));
}

TEST(Listener, IsKnownByItsNameAndItsType) {
  const AbstractAddress address(a_name("listens"));
  const UniqueFd socket = bound_to(address, SOCK_SEQPACKET);
  EXPECT_FALSE(owner_of_listener(address.name(), SOCK_SEQPACKET)) << "it does not listen yet";
  ASSERT_EQ(::listen(socket.get(), 1), 0);
  EXPECT_EQ(owner_of_listener(address.name(), SOCK_SEQPACKET), std::optional(::geteuid()));
  EXPECT_FALSE(owner_of_listener(address.name(), SOCK_STREAM));
  EXPECT_FALSE(owner_of_listener(std::string(address.name()) + "x", SOCK_SEQPACKET));
  EXPECT_FALSE(owner_of_listener(address.name().substr(1), SOCK_SEQPACKET));
}

TEST(Named, ASignalThatWasCaughtSinceEndsTheWaitForAServer) {
  const SignalCount since = SignalCount::now();
  note_signal();
  EXPECT_EQ(error_of([&] { connect_named(a_name("nobody"), Deadline::after(20s), since); }), EINTR);
}

// The kernel, which makes who connects wait for room, knows nothing of it.
TEST(Named, ASignalThatWasCaughtSinceEndsTheWaitForRoom) {
  const std::string name = a_name("full");
  const AbstractAddress address("farcall/" + std::to_string(::geteuid()) + "/" + name);
  const UniqueFd listener = bound_to(address, SOCK_STREAM);
  ASSERT_EQ(::listen(listener.get(), 0), 0);
  const UniqueFd first = connect_named(name, Deadline::now());
  const SignalCount since = SignalCount::now();
  note_signal();
  EXPECT_EQ(error_of([&] { connect_named(name, Deadline::after(20s), since); }), EINTR);
}

TEST(Named, WhoIsSomebodyElseIsTurnedAway) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  const std::string name = a_name("trusts");
  NamedListener listener(name);
  const AbstractAddress address("farcall/0/" + name);
  Child stranger([&] {
    ASSERT_TRUE(become(kNobody));
    const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::connect(socket.get(), address.get(), address.size()), 0);
    char end = 0;
    EXPECT_LE(::recv(socket.get(), &end, 1, 0), 0);
  });
  // The other one is first.
  pollfd entry{.fd = listener.fd(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(::poll(&entry, 1, static_cast<int>(test::kPatience.count())), 1);
  const UniqueFd own = connect_named(name, Deadline::after(20s));
  const UniqueFd client = listener.accept(Deadline::after(20s));
  EXPECT_EQ(peer_credentials(client.get()).pid, ::getpid());
  EXPECT_EQ(stranger.join(), 0);
}

// Somebody else, who connects there without end, in a process of its own.
class Flood {
 public:
  explicit Flood(const AbstractAddress& address)
      : child_([&address] {
          ASSERT_TRUE(become(kNobody));
          std::vector<std::thread> all;
          for (int i = 0; i < 4; ++i)
            all.emplace_back([&address] {
              for (;;) {
                const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
                (void)!::connect(socket.get(), address.get(), address.size());
              }
            });
          for (std::thread& each : all) each.join();
        }) {}

 private:
  Child child_;
};

TEST(Named, StrangersWithoutEndDoNotOutlastTheDeadline) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  const std::string name = a_name("flooded");
  const NamedListener listener(name);
  const AbstractAddress address("farcall/0/" + name);
  const Flood flood(address);
  pollfd entry{.fd = listener.fd(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(::poll(&entry, 1, static_cast<int>(test::kPatience.count())), 1);
  for (int i = 0; i < 5; ++i) {
    const std::int64_t start = monotonic_ns();
    EXPECT_EQ(error_of([&] { (void)listener.accept(Deadline::after(200ms)); }), ETIMEDOUT);
    EXPECT_LT(monotonic_ns() - start, std::chrono::nanoseconds(10s).count());
  }
  const SignalCount since = SignalCount::now();
  note_signal();
  EXPECT_EQ(error_of([&] { (void)listener.accept(Deadline::after(60s), since); }), EINTR);
}

// They may have sent something that takes long to close.
TEST(Acceptor, WhoHasNotBeenLetInIsNotWaitedForAtTheEnd) {
  const AbstractAddress address(a_name("ends"));
  UniqueFd listener = bound_to(address, SOCK_STREAM);
  ASSERT_EQ(::listen(listener.get(), 8), 0);
  process::Acceptor acceptor(std::move(listener));
  const UniqueFd visitor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::connect(visitor.get(), address.get(), address.size()), 0);
  FdMessage message{.bytes = std::vector<std::byte>(1), .descriptors = {}};
  message.descriptors.push_back(test::lingering(60));
  send_fd_message(visitor.get(), message);
  message.descriptors.clear();
  const std::int64_t start = monotonic_ns();
  acceptor.close();
  EXPECT_LT(monotonic_ns() - start, std::chrono::nanoseconds(30s).count());
  char end = 0;
  EXPECT_LE(::recv(visitor.get(), &end, 1, 0), 0) << "it is told";
}

// The first kernels that tell of a peer's process have an error for one that has been waited for;
// those before them have another for what they do not know.
TEST(Peer, HasEndedOnlyWhereTheKernelSaysSo) {
  for (const auto& [error, ended] :
       {std::pair(ESRCH, true), {EINVAL, true}, {ENOPROTOOPT, false}}) {
    SCOPED_TRACE(error);
    test::in_child([error = error, ended = ended] {
      const auto [here, there] = socket_pair();
      ASSERT_TRUE(farcall::test::forbid_call(SYS_getsockopt, static_cast<unsigned>(error)));
      errno = E2BIG;
      EXPECT_EQ(has_peer_ended(here.get()), ended);
      EXPECT_EQ(errno, E2BIG) << "it is not the caller's";
    });
  }
}

TEST(Peer, HasAsManyGroupsAsItHas) {
  if (!test::is_root()) GTEST_SKIP() << "needs root, to have other groups";
  for (const std::size_t count : {0U, 3U, 200U}) {
    SCOPED_TRACE(count);
    test::in_child([count] {
      std::vector<gid_t> groups;
      for (std::size_t i = 0; i < count; ++i) groups.push_back(static_cast<gid_t>(5000 + i));
      ASSERT_EQ(::setgroups(groups.size(), groups.data()), 0);
      const auto [here, there] = socket_pair();
      EXPECT_EQ(groups_of_peer(here.get()), std::optional(groups));
    });
  }
}

}  // namespace
}  // namespace farcall::names
