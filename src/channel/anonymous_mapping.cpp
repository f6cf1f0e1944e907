// SPDX-License-Identifier: Apache-2.0
#include "farcall/channel/anonymous_mapping.hpp"

#include <sys/mman.h>

#include <utility>

#include "channel/mapped_ring.hpp"
#include "farcall/error.hpp"

namespace farcall::channel {
namespace {

// The same memory at a second address.
Mapping alias(const Mapping& memory) {
  void* address = ::mremap(memory.data(), 0, memory.size(), MREMAP_MAYMOVE);
  if (address == MAP_FAILED) throw_errno("mremap of anonymous shared memory");
  return {address, memory.size()};
}

}  // namespace

const Properties& AnonymousMapping::properties() {
  static constexpr Properties kProperties{.name = "anonymous_mapping",
                                          .title = "Anonymous mapping",
                                          .boundaries = false,
                                          .by_name = false,
                                          .notices_death = true,
                                          .waits = true};
  return kProperties;
}

Handles AnonymousMapping::create(const Options& options) {
  Handles handles = mapped_ring::create_lifeline();
  handles.reader.memory = Mapping::anonymous_shared(ring_bytes(mapped_ring::capacity(options)));
  handles.writer.memory = alias(handles.reader.memory);
  return handles;
}

std::unique_ptr<Reader> AnonymousMapping::open_reader(Handle handle, const Options& options) {
  return mapped_ring::open_reader_in_memory(std::move(handle), options);
}

std::unique_ptr<Writer> AnonymousMapping::open_writer(Handle handle, const Options& options) {
  return mapped_ring::open_writer_in_memory(std::move(handle), options);
}

}  // namespace farcall::channel
