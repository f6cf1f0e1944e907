// SPDX-License-Identifier: Apache-2.0
//
// With whom memory of datagrams is shared: not with users who have no name, and only with who holds
// the socket for which it speaks.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

#include "children.hpp"
#include "datagrams.hpp"
#include "farcall/memory.hpp"
#include "unix_message.hpp"

namespace farcall::preload {
namespace {

TEST(DatagramCorners, OfUsersWithoutANameAreNotShared) {
  const int status = outcome_in_child([] {
    if (::unshare(CLONE_NEWUSER) != 0) ::_exit(77);
    if (::geteuid() != 65534) ::_exit(77);
    const Socket one;
    const Socket other;
    one.connect_to(other);
    other.connect_to(one);
    for (int i = 0; i < 40; ++i) {
      one.send("ping");
      if (other.receive() != "ping") return false;
    }
    return shared_mappings() == 0;
  });
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
    GTEST_SKIP() << "user namespaces cannot be made here";
  EXPECT_EQ(status, 0);
}

// Somebody who speaks for a socket, as a sender does that wants to share memory with `server`.
class Claimant {
 public:
  explicit Claimant(const Socket& server) : server_(server) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    const auto* to = reinterpret_cast<const sockaddr_in*>(&server.name);
    char text[64];
    std::snprintf(text, sizeof text, "farcall/udp/00000000000000000000ffff%08x%04x",
                  ntohl(to->sin_addr.s_addr), ntohs(to->sin_port));
    std::memcpy(name.sun_path + 1, text, std::strlen(text));
    const auto size =
        static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + std::strlen(text));
    EXPECT_EQ(::connect(connection_.get(), reinterpret_cast<sockaddr*>(&name), size), 0);
    look();
    EXPECT_EQ(::recv(connection_.get(), &answer_, sizeof answer_, MSG_DONTWAIT), 16);
  }
  // Whether it is believed that `shown` is the socket at the address of `claimed`.
  bool is_believed(const Socket& claimed, int shown) {
    constexpr std::uint64_t kRing = 65536;
    const UniqueFd memory(
        static_cast<int>(::syscall(SYS_memfd_create, "farcall-udp", MFD_ALLOW_SEALING)));
    EXPECT_EQ(::ftruncate(memory.get(), 4096 + kRing), 0);
    EXPECT_EQ(::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
    struct Address {
      std::uint8_t bytes[16];
      std::uint16_t port;
    };
    const auto address_of = [](const Socket& socket) {
      const auto* name = reinterpret_cast<const sockaddr_in*>(&socket.name);
      Address address{};
      address.bytes[10] = address.bytes[11] = 0xff;
      std::memcpy(address.bytes + 12, &name->sin_addr, 4);
      address.port = ntohs(name->sin_port);
      return address;
    };
    std::uint64_t cookie = 0;
    socklen_t size = sizeof cookie;
    EXPECT_EQ(::getsockopt(claimed.fd.get(), SOL_SOCKET, SO_COOKIE, &cookie, &size), 0);
    struct {
      std::uint64_t magic, sender_cookie, receiver_cookie, ring_bytes;
      Address from, to;
    } hello{answer_.magic,      cookie, answer_.receiver_cookie, kRing, address_of(claimed),
            address_of(server_)};
    const std::string bytes(reinterpret_cast<const char*>(&hello), sizeof hello);
    EXPECT_EQ(send_with(connection_.get(), bytes, {memory.get(), shown}), std::ssize(bytes));
    const int before = shared_mappings();
    look();
    return shared_mappings() == before + 1;
  }

 private:
  // Has the server look who is there.
  void look() const {
    const Stranger stranger;
    for (int i = 0; i < 20; ++i) {
      stranger.send_to(server_, "x");
      EXPECT_EQ(server_.receive(), "x");
    }
  }
  const Socket& server_;
  UniqueFd connection_{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
  struct {
    std::uint64_t magic, receiver_cookie;
  } answer_{};
};

TEST(DatagramCorners, OfWhoDoesNotHoldTheSocketAreNotShared) {
  if (!preloaded()) GTEST_SKIP() << "without the library there is nobody to lie to";
  const Socket server;
  const Socket victim;
  const Socket own;
  const Stranger stranger;
  for (int i = 0; i < 8; ++i) {
    stranger.send_to(server, "x");
    EXPECT_EQ(server.receive(), "x");
  }
  EXPECT_FALSE(Claimant(server).is_believed(victim, own.fd.get()));
  EXPECT_FALSE(Claimant(server).is_believed(victim, 0));
  struct stat status {};
  ASSERT_EQ(::fstat(victim.fd.get(), &status), 0);
  const std::string link = "socket:[" + std::to_string(status.st_ino) + "]";
  const UniqueFd namesake(::memfd_create(link.c_str(), MFD_CLOEXEC));
  EXPECT_FALSE(Claimant(server).is_believed(victim, namesake.get()));
  // One that names the socket and does not keep it.
  const std::string path = "/proc/self/fd/" + std::to_string(victim.fd.get());
  const UniqueFd witness(::open(path.c_str(), O_PATH | O_CLOEXEC));
  EXPECT_TRUE(Claimant(server).is_believed(victim, witness.get()));
}

}  // namespace
}  // namespace farcall::preload
