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
#include <fstream>
#include <string>
#include <vector>

#include "children.hpp"
#include "datagrams.hpp"
#include "farcall/memory.hpp"
#include "preload/datagram_ring.hpp"
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

// Until its library is to be found, and has looked who is there.
void receive_of_a_stranger(const Socket& server, int datagrams) {
  const Stranger stranger;
  for (int i = 0; i < datagrams; ++i) {
    stranger.send_to(server, "x");
    EXPECT_EQ(server.receive(), "x");
  }
}

// Names the socket and does not keep it.
UniqueFd witness_of(const UniqueFd& socket) {
  const std::string path = "/proc/self/fd/" + std::to_string(socket.get());
  return UniqueFd(::open(path.c_str(), O_PATH | O_CLOEXEC));
}

// Where who receives at that address waits for its senders.
socklen_t meeting_name_of(const Socket& server, sockaddr_un& name) {
  name.sun_family = AF_UNIX;
  const auto* to = reinterpret_cast<const sockaddr_in*>(&server.name);
  char text[64];
  std::snprintf(text, sizeof text, "farcall/udp/00000000000000000000ffff%08x%04x",
                ntohl(to->sin_addr.s_addr), ntohs(to->sin_port));
  std::memcpy(name.sun_path + 1, text, std::strlen(text));
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + std::strlen(text));
}

// What a claimant leaves, and says of it.
struct Left {
  int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  std::uint64_t ring = 65'536;  // a power of two
  std::size_t missing = 0;      // of what the memory is said to have
  bool is_of_another_version = false;
};

// Somebody who speaks for a socket, as a sender does that wants to share memory with `server`.
class Claimant {
 public:
  explicit Claimant(const Socket& server) : server_(server) {
    sockaddr_un name{};
    const socklen_t size = meeting_name_of(server, name);
    EXPECT_EQ(::connect(connection_.get(), reinterpret_cast<sockaddr*>(&name), size), 0);
    look();
    EXPECT_EQ(::recv(connection_.get(), &answer_, sizeof answer_, MSG_DONTWAIT), 16);
  }
  // Whether it is believed that `shown` is the socket at the address of `claimed`, of which
  // datagrams come to the server.
  bool is_believed(const Socket& claimed, int shown, const Left& left = {}) {
    return is_believed(claimed, shown, server_, answer_.receiver_cookie, cookie_of(claimed), left);
  }
  // The same, as one that sends from `address`.
  bool is_believed_from(const char* address, const Socket& claimed, int shown) {
    Socket pretended("127.0.0.1");
    pretended.name = claimed.name;
    auto* const name = reinterpret_cast<sockaddr_in*>(&pretended.name);
    EXPECT_EQ(::inet_pton(AF_INET, address, &name->sin_addr), 1);
    return is_believed(pretended, shown, server_, answer_.receiver_cookie, cookie_of(claimed));
  }
  // The same, to another receiver than the one that is asked.
  bool is_believed(const Socket& claimed, int shown, const Socket& to) {
    return is_believed(claimed, shown, to, cookie_of(to), cookie_of(claimed));
  }

  static std::uint64_t cookie_of(const Socket& socket) {
    std::uint64_t cookie = 0;
    socklen_t size = sizeof cookie;
    EXPECT_EQ(::getsockopt(socket.fd.get(), SOL_SOCKET, SO_COOKIE, &cookie, &size), 0);
    return cookie;
  }

 private:
  bool is_believed(const Socket& claimed, int shown, const Socket& to, std::uint64_t receiver,
                   std::uint64_t sender, const Left& left = {}) {
    const UniqueFd memory(
        static_cast<int>(::syscall(SYS_memfd_create, "farcall-udp", MFD_ALLOW_SEALING)));
    const std::size_t bytes_left = 4096 + left.ring - left.missing;
    EXPECT_EQ(::ftruncate(memory.get(), static_cast<off_t>(bytes_left)), 0);
    EXPECT_EQ(::fcntl(memory.get(), F_ADD_SEALS, left.seals), 0);
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
    struct {
      std::uint64_t magic, sender_cookie, receiver_cookie, ring_bytes;
      Address from, to;
    } hello{answer_.magic + (left.is_of_another_version ? 1 : 0),
            sender,
            receiver,
            left.ring,
            address_of(claimed),
            address_of(to)};
    const std::string bytes(reinterpret_cast<const char*>(&hello), sizeof hello);
    EXPECT_EQ(send_with(connection_.get(), bytes, {memory.get(), shown}), std::ssize(bytes));
    const int before = shared_mappings();
    look();
    return shared_mappings() == before + 1;
  }

  // Has the server look who is there.
  void look() const { receive_of_a_stranger(server_, 20); }
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
  receive_of_a_stranger(server, 8);
  EXPECT_FALSE(Claimant(server).is_believed(victim, own.fd.get()));
  EXPECT_FALSE(Claimant(server).is_believed(victim, 0));
  struct stat status {};
  ASSERT_EQ(::fstat(victim.fd.get(), &status), 0);
  const std::string link = "socket:[" + std::to_string(status.st_ino) + "]";
  const UniqueFd namesake(::memfd_create(link.c_str(), MFD_CLOEXEC));
  EXPECT_FALSE(Claimant(server).is_believed(victim, namesake.get()));
  // One that names the socket and does not keep it.
  const UniqueFd witness = witness_of(victim.fd);
  EXPECT_TRUE(Claimant(server).is_believed(victim, witness.get()));
}

// A socket of all addresses is the kernel's answer for any, but nobody sends from one of another
// machine.
TEST(DatagramCorners, FromAnotherMachineAreNotShared) {
  if (!preloaded()) GTEST_SKIP() << "without the library there is nobody to lie to";
  const Socket server;
  const Socket own("0.0.0.0");
  receive_of_a_stranger(server, 8);
  const UniqueFd witness = witness_of(own.fd);
  EXPECT_FALSE(Claimant(server).is_believed_from("192.0.2.1", own, witness.get()));
  EXPECT_TRUE(Claimant(server).is_believed_from("127.0.0.1", own, witness.get()));
}

// Datagrams for one socket would come out of another.
TEST(DatagramCorners, OfAnotherReceiverAreNotShared) {
  if (!preloaded()) GTEST_SKIP() << "without the library there is nobody to lie to";
  const Socket server;
  const Socket other;
  const Socket own;
  receive_of_a_stranger(server, 8);
  const UniqueFd witness = witness_of(own.fd);
  EXPECT_FALSE(Claimant(server).is_believed(own, witness.get(), other));
  EXPECT_TRUE(Claimant(server).is_believed(own, witness.get(), server));
}

// What could be taken away again would end who looks there, and a ring is masked.
TEST(DatagramCorners, InMemoryThatCannotBeTrustedAreNotShared) {
  if (!preloaded()) GTEST_SKIP() << "without the library there is nobody to lie to";
  const Socket server;
  const Socket own;
  receive_of_a_stranger(server, 8);
  const UniqueFd witness = witness_of(own.fd);
  const auto is_believed = [&](const Left& left) {
    return Claimant(server).is_believed(own, witness.get(), left);
  };
  EXPECT_FALSE(is_believed({.seals = F_SEAL_GROW | F_SEAL_SEAL})) << "it may shrink";
  EXPECT_FALSE(is_believed({.missing = 4096})) << "it is shorter than it says";
  EXPECT_FALSE(is_believed({.ring = 65'536 + 4096})) << "it is no power of two";
  EXPECT_FALSE(is_believed({.is_of_another_version = true}));
  EXPECT_TRUE(is_believed({}));
}

// Somebody who speaks for the socket at an address to which others send.
class Pretender {
 public:
  // What it adds to what is right.
  struct Lie {
    std::uint64_t version = 0, socket = 0;
  };
  explicit Pretender(const Socket& server) : Pretender(server, Lie{}) {}
  Pretender(const Socket& server, const Lie& lie) : server_(server), lie_(lie) {
    sockaddr_un name{};
    const socklen_t size = meeting_name_of(server, name);
    EXPECT_EQ(::bind(door_.get(), reinterpret_cast<sockaddr*>(&name), size), 0);
    EXPECT_EQ(::listen(door_.get(), 4), 0);
  }
  // Whether it was shown anything.
  [[nodiscard]] bool was_asked() const { return asked_; }
  // Whether `sender` believes that `shown` is that socket.
  bool is_believed_by(const Socket& sender, int shown) {
    return is_believed_by(sender, std::vector<int>{shown});
  }
  // The same, where more may be shown at once, and something may come with the first answer.
  bool is_believed_by(const Socket& sender, const std::vector<int>& shown,
                      const std::vector<int>& at_first = {}) {
    UniqueFd guest;
    const int before = shared_mappings();
    bool asked = false;
    for (int i = 0; i < 200; ++i) {
      sender.send("x");
      EXPECT_EQ(server_.receive(), "x");
      if (!guest) {
        guest = UniqueFd(::accept4(door_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (guest) answer(guest.get(), at_first);
      }
      char bytes[256];
      if (guest && !asked && ::recv(guest.get(), bytes, sizeof bytes, MSG_DONTWAIT) > 0) {
        asked = true;
        answer(guest.get(), shown);
      }
    }
    asked_ = asked;
    return shared_mappings() > before;
  }

 private:
  void answer(int guest, const std::vector<int>& fds) const {
    struct {
      std::uint64_t magic, cookie;
    } words{0x35504455'4c434146 + lie_.version,  // "FACLUDP5"
            Claimant::cookie_of(server_) + lie_.socket};
    const std::string bytes(reinterpret_cast<const char*>(&words), sizeof words);
    (void)send_with(guest, bytes, fds);  // it may have gone
  }
  const Socket& server_;
  const Lie lie_;
  bool asked_ = false;
  UniqueFd door_{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
};

TEST(DatagramCorners, OfWhoDoesNotHoldTheReceiverAreNotShared) {
  if (!preloaded()) GTEST_SKIP() << "without the library there is nobody to lie to";
  const Socket own;
  for (const bool is_true : {false, true}) {
    // Nobody else publishes it: the library does not know the socket.
    Socket server;
    const UniqueFd raw(static_cast<int>(kernel(SYS_dup, server.fd.get())));
    const UniqueFd witness = witness_of(is_true ? raw : own.fd);
    Pretender pretender(server);
    const Socket sender;
    sender.connect_to(server);
    EXPECT_EQ(pretender.is_believed_by(sender, witness.get()), is_true);
    EXPECT_TRUE(pretender.was_asked());
  }
}

TEST(DatagramCorners, OfWhoSpeaksOfAnotherSocketOrVersionAreNotShared) {
  if (!preloaded()) GTEST_SKIP() << "without the library there is nobody to lie to";
  for (const Pretender::Lie lie : {Pretender::Lie{.version = 1}, Pretender::Lie{.socket = 1}}) {
    Socket server;
    // The library does not know the socket.
    const UniqueFd raw(static_cast<int>(kernel(SYS_dup, server.fd.get())));
    const UniqueFd witness = witness_of(raw);
    Pretender pretender(server, lie);
    const Socket sender;
    sender.connect_to(server);
    EXPECT_FALSE(pretender.is_believed_by(sender, witness.get()))
        << lie.version << " " << lie.socket;
    EXPECT_FALSE(pretender.was_asked());
  }
}

// One descriptor is shown with the second answer, none with the first: who shows more says
// something else.
TEST(DatagramCorners, OfWhoShowsMoreThanTheReceiverAreNotShared) {
  if (!preloaded()) GTEST_SKIP() << "without the library there is nobody to lie to";
  const Socket own;
  struct Shown {
    bool at_first, at_last;
  };
  for (const auto [at_first, at_last] :
       {Shown{false, false}, Shown{true, false}, Shown{false, true}}) {
    Socket server;
    // The library does not know the socket.
    const UniqueFd raw(static_cast<int>(kernel(SYS_dup, server.fd.get())));
    const UniqueFd witness = witness_of(raw);
    Pretender pretender(server);
    const Socket sender;
    sender.connect_to(server);
    std::vector<int> shown{witness.get()};
    if (at_last) shown.push_back(own.fd.get());
    const std::vector<int> before = at_first ? std::vector<int>{witness.get()} : std::vector<int>{};
    EXPECT_EQ(pretender.is_believed_by(sender, shown, before), !at_first && !at_last)
        << at_first << " " << at_last;
    EXPECT_EQ(pretender.was_asked(), !at_first);
  }
}

// --- counts

// The memory of the datagrams that this process has mapped.
std::vector<DatagramControl*> mapped_controls() {
  std::vector<DatagramControl*> found;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t at = 0;
    if (line.find("memfd:farcall-udp") != std::string::npos &&
        std::sscanf(line.c_str(), "%lx", &at) == 1)
      found.push_back(reinterpret_cast<DatagramControl*>(at));
  }
  return found;
}

// What a sender says that it has given to the kernel may be what it has not.
TEST(DatagramCorners, ThatWereNeverSentAreNotWaitedFor) {
  const pid_t child = in_child([] {  // which a call that waits for ever ends
    const Awake two;
    for (DatagramControl* const control : mapped_controls()) control->kernel_sent += 5;
    EXPECT_EQ(two.far.receive(MSG_DONTWAIT), "(EAGAIN)");
  });
  EXPECT_EQ(exit_status(child), 0);
}

// Who holds the socket of somebody else, as one that was passed on, does not speak for that one.
TEST(DatagramCorners, OfSomebodyElseAreNotShared) {
  if (!preloaded()) GTEST_SKIP() << "without the library there is nobody to lie to";
  if (::geteuid() != 0) GTEST_SKIP() << "only root gives a socket to somebody else";
  constexpr uid_t kElse = 12345;
  const Socket server;
  const Socket theirs;
  receive_of_a_stranger(server, 8);
  ASSERT_EQ(::fchown(theirs.fd.get(), kElse, static_cast<gid_t>(-1)), 0) << errno_name();
  const UniqueFd witness = witness_of(theirs.fd);
  EXPECT_FALSE(Claimant(server).is_believed(theirs, witness.get()));
  // Nor is anything shown to who receives in its place.
  Pretender pretender(theirs);
  const Socket sender;
  sender.connect_to(theirs);
  EXPECT_FALSE(pretender.is_believed_by(sender, witness.get()));
  EXPECT_FALSE(pretender.was_asked());
}

}  // namespace
}  // namespace farcall::preload
