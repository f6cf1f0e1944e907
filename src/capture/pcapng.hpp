// SPDX-License-Identifier: Apache-2.0
//
// A capture file in the format pcapng (draft-ietf-opsawg-pcapng): a section, interfaces, packets,
// and how many were lost.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "farcall/memory.hpp"

namespace farcall::capture {

// What the packets of an interface begin with; numbers as pcap has them.
enum class LinkType : std::uint16_t { ip = 101, farcall = 147 };  // LINKTYPE_RAW, LINKTYPE_USER0

enum class Way : std::uint8_t { inbound = 1, outbound = 2 };

struct Packet {
  std::uint32_t interface;
  std::uint64_t time;                 // since 1970, ns
  std::span<const std::byte> header;  // what is written first
  std::span<const std::byte> payload;
  std::uint32_t missing;  // bytes behind that which were not captured
  Way way;
  std::string_view comment;  // empty: none
};

// Blocks are gathered and written whole, so that whoever kills this leaves a file that ends with a
// block. Nothing else is promised before flush().
class PcapngFile {
 public:
  // Owns `fd`. `name` is for errors. Once `stop` is set, nobody is waited for who does not read.
  PcapngFile(UniqueFd fd, std::string name, const std::atomic<bool>& stop);

  std::uint32_t add_interface(LinkType type, std::string_view name, std::string_view description);
  void add(const Packet& packet);
  void add_statistics(std::uint32_t interface, std::uint64_t time, std::uint64_t received,
                      std::uint64_t dropped);
  // Throws SystemError where the file takes no more.
  void flush();

  [[nodiscard]] std::uint64_t bytes() const noexcept { return written_ + pending_.size(); }

 private:
  class Block;
  [[nodiscard]] bool has_room() const;

  UniqueFd fd_;
  std::string name_;
  const std::atomic<bool>& stop_;
  bool waits_ = false;  // a pipe, or whatever is no file
  std::vector<std::byte> pending_;
  std::uint64_t written_ = 0;
  std::uint32_t interfaces_ = 0;
};

}  // namespace farcall::capture
