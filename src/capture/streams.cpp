// SPDX-License-Identifier: Apache-2.0
#include "capture/streams.hpp"

#include <algorithm>
#include <cstring>

namespace farcall::capture {
namespace {

constexpr std::size_t kMostOfTheSame = 4;  // between two addresses
constexpr std::size_t kMostGaps = 4096;    // of a direction; older ones are not filled any more
constexpr std::size_t kMostGapsInAll = 1 << 18;

bool is_first(const observe::Address& one, const observe::Address& other) {
  const int order = std::memcmp(one.bytes.data(), other.bytes.data(), one.bytes.size());
  return order != 0 ? order < 0 : one.port <= other.port;
}

// Where the message begins in its stream.
std::uint64_t offset_of(const Message& message) {
  return message.is_sent() ? message.sent : message.received;
}

std::size_t gaps_of(const auto& connection) {
  return connection.directions[0].gaps.size() + connection.directions[1].gaps.size();
}

std::int64_t last_of(const auto& connections) {
  std::int64_t last = 0;
  for (const auto& connection : connections) last = std::max(last, connection.last_message);
  return last;
}

// Another connection between the same addresses begins elsewhere, as with the kernel.
std::uint32_t first_of(std::int64_t opened, std::size_t end) {
  const std::uint64_t mixed = (static_cast<std::uint64_t>(opened) + end) * 0x9e3779b97f4a7c15;
  return static_cast<std::uint32_t>(mixed >> 32);
}

}  // namespace

Streams::Connection& Streams::connection_of(const Message& message, std::size_t local) {
  const observe::Address ends[2] = {local == 0 ? message.local : message.remote,
                                    local == 0 ? message.remote : message.local};
  Key key;
  for (std::size_t i = 0; i < 2; ++i) {
    std::memcpy(&key[i * 18], ends[i].bytes.data(), 16);
    std::memcpy(&key[i * 18 + 16], &ends[i].port, 2);
  }
  // What one user's processes tell is not mixed with what those of another do.
  std::memcpy(&key[36], &message.user, sizeof message.user);
  if (connections_.size() > kMostConnections) forget_half();
  std::vector<Connection>& all = connections_[key];
  if (all.size() > kMostOfTheSame) {
    forget(all.front());
    all.erase(all.begin());
  }
  for (auto one = all.rbegin(); one != all.rend(); ++one)
    if (one->opened[local] == message.opened) return *one;
  // The other end may be known first. One that it has closed long before this was opened
  // was another connection.
  constexpr std::int64_t kAccepted = 5'000'000'000;
  if (!all.empty() && all.back().opened[local] == 0) {
    const std::int64_t closed = all.back().closed[1 - local];
    if (closed == 0 || message.opened - closed < kAccepted) {
      all.back().opened[local] = message.opened;
      return all.back();
    }
  }
  Connection made;
  std::copy_n(ends, 2, made.ends);
  made.opened[local] = message.opened;
  for (std::size_t i = 0; i < 2; ++i) made.first[i] = first_of(message.opened, i);
  all.push_back(std::move(made));
  begin(all.back(), local, message);
  return all.back();
}

void Streams::write_flags(const Connection& connection, std::size_t from, const Message& message,
                          const TcpFields& fields, std::string_view comment) {
  const std::size_t local = message.local == connection.ends[0] ? 0 : 1;
  emit_(message, from == local ? Way::outbound : Way::inbound,
        IpHeader::tcp(connection.ends[from], connection.ends[1 - from], fields, {}), {}, comment);
}

// That there was one is known; not what was in it.
void Streams::begin(Connection& connection, std::size_t local, const Message& message) {
  // One that may have been known before is somewhere in its middle.
  const bool is_new = message.opened >= since_ && message.opened > forgotten_until_;
  if (!is_new && (message.sent | message.received) != 0) return;
  for (Direction& direction : connection.directions) direction.begun = true;
  if (message.role != observe::Role::client && message.role != observe::Role::server) return;
  const std::size_t client = message.role == observe::Role::client ? local : 1 - local;
  const std::uint32_t ours = connection.first[client];
  const std::uint32_t theirs = connection.first[1 - client];
  write_flags(connection, client, message,
              {.sequence = ours, .acknowledged = 0, .syn = true, .ack = false},
              "farcall: the handshake is not the kernel's, whose options it has not");
  write_flags(connection, 1 - client, message,
              {.sequence = theirs, .acknowledged = ours + 1, .syn = true}, {});
  write_flags(connection, client, message, {.sequence = ours + 1, .acknowledged = theirs + 1}, {});
}

void Streams::write(const Connection& connection, std::size_t from, const Message& message,
                    std::uint64_t begin, std::uint64_t end) {
  const std::uint64_t offset = offset_of(message);
  while (begin != end) {
    const std::uint64_t size = std::min<std::uint64_t>(end - begin, IpHeader::kMostPayload);
    const std::span<const std::byte> bytes = message.bytes.subspan(begin - offset, size);
    const TcpFields fields{
        .sequence = connection.first[from] + 1 + static_cast<std::uint32_t>(begin),
        .acknowledged = connection.first[1 - from] + 1 +
                        static_cast<std::uint32_t>(connection.directions[from].acknowledged),
        .push = true};
    emit_(message, message.is_sent() ? Way::outbound : Way::inbound,
          IpHeader::tcp(connection.ends[from], connection.ends[1 - from], fields, bytes), bytes,
          {});
    begin += size;
  }
}

void Streams::leave_gap(Direction& direction, std::uint64_t to) {
  if (to <= direction.next) return;
  missing_ += to - direction.next;
  if (gaps_ < kMostGapsInAll) {
    direction.gaps.emplace(direction.next, to);
    ++gaps_;
  }
  direction.next = to;
  if (direction.gaps.size() <= kMostGaps) return;
  direction.gaps.erase(direction.gaps.begin());
  --gaps_;
}

void Streams::fill_gaps(Connection& connection, std::size_t from, const Message& message) {
  Direction& direction = connection.directions[from];
  gaps_ -= direction.gaps.size();
  const std::uint64_t begin = offset_of(message);
  const std::uint64_t end = begin + message.bytes.size();
  auto gap = direction.gaps.upper_bound(begin);
  if (gap != direction.gaps.begin()) --gap;
  while (gap != direction.gaps.end() && gap->first < end) {
    const auto [gap_begin, gap_end] = *gap;
    const std::uint64_t first = std::max(begin, gap_begin);
    const std::uint64_t last = std::min(end, gap_end);
    if (first >= last) {
      ++gap;
      continue;
    }
    gap = direction.gaps.erase(gap);
    missing_ -= last - first;
    if (gap_begin < first) direction.gaps.emplace(gap_begin, first);
    if (last < gap_end) gap = direction.gaps.emplace(last, gap_end).first;
    write(connection, from, message, first, last);
    if (last < gap_end) ++gap;
  }
  gaps_ += direction.gaps.size();
}

void Streams::add_bytes(Connection& connection, std::size_t from, const Message& message) {
  Direction& direction = connection.directions[from];
  const std::uint64_t begin = offset_of(message);
  const std::uint64_t copied = begin + message.bytes.size();
  const std::uint64_t end = begin + message.size;
  if (!direction.begun) {
    direction.begun = true;
    direction.next = begin;
  }
  const std::uint64_t before = direction.next;
  if (begin < before && !direction.gaps.empty()) fill_gaps(connection, from, message);
  leave_gap(direction, begin);
  if (copied > direction.next) {
    write(connection, from, message, std::max(begin, before), copied);
    direction.next = copied;
  }
  leave_gap(direction, end);
}

void Streams::finish(Connection& connection, std::size_t from, const Message& message) {
  connection.closed[from] = message.time;
  Direction& direction = connection.directions[from];
  if (direction.finished || !direction.begun) return;
  direction.finished = true;
  leave_gap(direction, message.sent);
  write_flags(connection, from, message,
              {.sequence = connection.first[from] + 1 + static_cast<std::uint32_t>(direction.next),
               .acknowledged = connection.first[1 - from] + 1 +
                               static_cast<std::uint32_t>(direction.acknowledged),
               .fin = true},
              {});
}

void Streams::add(const Message& message) {
  if (message.time - forgot_at_ > 1'000'000'000) forget_old(message.time);
  const std::size_t local = is_first(message.local, message.remote) ? 0 : 1;
  Connection& connection = connection_of(message, local);
  connection.last_message = std::max(connection.last_message, message.time);
  // What an end has received it has acknowledged.
  std::uint64_t& acknowledged = connection.directions[local].acknowledged;
  acknowledged = std::max(acknowledged, message.received);
  switch (message.what) {
    case observe::TapRecord::kSent: return add_bytes(connection, local, message);
    case observe::TapRecord::kReceived: {
      // Of an end that does not tell, what this one knows.
      Direction& other = connection.directions[1 - local];
      if (connection.opened[1 - local] == 0)
        other.acknowledged = std::max(other.acknowledged, message.sent);
      return add_bytes(connection, 1 - local, message);
    }
    case observe::TapRecord::kClosed: return finish(connection, local, message);
  }
}

void Streams::forget(const Connection& connection) {
  gaps_ -= gaps_of(connection);
  forgotten_until_ = std::max({forgotten_until_, connection.opened[0], connection.opened[1]});
}

// One that is silent for long keeps its numbers, which are few: it may go on.
void Streams::forget_old(std::int64_t now) {
  constexpr std::int64_t kClosedFor = 10'000'000'000;
  constexpr std::int64_t kSilentFor = 3'600'000'000'000;
  forgot_at_ = now;
  const auto is_old = [&](Connection& connection) {
    const std::int64_t silent = now - connection.last_message;
    if (silent > kSilentFor) {
      gaps_ -= gaps_of(connection);
      for (Direction& direction : connection.directions) direction.gaps.clear();
    }
    if (connection.closed[0] == 0 || connection.closed[1] == 0 || silent <= kClosedFor)
      return false;
    forget(connection);
    return true;
  };
  for (auto at = connections_.begin(); at != connections_.end();) {
    std::erase_if(at->second, is_old);
    at = at->second.empty() ? connections_.erase(at) : std::next(at);
  }
}

// Those that have been silent for longest.
void Streams::forget_half() {
  std::vector<std::int64_t> times;
  for (const auto& [key, all] : connections_) times.push_back(last_of(all));
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  std::erase_if(connections_, [&](const auto& one) {
    if (last_of(one.second) > *middle) return false;
    for (const Connection& connection : one.second) forget(connection);
    return true;
  });
}

}  // namespace farcall::capture
