// SPDX-License-Identifier: Apache-2.0
#include "capture/packets.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <iterator>
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

Message part_of(const Message& message, Told::Part part) {
  Message rest = message;
  const std::size_t from = std::min<std::size_t>(part.from, message.bytes.size());
  const std::size_t to = std::min<std::size_t>(part.to, message.bytes.size());
  rest.bytes = message.bytes.subspan(from, to - from);
  rest.size = part.to - part.from;
  (message.is_sent() ? rest.sent : rest.received) += part.from;
  return rest;
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
      most_(most),
      both_told_(one_sided),
      streams_(since, [this](const Message& of, Way way, const IpHeader& header,
                             std::span<const std::byte> payload, std::string_view comment) {
        write(of, LinkType::ip, way, header.bytes(), payload, 0, comment);
      }) {
  note_clocks();
}

void Packets::note_clocks(std::int64_t monotonic, std::int64_t real) {
  constexpr std::int64_t kNoticed = 10'000;
  constexpr std::size_t kMostRemembered = 4096;  // of a clock that is slewed, for a minute and more
  const std::int64_t more = real - monotonic;
  if (!to_real_time_.empty() && std::abs(more - to_real_time_.back().second) < kNoticed) return;
  to_real_time_.emplace_back(monotonic, more);
  if (to_real_time_.size() > kMostRemembered) to_real_time_.pop_front();
}

void Packets::note_clocks() { note_clocks(now_on(CLOCK_MONOTONIC), now_on(CLOCK_REALTIME)); }

std::uint64_t Packets::real_time(std::int64_t time) {
  while (to_real_time_.size() > 1 && to_real_time_[1].first <= time) to_real_time_.pop_front();
  return static_cast<std::uint64_t>(time + to_real_time_.front().second);
}

Packets::Interface& Packets::interface_of(LinkType type, pid_t pid, const std::string& program) {
  constexpr std::ptrdiff_t kMostPrograms =
      16;  // of a process, which may change its name as it likes
  if (const auto known = interfaces_.find({type, pid, program}); known != interfaces_.end())
    return known->second;
  const auto [first, last] = interfaces_of(type, pid);
  if (std::distance(first, last) >= kMostPrograms) return first->second;
  const std::string name = watch::printable(program) + "[" + std::to_string(pid) + "]";
  Interface& made = interfaces_[{type, pid, program}];
  made.number = file_.add_interface(
      type, name, "memory of farcall, as process " + std::to_string(pid) + " has it");
  return made;
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
  if (message.what == observe::TapRecord::kClosed) return;
  for (const Told::Part part : both_told_.rest_of(message)) {
    const Message rest = part_of(message, part);
    if (message.kind == Kind::udp && has_addresses(message))
      add_datagram(rest);
    else
      add_other(rest);
  }
}

void Packets::add_loss(pid_t pid, const std::string& program, std::uint64_t lost) {
  if (lost == 0) return;
  for (const LinkType type : {LinkType::ip, LinkType::farcall}) {
    const auto [first, last] = interfaces_of(type, pid);
    const auto known = interfaces_.find({type, pid, program});
    if (first == last) continue;
    (known != interfaces_.end() ? known : first)->second.lost += lost;
    return;
  }
  interface_of(LinkType::ip, pid, program).lost += lost;
}

void Packets::finish() {
  const auto now = static_cast<std::uint64_t>(now_on(CLOCK_REALTIME));
  for (const auto& [key, interface] : interfaces_)
    file_.add_statistics(interface.number, now, interface.received, interface.lost);
}

}  // namespace farcall::capture
