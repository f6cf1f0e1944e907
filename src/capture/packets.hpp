// SPDX-License-Identifier: Apache-2.0
//
// Makes packets of messages, and writes them: IP where both ends have addresses, else packets of
// farcall's own (docs/guide/capture.md describes them, farcall.lua reads them).
#pragma once

#include <map>
#include <set>
#include <string>
#include <tuple>

#include "capture/message.hpp"
#include "capture/pcapng.hpp"
#include "capture/streams.hpp"

namespace farcall::capture {

class Packets {
 public:
  // What comes after `since`, CLOCK_MONOTONIC, is captured.
  // `one_sided`: of most conversations one end alone is seen. `most` packets are written; 0: all.
  Packets(PcapngFile& file, std::int64_t since, bool one_sided, std::uint64_t most);

  // In the order of time. `program` is the name of the message's process.
  void add(const Message& message, const std::string& program);
  // Of a process, whether or not there are packets of it.
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
  // What both ends call what they share: from where to where, or the memory; and whose they are.
  using Conversation = std::tuple<observe::Kind, std::uint64_t, std::string, uid_t>;
  using End = std::pair<pid_t, std::int64_t>;
  struct Told {
    std::set<End> senders;
    // Of messages that a receiver told of while no sender was known, which may come later: when and
    // who, by what they are.
    std::multimap<std::size_t, std::pair<std::int64_t, End>> by_receivers;
    // What senders told of before they knew of the memory; its receiver may know of it already.
    std::multimap<std::size_t, std::pair<std::int64_t, End>> by_senders;
  };

  Interface& interface_of(LinkType type, pid_t pid, const std::string& program);
  [[nodiscard]] std::uint64_t real_time(std::int64_t time) const noexcept;
  bool is_told_already(const Message& message);
  static bool take_told(Told& told, const Message& message);
  static bool take_sent(Told& told, const Message& message);
  void write(const Message& message, LinkType type, Way way, std::span<const std::byte> header,
             std::span<const std::byte> payload, std::uint32_t missing, std::string_view comment);
  void add_datagram(const Message& message);
  void add_other(const Message& message);

  PcapngFile& file_;
  std::int64_t to_real_time_;
  bool one_sided_;
  std::uint64_t most_;
  Streams streams_;
  std::map<std::pair<LinkType, pid_t>, Interface> interfaces_;
  std::map<Conversation, Told> conversations_;
  std::set<pid_t> told_;
  const std::string* program_ = nullptr;  // of the message that is being added
  std::uint64_t packets_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace farcall::capture
