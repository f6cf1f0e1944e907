// SPDX-License-Identifier: Apache-2.0
#include "farcall/channel/posix_shm.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <utility>

#include "channel/mapped_ring.hpp"
#include "farcall/error.hpp"

namespace farcall::channel {
namespace {

std::string random_name() {
  std::uint64_t number = 0;
  if (::getrandom(&number, sizeof number, 0) != sizeof number) throw_errno("getrandom");
  return "/farcall-" + std::to_string(number);
}

// A new segment, its name removed already.
UniqueFd open_nameless() {
  for (;;) {
    const std::string name = random_name();
    UniqueFd file(::shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600));
    if (!file && errno == EEXIST) continue;
    if (!file) throw_errno("shm_open " + name);
    if (::shm_unlink(name.c_str()) != 0) throw_errno("shm_unlink " + name);
    return file;
  }
}

}  // namespace

const Properties& PosixShm::properties() {
  static constexpr Properties kProperties{.name = "posix_shm",
                                          .title = "POSIX shared memory",
                                          .boundaries = false,
                                          .by_name = true,
                                          .notices_death = true,
                                          .waits = true};
  return kProperties;
}

Handles PosixShm::create(const Options& options) {
  return mapped_ring::create_in_file(open_nameless(), options);
}

std::unique_ptr<Reader> PosixShm::open_reader(Handle handle, const Options& options) {
  return mapped_ring::open_reader_in_file(std::move(handle), options);
}

std::unique_ptr<Writer> PosixShm::open_writer(Handle handle, const Options& options) {
  return mapped_ring::open_writer_in_file(std::move(handle), options);
}

}  // namespace farcall::channel
