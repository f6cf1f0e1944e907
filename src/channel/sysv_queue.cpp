// SPDX-License-Identifier: Apache-2.0
#include "channel/sysv_queue.hpp"

#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "channel/kernel_limit.hpp"
#include "farcall/error.hpp"
#include "farcall/socket.hpp"
#include "farcall/wait.hpp"

namespace farcall::channel::sysv_queue {
namespace {

constexpr std::uint32_t kPrefix = 0xFCA00000;
constexpr std::uint32_t kPrefixBits = 0xFFF00000;
constexpr std::uint32_t kNetworkBits = 0x000FC000;
constexpr std::uint32_t kChanceBits = 0x00003FFF;
constexpr unsigned kNetworkShift = 14;
constexpr unsigned kMode = 0711;

std::uint32_t network_bits() {
  struct stat network {};
  if (::stat("/proc/self/ns/net", &network) != 0) return 0;
  std::uint64_t mixed = network.st_ino * 0x9E3779B97F4A7C15U;  // spreads neighbours apart
  return static_cast<std::uint32_t>(mixed >> 58) << kNetworkShift;
}

std::uint32_t as_bits(key_t key) { return static_cast<std::uint32_t>(key); }

bool is_our_key(key_t key) {
  return (as_bits(key) & kPrefixBits) == kPrefix && (as_bits(key) & kNetworkBits) == network_bits();
}

bool is_ours(const msqid_ds& queue) {
  const uid_t user = ::geteuid();
  return queue.msg_perm.uid == user && queue.msg_perm.cuid == user &&
         (queue.msg_perm.mode & 0777) == kMode;
}

std::string hexadecimal(key_t key) {
  std::array<char, 16> text{};
  std::snprintf(text.data(), text.size(), "0x%08x", as_bits(key));
  return text.data();
}

// Binds the name of a key. Returns no descriptor if somebody holds it. Throws SystemError.
UniqueFd try_to_hold(key_t key) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) throw_errno("socket");
  const AbstractAddress address("farcall/sysv_mq/" + std::to_string(::geteuid()) + "/" +
                                hexadecimal(key));
  if (::bind(fd.get(), address.get(), address.size()) == 0) return fd;
  if (errno != EADDRINUSE) throw_errno("bind the name of a queue");
  return {};
}

// What was left behind when both ends were killed goes when somebody makes a new queue, but we
// look once a second at most.
void clean_now_and_then() {
  constexpr std::int64_t kSeldom = 1'000'000'000;
  static std::atomic<std::int64_t> last{-kSeldom};
  const std::int64_t now = monotonic_ns();
  std::int64_t before = last.load();
  if (now - before < kSeldom || !last.compare_exchange_strong(before, now)) return;
  clean(false, nullptr);
}

}  // namespace

Name reserve() {
  clean_now_and_then();
  std::uint32_t chance = 0;
  if (::getrandom(&chance, sizeof chance, 0) != sizeof chance) throw_errno("getrandom");
  const std::uint32_t network = network_bits();
  for (std::uint32_t i = 0; i <= kChanceBits; ++i) {
    const auto key = static_cast<key_t>(kPrefix | network | ((chance + i) & kChanceBits));
    UniqueFd hold = try_to_hold(key);
    // Another user or another network may have a queue with this key.
    if (hold && ::msgget(key, 0) < 0 && errno == ENOENT)
      return {.key = key, .hold = std::move(hold)};
  }
  throw SystemError(ENOSPC, "find a key for a System V message queue");
}

int open(key_t key, std::size_t bytes) {
  int queue = ::msgget(key, IPC_CREAT | IPC_EXCL | static_cast<int>(kMode));
  const bool created = queue >= 0;
  if (!created && errno == EEXIST) queue = ::msgget(key, 0);
  if (queue < 0) throw_errno("msgget; /proc/sys/kernel/msgmni limits the number of queues");
  msqid_ds state{};
  if (::msgctl(queue, IPC_STAT, &state) != 0) throw_errno("IPC_STAT of a queue");
  if (!is_ours(state)) throw SystemError(EEXIST, "msgget " + hexadecimal(key) + ": not ours");
  if (created && bytes != 0 && bytes < state.msg_qbytes) {
    state.msg_qbytes = std::max<msglen_t>(bytes, std::min(longest_message(), state.msg_qbytes));
    if (::msgctl(queue, IPC_SET, &state) != 0) throw_errno("IPC_SET of a queue");
  }
  return queue;
}

void remove(int queue) noexcept { ::msgctl(queue, IPC_RMID, nullptr); }

std::size_t longest_message() {
  return std::min(kernel_limit("/proc/sys/kernel/msgmax", 8192),
                  kernel_limit("/proc/sys/kernel/msgmnb", 16384));
}

std::size_t clean(bool dry_run, const std::function<void(std::string_view)>& report) {
  msginfo info{};
  // The C library has one type for all that msgctl can fill in.
  const int last = ::msgctl(0, MSG_INFO, reinterpret_cast<msqid_ds*>(&info));
  if (last < 0) throw_errno("MSG_INFO");
  std::size_t count = 0;
  for (int index = 0; index <= last; ++index) {
    msqid_ds state{};
    const int queue = ::msgctl(index, MSG_STAT, &state);
    if (queue < 0 || !is_ours(state) || !is_our_key(state.msg_perm.__key)) continue;
    // Who holds the name may go on to make the queue; so keep it until the queue is removed.
    const UniqueFd hold = try_to_hold(state.msg_perm.__key);
    if (!hold) continue;
    if (!dry_run && ::msgctl(queue, IPC_RMID, nullptr) != 0) continue;
    ++count;
    if (report) report("System V message queue " + hexadecimal(state.msg_perm.__key));
  }
  return count;
}

}  // namespace farcall::channel::sysv_queue
