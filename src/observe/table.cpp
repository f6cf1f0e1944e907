// SPDX-License-Identifier: Apache-2.0
//
// The tables of this process: made when they are needed, never given back. Nothing here locks.
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "farcall/observe.hpp"
#include "observe/clock.hpp"
#include "observe/kernel_call.hpp"
#include "observe/lease.hpp"
#include "observe/tap.hpp"

namespace farcall::observe {
namespace {

constexpr std::size_t kMostTables = 256;
constexpr std::size_t kIdentities = sizeof(Table::identities);
static_assert(kIdentities == kGuard && sizeof(Table::counters) == kGuard);

// Inherited by children, as the bits of what is open are: what they are given keeps its place.
constinit std::array<std::atomic<Table*>, kMostTables> tables{};
constinit std::atomic<bool> gave_up{false};

Header& header_of(Table& table) noexcept { return reinterpret_cast<Header&>(table.identities[0]); }
Process& process_of(Table& table) noexcept { return reinterpret_cast<Process&>(table.counters[0]); }

Table& table_of(Counters& counters) noexcept {
  const auto start = reinterpret_cast<std::uintptr_t>(&counters) & ~std::uintptr_t{kGuard - 1};
  return *reinterpret_cast<Table*>(start - kIdentities);
}

std::size_t index_of(const Counters& counters) noexcept {
  return (reinterpret_cast<std::uintptr_t>(&counters) & (kGuard - 1)) / sizeof(Counters);
}

bool worked(long result) noexcept { return result >= 0 || result < -4095; }

// See wait_to_be_read().
constinit std::atomic<bool> tapped_from_begin{false};
constinit std::atomic<std::int64_t> waited_in_vain{0};  // when that has ended

// When a process was started, in ticks, by what stands in /proc/PID/stat; 0: it has ended. The name
// of its program is in parentheses, and may hold any.
std::uint64_t started_by(const char* stat, std::size_t size) noexcept {
  constexpr int kState = 3;
  constexpr int kStarted = 22;
  std::size_t at = size;
  while (at != 0 && stat[at - 1] != ')') --at;
  for (int field = 2; at < size && field < kStarted; ++at) {
    if (stat[at] != ' ') continue;
    ++field;
    if (field == kState && at + 1 < size && stat[at + 1] == 'Z') return 0;
  }
  std::uint64_t ticks = 0;
  for (; at < size && stat[at] >= '0' && stat[at] <= '9'; ++at)
    ticks = ticks * 10 + static_cast<std::uint64_t>(stat[at] - '0');
  return ticks;
}

// Whether the process lives that this names.
bool lives(std::uint64_t who) noexcept {
  constexpr char kDirectory[] = "/proc/";
  constexpr char kFile[] = "/stat";
  std::array<char, 40> path{};
  std::array<char, 10> digits;
  std::size_t count = 0;
  const auto pid = static_cast<std::uint32_t>(who >> kCapturerTicks);
  for (std::uint32_t rest = pid; rest != 0; rest /= 10)
    digits[count++] = static_cast<char>('0' + rest % 10);
  char* at = std::copy_n(kDirectory, sizeof kDirectory - 1, path.data());
  while (count != 0) *at++ = digits[--count];
  std::copy_n(kFile, sizeof kFile, at);
  const long file = kernel(SYS_openat, AT_FDCWD, path.data(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  std::array<char, 1024> stat;
  const long size = kernel(SYS_read, file, stat.data(), stat.size());
  kernel(SYS_close, file);
  if (size <= 0) return false;
  const std::uint64_t started = started_by(stat.data(), static_cast<std::size_t>(size));
  return started != 0 && capturer(static_cast<std::int32_t>(pid), started) == who;
}

// What starts a program may capture it from the beginning. 0: nobody does.
std::uint64_t asked_from_outside() noexcept {
  constexpr std::size_t kName = sizeof(kTapVariable) - 1;
  if (::getauxval(AT_SECURE) != 0) return 0;  // it has more rights than who started it
  for (char** at = environ; at != nullptr && *at != nullptr; ++at) {
    if (std::strncmp(*at, kTapVariable, kName) != 0 || (*at)[kName] != '=') continue;
    std::uint64_t who = 0;
    for (const char* digit = *at + kName + 1; *digit >= '0' && *digit <= '9'; ++digit)
      who = who * 10 + static_cast<std::uint64_t>(*digit - '0');
    return lives(who) ? who : 0;
  }
  return 0;
}

// What a table says first of who captures: what the first one says now, or what was asked for.
void begin_tap(Header& header) noexcept {
  constexpr std::int64_t kUntilFound = 10'000'000'000;
  if (Table* const first = tables[0].load(std::memory_order_acquire); first != nullptr) {
    header.spare = header_of(*first).spare;
    header.tap_until = detail::get(process_of(*first).tap_until);
    return;
  }
  header.spare = mark_of(asked_from_outside());
  if (header.spare == 0) return;
  header.tap_until = static_cast<std::uint64_t>(monotonic_ns() + kUntilFound);
  tapped_from_begin.store(true, std::memory_order_relaxed);
}

// What is over on both sides stays, without access: the shape of a table does not depend on it, and
// each system call counts where a program makes its first connection.
Table* make_table() noexcept {
  constexpr std::size_t kAsked = sizeof(Table) + 3 * kGuard;
  const long got = kernel(SYS_mmap, nullptr, kAsked, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (!worked(got)) return nullptr;
  const auto from = static_cast<std::uintptr_t>(got);
  const std::uintptr_t table = (from + 2 * kGuard - 1) & ~std::uintptr_t{kGuard - 1};
  if (kernel(SYS_mprotect, table, sizeof(Table), PROT_READ | PROT_WRITE) != 0 ||
      kernel(SYS_madvise, table + kIdentities, sizeof(Table) - kIdentities, MADV_WIPEONFORK) != 0) {
    kernel(SYS_munmap, from, kAsked);
    return nullptr;
  }
  auto* const made = reinterpret_cast<Table*>(table);
  Header& header = header_of(*made);
  header.version = kVersion;
  header.identity_bytes = sizeof(Identity);
  header.counters_bytes = sizeof(Counters);
  header.times_bytes = sizeof(Times);
  header.entries = kEntries;
  header.used[0] = 1;
  begin_tap(header);
  process_of(*made).tap_until = header.tap_until;
  __atomic_store_n(&header.magic, Header::kMagic, __ATOMIC_RELEASE);
  return made;
}

// Another thread was faster. What lies around it stays, once in a blue moon.
void unmake_table(Table* table) noexcept {
  kernel(SYS_munmap, reinterpret_cast<std::uintptr_t>(table), sizeof(Table));
}

Table* table_at(std::size_t place) noexcept {
  // acquire: pairs with the exchange of who made it.
  Table* table = tables[place].load(std::memory_order_acquire);
  if (table != nullptr || gave_up.load(std::memory_order_relaxed)) return table;
  Table* const made = make_table();
  if (made == nullptr) {
    gave_up.store(true, std::memory_order_relaxed);
    return nullptr;
  }
  if (tables[place].compare_exchange_strong(table, made, std::memory_order_acq_rel)) return made;
  unmake_table(made);
  return table;
}

// A free entry's number, or 0.
std::size_t take_entry(Header& header) noexcept {
  for (std::size_t word = 0; word < header.used.size(); ++word) {
    std::uint64_t used = __atomic_load_n(&header.used[word], __ATOMIC_RELAXED);
    while (used != ~std::uint64_t{0}) {
      const auto bit = static_cast<std::size_t>(__builtin_ctzll(~used));
      // acquire: pairs with the release of who closed it.
      if (__atomic_compare_exchange_n(&header.used[word], &used, used | (std::uint64_t{1} << bit),
                                      false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        return word * 64 + bit;
    }
  }
  return 0;
}

std::int32_t pid_in(Table& table) noexcept {
  std::int32_t& known = process_of(table).pid;
  std::int32_t pid = __atomic_load_n(&known, __ATOMIC_RELAXED);
  if (pid == 0) {
    pid = static_cast<std::int32_t>(kernel(SYS_getpid));
    __atomic_store_n(&known, pid, __ATOMIC_RELAXED);
    // A child, which is captured as its parent is, until somebody says so.
    const std::uint64_t tapped = detail::get(header_of(table).tap_until);
    if (tapped != 0) [[unlikely]]
      detail::set(process_of(table).tap_until, tapped);
  }
  return pid;
}

void add_ended(Ended::Way& to, std::uint64_t messages, std::uint64_t bytes) noexcept {
  if (messages != 0) detail::add_shared(to.messages, messages);
  if (bytes != 0) detail::add_shared(to.bytes, bytes);
}

// What has passed at an end stays known when it is closed.
void keep_sum(Table& table, const Counters& counters, const Identity& identity) noexcept {
  auto& ended = reinterpret_cast<Ended&>(table.times[0]);
  const std::size_t place = std::size_t{identity.kind} - 1;
  if (place >= Ended::kKinds) return;
  using detail::get;
  const Half& sent = counters.sent;
  const Half& received = counters.received;
  const std::uint64_t sent_messages = get(sent.messages);
  const std::uint64_t received_messages = get(received.messages);
  // A child closes what it has been given and has not used.
  if (__atomic_load_n(&process_of(table).pid, __ATOMIC_RELAXED) != identity.owner &&
      (sent_messages | get(sent.kernel_messages) | received_messages |
       get(received.kernel_messages)) == 0)
    return;
  detail::add_shared(ended.ends[place], 1);
  add_ended(ended.passed[place].sent, sent_messages, get(sent.bytes));
  add_ended(ended.passed[place].received, received_messages, get(received.bytes));
  if (place >= Ended::kSockets) return;
  add_ended(ended.kernel[place].sent, get(sent.kernel_messages), get(sent.kernel_bytes));
  add_ended(ended.kernel[place].received, get(received.kernel_messages),
            get(received.kernel_bytes));
}

template <class Word>
void put(Word& word, Word value) noexcept {
  __atomic_store_n(&word, value, __ATOMIC_RELAXED);
}

void fill(Identity& identity, const Description& from, std::int32_t owner) noexcept {
  const std::uint32_t generation = identity.generation | 1;
  put(identity.generation, generation);
  // release: who reads sees the odd generation before what changes.
  __atomic_thread_fence(__ATOMIC_RELEASE);
  identity.kind = static_cast<std::uint8_t>(from.kind);
  identity.role = static_cast<std::uint8_t>(from.role);
  identity.carrier = static_cast<std::uint8_t>(from.carrier);
  identity.reason = 0;
  identity.owner = owner;
  identity.peer = from.peer;
  identity.session = from.session;
  identity.opened = monotonic_ns();
  identity.fd = from.fd;
  identity.local = from.local;
  identity.remote = from.remote;
  identity.name = {};
  const std::size_t bytes = std::min(from.name_bytes, kLongestName);
  identity.name_bytes = static_cast<std::uint32_t>(bytes);
  if (bytes != 0) std::memcpy(identity.name.data(), from.name, bytes);
  __atomic_store_n(&identity.generation, generation + 1, __ATOMIC_RELEASE);
}

}  // namespace

Identity& identity_of(Counters& counters) noexcept {
  return table_of(counters).identities[index_of(counters)];
}

Times& times_of(Counters& counters) noexcept {
  return table_of(counters).times[index_of(counters)];
}

Process* first_process() noexcept {
  Table* const table = tables[0].load(std::memory_order_acquire);
  return table != nullptr ? &process_of(*table) : nullptr;
}

void prepare() noexcept { table_at(0); }

void wait_to_be_read() noexcept {
  constexpr std::int64_t kSecond = 1'000'000'000;
  constexpr timespec kMoment{.tv_sec = 0, .tv_nsec = 1'000'000};
  if (!tapped_from_begin.load(std::memory_order_relaxed)) return;
  const Process* const process = first_process();
  if (process == nullptr) return;
  const std::uint64_t address = detail::get(process->tap_ring);
  if (address == 0) return;
  const auto& rings = *reinterpret_cast<const TapRings*>(static_cast<std::uintptr_t>(address));
  const std::int64_t begin = monotonic_ns();
  // It may end in more than one step.
  if (begin - waited_in_vain.load(std::memory_order_relaxed) < kSecond / 10) return;
  const std::uint32_t nobody_wakes = 0;
  for (std::int64_t now = begin; lasts(detail::get(process->tap_until), now);
       now = monotonic_ns()) {
    const std::int64_t seen = rings.seen.load(std::memory_order_relaxed);
    if (seen > begin) return;
    // Where nobody has read anything so far, perhaps nobody does.
    if (now - begin >= (seen == 0 ? kSecond : 2 * kSecond)) break;
    // A sleep, by a call that a process which uses this needs in any case: others it may have
    // forbidden itself.
    kernel(SYS_futex, &nobody_wakes, FUTEX_WAIT_PRIVATE, 0, &kMoment, nullptr, 0);
  }
  waited_in_vain.store(monotonic_ns(), std::memory_order_relaxed);
}

void end_without_being_read() noexcept {
  tapped_from_begin.store(false, std::memory_order_relaxed);
}

namespace {

// Each library with a copy of this has rings of its own. It is run behind what the program and its
// libraries do by atexit(3).
[[gnu::destructor]] void be_read() noexcept { wait_to_be_read(); }

}  // namespace

Counters* open(const Description& description) noexcept {
  Table* first = nullptr;
  for (std::size_t place = 0; place < kMostTables; ++place) {
    Table* const table = table_at(place);
    if (table == nullptr) break;
    if (first == nullptr) first = table;
    const std::size_t entry = take_entry(header_of(*table));
    if (entry == 0) continue;
    Counters& counters = table->counters[entry];
    std::memset(&counters, 0, sizeof counters);
    // Of times only what has been used: the rest is memory that nobody has touched.
    Times& times = table->times[entry];
    if (times.count != 0) std::memset(&times, 0, sizeof times);
    fill(table->identities[entry], description, pid_in(*table));
    const std::uint64_t tapped = detail::get(process_of(*table).tap_until);
    if (tapped != 0) [[unlikely]]
      counters.sent.tap = counters.received.tap = tapped;
    return &counters;
  }
  if (first != nullptr) detail::add_shared(process_of(*first).not_listed, 1);
  return nullptr;
}

void close(Counters* counters) noexcept {
  if (counters == nullptr) return;
  Table& table = table_of(*counters);
  Identity& identity = identity_of(*counters);
  keep_sum(table, *counters, identity);
  put(identity.generation, identity.generation | 1);
  __atomic_thread_fence(__ATOMIC_RELEASE);
  put(identity.kind, static_cast<std::uint8_t>(Kind::none));
  __atomic_store_n(&identity.generation, identity.generation + 1, __ATOMIC_RELEASE);
  const std::size_t entry = index_of(*counters);
  std::uint64_t& word = header_of(table).used[entry / 64];
  const std::uint64_t bit = std::uint64_t{1} << (entry % 64);
  std::uint64_t used = __atomic_load_n(&word, __ATOMIC_RELAXED);
  // release: pairs with the acquire of who takes it next.
  while (!__atomic_compare_exchange_n(&word, &used, used & ~bit, false, __ATOMIC_RELEASE,
                                      __ATOMIC_RELAXED)) {
  }
}

void set_carrier(Counters* counters, Carrier carrier, std::uint8_t reason) noexcept {
  if (counters == nullptr) return;
  Identity& identity = identity_of(*counters);
  put(identity.reason, reason);
  put(identity.carrier, static_cast<std::uint8_t>(carrier));
}

void set_session(Counters* counters, std::uint64_t session, std::int32_t peer) noexcept {
  if (counters == nullptr) return;
  Identity& identity = identity_of(*counters);
  put(identity.peer, peer);
  put(identity.session, session);
}

Carrier carrier_of(Counters& counters) noexcept {
  return static_cast<Carrier>(__atomic_load_n(&identity_of(counters).carrier, __ATOMIC_RELAXED));
}

std::uint64_t inode_of(int fd) noexcept {
  struct stat status {};
  if (kernel(SYS_newfstatat, fd, "", &status, AT_EMPTY_PATH) != 0) return 0;
  return status.st_ino;
}

}  // namespace farcall::observe
