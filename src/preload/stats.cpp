// SPDX-License-Identifier: Apache-2.0
#include "preload/stats.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstring>

#include "preload/real.hpp"

namespace farcall::preload {
namespace {

constinit std::atomic<StatsPage*> page{nullptr};

const char* variable(const char* name) noexcept {
  const std::size_t length = std::strlen(name);
  for (char** at = environ; at != nullptr && *at != nullptr; ++at)
    if (std::strncmp(*at, name, length) == 0 && (*at)[length] == '=') return *at + length + 1;
  return nullptr;
}

// When the library is loaded. Whoever wanted to know may have ended: then nobody does any more.
[[gnu::constructor]] void open_page() noexcept {
  const char* const path = variable(kStatsVariable);
  if (path == nullptr) return;
  const long fd = kernel(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
  if (fd < 0) return;
  // A file that is smaller would kill whoever counts; one that is not sealed could become so.
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;
  const long seals = kernel(SYS_fcntl, fd, F_GET_SEALS, 0);
  struct stat status {};
  const bool right = seals >= 0 && (seals & kSeals) == kSeals &&
                     kernel(SYS_newfstatat, fd, "", &status, AT_EMPTY_PATH) == 0 &&
                     status.st_size >= static_cast<off_t>(sizeof(StatsPage));
  if (right) {
    const long at =
        kernel(SYS_mmap, nullptr, sizeof(StatsPage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at > 0 || at < -4095) {
      auto* const file = reinterpret_cast<StatsPage*>(at);
      if (file->magic == StatsPage::kMagic) page.store(file, std::memory_order_release);
    }
  }
  kernel(SYS_close, fd);
}

}  // namespace

const char* to_string(Reason reason) noexcept {
  switch (reason) {
    case Reason::not_local: return "the peer is on another machine";
    case Reason::excluded: return "excluded by the settings";
    case Reason::too_short: return "ended before it was worth it";
    case Reason::peer_plain: return "the peer has no library, or goes round it";
    case Reason::other_user: return "the peer belongs to another user";
    case Reason::no_proof: return "the kernel does not tell who holds the other end";
    case Reason::too_many: return "as many as the settings allow are accelerated";
    case Reason::no_memory: return "no memory, or no descriptors";
    case Reason::shared: return "several processes held it from the beginning";
    case Reason::seen_too_late: return "data had passed before the library saw it";
    case Reason::option: return "an option that changes the stream itself";
    case Reason::urgent: return "out-of-band data";
    case Reason::passed: return "passed to another program";
    case Reason::broken: return "the peer broke the protocol";
    case Reason::unseen: return "the program uses io_uring, or is confined by seccomp";
    case Reason::count_: break;
  }
  return "unknown";
}

bool stats_wanted() noexcept { return page.load(std::memory_order_relaxed) != nullptr; }

namespace {

Counters* counters_for(Protocol protocol, const Endpoint& endpoint, const UnixName& name) noexcept {
  using Slot = StatsPage::Slot;
  StatsPage* file = page.load(std::memory_order_acquire);
  if (file == nullptr) return nullptr;
  for (Slot& slot : file->slots) {
    std::uint32_t state = slot.state.load(std::memory_order_acquire);
    if (state == Slot::kFree) {
      if (slot.state.compare_exchange_strong(state, Slot::kBeingMade)) {
        slot.protocol = protocol;
        slot.endpoint = endpoint;
        slot.name = name;
        // release: pairs with the acquire above and with that of whoever prints.
        slot.state.store(Slot::kUsed, std::memory_order_release);
        return &slot.counters;
      }
    }
    // Its maker may have been killed, so there is a bound.
    for (int i = 0; state == Slot::kBeingMade && i < 1000; ++i)
      state = slot.state.load(std::memory_order_acquire);
    if (state == Slot::kUsed && slot.protocol == protocol && slot.endpoint == endpoint &&
        slot.name == name)
      return &slot.counters;
  }
  file->overflow.fetch_add(1, std::memory_order_relaxed);
  return nullptr;
}

}  // namespace

Counters* counters_for(Protocol protocol, const Endpoint& server) noexcept {
  return counters_for(protocol, server, {});
}

Counters* counters_for(const UnixName& server) noexcept {
  return counters_for(Protocol::unix_stream, {}, server);
}

}  // namespace farcall::preload
