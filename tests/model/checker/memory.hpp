// SPDX-License-Identifier: Apache-2.0
//
// The memory of one execution under the C++ memory model (C++20, without cycles of "sequenced
// before" and "reads from": a load reads what has been stored before, so load buffering is not
// seen).
//
// A location is the row of messages (stores) that its modification order makes of them. A thread
// knows of each location one message below which it reads nothing any more, its view:
//
//   location   m0 ---- m1 ---- m2 ---- m3
//                       ^ seen          ^ newest: a load may take m1, m2 or m3
//
// A load takes any message from its view on. A store goes anywhere behind its thread's view, a
// read-modify-write right behind what it reads. A message carries the view of who stored it with
// release (or behind a release fence); an acquire takes that over.
//
// The single total order S of what is seq_cst is kept as a graph: each event knows those that must
// come before it. What would close a circle is not permitted; that is all that the standard asks
// (atomics.order, 4), so S need not be the order in which the steps are run here.
//
// Plain accesses run as they are. Each is checked for races with all others, byte by byte.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace farcall::model {

inline constexpr unsigned kMostThreads = 4;
inline constexpr unsigned kMostLocations = 48;
inline constexpr unsigned kMostRegions = 12;

using MessageId = std::uint16_t;

// Mixes one more number into a hash.
constexpr std::uint64_t mix(std::uint64_t hash, std::uint64_t value) noexcept {
  hash ^= value + 0x9e3779b97f4a7c15 + (hash << 12) + (hash >> 4);
  hash *= 0xff51afd7ed558ccd;
  return hash ^ hash >> 32;
}

// What happens before a point of a thread.
struct View {
  std::array<std::uint16_t, kMostThreads> clock{};  // so many events of each thread
  std::uint64_t ordered = 0;                        // these seq_cst events
  std::array<MessageId, kMostLocations> seen{};     // and of each location this message
};

// One store.
struct Message {
  std::uint64_t value = 0;
  View view;  // what an acquire of it brings
  std::uint8_t thread = 0xff;
  std::uint16_t event = 0;
  bool update = false;  // a read-modify-write, which nothing parts from what it has read
  // Fences before the store, and before those who have read it; and themselves if seq_cst.
  std::uint64_t before_store = 0;
  std::uint64_t before_loads = 0;
  std::uint64_t seq_cst = 0;  // the store and the loads that are seq_cst

  [[nodiscard]] std::uint64_t identity() const noexcept {
    return thread == 0xff ? 0 : (std::uint64_t{thread} + 1) << 16 | event;
  }
};

struct Location {
  std::byte* address = nullptr;
  unsigned size = 0;
  std::uint32_t key = 0;
  bool mixed = false;  // plain accesses have touched it
  bool stale = false;  // a plain store has; its value is not known yet
  std::uint64_t hash = 0;
  std::vector<Message> messages;
  std::vector<MessageId> order;                     // the modification order
  std::vector<std::uint16_t> position;              // of each message in it
  std::array<std::uint16_t, kMostThreads> loads{};  // the last event of each thread
  std::array<std::uint16_t, kMostThreads> stores{};

  [[nodiscard]] Message& at(std::size_t place) { return messages[order[place]]; }
};

// A copy out of shared memory that may be thrown away; see Memory::forgive_copies().
struct Copy {
  unsigned thread;
  std::uint16_t clock;
  const std::byte* from;
  std::byte* to;
  std::size_t size;
  bool confirmed;
};

class Memory {
 public:
  using Order = std::memory_order;

  void reset() noexcept;
  // Memory that the threads share. Words of it that nobody has touched yet are what they are.
  void share(void* base, std::size_t size, bool mirrored);
  // Of memory that is mapped twice.
  [[nodiscard]] void* first_copy(const void* address) const noexcept;
  // How many bytes follow in the same region, or none.
  [[nodiscard]] std::size_t room(const std::byte* address) const noexcept {
    const Region* const region = region_of(address);
    return region == nullptr ? SIZE_MAX
                             : static_cast<std::size_t>(region->base + region->size - address);
  }
  // Of a word; the same in all executions.
  [[nodiscard]] std::uint32_t key_of(const void* address) const noexcept {
    const auto* const where = static_cast<const std::byte*>(address);
    const Region* const region = region_of(where);
    return static_cast<std::uint32_t>((region - regions_.data()) << 24 | (where - region->base));
  }
  [[nodiscard]] bool is_shared(const void* address) const noexcept {
    return region_of(static_cast<const std::byte*>(address)) != nullptr;
  }

  std::uint64_t load(unsigned thread, const void* address, unsigned size, Order order,
                     bool newest = false);
  void store(unsigned thread, void* address, unsigned size, std::uint64_t value, Order order);
  // `change` makes the new value of the old one.
  template <class Change>
  std::uint64_t update(unsigned thread, void* address, unsigned size, Order order, bool newest,
                       Change change);
  // As compare_exchange_strong: `expected` gets what was read.
  bool compare_exchange(unsigned thread, void* address, unsigned size, std::uint64_t& expected,
                        std::uint64_t desired, Order success, Order failure);
  void fence(unsigned thread, Order order);

  void plain_load(unsigned thread, const void* address, std::size_t size);
  void plain_store(unsigned thread, void* address, std::size_t size);
  void copy(unsigned thread, void* to, const void* from, std::size_t size);

  // From now on a copy out of shared memory may race with stores; its bytes are then spoilt.
  // settle_copies() says that those which are in [begin, end) are used, so that no store may race
  // with them after all, and that the thread's others are not.
  void forgive_copies() noexcept { forgiving_ = true; }
  void settle_copies(unsigned thread, const std::byte* begin, const std::byte* end);
  // Something else is there now.
  void forget_copies(const std::byte* at, std::size_t size) noexcept;

  // What the kernel orders: `thread` takes over, or leaves behind, all that happened before.
  void take_over(unsigned thread, const View& view) { join(threads_[thread].now, view); }
  View leave_behind(unsigned thread);
  void join(View& into, const View& other) noexcept;

  void note(unsigned thread, std::uint64_t what) noexcept {
    threads_[thread].history = mix(threads_[thread].history, what);
  }
  // Of all that decides how it goes on, but for what the threads themselves know, which follows
  // from what they have read.
  [[nodiscard]] std::uint64_t hash() const noexcept;
  [[nodiscard]] std::uint16_t events(unsigned thread) const noexcept {
    return threads_[thread].now.clock[thread];
  }
  // How many stores the other threads have made.
  [[nodiscard]] std::uint64_t stores_of_others(unsigned thread) const noexcept;

 private:
  struct Byte {
    std::uint16_t stored = 0;
    std::uint8_t by = 0xff;
    std::array<std::uint16_t, kMostThreads> loaded{};
    bool operator==(const Byte&) const noexcept = default;
  };
  struct Region {
    std::byte* base = nullptr;
    std::size_t size = 0;
    bool mirrored = false;
    std::vector<Byte> bytes;
    std::vector<std::uint8_t> locations;  // by offset; the index plus one
    bool touched = false;
  };
  struct Thread {
    View now;
    View acquired;  // what an acquire fence would bring
    View released;  // what the last release fence has made of all later stores
    std::uint64_t history = 0;
    std::uint64_t stores = 0;  // how many it has made
  };
  struct SeqCst {
    bool fence = false;
    View view;
    std::uint64_t before = 0;  // all that come before it in S
  };
  // What an access means for S, if it takes effect behind the message at `place`.
  struct Constraint {
    std::uint64_t from = 0;  // all these come before
    std::uint64_t to = 0;    // all these
    std::uint64_t self = 0;  // what comes before the access itself
  };

  [[nodiscard]] const Region* region_of(const std::byte* address) const noexcept {
    if (address < lowest_ || address >= highest_) return nullptr;
    for (unsigned i = 0; i < region_count_; ++i)
      if (address - regions_[i].base >= 0 &&
          static_cast<std::size_t>(address - regions_[i].base) < regions_[i].size)
        return &regions_[i];
    return nullptr;
  }
  Region* region_of(const std::byte* address) noexcept {
    return const_cast<Region*>(static_cast<const Memory*>(this)->region_of(address));
  }
  Location& location(const void* address, unsigned size);
  void refresh(Location& at);
  void check_atomic(unsigned thread, Location& at, bool stores);
  void check_plain(unsigned thread, std::byte* address, std::size_t size, bool stores);
  void check_words(unsigned thread, Region& region, std::size_t offset, std::size_t size,
                   bool stores);
  void spoil_copies(unsigned thread, const std::byte* address, std::size_t size);
  [[noreturn]] void race(unsigned thread, unsigned other, const std::byte* address) const;

  void begin(unsigned thread, std::uint64_t what) noexcept;
  Constraint constraint(unsigned thread, Location& at, std::size_t place, bool stores,
                        bool seq_cst) const;
  [[nodiscard]] bool permitted(const Constraint& wanted) const noexcept;
  void commit(const Constraint& wanted, bool seq_cst);
  [[nodiscard]] std::uint64_t everything_before(std::uint64_t events) const noexcept;
  std::uint64_t take_seq_cst(bool fence);

  // The places behind which the access may take effect, newest first.
  void candidates(unsigned thread, Location& at, bool stores, bool seq_cst);
  void read(unsigned thread, Location& at, std::size_t place, Order order, bool updates);
  void insert(unsigned thread, Location& at, std::size_t behind, std::uint64_t value, Order order,
              bool updates);
  std::size_t choose_update(unsigned thread, Location& at, Order order, bool newest);
  void finish_update(unsigned thread, Location& at, std::size_t place, std::uint64_t value,
                     Order order);
  static std::uint64_t prefix(const Location& at, std::size_t place, bool stores) noexcept;

  std::array<Region, kMostRegions> regions_;
  unsigned region_count_ = 0;
  const std::byte* lowest_ = nullptr;  // of all regions
  const std::byte* highest_ = nullptr;
  std::array<Location, kMostLocations> locations_;
  unsigned location_count_ = 0;
  std::array<Thread, kMostThreads> threads_;
  std::vector<SeqCst> seq_cst_;
  std::uint64_t fences_ = 0;
  std::vector<std::size_t> candidates_;
  std::vector<Copy> copies_;
  bool forgiving_ = false;
};

template <class Change>
std::uint64_t Memory::update(unsigned thread, void* address, unsigned size, Order order,
                             bool newest, Change change) {
  Location& at = location(address, size);
  const std::size_t place = choose_update(thread, at, order, newest);
  const std::uint64_t before = at.at(place).value;
  finish_update(thread, at, place, change(before), order);
  return before;
}

// Chooses one of several ways to go on; every one is taken, in the end.
unsigned choose(unsigned count);
// The execution is wrong, and ends here.
[[noreturn]] void violation(const std::string& what);

}  // namespace farcall::model
