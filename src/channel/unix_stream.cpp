// SPDX-License-Identifier: Apache-2.0
#include "farcall/channel/unix_stream.hpp"

#include <sys/socket.h>

#include "channel/descriptor.hpp"
#include "channel/socket.hpp"
#include "farcall/error.hpp"

namespace farcall::channel {

const Properties& UnixStream::properties() {
  static constexpr Properties kProperties{.name = "unix_stream",
                                          .title = "Unix stream socket",
                                          .boundaries = false,
                                          .by_name = true,
                                          .notices_death = false,
                                          .waits = false};
  return kProperties;
}

Handles UnixStream::create(const Options& options) {
  auto [reader, writer] = unix_pair(SOCK_STREAM);
  // A unix socket accounts what it has sent until it is read; the reader's buffer counts nothing.
  set_buffer(writer.get(), SO_SNDBUF, options.buffer_bytes);
  return {.reader = handle_of(std::move(reader)), .writer = handle_of(std::move(writer))};
}

std::unique_ptr<Reader> UnixStream::open_reader(Handle handle, const Options&) {
  return std::make_unique<DescriptorReader>(take_descriptor(handle));
}

std::unique_ptr<Writer> UnixStream::open_writer(Handle handle, const Options&) {
  return std::make_unique<SocketWriter>(take_descriptor(handle));
}

}  // namespace farcall::channel
