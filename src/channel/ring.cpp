// SPDX-License-Identifier: Apache-2.0
#include "farcall/ring.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "channel/mapped_ring.hpp"
#include "farcall/channel/ring.hpp"
#include "farcall/error.hpp"
#include "memory/load_once.hpp"
#include "memory/standard_streams.hpp"

namespace farcall::channel {
namespace {

class RingReader final : public mapped_ring::EndReader<MessageReader> {
 public:
  using EndReader::EndReader;

 protected:
  std::size_t read_some(std::span<std::byte> into) override {
    // Messages of 0 bytes are nothing to a reader of bytes.
    while (rest_.empty())
      if (!next_piece()) return 0;
    return take(into);
  }

  std::optional<std::size_t> read_message(std::span<std::byte> into) override {
    if (!rest_.empty() || to_come_ != 0)
      throw MisuseError("receive: the last message was partly read");
    for (;;) {
      std::size_t size = 0;
      const Outcome outcome = end_.ring.read(into, size, Deadline::never());
      if (outcome == Outcome::ok) return size;
      if (outcome == Outcome::finished) return std::nullopt;
      if (outcome == Outcome::too_big) {
        skip_message();
        mapped_ring::throw_for_reader(outcome);
      }
      if (outcome != Outcome::interrupted) mapped_ring::throw_for_reader(outcome);
    }
  }

 private:
  // Makes `rest_` the bytes of the next piece in the ring; false where the writer has finished.
  bool next_piece() {
    std::span<const std::byte> piece;
    Outcome outcome = Outcome::interrupted;
    while (outcome == Outcome::interrupted) outcome = end_.ring.front(piece, Deadline::never());
    if (outcome == Outcome::finished && to_come_ == 0) return false;
    if (outcome == Outcome::finished) outcome = Outcome::peer_gone;  // in the middle of a message
    if (outcome != Outcome::ok) mapped_ring::throw_for_reader(outcome);
    if (to_come_ == 0 && end_.ring.is_piece()) {
      // The first piece of a long message starts with the size of all.
      if (piece.size() <= sizeof(std::uint64_t)) mapped_ring::throw_for_reader(Outcome::broken);
      const auto total = load_once<std::uint64_t>(piece.data());
      piece = piece.subspan(sizeof total);
      if (total <= piece.size()) mapped_ring::throw_for_reader(Outcome::broken);
      to_come_ = total;
    }
    if (to_come_ != 0) {
      if (!end_.ring.is_piece() || piece.empty() || piece.size() > to_come_)
        mapped_ring::throw_for_reader(Outcome::broken);
      to_come_ -= piece.size();
    }
    rest_ = piece;
    if (rest_.empty()) end_.ring.pop();
    return true;
  }

  std::size_t take(std::span<std::byte> into) {
    const std::size_t count = std::min(into.size(), rest_.size());
    std::memcpy(into.data(), rest_.data(), count);
    rest_ = rest_.subspan(count);
    if (rest_.empty()) end_.ring.pop();
    return count;
  }

  void skip_message() {
    do {
      next_piece();
      if (!rest_.empty()) end_.ring.pop();
      rest_ = {};
    } while (to_come_ != 0);
  }

  std::span<const std::byte> rest_;  // of the piece at the front of the ring
  std::size_t to_come_ = 0;          // bytes of a long message behind that piece
};

class RingWriter final : public Writer {
 public:
  RingWriter(RingMemory memory, UniqueFd lifeline, WaitMode mode)
      : end_(observe::Role::writer, std::move(memory), std::move(lifeline), mode) {}
  ~RingWriter() override { finish_quietly(); }

 protected:
  std::size_t write_some(std::span<const std::byte> bytes) override {
    write_message(bytes);
    return bytes.size();
  }
  void write_message(std::span<const std::byte> message) override {
    for (;;) {
      const Outcome outcome = end_.ring.write(message, Deadline::never());
      if (outcome == Outcome::ok) return;
      if (outcome != Outcome::interrupted) mapped_ring::throw_for_writer(outcome);
    }
  }
  void write_end() override { end_.ring.finish(); }

 private:
  mapped_ring::End<MessageWriter> end_;
};

RingMemory attach(Handle& handle, Access data) {
  const SharedMemory memory = SharedMemory::adopt(mapped_ring::take_descriptor(handle, 1));
  return RingMemory::attach(memory, RingKind::messages, data);
}

}  // namespace

const Properties& Ring::properties() {
  static constexpr Properties kProperties{.name = "ring",
                                          .title = "Farcall ring",
                                          .boundaries = true,
                                          .by_name = true,
                                          .notices_death = true,
                                          .waits = true};
  return kProperties;
}

Handles Ring::create(const Options& options) {
  const std::size_t capacity = mapped_ring::capacity(options);
  SharedMemory memory = SharedMemory::create(ring_bytes(capacity), "farcall-ring");
  RingMemory::format(memory.fd(), capacity, RingKind::messages);
  Handles handles = mapped_ring::create_lifeline();
  UniqueFd file = std::move(memory).release();
  handles.reader.message.descriptors.push_back(file.duplicate());
  handles.writer.message.descriptors.push_back(beyond_standard_streams(std::move(file)));
  return handles;
}

std::unique_ptr<Reader> Ring::open_reader(Handle handle, const Options& options) {
  return std::make_unique<RingReader>(attach(handle, Access::read_only),
                                      mapped_ring::take_lifeline(handle), options.wait);
}

std::unique_ptr<Writer> Ring::open_writer(Handle handle, const Options& options) {
  return std::make_unique<RingWriter>(attach(handle, Access::read_write),
                                      mapped_ring::take_lifeline(handle), options.wait);
}

}  // namespace farcall::channel
