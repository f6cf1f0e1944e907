// SPDX-License-Identifier: Apache-2.0
#include "capture/tap_reader.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace farcall::capture {
namespace {

using observe::TapRecord;
using observe::TapRing;
using observe::TapRings;

iovec at(std::uint64_t address, std::size_t size) {
  return {.iov_base = reinterpret_cast<void*>(address), .iov_len = size};
}

template <class Enum>
Enum checked(std::uint8_t value) {
  return value < static_cast<std::uint8_t>(Enum::count_) ? static_cast<Enum>(value) : Enum{};
}

Message message_of(const TapRecord& record, const watch::Owner& of, const std::byte* rest) {
  const auto* const name = reinterpret_cast<const char*>(rest);
  return {.kind = checked<observe::Kind>(record.kind),
          .what = static_cast<TapRecord::What>(record.what),
          .role = checked<observe::Role>(record.role),
          .user = of.user,
          .pid = of.pid,
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

bool TapReader::find_rings() {
  std::uint64_t address = 0;
  const iovec there = at(process_ + offsetof(observe::Process, tap_ring), sizeof address);
  if (!watch::read_memory(of_, {&there, 1}, &address, sizeof address)) return false;
  rings_at_ = address;
  return true;
}

bool TapReader::read_control(Control& into) const {
  std::array<std::byte, sizeof(TapRings)> copy;
  const iovec there = at(rings_at_, copy.size());
  if (!watch::read_memory(of_, {&there, 1}, copy.data(), copy.size())) return false;
  const auto load = [&](std::size_t offset, auto& word) {
    std::memcpy(&word, copy.data() + offset, sizeof word);
  };
  std::uint64_t magic = 0;
  load(offsetof(TapRings, magic), magic);
  load(offsetof(TapRings, bytes), into.bytes);
  load(offsetof(TapRings, refused), into.refused);
  bool right = magic == TapRings::kMagic && into.bytes == TapRing::kBytes;
  for (std::size_t i = 0; i < into.tails.size(); ++i) {
    const std::size_t ring = offsetof(TapRings, rings) + i * sizeof(TapRing);
    load(ring + offsetof(TapRing, tail), into.tails[i]);
    load(ring + offsetof(TapRing, records), into.records[i]);
    right = right && into.tails[i] % TapRecord::kAlign == 0;
  }
  return right;
}

TapReader::TapReader(const watch::Owner& of, std::uint64_t process, bool from_begin)
    : of_(of), process_(process) {
  Control control;
  if (from_begin || !find_rings() || rings_at_ == 0 || !read_control(control)) return;
  refused_ = refused_before_ = control.refused;
  for (std::size_t i = 0; i < rings_.size(); ++i)
    rings_[i] = {.next = control.tails[i], .number = control.records[i]};
}

bool TapReader::read_data(std::size_t index, std::uint64_t from, std::uint64_t to,
                          std::vector<std::byte>& into) const {
  const std::uint64_t size = to - from;
  const std::uint64_t place = from & (TapRing::kBytes - 1);
  const std::uint64_t first = std::min(size, TapRing::kBytes - place);
  const std::uint64_t data = rings_at_ + TapRings::kControlBytes + index * TapRing::kBytes;
  into.resize(size);
  const iovec there[2] = {at(data + place, first), at(data, size - first)};
  return watch::read_memory(of_, {there, first == size ? 1U : 2U}, into.data(), size);
}

bool TapReader::read_ring(std::size_t index, std::uint64_t tail, Batch& into) {
  // What is behind the tail may be in the middle of being overwritten.
  constexpr std::uint64_t kReadable = TapRing::kBytes - observe::kLongestTapRecord;
  Ring& ring = rings_[index];
  const std::uint64_t from = tail - ring.next > kReadable ? tail - kReadable : ring.next;
  Control after;
  if (!read_data(index, from, tail, into.bytes) || !read_control(after)) return false;
  // One that moves back is not to be trusted with what lies behind it.
  if (after.tails[index] < tail) return false;
  const std::uint64_t valid =
      after.tails[index] - from > kReadable ? after.tails[index] - kReadable : from;
  parse(ring, into, from, std::min(valid, tail), tail);
  return true;
}

bool TapReader::read(std::vector<std::unique_ptr<Batch>>& into) {
  if (rings_at_ == 0 && !find_rings()) return false;
  if (rings_at_ == 0) return true;
  Control control;
  if (!read_control(control)) return false;
  refused_ = control.refused;
  for (std::size_t i = 0; i < rings_.size(); ++i) {
    // Other memory than it was: what lies there is not this reader's.
    if (control.tails[i] < rings_[i].next) return false;
    if (control.tails[i] == rings_[i].next) continue;
    auto batch = std::make_unique<Batch>();
    if (!read_ring(i, control.tails[i], *batch)) return false;
    if (!batch->messages.empty()) into.push_back(std::move(batch));
  }
  return true;
}

void TapReader::acknowledge(std::int64_t time) const {
  if (rings_at_ == 0) return;
  const iovec there = at(rings_at_ + offsetof(TapRings, seen), sizeof time);
  // One that has gone does not wait.
  static_cast<void>(watch::write_memory(of_, {&there, 1}, &time, sizeof time));
}

// Copies of positions from `from` to `to` are there; those before `valid_from` may be torn.
void TapReader::parse(Ring& ring, Batch& into, std::uint64_t from, std::uint64_t valid_from,
                      std::uint64_t to) {
  const std::byte* const bytes = into.bytes.data();
  // After a leap, where the next record begins is to be found.
  std::uint64_t position =
      (valid_from + TapRecord::kAlign - 1) / TapRecord::kAlign * TapRecord::kAlign;
  while (position < to && to - position >= sizeof(TapRecord)) {
    TapRecord record;
    std::memcpy(&record, bytes + (position - from), sizeof record);
    const std::uint64_t space = TapRecord::space_of(record.name_bytes, record.copied);
    const bool right = record.stamp == TapRecord::stamp_of(position) && space <= to - position &&
                       record.what >= TapRecord::kSent && record.what <= TapRecord::kClosed &&
                       record.copied <= record.size && record.copied <= TapRecord::kMost;
    if (!right) {
      position += TapRecord::kAlign;
      continue;
    }
    // Who begins to read in the middle of a record has its number already.
    const auto left_out = static_cast<std::int32_t>(record.number - ring.number);
    if (left_out > 0) lost_ += static_cast<std::uint32_t>(left_out);
    ring.number = record.number + 1;
    into.messages.push_back(message_of(record, of_, bytes + (position - from) + sizeof record));
    position += space;
  }
  ring.next = to;
}

}  // namespace farcall::capture
