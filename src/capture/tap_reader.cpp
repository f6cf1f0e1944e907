// SPDX-License-Identifier: Apache-2.0
#include "capture/tap_reader.hpp"

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "observe/lease.hpp"

namespace farcall::capture {
namespace {

using observe::TapRecord;
using observe::TapRing;

// A thread that has been without a processor for longer, in the middle of a record, loses it.
constexpr std::int64_t kLongestStuck = 500'000'000;

bool read_memory(pid_t pid, const iovec* there, std::size_t count, void* into, std::size_t size) {
  iovec here{.iov_base = into, .iov_len = size};
  return ::process_vm_readv(pid, &here, 1, there, count, 0) == static_cast<ssize_t>(size);
}

iovec at(std::uint64_t address, std::size_t size) {
  return {.iov_base = reinterpret_cast<void*>(address), .iov_len = size};
}

template <class Enum>
Enum checked(std::uint8_t value) {
  return value < static_cast<std::uint8_t>(Enum::count_) ? static_cast<Enum>(value) : Enum{};
}

Message message_of(const TapRecord& record, pid_t pid, const std::byte* rest) {
  const auto* const name = reinterpret_cast<const char*>(rest);
  return {.kind = checked<observe::Kind>(record.kind),
          .what = static_cast<TapRecord::What>(record.what),
          .role = checked<observe::Role>(record.role),
          .pid = pid,
          .peer = record.peer,
          .time = record.time,
          .sent = record.sent,
          .received = record.received,
          .session = record.session,
          .opened = record.opened,
          .local = record.local,
          .remote = record.remote,
          .size = record.size,
          .bytes = {rest + record.name_bytes, record.copied},
          .name = {name, record.name_bytes}};
}

}  // namespace

bool TapReader::read_control(Control& into) const {
  std::array<std::byte, sizeof(TapRing)> copy;
  const iovec there = at(ring_, copy.size());
  if (!read_memory(pid_, &there, 1, copy.data(), copy.size())) return false;
  std::uint64_t magic = 0;
  const auto load = [&](std::size_t offset, std::uint64_t& word) {
    std::memcpy(&word, copy.data() + offset, sizeof word);
  };
  load(offsetof(TapRing, magic), magic);
  load(offsetof(TapRing, bytes), into.bytes);
  load(offsetof(TapRing, tail), into.tail);
  load(offsetof(TapRing, records), into.records);
  constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 30;
  return magic == TapRing::kMagic && into.bytes >= 4096 && into.bytes <= kMostBytes &&
         (into.bytes & (into.bytes - 1)) == 0 && into.tail % TapRecord::kAlign == 0;
}

bool TapReader::read_data(std::uint64_t from, std::uint64_t to,
                          std::vector<std::byte>& into) const {
  const std::uint64_t size = to - from;
  const std::uint64_t place = from & (ring_bytes_ - 1);
  const std::uint64_t first = std::min(size, ring_bytes_ - place);
  const std::uint64_t data = ring_ + TapRing::kControlBytes;
  into.resize(size);
  const iovec there[2] = {at(data + place, first), at(data, size - first)};
  return read_memory(pid_, there, first == size ? 1 : 2, into.data(), size);
}

bool TapReader::find_ring() {
  std::uint64_t ring = 0;
  const iovec there = at(process_ + offsetof(observe::Process, tap_ring), sizeof ring);
  if (!read_memory(pid_, &there, 1, &ring, sizeof ring)) return false;
  ring_ = ring;
  return true;
}

TapReader::TapReader(pid_t pid, std::uint64_t process) : pid_(pid), process_(process) {
  Control control{};
  if (!find_ring() || ring_ == 0 || !read_control(control)) return;
  ring_bytes_ = control.bytes;
  next_ = control.tail;
  records_ = control.records;
}

TapReader::Result TapReader::read(Batch& into) {
  if (ring_ == 0 && !find_ring()) return Result::gone;
  if (ring_ == 0) return Result::nothing;
  Control control{};
  if (!read_control(control)) return Result::gone;
  if (ring_bytes_ == 0) ring_bytes_ = control.bytes;
  // Another ring than it was: what lies there is not this reader's.
  if (control.bytes != ring_bytes_ || control.tail < next_) return Result::gone;
  if (control.tail == next_) return Result::nothing;
  const std::uint64_t from =
      control.tail - next_ > ring_bytes_ ? control.tail - ring_bytes_ : next_;
  Control after{};
  if (!read_data(from, control.tail, into.bytes) || !read_control(after)) return Result::gone;
  const std::uint64_t valid =
      after.tail - from > ring_bytes_ ? after.tail - ring_bytes_ : from;
  if (valid >= control.tail) {
    // All of it has been written over meanwhile.
    next_ = control.tail;
    skipped_ = true;
  } else {
    parse(into, from, valid, control.tail);
  }
  // What was reserved before the place that has been reached, and not taken. Exact where nobody
  // writes at this moment.
  if (skipped_ && next_ == control.tail) lost_ = control.records - records_ - taken_;
  return into.messages.empty() ? Result::nothing : Result::some;
}

// Copies of positions from `from` to `to` are there; those before `valid_from` may be torn.
void TapReader::parse(Batch& into, std::uint64_t from, std::uint64_t valid_from, std::uint64_t to) {
  bool in_order = valid_from <= next_;
  skipped_ = skipped_ || !in_order;
  std::uint64_t position = std::max(next_, valid_from);
  position = (position + TapRecord::kAlign - 1) / TapRecord::kAlign * TapRecord::kAlign;
  const std::byte* const bytes = into.bytes.data();
  while (to - position >= sizeof(TapRecord)) {
    TapRecord record;
    std::memcpy(&record, bytes + (position - from), sizeof record);
    const std::uint64_t space = TapRecord::space_of(record.name_bytes, record.copied);
    const bool whole = record.stamp == TapRecord::stamp_of(position) && space <= to - position &&
                       record.what >= TapRecord::kSent && record.what <= TapRecord::kClosed &&
                       record.copied <= record.size && record.copied <= TapRecord::kMost;
    if (whole) {
      into.messages.push_back(
          message_of(record, pid_, bytes + (position - from) + sizeof record));
      ++taken_;
      position += space;
      in_order = true;
      stuck_since_ = 0;
    } else if (in_order && wait_for_writer(position, to)) {
      next_ = position;
      return;
    } else {
      in_order = false;
      skipped_ = true;
      position += TapRecord::kAlign;
    }
  }
  next_ = to;
  stuck_since_ = 0;
}

// Whether the record that has its place and no stamp is waited for.
bool TapReader::wait_for_writer(std::uint64_t position, std::uint64_t tail) {
  if (tail - position > ring_bytes_ / 2) return false;
  const std::int64_t now = observe::monotonic_ns();
  if (stuck_since_ == 0) stuck_since_ = now;
  return now - stuck_since_ < kLongestStuck;
}

}  // namespace farcall::capture
