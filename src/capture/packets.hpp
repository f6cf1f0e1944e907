// SPDX-License-Identifier: Apache-2.0
//
// Makes packets of messages, and writes them: IP where both ends have addresses, else packets of
// farcall's own (docs/guide/capture.md describes them, farcall.lua reads them).
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "capture/message.hpp"
#include "capture/pcapng.hpp"
#include "capture/streams.hpp"
#include "capture/told.hpp"

namespace farcall::capture {

class Packets {
 public:
  // What comes after `since`, CLOCK_MONOTONIC, is captured.
  // `one_sided`: of most conversations one end alone is seen. `most` packets are written; 0: all.
  Packets(PcapngFile& file, std::int64_t since, bool one_sided, std::uint64_t most);

  // What the clocks say, CLOCK_MONOTONIC and CLOCK_REALTIME, now and then: the former stands still
  // while the machine sleeps, the latter is set. Packets are dated by what held at their time.
  void note_clocks(std::int64_t monotonic, std::int64_t real);
  void note_clocks();

  // In the order of time. `program` is the name of the message's process.
  void add(const Message& message, const std::string& program);
  // Of a process, whether or not there are packets of it. More than one may have had its number.
  void add_loss(pid_t pid, const std::string& program, std::uint64_t lost);
  // Statistics of all interfaces.
  void finish();

  [[nodiscard]] std::uint64_t packets() const noexcept { return packets_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::uint64_t missing() const noexcept { return streams_.missing(); }
  [[nodiscard]] bool has_told(pid_t pid) const { return told_.contains(pid); }
  [[nodiscard]] std::size_t processes() const noexcept { return told_.size(); }

 private:
  struct Interface {
    std::uint32_t number = 0;
    std::uint64_t received = 0;
    std::uint64_t lost = 0;
  };
  // Of one process there are several where it has executed other programs.
  using InterfaceKey = std::tuple<LinkType, pid_t, std::string>;
  // All of a process.
  auto interfaces_of(LinkType type, pid_t pid) {
    return std::pair(interfaces_.lower_bound({type, pid, {}}),
                     interfaces_.lower_bound({type, pid + 1, {}}));
  }
  Interface& interface_of(LinkType type, pid_t pid, const std::string& program);
  std::uint64_t real_time(std::int64_t time);
  void write(const Message& message, LinkType type, Way way, std::span<const std::byte> header,
             std::span<const std::byte> payload, std::uint32_t missing, std::string_view comment);
  void add_datagram(const Message& message);
  void add_other(const Message& message);

  PcapngFile& file_;
  std::deque<std::pair<std::int64_t, std::int64_t>> to_real_time_;  // since when; so much more
  std::uint64_t most_;
  Told both_told_;
  Streams streams_;
  std::map<InterfaceKey, Interface> interfaces_;
  std::set<pid_t> told_;
  const std::string* program_ = nullptr;  // of the message that is being added
  std::uint64_t packets_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace farcall::capture
