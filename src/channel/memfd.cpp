// SPDX-License-Identifier: Apache-2.0
#include "farcall/channel/memfd.hpp"

#include <sys/mman.h>

#include <utility>

#include "channel/mapped_ring.hpp"
#include "farcall/error.hpp"

namespace farcall::channel {

const Properties& Memfd::properties() {
  static constexpr Properties kProperties{.name = "memfd",
                                          .title = "Memory file",
                                          .boundaries = false,
                                          .by_name = true,
                                          .notices_death = true,
                                          .waits = true};
  return kProperties;
}

Handles Memfd::create(const Options& options) {
  UniqueFd file(::memfd_create("farcall", MFD_CLOEXEC));
  if (!file) throw_errno("memfd_create");
  return mapped_ring::create_in_file(std::move(file), options);
}

std::unique_ptr<Reader> Memfd::open_reader(Handle handle, const Options& options) {
  return mapped_ring::open_reader_in_file(std::move(handle), options);
}

std::unique_ptr<Writer> Memfd::open_writer(Handle handle, const Options& options) {
  return mapped_ring::open_writer_in_file(std::move(handle), options);
}

}  // namespace farcall::channel
