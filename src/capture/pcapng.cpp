// SPDX-License-Identifier: Apache-2.0
#include "capture/pcapng.hpp"

#include <poll.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

#include "farcall/error.hpp"

namespace farcall::capture {
namespace {

enum : std::uint32_t {
  kSection = 0x0a0d0d0a,
  kInterface = 1,
  kStatistics = 5,
  kPacket = 6,
  kByteOrder = 0x1a2b3c4d,
};
enum : std::uint16_t {
  kComment = 1,
  kOs = 3,
  kApplication = 4,
  kInterfaceName = 2,
  kInterfaceDescription = 3,
  kTimeResolution = 9,
  kPacketFlags = 2,
  kReceived = 4,
  kDropped = 5,
};
constexpr std::uint32_t kSnapLength = 262'144;
constexpr std::size_t kFlushAt = std::size_t{1} << 20;

}  // namespace

// Appends one to what is pending, in this machine's byte order, which the section tells.
class PcapngFile::Block {
 public:
  Block(std::vector<std::byte>& to, std::uint32_t type) : to_(to), begin_(to.size()) {
    word(type);
    word(std::uint32_t{0});  // the length, see the destructor
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block() {
    const auto length = static_cast<std::uint32_t>(to_.size() - begin_ + sizeof(std::uint32_t));
    std::memcpy(&to_[begin_ + sizeof(std::uint32_t)], &length, sizeof length);
    word(length);
  }

  template <class Word>
  void word(Word value) {
    bytes(std::as_bytes(std::span(&value, 1)));
  }
  void time(std::uint64_t value) {
    word(static_cast<std::uint32_t>(value >> 32));
    word(static_cast<std::uint32_t>(value));
  }
  void bytes(std::span<const std::byte> from) { to_.insert(to_.end(), from.begin(), from.end()); }
  void pad() { to_.resize((to_.size() + 3) / 4 * 4); }
  void option(std::uint16_t code, std::span<const std::byte> value) {
    word(code);
    word(static_cast<std::uint16_t>(value.size()));
    bytes(value);
    pad();
  }
  void option(std::uint16_t code, std::string_view text) {
    option(code, std::as_bytes(std::span(text.substr(0, 65'000))));
  }
  template <class Word>
  void option_word(std::uint16_t code, Word value) {
    option(code, std::as_bytes(std::span(&value, 1)));
  }
  void end_options() { word(std::uint32_t{0}); }

 private:
  std::vector<std::byte>& to_;
  std::size_t begin_;
};

PcapngFile::PcapngFile(UniqueFd fd, std::string name, const std::atomic<bool>& stop)
    : fd_(std::move(fd)), name_(std::move(name)), stop_(stop) {
  struct stat status {};
  waits_ = ::fstat(fd_.get(), &status) == 0 && !S_ISREG(status.st_mode);
  Block block(pending_, kSection);
  block.word(std::uint32_t{kByteOrder});
  block.word(std::uint16_t{1});
  block.word(std::uint16_t{0});
  block.word(std::int64_t{-1});
  utsname system{};
  if (::uname(&system) == 0) block.option(kOs, std::string(system.sysname) + " " + system.release);
  block.option(kApplication, "farcall capture");
  block.end_options();
}

std::uint32_t PcapngFile::add_interface(LinkType type, std::string_view name,
                                        std::string_view description) {
  Block block(pending_, kInterface);
  block.word(static_cast<std::uint16_t>(type));
  block.word(std::uint16_t{0});
  block.word(kSnapLength);
  block.option(kInterfaceName, name);
  block.option(kInterfaceDescription, description);
  block.option_word(kTimeResolution, std::uint8_t{9});
  block.end_options();
  return interfaces_++;
}

void PcapngFile::add(const Packet& packet) {
  const auto captured = static_cast<std::uint32_t>(packet.header.size() + packet.payload.size());
  {
    Block block(pending_, kPacket);
    block.word(packet.interface);
    block.time(packet.time);
    block.word(captured);
    block.word(static_cast<std::uint32_t>(
        std::min<std::uint64_t>(std::uint64_t{captured} + packet.missing, UINT32_MAX)));
    block.bytes(packet.header);
    block.bytes(packet.payload);
    block.pad();
    block.option_word(kPacketFlags, static_cast<std::uint32_t>(packet.way));
    if (!packet.comment.empty()) block.option(kComment, packet.comment);
    block.end_options();
  }
  if (pending_.size() >= kFlushAt) flush();
}

void PcapngFile::add_statistics(std::uint32_t interface, std::uint64_t time, std::uint64_t received,
                                std::uint64_t dropped) {
  Block block(pending_, kStatistics);
  block.word(interface);
  block.time(time);
  block.option_word(kReceived, received);
  block.option_word(kDropped, dropped);
  block.end_options();
}

// Who reads a pipe may be slow, for ever; but not once the capture is to end.
bool PcapngFile::has_room() const {
  constexpr int kStepMs = 100;
  int steps_left = 10;
  pollfd wanted{.fd = fd_.get(), .events = POLLOUT, .revents = 0};
  while (steps_left > 0) {
    if (::poll(&wanted, 1, kStepMs) > 0) return true;
    if (stop_.load(std::memory_order_relaxed)) --steps_left;
  }
  return false;
}

void PcapngFile::flush() {
  std::size_t done = 0;
  while (done < pending_.size()) {
    const std::size_t most = waits_ ? std::size_t{PIPE_BUF} : pending_.size();
    if (waits_ && !has_room()) {
      pending_.clear();
      throw SystemError(ETIMEDOUT, "write " + name_ + ", which nobody reads");
    }
    const ssize_t put =
        ::write(fd_.get(), pending_.data() + done, std::min(most, pending_.size() - done));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) {
      const int error = errno;
      // What cannot be written is not tried again.
      pending_.clear();
      throw SystemError(error, "write " + name_);
    }
    done += static_cast<std::size_t>(put);
    written_ += static_cast<std::size_t>(put);
  }
  pending_.clear();
}

}  // namespace farcall::capture
