// SPDX-License-Identifier: Apache-2.0
#include "channel/mapped_ring.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "channel/descriptor.hpp"
#include "farcall/error.hpp"
#include "memory/allocate_file.hpp"
#include "memory/standard_streams.hpp"

namespace farcall::channel::mapped_ring {
namespace {

constexpr std::size_t kDefaultCapacity = std::size_t{256} * 1024;

class RingReader final : public EndReader<ByteReader> {
 public:
  using EndReader::EndReader;

 protected:
  std::size_t read_some(std::span<std::byte> into) override {
    for (;;) {
      std::size_t count = 0;
      const Outcome outcome = end_.ring.read_some(into, count, Deadline::never());
      if (outcome == Outcome::ok) return count;
      if (outcome == Outcome::finished) return 0;
      if (outcome != Outcome::interrupted) throw_for_reader(outcome);
    }
  }
};

class RingWriter final : public Writer {
 public:
  RingWriter(RingMemory memory, UniqueFd lifeline, WaitMode mode)
      : end_(observe::Role::writer, std::move(memory), std::move(lifeline), mode) {}
  ~RingWriter() override { finish_quietly(); }

 protected:
  std::size_t write_some(std::span<const std::byte> bytes) override {
    for (;;) {
      std::size_t written = 0;
      const Outcome outcome = end_.ring.write_some(bytes, written, Deadline::never());
      if (outcome == Outcome::ok) return written;
      if (outcome != Outcome::interrupted) throw_for_writer(outcome);
    }
  }
  void write_end() override { end_.ring.finish(); }

 private:
  End<ByteWriter> end_;
};

RingMemory attach_file(Handle& handle, Access data) {
  const UniqueFd file = take_descriptor(handle, 1);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) throw_errno("fstat of shared memory");
  return RingMemory::attach(file.get(), static_cast<std::size_t>(status.st_size), RingKind::bytes,
                            data);
}

// Formatting a ring a second time changes nothing in it, so each end may do it when it opens.
RingMemory attach_memory(Handle& handle) {
  const std::size_t size = handle.memory.size();
  const std::size_t ring = size - std::min(size, kRingControlBytes);
  if (ring_capacity(ring) != ring)
    throw SystemError(EPROTO, "open a channel: the memory has no ring's size");
  return RingMemory::format(std::move(handle.memory), ring, RingKind::bytes);
}

}  // namespace

std::size_t capacity(const Options& options) {
  if (options.buffer_bytes == 0) return kDefaultCapacity;
  if (options.buffer_bytes > kLargestRingCapacity)
    throw SystemError(ENOMEM, "a ring of " + std::to_string(options.buffer_bytes) + " bytes");
  return ring_capacity(options.buffer_bytes);
}

Handles create_lifeline() {
  auto [one, other] = socket_pair();
  return {.reader = handle_of(std::move(one)), .writer = handle_of(std::move(other))};
}

UniqueFd take_descriptor(Handle& handle, std::size_t n) {
  if (n >= handle.message.descriptors.size())
    throw SystemError(EPROTO, "open a channel: a descriptor is missing");
  return beyond_standard_streams(std::move(handle.message.descriptors[n]));
}

void throw_for_reader(Outcome outcome) {
  throw SystemError(to_errno(outcome), outcome == Outcome::peer_gone
                                           ? "read: the writer died without finishing"
                                           : "read from a ring");
}

void throw_for_writer(Outcome outcome) {
  if (outcome == Outcome::peer_gone) throw SystemError(EPIPE, "write: the reader has gone");
  throw SystemError(to_errno(outcome), "write to a ring");
}

std::unique_ptr<Reader> make_reader(RingMemory memory, UniqueFd lifeline, const Options& options) {
  return std::make_unique<RingReader>(std::move(memory), std::move(lifeline), options.wait);
}

std::unique_ptr<Writer> make_writer(RingMemory memory, UniqueFd lifeline, const Options& options) {
  return std::make_unique<RingWriter>(std::move(memory), std::move(lifeline), options.wait);
}

Handles create_in_file(UniqueFd file, const Options& options) {
  const std::size_t ring = capacity(options);
  const auto size = static_cast<off_t>(ring_bytes(ring));
  const FileSizeGuard guard;
  if (::ftruncate(file.get(), size) != 0) throw_errno("make a ring's file as large (ulimit -f)");
  // Allocated now: a shortage is an error here instead of a SIGBUS at first touch.
  if (const int error = allocate_file(file.get(), ring_bytes(ring)); error != 0)
    throw SystemError(error, "allocate shared memory");
  RingMemory::format(file.get(), ring, RingKind::bytes);
  Handles handles = create_lifeline();
  handles.reader.message.descriptors.push_back(file.duplicate());
  handles.writer.message.descriptors.push_back(beyond_standard_streams(std::move(file)));
  return handles;
}

std::unique_ptr<Reader> open_reader_in_file(Handle handle, const Options& options) {
  return make_reader(attach_file(handle, Access::read_only), take_lifeline(handle), options);
}

std::unique_ptr<Writer> open_writer_in_file(Handle handle, const Options& options) {
  return make_writer(attach_file(handle, Access::read_write), take_lifeline(handle), options);
}

std::unique_ptr<Reader> open_reader_in_memory(Handle handle, const Options& options) {
  return make_reader(attach_memory(handle), take_lifeline(handle), options);
}

std::unique_ptr<Writer> open_writer_in_memory(Handle handle, const Options& options) {
  return make_writer(attach_memory(handle), take_lifeline(handle), options);
}

}  // namespace farcall::channel::mapped_ring
