// SPDX-License-Identifier: Apache-2.0
#include "farcall/channel/file_mapping.hpp"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "channel/mapped_ring.hpp"
#include "farcall/error.hpp"

namespace farcall::channel {
namespace {

// A new file that never had a name, or, where the file system cannot do that, lost it at once.
UniqueFd open_nameless() {
  const char* wanted = ::secure_getenv("TMPDIR");
  const std::string directory = wanted != nullptr && *wanted != '\0' ? wanted : "/tmp";
  UniqueFd file(::open(directory.c_str(), O_TMPFILE | O_RDWR | O_EXCL | O_CLOEXEC, 0600));
  if (file) return file;
  std::string name = directory + "/farcall-XXXXXX";
  file = UniqueFd(::mkostemp(name.data(), O_CLOEXEC));
  if (!file) throw_errno("create a file in " + directory);
  if (::unlink(name.c_str()) != 0) throw_errno("unlink " + name);
  return file;
}

}  // namespace

const Properties& FileMapping::properties() {
  static constexpr Properties kProperties{.name = "file_mapping",
                                          .title = "File mapping",
                                          .boundaries = false,
                                          .by_name = true,
                                          .notices_death = true,
                                          .waits = true};
  return kProperties;
}

Handles FileMapping::create(const Options& options) {
  return mapped_ring::create_in_file(open_nameless(), options);
}

std::unique_ptr<Reader> FileMapping::open_reader(Handle handle, const Options& options) {
  return mapped_ring::open_reader_in_file(std::move(handle), options);
}

std::unique_ptr<Writer> FileMapping::open_writer(Handle handle, const Options& options) {
  return mapped_ring::open_writer_in_file(std::move(handle), options);
}

}  // namespace farcall::channel
