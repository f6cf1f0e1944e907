// SPDX-License-Identifier: Apache-2.0
#include "model/checker/memory.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace farcall::model {
namespace {

using Order = std::memory_order;

constexpr bool acquires(Order order) noexcept {
  return order == Order::acquire || order == Order::acq_rel || order == Order::seq_cst ||
         order == Order::consume;
}
constexpr bool releases(Order order) noexcept {
  return order == Order::release || order == Order::acq_rel || order == Order::seq_cst;
}

std::uint64_t value_at(const std::byte* address, unsigned size) noexcept {
  std::uint64_t value = 0;
  std::memcpy(&value, address, size);
  return value;
}

constexpr unsigned kMostSeqCst = 64;

}  // namespace

void Memory::reset() noexcept {
  for (unsigned i = 0; i < location_count_; ++i) {
    Location& old = locations_[i];
    old.messages.clear();
    old.order.clear();
    old.position.clear();
    old.loads = old.stores = {};
    old.mixed = old.stale = false;
    old.hash = 0;
  }
  for (unsigned i = 0; i < region_count_; ++i) {
    Region& region = regions_[i];
    std::ranges::fill(region.locations, std::uint8_t{0});
    if (region.touched) std::ranges::fill(region.bytes, Byte{});
    region.touched = false;
  }
  region_count_ = location_count_ = 0;
  lowest_ = highest_ = nullptr;
  threads_.fill({});
  seq_cst_.clear();
  fences_ = 0;
  copies_.clear();
  forgiving_ = false;
}

void Memory::share(void* base, std::size_t size, bool mirrored) {
  if (region_count_ == kMostRegions) violation("too many regions");
  Region& region = regions_[region_count_++];
  region.base = static_cast<std::byte*>(base);
  region.size = size;
  region.mirrored = mirrored;
  const std::byte* const end = region.base + (mirrored ? 2 : 1) * size;
  lowest_ = region_count_ == 1 ? region.base : std::min<const std::byte*>(lowest_, region.base);
  highest_ = region_count_ == 1 ? end : std::max(highest_, end);
  region.bytes.resize(size);
  region.locations.resize(size);
}

void* Memory::first_copy(const void* address) const noexcept {
  auto* const where = const_cast<std::byte*>(static_cast<const std::byte*>(address));
  if (where < lowest_ || where >= highest_) return where;
  for (unsigned i = 0; i < region_count_; ++i) {
    const Region& region = regions_[i];
    if (region.mirrored && where >= region.base + region.size &&
        where < region.base + 2 * region.size)
      return where - region.size;
  }
  return where;
}

Location& Memory::location(const void* address, unsigned size) {
  const auto* const where = static_cast<const std::byte*>(address);
  Region& region = *region_of(where);
  const auto offset = static_cast<std::size_t>(where - region.base);
  if (const unsigned known = region.locations[offset]; known != 0) {
    Location& at = locations_[known - 1];
    if (at.size != size) violation("one word is used with two sizes");
    if (at.stale) refresh(at);
    return at;
  }
  if (location_count_ == kMostLocations) violation("too many locations");
  Location& at = locations_[location_count_++];
  region.locations[offset] = static_cast<std::uint8_t>(location_count_);
  at.address = region.base + offset;
  at.size = size;
  at.key = key_of(where);
  at.messages.emplace_back().value = value_at(where, size);
  at.order.push_back(0);
  at.position.push_back(0);
  // Whoever has stored it plainly so far comes before whoever reads it, or it is a race.
  at.mixed = std::any_of(region.bytes.begin() + static_cast<std::ptrdiff_t>(offset),
                         region.bytes.begin() + static_cast<std::ptrdiff_t>(offset + size),
                         [](const Byte& byte) { return byte != Byte{}; });
  return at;
}

// After a plain store, which happens after all that came before, or it is a race.
void Memory::refresh(Location& at) {
  at.stale = false;
  at.messages[at.order.back()].value = value_at(at.address, at.size);
}

void Memory::join(View& into, const View& other) noexcept {
  for (unsigned i = 0; i < kMostThreads; ++i)
    into.clock[i] = std::max(into.clock[i], other.clock[i]);
  into.ordered |= other.ordered;
  for (unsigned i = 0; i < location_count_; ++i) {
    const auto& position = locations_[i].position;
    if (into.seen[i] != other.seen[i] && position[other.seen[i]] > position[into.seen[i]])
      into.seen[i] = other.seen[i];
  }
}

void Memory::begin(unsigned thread, std::uint64_t what) noexcept {
  ++threads_[thread].now.clock[thread];
  note(thread, what);
}

// --- The order of what is seq_cst

std::uint64_t Memory::everything_before(std::uint64_t events) const noexcept {
  std::uint64_t all = events;
  for (std::uint64_t left = events; left != 0; left &= left - 1)
    all |= seq_cst_[static_cast<unsigned>(std::countr_zero(left))].before;
  return all;
}

std::uint64_t Memory::take_seq_cst(bool fence) {
  if (seq_cst_.size() == kMostSeqCst) violation("more than 64 seq_cst events: use smaller bounds");
  const std::uint64_t bit = std::uint64_t{1} << seq_cst_.size();
  seq_cst_.emplace_back().fence = fence;
  if (fence) fences_ |= bit;
  return bit;
}

// What is coherence-ordered before a load of the message at `place`, or a store behind it.
std::uint64_t Memory::prefix(const Location& at, std::size_t place, bool stores) noexcept {
  std::uint64_t all = 0;
  for (std::size_t i = 0; i <= place; ++i) {
    const Message& message = at.messages[at.order[i]];
    all |= message.before_store;
    if (stores || i < place) all |= message.before_loads;
  }
  return all;
}

Memory::Constraint Memory::constraint(unsigned thread, Location& at, std::size_t place, bool stores,
                                      bool seq_cst) const {
  const View& now = threads_[thread].now;
  Constraint wanted;
  wanted.from = everything_before(now.ordered & fences_);
  if (seq_cst) {
    wanted.self = everything_before(now.ordered | prefix(at, place, stores));
    wanted.from |= wanted.self;
  }
  if (wanted.from == 0 && !seq_cst) return wanted;
  const std::size_t index = static_cast<std::size_t>(&at - locations_.data());
  for (std::size_t i = place + 1; i < at.order.size(); ++i)
    wanted.to |= at.messages[at.order[i]].seq_cst;
  for (std::uint64_t left = fences_; left != 0; left &= left - 1) {
    const auto fence = static_cast<unsigned>(std::countr_zero(left));
    if (at.position[seq_cst_[fence].view.seen[index]] > place)
      wanted.to |= std::uint64_t{1} << fence;
  }
  return wanted;
}

bool Memory::permitted(const Constraint& wanted) const noexcept {
  return (wanted.to & wanted.from) == 0;
}

// If `seq_cst` the access is the last of the events.
void Memory::commit(const Constraint& wanted, bool seq_cst) {
  std::uint64_t from = wanted.from;
  if (seq_cst) {
    seq_cst_.back().before |= wanted.self;
    from |= std::uint64_t{1} << (seq_cst_.size() - 1);
  }
  if (wanted.to == 0) return;
  for (unsigned i = 0; i < seq_cst_.size(); ++i)
    if (((std::uint64_t{1} << i | seq_cst_[i].before) & wanted.to) != 0) seq_cst_[i].before |= from;
}

// --- Loads and stores

void Memory::candidates(unsigned thread, Location& at, bool stores, bool seq_cst) {
  candidates_.clear();
  const std::size_t index = static_cast<std::size_t>(&at - locations_.data());
  const std::size_t oldest = at.position[threads_[thread].now.seen[index]];
  for (std::size_t place = at.order.size(); place-- > oldest;) {
    // Nothing comes between a read-modify-write and what it has read.
    if (stores && place + 1 < at.order.size() && at.at(place + 1).update) continue;
    if (permitted(constraint(thread, at, place, stores, seq_cst))) candidates_.push_back(place);
  }
  if (candidates_.empty()) violation("the model has no value for this access");
}

void Memory::read(unsigned thread, Location& at, std::size_t place, Order order, bool updates) {
  Thread& me = threads_[thread];
  const std::size_t index = static_cast<std::size_t>(&at - locations_.data());
  const bool seq_cst = order == Order::seq_cst;
  if (!updates) {
    const Constraint wanted = constraint(thread, at, place, false, seq_cst);
    const std::uint64_t self = seq_cst ? take_seq_cst(false) : 0;
    commit(wanted, seq_cst);
    Message& message = at.at(place);
    message.before_loads |= (me.now.ordered & fences_) | self;
    message.seq_cst |= self;
    me.now.ordered |= self;
  }
  const MessageId id = at.order[place];
  const Message& message = at.messages[id];
  me.now.seen[index] = id;
  if (acquires(order))
    join(me.now, message.view);
  else
    join(me.acquired, message.view);
  at.loads[thread] = me.now.clock[thread];
  note(thread, message.identity());
}

void Memory::insert(unsigned thread, Location& at, std::size_t behind, std::uint64_t value,
                    Order order, bool updates) {
  Thread& me = threads_[thread];
  const std::size_t index = static_cast<std::size_t>(&at - locations_.data());
  const bool seq_cst = order == Order::seq_cst;
  const Constraint wanted = constraint(thread, at, behind, true, seq_cst);
  const std::uint64_t self = seq_cst ? take_seq_cst(false) : 0;
  commit(wanted, seq_cst);
  const auto id = static_cast<MessageId>(at.messages.size());
  Message& message = at.messages.emplace_back();
  message.value = value;
  message.thread = static_cast<std::uint8_t>(thread);
  message.event = me.now.clock[thread];
  message.update = updates;
  message.before_store = (me.now.ordered & fences_) | self;
  message.seq_cst = self;
  at.order.insert(at.order.begin() + static_cast<std::ptrdiff_t>(behind) + 1, id);
  at.position.push_back(0);
  for (std::size_t i = behind + 1; i < at.order.size(); ++i)
    at.position[at.order[i]] = static_cast<std::uint16_t>(i);
  me.now.seen[index] = id;
  message.view = releases(order) ? me.now : me.released;
  // What continues a release sequence.
  if (updates) join(message.view, at.at(behind).view);
  me.now.ordered |= self;
  at.stores[thread] = me.now.clock[thread];
  if (behind + 2 == at.order.size()) std::memcpy(at.address, &value, at.size);
  ++me.stores;
  std::uint64_t hash = at.key;
  for (std::size_t i = 1; i < at.order.size(); ++i) hash = mix(hash, at.at(i).identity());
  at.hash = hash;
}

std::uint64_t Memory::load(unsigned thread, const void* address, unsigned size, Order order,
                           bool newest) {
  Location& at = location(address, size);
  begin(thread, at.key);
  if (at.mixed) check_atomic(thread, at, false);
  candidates(thread, at, false, order == Order::seq_cst);
  const std::size_t place =
      candidates_[newest ? 0 : choose(static_cast<unsigned>(candidates_.size()))];
  read(thread, at, place, order, false);
  return at.at(place).value;
}

void Memory::store(unsigned thread, void* address, unsigned size, std::uint64_t value,
                   Order order) {
  Location& at = location(address, size);
  begin(thread, std::uint64_t{at.key} << 1 | 1);
  if (at.mixed) check_atomic(thread, at, true);
  candidates(thread, at, true, order == Order::seq_cst);
  insert(thread, at, candidates_[choose(static_cast<unsigned>(candidates_.size()))], value, order,
         false);
}

std::size_t Memory::choose_update(unsigned thread, Location& at, Order order, bool newest) {
  begin(thread, std::uint64_t{at.key} << 2 | 2);
  if (at.mixed) check_atomic(thread, at, true);
  candidates(thread, at, true, order == Order::seq_cst);
  return candidates_[newest ? 0 : choose(static_cast<unsigned>(candidates_.size()))];
}

void Memory::finish_update(unsigned thread, Location& at, std::size_t place, std::uint64_t value,
                           Order order) {
  // As a load it is no event of its own in S, and what it reads comes after those that read the
  // same only as a store.
  const std::uint64_t ordered = threads_[thread].now.ordered;
  read(thread, at, place, order, true);
  const std::uint64_t brought = threads_[thread].now.ordered;
  threads_[thread].now.ordered = ordered;
  insert(thread, at, place, value, order, true);
  if (releases(order)) at.at(place + 1).view.ordered |= brought;
  threads_[thread].now.ordered |= brought;
}

bool Memory::compare_exchange(unsigned thread, void* address, unsigned size,
                              std::uint64_t& expected, std::uint64_t desired, Order success,
                              Order failure) {
  Location& at = location(address, size);
  begin(thread, std::uint64_t{at.key} << 2 | 3);
  if (at.mixed) check_atomic(thread, at, true);
  std::vector<std::pair<std::size_t, bool>> ways;
  candidates(thread, at, true, success == Order::seq_cst);
  for (const std::size_t place : candidates_)
    if (at.at(place).value == expected) ways.emplace_back(place, true);
  candidates(thread, at, false, failure == Order::seq_cst);
  for (const std::size_t place : candidates_)
    if (at.at(place).value != expected) ways.emplace_back(place, false);
  if (ways.empty()) violation("the model has no value for this exchange");
  const auto [place, succeeds] = ways[choose(static_cast<unsigned>(ways.size()))];
  expected = at.at(place).value;
  if (succeeds)
    finish_update(thread, at, place, desired, success);
  else
    read(thread, at, place, failure, false);
  return succeeds;
}

void Memory::fence(unsigned thread, Order order) {
  Thread& me = threads_[thread];
  begin(thread, 5 + static_cast<std::uint64_t>(order));
  if (acquires(order)) join(me.now, me.acquired);
  if (order == Order::seq_cst) {
    std::uint64_t before = me.now.ordered;
    for (unsigned i = 0; i < location_count_; ++i)
      before |= prefix(locations_[i], locations_[i].position[me.now.seen[i]], false);
    before = everything_before(before);
    me.now.ordered |= take_seq_cst(true);
    seq_cst_.back().before = before;
    seq_cst_.back().view = me.now;
  }
  if (releases(order)) me.released = me.now;
}

View Memory::leave_behind(unsigned thread) {
  begin(thread, 4);
  return threads_[thread].now;
}

std::uint64_t Memory::hash() const noexcept {
  std::uint64_t all = 0;
  for (unsigned i = 0; i < location_count_; ++i) all += locations_[i].hash;
  for (unsigned i = 0; i < kMostThreads; ++i) all += mix(i + 1, threads_[i].history);
  return all;
}

std::uint64_t Memory::stores_of_others(unsigned thread) const noexcept {
  std::uint64_t all = 0;
  for (unsigned i = 0; i < kMostThreads; ++i)
    if (i != thread) all += threads_[i].stores;
  return all;
}

}  // namespace farcall::model
