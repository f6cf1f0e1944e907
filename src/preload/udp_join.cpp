// SPDX-License-Identifier: Apache-2.0
//
// How sender and receiver of datagrams meet: under an abstract name made from the address that the
// receiver is bound to, where the sender leaves the memory of the flow and goes.
//
// Neither believes what the other says of itself. The user is what the kernel says of the unix
// socket. That the sender really sends from the address it names, and that datagrams from there to
// here really come to this receiver, the kernel is asked as well (sock_diag): it names the socket
// that a datagram from one address to another would reach.
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstddef>
#include <cstring>

#include "preload/diag.hpp"
#include "preload/real.hpp"
#include "preload/side.hpp"
#include "preload/udp.hpp"

namespace farcall::preload {
namespace {

constexpr std::uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr std::uint64_t kMostRingBytes = std::uint64_t{64} << 20;
constexpr int kBacklog = 32;

struct Hello {
  static constexpr std::uint64_t kMagic = 0x31504455'4c434146;  // "FACLUDP1"
  std::uint64_t magic;
  std::uint64_t sender_cookie;
  std::uint64_t receiver_cookie;
  std::uint64_t ring_bytes;
  Endpoint from;
  Endpoint to;
};

bool is_v4(const Endpoint& endpoint) noexcept {
  return std::memcmp(endpoint.address.data(), kMapped, sizeof kMapped) == 0;
}

socklen_t name_of(const Endpoint& endpoint, sockaddr_un& name) noexcept {
  constexpr char kPrefix[] = "farcall/udp/";
  constexpr char kDigits[] = "0123456789abcdef";
  name = {};
  name.sun_family = AF_UNIX;
  char* to = name.sun_path + 1;
  std::memcpy(to, kPrefix, sizeof kPrefix - 1);
  to += sizeof kPrefix - 1;
  const auto put = [&](unsigned byte) {
    *to++ = kDigits[byte >> 4];
    *to++ = kDigits[byte & 15];
  };
  for (const std::uint8_t byte : endpoint.address) put(byte);
  put(endpoint.port >> 8);
  put(endpoint.port & 255U);
  return static_cast<socklen_t>(to - reinterpret_cast<char*>(&name));
}

std::uint64_t cookie_of(int fd) noexcept {
  std::uint64_t cookie = 0;
  socklen_t size = sizeof cookie;
  return kernel(SYS_getsockopt, fd, SOL_SOCKET, SO_COOKIE, &cookie, &size) == 0 ? cookie : 0;
}

bool may_share_with(uid_t uid) noexcept {
  const auto own = static_cast<uid_t>(kernel(SYS_geteuid));
  switch (settings().uids) {
    case UidPolicy::same_user: return uid == own;
    case UidPolicy::same_user_or_root: return uid == own || uid == 0 || own == 0;
    case UidPolicy::anybody: return true;
  }
  return false;
}

socklen_t to_name(const Endpoint& endpoint, bool v4, sockaddr_in6& name) noexcept {
  name = {};
  if (v4) {
    sockaddr_in four{};
    four.sin_family = AF_INET;
    four.sin_port = htons(endpoint.port);
    std::memcpy(&four.sin_addr, endpoint.address.data() + 12, 4);
    std::memcpy(&name, &four, sizeof four);
    return sizeof four;
  }
  name.sin6_family = AF_INET6;
  name.sin6_port = htons(endpoint.port);
  std::memcpy(&name.sin6_addr, endpoint.address.data(), 16);
  return sizeof name;
}

// The address that the kernel would send from to reach `to`.
bool source_towards(const Endpoint& to, Endpoint& source) noexcept {
  sockaddr_in6 name;
  const bool v4 = is_v4(to);
  const socklen_t length = to_name(to, v4, name);
  const long fd = kernel(SYS_socket, v4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  // Nothing is sent: connecting a UDP socket only chooses the route.
  const bool known =
      kernel(SYS_connect, fd, &name, length) == 0 && udp_own_address(static_cast<int>(fd), source);
  kernel(SYS_close, fd);
  return known;
}

// Where this socket's datagrams to `to` come from.
bool source_of(int fd, const Endpoint& to, Endpoint& from) noexcept {
  if (!udp_own_address(fd, from) || from.port == 0) return false;
  if (!is_wildcard(from)) return true;
  Endpoint towards{};
  if (!source_towards(to, towards)) return false;
  from.address = towards.address;
  return true;
}

bool map(int memory, std::uint64_t ring_bytes, DatagramMemory& mapped) noexcept {
  const long at = kernel(SYS_mmap, nullptr, kDatagramControlBytes + ring_bytes,
                         PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
  if (at < 0 && at > -4096) return false;
  auto* base = reinterpret_cast<std::byte*>(at);
  mapped = {.control = reinterpret_cast<DatagramControl*>(base),
            .bytes = base + kDatagramControlBytes,
            .size = ring_bytes};
  return true;
}

int create_memory(std::uint64_t bytes) noexcept {
  const long fd = kernel(SYS_memfd_create, "farcall-udp", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return -1;
  if (kernel(SYS_ftruncate, fd, bytes) < 0 || kernel(SYS_fcntl, fd, F_ADD_SEALS, kSeals) < 0) {
    kernel(SYS_close, fd);
    return -1;
  }
  return static_cast<int>(fd);
}

// A message with one descriptor.
struct Parcel {
  explicit Parcel(Hello& hello) noexcept : part{.iov_base = &hello, .iov_len = sizeof hello} {
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
  }
  iovec part;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
};

bool leave(int host, int memory, Hello& hello) noexcept {
  Parcel parcel(hello);
  cmsghdr* head = CMSG_FIRSTHDR(&parcel.message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(head), &memory, sizeof memory);
  return kernel(SYS_sendmsg, host, &parcel.message, MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<long>(sizeof hello);
}

// A connection to whoever publishes `to`, or to its port at any address.
int visit(const Endpoint& to) noexcept {
  Endpoint any_v4{};
  std::memcpy(any_v4.address.data(), kMapped, sizeof kMapped);
  any_v4.port = to.port;
  Endpoint any{};
  any.port = to.port;
  for (const Endpoint& name : {to, any_v4, any}) {
    if (name == any_v4 && !is_v4(to)) continue;
    sockaddr_un address;
    const socklen_t length = name_of(name, address);
    const long fd = kernel(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    if (kernel(SYS_connect, fd, &address, length) == 0) return static_cast<int>(fd);
    kernel(SYS_close, fd);
  }
  return -1;
}

bool peer_user(int fd, uid_t& uid) noexcept {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (kernel(SYS_getsockopt, fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
  uid = peer.uid;
  return true;
}

void note(const UdpSocket& socket, const OutFlow& flow, Reason reason) noexcept {
  Counters* const counters = flow.counters != nullptr ? flow.counters : socket.counters;
  if (counters != nullptr)
    counters->reasons[static_cast<std::size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
}

void join(UdpSocket& socket, int fd, OutFlow& flow, int host) noexcept {
  Hello hello{};
  FoundSocket found{};
  uid_t uid = 0;
  if (!peer_user(host, uid) || !may_share_with(uid)) {
    flow.state = OutFlow::kNever;
    return note(socket, flow, Reason::other_user);
  }
  if (!source_of(fd, flow.to, hello.from) || find_receiver(hello.from, flow.to, found) != 0 ||
      found.uid != uid) {
    return note(socket, flow, Reason::no_proof);
  }
  hello.magic = Hello::kMagic;
  hello.sender_cookie = cookie_of(fd);
  hello.receiver_cookie = found.cookie;
  hello.ring_bytes = settings().ring_bytes;
  hello.to = flow.to;
  const int memory = create_memory(kDatagramControlBytes + hello.ring_bytes);
  DatagramMemory mapped;
  if (memory < 0 || !map(memory, hello.ring_bytes, mapped)) {
    if (memory >= 0) kernel(SYS_close, memory);
    return note(socket, flow, Reason::no_memory);
  }
  flow.sender.start(mapped);
  if (leave(host, memory, hello)) {
    flow.from = hello.from;
    flow.receiver_cookie = found.cookie;
    flow.checked_at = ticks();
    flow.state = OutFlow::kJoined;
  } else {
    kernel(SYS_munmap, mapped.control, kDatagramControlBytes + mapped.size);
  }
  kernel(SYS_close, memory);
}

// What a sender has left, if it can be believed.
void take_flow(UdpSocket& socket, int fd, int guest) noexcept {
  Hello hello{};
  Parcel parcel(hello);
  uid_t uid = 0;
  const bool trusted = peer_user(guest, uid) && may_share_with(uid);
  // A receiver that spins may accept before the sender, which has just connected, has left what
  // it came to leave.
  pollfd coming{.fd = guest, .events = POLLIN, .revents = 0};
  const timespec moment{.tv_sec = 0, .tv_nsec = 2'000'000};
  if (!trusted || kernel(SYS_ppoll, &coming, 1, &moment, nullptr, 0) != 1) return;
  const long got = kernel(SYS_recvmsg, guest, &parcel.message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  int memory = -1;
  if (got >= 0) {
    const cmsghdr* head = CMSG_FIRSTHDR(&parcel.message);
    if (head != nullptr && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS &&
        head->cmsg_len == CMSG_LEN(sizeof(int)))
      std::memcpy(&memory, CMSG_DATA(head), sizeof memory);
  }
  if (memory < 0) return;
  struct stat status {};
  FoundSocket receiver{};
  FoundSocket sender{};
  const long seals = kernel(SYS_fcntl, memory, F_GET_SEALS, 0);
  const std::uint64_t ring = hello.ring_bytes;
  const bool sound = got == sizeof hello && hello.magic == Hello::kMagic &&
                     hello.receiver_cookie == cookie_of(fd) && ring >= 4096 &&
                     ring <= kMostRingBytes && (ring & (ring - 1)) == 0 && seals >= 0 &&
                     (seals & kSeals) == kSeals &&
                     kernel(SYS_newfstatat, memory, "", &status, AT_EMPTY_PATH) == 0 &&
                     static_cast<std::uint64_t>(status.st_size) == kDatagramControlBytes + ring &&
                     settings().wants(hello.from, hello.to) &&
                     find_receiver(hello.from, hello.to, receiver) == 0 &&
                     receiver.cookie == hello.receiver_cookie &&
                     find_receiver(hello.to, hello.from, sender) == 0 &&
                     sender.cookie == hello.sender_cookie && sender.uid == uid;
  DatagramMemory mapped;
  if (sound) {
    // One that has begun anew, or another socket at the same address, replaces what was there.
    for (std::size_t i = 0; i < socket.in_count; ++i)
      if (socket.in[i].from == hello.from) {
        udp_drop_in(socket, i);
        break;
      }
    // Those who have gone, or died, and whose datagrams have all been read, make room.
    for (std::size_t i = socket.in_count; i-- != 0;) {
      InFlow& old = socket.in[i];
      FoundSocket still{};
      if (!old.receiver.looks_ready() &&
          (old.receiver.sender_gone() ||
           (socket.in_count == UdpSocket::kMostFlows &&
            (find_receiver(old.to, old.from, still) != 0 || still.cookie != old.sender_cookie))))
        udp_drop_in(socket, i);
    }
    if (socket.in_count < UdpSocket::kMostFlows && map(memory, ring, mapped)) {
      InFlow& flow = socket.in[socket.in_count++];
      flow = InFlow{};
      flow.used = true;
      flow.from = hello.from;
      flow.to = hello.to;
      flow.sender_cookie = hello.sender_cookie;
      flow.counters =
          socket.counters != nullptr ? socket.counters : counters_for(Protocol::udp, hello.from);
      flow.receiver.start(mapped);
    }
  }
  kernel(SYS_close, memory);
}

bool receives_plainly(int fd) noexcept {
  // What changes a received datagram, or who gets it.
  struct Option {
    int level, name;
  };
  constexpr Option kOptions[] = {
      {SOL_SOCKET, SO_REUSEPORT},    {SOL_SOCKET, SO_TIMESTAMP}, {SOL_SOCKET, SO_TIMESTAMPNS},
      {SOL_SOCKET, SO_TIMESTAMPING}, {SOL_SOCKET, SO_RXQ_OVFL},  {IPPROTO_IP, IP_PKTINFO},
      {IPPROTO_IP, IP_RECVTTL},      {IPPROTO_IP, IP_RECVTOS},   {IPPROTO_IP, IP_RECVORIGDSTADDR}};
  for (const Option& option : kOptions) {
    int value = 0;
    socklen_t size = sizeof value;
    if (kernel(SYS_getsockopt, fd, option.level, option.name, &value, &size) == 0 && value != 0)
      return false;
  }
  return true;
}

}  // namespace

bool udp_own_address(int fd, Endpoint& endpoint) noexcept {
  sockaddr_in6 name{};
  socklen_t length = sizeof name;
  return kernel(SYS_getsockname, fd, &name, &length) == 0 &&
         Endpoint::from(reinterpret_cast<const sockaddr*>(&name), endpoint);
}

bool udp_is_local(const Endpoint& endpoint) noexcept {
  if (is_v4(endpoint) && endpoint.address[12] == 127) return true;
  // What the kernel sends to itself it sends from the same address.
  Endpoint source{};
  return source_towards(endpoint, source) && source.address == endpoint.address;
}

void udp_publish(UdpSocket& socket, int fd) noexcept {
  Endpoint own{};
  if (!udp_own_address(fd, own) || own.port == 0) return;
  if (!receives_plainly(fd)) {
    if (socket.counters != nullptr)
      socket.counters->reasons[static_cast<std::size_t>(Reason::option)].fetch_add(1);
    return udp_leave(socket);
  }
  sockaddr_un name;
  const socklen_t length = name_of(own, name);
  const long made = kernel(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (made < 0) return;
  const int listener = make_private(static_cast<int>(made));
  if (kernel(SYS_bind, listener, &name, length) < 0 || kernel(SYS_listen, listener, kBacklog) < 0) {
    close_private(listener);
    return;
  }
  socket.listener = listener;
}

void udp_take_flows(UdpSocket& socket, int fd) noexcept {
  if (!is_private(socket.listener)) {
    socket.listener = -1;  // somebody has closed all descriptors that he did not know
    return;
  }
  for (int i = 0; i < kBacklog; ++i) {
    const long guest = kernel(SYS_accept4, socket.listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (guest < 0) return;
    take_flow(socket, fd, static_cast<int>(guest));
    kernel(SYS_close, guest);
  }
}

void udp_try_join(UdpSocket& socket, int fd, OutFlow& flow) noexcept {
  const int host = visit(flow.to);
  if (host < 0) return;
  join(socket, fd, flow, host);
  kernel(SYS_close, host);
}

bool udp_still_there(const OutFlow& flow) noexcept {
  FoundSocket found{};
  return find_receiver(flow.from, flow.to, found) == 0 && found.cookie == flow.receiver_cookie;
}

}  // namespace farcall::preload
