// SPDX-License-Identifier: Apache-2.0
//
// What a fuzzer's input makes of a session: packets on its socket and words in its memory.
#pragma once

#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <span>

#include "call/session.hpp"
#include "door/fuzz/input.hpp"
#include "harness/ancillary_message.hpp"

namespace farcall::door::fuzz {

// A descriptor to send: of memory of some size, of a ring, or of something else.
inline UniqueFd supply(std::uint8_t which) {
  switch (which % 5) {
    case 0: return SharedMemory::create(1).release();
    case 1: return SharedMemory::create(call::kSessionBytes).release();
    case 2:
    case 3: return SharedMemory::create(call::TransferMemory::kLeast).release();
    default: return UniqueFd(::dup(STDERR_FILENO));
  }
}

// One packet: a header that may be right, up to five descriptors, up to 63 bytes.
inline void send_packet(int socket, Input& input) {
  struct {
    std::uint32_t magic;
    std::uint8_t purpose;
    std::uint8_t more;
    std::uint16_t descriptors;
  } header{};
  const auto how = input.number<std::uint8_t>();
  std::array<std::uint8_t, 64> bytes{};
  std::size_t size = input.number<std::uint8_t>() % bytes.size();
  const std::size_t count = (how >> 4U) % 6;
  std::array<UniqueFd, 6> owned;
  std::array<int, 6> fds{};
  for (std::size_t i = 0; i < count; ++i) {
    owned[i] = supply(input.number<std::uint8_t>());
    fds[i] = owned[i].get();
  }
  input.bytes(bytes.data(), size);
  if ((how & 1U) != 0) {
    header = {.magic = 0x70637266,
              .purpose = (how & 2U) != 0 ? call::kPurposeData : bytes[0],
              .more = (how & 4U) != 0 ? std::uint8_t{0} : bytes[1],
              .descriptors = static_cast<std::uint16_t>((how & 8U) != 0 ? bytes[2] : count)};
    std::memcpy(bytes.data(), &header, sizeof header);
    size = sizeof header;
  }
  (void)test::send_with_descriptors(socket, std::as_bytes(std::span(bytes).first(size)),
                                    std::span(fds).first(count), MSG_NOSIGNAL | MSG_DONTWAIT);
}

// Everything but the turn, which is given last.
inline void write_words(call::SessionControl& control, Input& input) {
  for (std::size_t count = input.number<std::uint8_t>() % 8; count > 0; --count) {
    const auto at = input.number<std::uint16_t>() % (call::kSessionBytes / 8);
    const auto value = input.number<std::uint64_t>();
    if (at * 8 != offsetof(call::SessionControl, slot))
      reinterpret_cast<std::atomic<std::uint64_t>*>(&control)[at] = value;
  }
  control.slot.extra = input.number<std::int32_t>();
  const auto head = input.piece(input.number<std::uint8_t>() % 48);
  if (!head.empty()) std::memcpy(control.slot.data, head.data(), head.size());
}

// A session's memory, mapped; a copy of the mapping shows the same.
inline Mapping map(int fd) {
  void* address = ::mmap(nullptr, call::kSessionBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  require(address != MAP_FAILED);
  return {address, call::kSessionBytes};
}

}  // namespace farcall::door::fuzz
