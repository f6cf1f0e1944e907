// SPDX-License-Identifier: Apache-2.0
//
// Hooks: options of a socket.
#include <sys/socket.h>

#include <cstring>

#include "preload/address.hpp"
#include "preload/connection.hpp"
#include "preload/hooked_call.hpp"
#include "preload/options.hpp"
#include "preload/real.hpp"

namespace farcall::preload {
namespace {

constinit real::Direct<"getsockopt", int(int, int, int, void*, socklen_t*), int, int, int, void*,
                       socklen_t*>
    next_getsockopt{SYS_getsockopt};
constinit real::Direct<"setsockopt", int(int, int, int, const void*, socklen_t), int, int, int,
                       const void*, socklen_t>
    next_setsockopt{SYS_setsockopt};

[[gnu::constructor]] void look_up() noexcept {
  next_getsockopt.look_up();
  next_setsockopt.look_up();
}

// Options under which bytes are no longer just bytes, or readable is something else.
bool changes_the_stream(int level, int option, const void* value, socklen_t size) noexcept {
  int number = 0;
  if (!is_no_address(value) && size >= sizeof number) std::memcpy(&number, value, sizeof number);
  if (level == SOL_SOCKET) switch (option) {
      case SO_RCVLOWAT: return number > 1 || number < 0;
      case SO_PEEK_OFF: return number >= 0;
      case SO_MAX_PACING_RATE: return number != -1;
      // A filter does not see what comes through memory.
      case SO_ATTACH_FILTER:
      case SO_ATTACH_BPF: return true;
      case SO_RXQ_OVFL:
      case SO_ZEROCOPY:
      case SO_TIMESTAMP_OLD:
      case SO_TIMESTAMPNS_OLD:
      case SO_TIMESTAMPING_OLD:
      case SO_TIMESTAMP_NEW:
      case SO_TIMESTAMPNS_NEW:
      case SO_TIMESTAMPING_NEW:
      case SO_PASSCRED:
      case SO_PASSSEC:
      case SO_PASSPIDFD:
      case SO_INQ: return number != 0;
      default: return false;
    }
  return level == IPPROTO_TCP &&
         (option == TCP_ULP || option == TCP_REPAIR || (option == TCP_INQ && number != 0));
}

// SO_ERROR has said what stands in `value`: the library may know more.
void add_pending_error(Side& side, int fd, void* value, socklen_t size) noexcept {
  int error = 0;
  const std::size_t room = std::min<std::size_t>(size, sizeof error);
  std::memcpy(&error, value, room);
  if (error == 0) {
    error = take_pending_error(side, fd);
  } else {
    const Guard receiving(side.receive_lock);
    error = told_by_kernel(side, fd, error);
  }
  std::memcpy(value, &error, room);
}

// The same of a socket of datagrams.
void add_kept_error(UdpSocket& socket, void* value, socklen_t size) noexcept {
  const int kept = udp_take_kept_error(socket);
  if (kept != 0) std::memcpy(value, &kept, std::min<std::size_t>(size, sizeof kept));
}

// The kernel may take less from here on, so it is given first what is in the ring.
long set_send_room(Side& side, int fd, int option, const void* value, socklen_t size) noexcept {
  const Guard sending(side.send_lock);
  const bool is_joined = sending && side.out().control != nullptr;
  if (is_joined && side.kind == Kind::tcp) reclaim(side, fd, true);
  const long result = next_setsockopt(fd, SOL_SOCKET, option, value, size);
  if (is_joined) note_room(side, fd);
  return result;
}

}  // namespace
}  // namespace farcall::preload

using namespace farcall::preload;

extern "C" {

int getsockopt(int fd, int level, int option, void* value, socklen_t* size) {
  Side* const side = find_side(fd);
  // This one takes bytes out of the stream.
  if (side != nullptr && level == IPPROTO_TCP && option == TCP_ZEROCOPY_RECEIVE)
    hand_back(*side, fd, Reason::option);
  UdpSocket* const udp = level == SOL_SOCKET && option == SO_ERROR ? find_udp(fd) : nullptr;
  if (udp != nullptr) udp_check_at_times(*udp, fd);
  const long result = next_getsockopt(fd, level, option, value, size);
  if (udp != nullptr && result == 0) add_kept_error(*udp, value, *size);
  if (side != nullptr && level == SOL_SOCKET && option == SO_ERROR && result == 0)
    add_pending_error(*side, fd, value, *size);
  if (level == IPPROTO_TCP && option == TCP_NODELAY && result == 0 && side != nullptr &&
      side->accelerated()) {
    const int wanted = side->nodelay.load(std::memory_order_relaxed) ? 1 : 0;
    std::memcpy(value, &wanted, std::min<std::size_t>(*size, sizeof wanted));
  }
  return static_cast<int>(with_errno(result));
}

int setsockopt(int fd, int level, int option, const void* value, socklen_t size) {
  Side* const side = find_side(fd);
  int number = 0;
  const bool has_number = !is_no_address(value) && size >= sizeof number;
  if (side != nullptr) {
    if (changes_the_stream(level, option, value, size)) hand_back(*side, fd, Reason::option);
    if (has_number) std::memcpy(&number, value, sizeof number);
    if (level == IPPROTO_TCP && option == TCP_NODELAY && side->kind == Kind::tcp &&
        side->accelerated() && has_number) {
      side->nodelay.store(number != 0, std::memory_order_relaxed);
      // It is set in the kernel, see join(), until the connection is handed back. To set it once
      // more pushes what is corked.
      const Guard sending(side->send_lock);
      if (number == 0 && sending && !side->sender.gone_for_ever()) return 0;
    }
  }
  if (UdpSocket* const udp = find_udp(fd)) udp_option(*udp, fd, level, option);
  if (side != nullptr && level == SOL_SOCKET && (option == SO_SNDBUF || option == SO_SNDBUFFORCE))
    return static_cast<int>(with_errno(set_send_room(*side, fd, option, value, size)));
  const long result = next_setsockopt(fd, level, option, value, size);
  if (side != nullptr && level == IPPROTO_TCP && option == TCP_CORK && result == 0)
    side->corked.store(number != 0, std::memory_order_relaxed);
  return static_cast<int>(with_errno(result));
}

}  // extern "C"
