// SPDX-License-Identifier: Apache-2.0
//
// What tests of impostors have in common: the protocol by hand, and those who must not suffer.
#pragma once

#include <atomic>

#include "door/raw.hpp"
#include "harness/sandbox.hpp"

namespace farcall::door::test {

// As in src/door: what packets on a door's and an attachment's sockets are for.
inline constexpr std::uint8_t kPurposeAttach = 16;
inline constexpr std::uint8_t kPurposeOpen = 17;
inline constexpr std::uint8_t kPurposeDetach = 18;

struct AttachAddress {
  sockaddr_un address{};
  socklen_t size = 0;

  explicit AttachAddress(const std::string& path) {
    struct stat status {};
    EXPECT_EQ(::stat(path.c_str(), &status), 0);
    address.sun_family = AF_UNIX;
    const int length = std::snprintf(address.sun_path + 1, sizeof address.sun_path - 1,
                                     "farcall/attach/%lx/%lx", status.st_dev, status.st_ino);
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path)) + 1 +
           static_cast<socklen_t>(length);
  }
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

inline UniqueFd visit(const AttachAddress& address) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(socket.get(), address.get(), address.size), 0) << std::strerror(errno);
  return socket;
}

// What an attachment answers to one packet.
inline Packet ask(int visitor, const std::vector<int>& descriptors, std::uint8_t purpose) {
  send_descriptors(visitor, descriptors, purpose);
  pollfd answer{.fd = visitor, .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&answer, 1, 10'000), 1);
  return take_packet(visitor);
}

// Takes the name of a file, and gives each visitor and the packet that it brings to `serve`.
template <class Serve>
[[noreturn]] void serve_name(const AttachAddress& address, Event& ready, Serve serve) {
  const UniqueFd listener(::socket(AF_UNIX, SOCK_SEQPACKET, 0));
  if (::bind(listener.get(), address.get(), address.size) != 0 ||
      ::listen(listener.get(), 5) != 0) {
    std::perror("take the name of a file");
    ::_exit(1);
  }
  ready.happens();
  for (;;) {
    const UniqueFd visitor(::accept(listener.get(), nullptr, nullptr));
    pollfd something{.fd = visitor.get(), .events = POLLIN, .revents = 0};
    ::poll(&something, 1, -1);
    try {
      serve(visitor.get(), take_packet(visitor.get()));
    } catch (const SystemError&) {  // NOLINT(bugprone-empty-catch): it hung up
    }
  }
}

// A door in a server of its own that hands `door` out: to whoever calls it, as "give".
struct Giver {
  std::atomic<int> door = -1;  // its server's threads read it
  Answer operator()(char* data, size_t size, door_desc_t*, uint_t) const {
    if (std::string_view(data, size) == "give") return Answer({pass(door.load())}, "");
    return Answer(std::string(data, size));
  }
};
// A descriptor that a client was passed by that door's server.
inline int receive_door(int giver) {
  const Reply reply = call(giver, "give");
  EXPECT_EQ(reply.descriptors.size(), 1U);
  return reply.descriptors.empty() ? -1 : fd_of(reply.descriptors[0]);
}

struct DoorImpostor : ::testing::Test {
  Giver& giver = *new Giver;  // threads that serve outlive the test
  int door = ::door_create(echo, nullptr, 0);
  int giving = make_door(giver);

  DoorImpostor() {
    giver.door = door;
    ::signal(SIGPIPE, SIG_IGN);
  }
  // Everybody but the hostile process goes on: the server itself, and other clients.
  void expect_all_well() const {
    in_server_and_client([&] {
      EXPECT_EQ(call(door, "x").data, "x");
      const UniqueFd fresh(receive_door(giving));
      EXPECT_EQ(call(fresh.get(), "x").data, "x");
    });
  }
};

}  // namespace farcall::door::test
