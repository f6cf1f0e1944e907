// SPDX-License-Identifier: Apache-2.0
#include "capture/packets.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <ctime>
#include <functional>
#include <string_view>

#include "capture/ip.hpp"
#include "watch/text.hpp"

namespace farcall::capture {
namespace {

using observe::Address;
using observe::Kind;

std::int64_t now_on(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

bool has_addresses(const Message& message) {
  return message.local.known != 0 && message.remote.known != 0 && message.remote.port != 0;
}

// A socket that is bound to no address of this machine in particular sends from the one it sends
// to.
Address own_address(const Message& message) {
  Address own = message.local;
  static constexpr std::array<std::uint8_t, 4> kAny{};
  const bool any =
      is_ipv4(own) ? std::equal(kAny.begin(), kAny.end(), own.bytes.begin() + 12)
                   : std::all_of(own.bytes.begin(), own.bytes.end(), [](auto b) { return b == 0; });
  if (any) own.bytes = message.remote.bytes;
  return own;
}

std::string text_of(const Address& from, const Address& to) {
  std::string text(reinterpret_cast<const char*>(from.bytes.data()), from.bytes.size());
  text.append(reinterpret_cast<const char*>(to.bytes.data()), to.bytes.size());
  for (const unsigned port : {from.port, to.port}) {
    text += static_cast<char>(port >> 8);
    text += static_cast<char>(port);
  }
  return text;
}

std::size_t hash_of(const Message& message) {
  const std::string_view bytes(reinterpret_cast<const char*>(message.bytes.data()),
                               message.bytes.size());
  return std::hash<std::string_view>{}(bytes) ^ message.size;
}

// The header of farcall's own packets, in network order. farcall.lua reads the same.
class OwnHeader {
 public:
  void put(std::uint64_t value, unsigned bytes) {
    for (unsigned i = bytes; i-- > 0;) bytes_.push_back(static_cast<std::byte>(value >> (8 * i)));
  }
  void put(std::string_view text) {
    const auto bytes = std::as_bytes(std::span(text));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace

Packets::Packets(PcapngFile& file, std::int64_t since, bool one_sided, std::uint64_t most)
    : file_(file),
      to_real_time_(now_on(CLOCK_REALTIME) - now_on(CLOCK_MONOTONIC)),
      one_sided_(one_sided),
      most_(most),
      streams_(since, [this](const Message& of, Way way, const IpHeader& header,
                             std::span<const std::byte> payload, std::string_view comment) {
        write(of, LinkType::ip, way, header.bytes(), payload, 0, comment);
      }) {}

std::uint64_t Packets::real_time(std::int64_t time) const noexcept {
  return static_cast<std::uint64_t>(time + to_real_time_);
}

Packets::Interface& Packets::interface_of(LinkType type, pid_t pid, const std::string& program) {
  const auto [place, is_new] = interfaces_.try_emplace({type, pid});
  if (is_new) {
    const std::string name = watch::printable(program) + "[" + std::to_string(pid) + "]";
    place->second.number = file_.add_interface(
        type, name, "memory of farcall, as process " + std::to_string(pid) + " has it");
  }
  return place->second;
}

void Packets::write(const Message& message, LinkType type, Way way,
                    std::span<const std::byte> header, std::span<const std::byte> payload,
                    std::uint32_t missing, std::string_view comment) {
  if (most_ != 0 && packets_ >= most_) return;
  Interface& interface = interface_of(type, message.pid, *program_);
  ++interface.received;
  file_.add({.interface = interface.number,
             .time = real_time(message.time),
             .header = header,
             .payload = payload,
             .missing = missing,
             .way = way,
             .comment = comment});
  ++packets_;
  bytes_ += payload.size();
}

// Whether a receiver has told of what now its sender tells.
bool Packets::take_told(Told& told, const Message& message) {
  // Who sends may look at the clock after who has received it.
  constexpr std::int64_t kMostDelay = 20'000'000;
  if (told.by_receivers.empty()) return false;
  const End end{message.pid, message.opened};  // whose own answer may be the same as the question
  const auto [first, last] = told.by_receivers.equal_range(hash_of(message));
  for (auto at = first; at != last; ++at)
    if (at->second.second != end && at->second.first + kMostDelay >= message.time) {
      told.by_receivers.erase(at);
      return true;
    }
  return false;
}

// Whether a sender has told of what now its receiver tells, when it did not know the memory yet.
bool Packets::take_sent(Told& told, const Message& message) {
  constexpr std::int64_t kMostDelay = 2'000'000'000;
  const auto [first, last] = told.by_senders.equal_range(hash_of(message));
  for (auto at = first; at != last; ++at) {
    const auto& [time, end] = at->second;
    if (end == End{message.pid, message.opened} || time + kMostDelay < message.time ||
        (message.peer != 0 && end.first != message.peer))
      continue;
    told.by_senders.erase(at);
    return true;
  }
  return false;
}

// What one end has received the other one has sent. Where both are seen it is in the file once.
bool Packets::is_told_already(const Message& message) {
  constexpr std::size_t kMostRemembered = 65'536;
  constexpr std::size_t kMostConversations = 1 << 18;
  Conversation conversation{message.kind, message.session, {}, message.user};
  if (message.kind == Kind::udp) {
    const Address own = own_address(message);
    conversation = {message.kind, 0,
                    message.is_sent() ? text_of(own, message.remote) : text_of(message.remote, own),
                    message.user};
  }
  const End end{message.pid, message.opened};
  if (message.kind != Kind::udp && message.session == 0) {
    if (!message.is_sent()) return !one_sided_;
    auto& sent = conversations_[conversation].by_senders;
    if (sent.size() >= kMostRemembered) sent.clear();
    sent.emplace(hash_of(message), std::pair(message.time, end));
    return false;
  }
  if (conversations_.size() > kMostConversations) conversations_.clear();
  Told& told = conversations_[conversation];
  if (message.is_sent()) {
    told.senders.insert(end);
    return take_told(told, message);
  }
  if (std::any_of(told.senders.begin(), told.senders.end(),
                  [&](const End& sender) { return sender != end; }))
    return true;
  if (message.kind != Kind::udp)
    if (const auto unknown = conversations_.find({message.kind, 0, {}, message.user});
        unknown != conversations_.end() && take_sent(unknown->second, message))
      return true;
  if (!one_sided_ && told.by_receivers.size() < kMostRemembered)
    told.by_receivers.emplace(hash_of(message), std::pair(message.time, end));
  return false;
}

void Packets::add_datagram(const Message& message) {
  const Address own = own_address(message);
  const Address& from = message.is_sent() ? own : message.remote;
  const Address& to = message.is_sent() ? message.remote : own;
  const auto missing = static_cast<std::uint32_t>(message.size - message.bytes.size());
  const IpHeader header = IpHeader::udp(from, to, message.bytes, missing);
  write(message, LinkType::ip, message.is_sent() ? Way::outbound : Way::inbound, header.bytes(),
        message.bytes, missing, {});
}

void Packets::add_other(const Message& message) {
  constexpr unsigned kVersion = 1;
  const pid_t from = message.is_sent() ? message.pid : message.peer;
  const pid_t to = message.is_sent() ? message.peer : message.pid;
  OwnHeader header;
  header.put(kVersion, 1);
  header.put(static_cast<std::uint64_t>(message.kind), 1);
  header.put(static_cast<std::uint64_t>(message.role), 1);
  header.put(static_cast<std::uint64_t>(message.what), 1);
  header.put(static_cast<std::uint32_t>(from), 4);
  header.put(static_cast<std::uint32_t>(to), 4);
  header.put(message.session, 8);
  header.put(message.is_sent() ? message.sent : message.received, 8);
  header.put(message.size, 4);
  header.put(message.name.size(), 2);
  header.put(message.name);
  write(message, LinkType::farcall, message.is_sent() ? Way::outbound : Way::inbound,
        header.bytes(), message.bytes,
        static_cast<std::uint32_t>(message.size - message.bytes.size()), {});
}

void Packets::add(const Message& message, const std::string& program) {
  program_ = &program;
  told_.insert(message.pid);
  if (message.kind == Kind::tcp && has_addresses(message)) return streams_.add(message);
  if (message.what == observe::TapRecord::kClosed || is_told_already(message)) return;
  if (message.kind == Kind::udp && has_addresses(message)) return add_datagram(message);
  add_other(message);
}

void Packets::add_loss(pid_t pid, const std::string& program, std::uint64_t lost) {
  if (lost == 0) return;
  for (const LinkType type : {LinkType::ip, LinkType::farcall}) {
    const auto known = interfaces_.find({type, pid});
    if (known == interfaces_.end()) continue;
    known->second.lost = lost;
    return;
  }
  interface_of(LinkType::ip, pid, program).lost = lost;
}

void Packets::finish() {
  const auto now = static_cast<std::uint64_t>(now_on(CLOCK_REALTIME));
  for (const auto& [key, interface] : interfaces_)
    file_.add_statistics(interface.number, now, interface.received, interface.lost);
}

}  // namespace farcall::capture
