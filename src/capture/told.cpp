// SPDX-License-Identifier: Apache-2.0
#include "capture/told.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <optional>
#include <string_view>

#include "capture/ip.hpp"

namespace farcall::capture {
namespace {

using observe::Kind;
using observe::Role;

// A receiver takes what was sent when it likes; a sender tells of it at once, though it may be kept
// from that by a busy machine, after its receiver has.
constexpr std::int64_t kUntilReceived = 30'000'000'000;
constexpr std::int64_t kUntilSent = 2'000'000'000;
constexpr std::int64_t kTogether = 20'000'000;
constexpr std::size_t kMostStreams = 1 << 14;
constexpr std::size_t kMostPlaces = 256;  // of a direction
constexpr std::uint64_t kLast = std::numeric_limits<std::uint64_t>::max();

std::array<std::uint8_t, 36> both_addresses(const observe::Address& from,
                                            const observe::Address& to) {
  std::array<std::uint8_t, 36> made{};
  auto at = made.begin();
  for (const observe::Address* const address : {&from, &to}) {
    at = std::copy(address->bytes.begin(), address->bytes.end(), at);
    *at++ = static_cast<std::uint8_t>(address->port >> 8);
    *at++ = static_cast<std::uint8_t>(address->port);
  }
  return made;
}

// Which direction of its stream that is; nothing: of a message that is not of a stream.
std::optional<unsigned> way_of(const Message& message) {
  if (message.session == 0 || (message.kind != Kind::unix_stream && message.kind != Kind::ring))
    return std::nullopt;
  switch (message.role) {
    case Role::client: return message.is_sent() ? 0 : 1;
    case Role::server: return message.is_sent() ? 1 : 0;
    case Role::writer:
    case Role::reader: return 2;
    case Role::none:
    case Role::count_: break;
  }
  return std::nullopt;
}

// What of it, from its beginning, is at none of these places.
std::vector<Told::Part> not_at(const std::map<std::uint64_t, std::uint64_t>& places,
                               std::uint64_t begin, std::uint32_t size) {
  std::vector<Told::Part> rest;
  const std::uint64_t end = begin + size;
  auto at = places.upper_bound(begin);
  if (at != places.begin()) --at;
  std::uint64_t next = begin;
  for (; at != places.end() && at->first < end; ++at) {
    if (at->second <= next) continue;
    if (at->first > next)
      rest.push_back({static_cast<std::uint32_t>(next - begin),
                      static_cast<std::uint32_t>(at->first - begin)});
    next = at->second;
  }
  if (next < end) rest.push_back({static_cast<std::uint32_t>(next - begin), size});
  return rest;
}

void add_place(std::map<std::uint64_t, std::uint64_t>& places, std::uint64_t begin,
               std::uint64_t end) {
  if (begin >= end) return;
  auto at = places.upper_bound(begin);
  if (at != places.begin() && std::prev(at)->second >= begin) {
    --at;
    begin = at->first;
  }
  while (at != places.end() && at->first <= end) {
    end = std::max(end, at->second);
    at = places.erase(at);
  }
  places.emplace(begin, end);
  if (places.size() <= kMostPlaces) return;
  // Nobody will tell of what was between the oldest two any more.
  const auto oldest = places.begin();
  oldest->second = std::next(oldest)->second;
  places.erase(std::next(oldest));
}

}  // namespace

observe::Address own_address(const Message& message) {
  observe::Address own = message.local;
  static constexpr std::array<std::uint8_t, 4> kAny{};
  const bool any =
      is_ipv4(own) ? std::equal(kAny.begin(), kAny.end(), own.bytes.begin() + 12)
                   : std::all_of(own.bytes.begin(), own.bytes.end(), [](auto b) { return b == 0; });
  if (any) own.bytes = message.remote.bytes;
  return own;
}

void Told::Waiting::add(Key key, std::int64_t time) {
  if (index_.size() >= kMostRemembered) erase(by_age_.begin()->second);
  key.number = ++numbers_;
  by_age_.emplace_hint(by_age_.end(), key.number, index_.emplace(key, time).first);
}

void Told::Waiting::erase(Index::iterator at) {
  by_age_.erase(at->first.number);
  index_.erase(at);
}

void Told::Waiting::forget_before(std::int64_t time) {
  while (!by_age_.empty() && by_age_.begin()->second->second < time) erase(by_age_.begin()->second);
}

Told::Waiting::Index::iterator Told::Waiting::find(const Key& key, pid_t of, std::int64_t since) {
  constexpr std::int64_t kFirst = std::numeric_limits<std::int64_t>::min();
  Key from = key;
  from.end = of != 0 ? End{of, kFirst} : End{std::numeric_limits<pid_t>::min(), kFirst};
  from.number = 0;
  for (auto at = index_.lower_bound(from); at != index_.end();) {
    const Key& found = at->first;
    if (found.bytes != key.bytes || found.conversation != key.conversation ||
        (of != 0 && found.end.first != of))
      break;
    if (found.end == key.end) {  // whose own answer may be the same as the question
      from.end = key.end;
      from.number = kLast;
      at = index_.upper_bound(from);
    } else if (at->second < since) {
      const auto old = at++;
      erase(old);
    } else {
      return at;
    }
  }
  return index_.end();
}

Told::Key Told::key_of(const Message& message) {
  const std::string_view bytes(reinterpret_cast<const char*>(message.bytes.data()),
                               message.bytes.size());
  Key key{.bytes = std::hash<std::string_view>{}(bytes) ^ message.size,
          .conversation = {.kind = message.kind,
                           .user = message.user,
                           .session = message.session,
                           .addresses = {}},
          .end = {message.pid, message.opened}};
  if (message.kind != Kind::udp) return key;
  key.conversation.session = 0;
  const observe::Address own = own_address(message);
  key.conversation.addresses =
      message.is_sent() ? both_addresses(own, message.remote) : both_addresses(message.remote, own);
  return key;
}

Told::Places& Told::places_of(const Key& key, unsigned way) {
  if (streams_.size() > kMostStreams) streams_.clear();
  return streams_[{key.conversation, way}];
}

bool Told::is_sent_told(const Key& key, const Message& message) {
  const auto other = received_.find(key, 0, message.time - kUntilSent);
  if (received_.has(other)) {
    received_.erase(other);
    // Others receive it later.
    if (message.kind == Kind::broadcast) sent_.add(key, message.time);
    return true;
  }
  sent_.add(key, message.time);
  return false;
}

// Whether its sender has told of it when it did not know the memory yet.
bool Told::take_early(const Key& key, const Message& message) {
  Key unknown = key;
  unknown.conversation.session = 0;
  const auto other = sent_.find(unknown, message.peer, message.time - kUntilSent);
  if (!sent_.has(other)) return false;
  sent_.erase(other);
  return true;
}

bool Told::is_received_told(const Key& key, const Message& message) {
  const auto other = sent_.find(key, 0, message.time - kUntilReceived);
  // Many receive it, each at its time, and perhaps all of them before its sender tells of it.
  if (message.kind == Kind::broadcast)
    return sent_.has(other) || received_.has(received_.find(key, 0, message.time - kTogether));
  if (!sent_.has(other)) return message.kind != Kind::udp && take_early(key, message);
  sent_.erase(other);
  return true;
}

std::vector<Told::Part> Told::rest_of_stream(const Key& key, unsigned way, const Message& message) {
  const std::uint64_t begin = message.is_sent() ? message.sent : message.received;
  Places& places = places_of(key, way);
  std::vector<Part> rest = not_at(places, begin, message.size);
  add_place(places, begin, begin + message.size);
  if (!rest.empty() && !message.is_sent() && take_early(key, message)) rest.clear();
  return rest;
}

std::vector<Told::Part> Told::rest_of(const Message& message) {
  const std::vector<Part> all{{0, message.size}};
  sent_.forget_before(message.time - kUntilReceived);
  received_.forget_before(message.time - kUntilSent);
  const Key key = key_of(message);
  if (message.kind != Kind::udp && message.session == 0) {
    if (!message.is_sent()) return one_sided_ ? all : std::vector<Part>{};
    sent_.add(key, message.time);
    return all;
  }
  const auto way = way_of(message);
  if (way && message.kind == Kind::unix_stream) return rest_of_stream(key, *way, message);
  if (message.is_sent()) {
    if (way) add_place(places_of(key, *way), message.sent, message.sent + message.size);
    return is_sent_told(key, message) ? std::vector<Part>{} : all;
  }
  if (is_received_told(key, message)) return {};
  // A ring of bytes is read in other pieces than it is written.
  std::vector<Part> rest =
      way && message.size != 0 ? not_at(places_of(key, *way), message.received, message.size) : all;
  if (!rest.empty()) received_.add(key, message.time);
  return rest;
}

}  // namespace farcall::capture
