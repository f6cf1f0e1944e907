// SPDX-License-Identifier: Apache-2.0
#include "farcall/channel/tcp.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "channel/descriptor.hpp"
#include "channel/loopback.hpp"
#include "channel/socket.hpp"
#include "farcall/error.hpp"

namespace farcall::channel {
namespace {

void set_option(int socket, int level, int option, const auto& value) {
  if (::setsockopt(socket, level, option, &value, sizeof value) != 0)
    throw_errno("set an option of a TCP socket");
}

}  // namespace

const Properties& Tcp::properties() {
  static constexpr Properties kProperties{.name = "tcp",
                                          .title = "TCP loopback",
                                          .boundaries = false,
                                          .by_name = true,
                                          .notices_death = false,
                                          .waits = false};
  return kProperties;
}

Handles Tcp::create(const Options& options) {
  const UniqueFd listener = loopback_socket(SOCK_STREAM);
  // Accepted sockets inherit the size, and the window is agreed upon while connecting.
  set_buffer(listener.get(), SO_RCVBUF, options.buffer_bytes);
  if (::listen(listener.get(), 1) != 0) throw_errno("listen on loopback");
  UniqueFd writer = loopback_socket(SOCK_STREAM);
  set_buffer(writer.get(), SO_SNDBUF, options.buffer_bytes);
  connect_loopback(writer.get(), local_address(listener.get()));
  UniqueFd reader = accept_only(listener.get(), local_address(writer.get()));
  set_option(writer.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(reader.get(), SOL_SOCKET, SO_LINGER, linger{.l_onoff = 1, .l_linger = 0});
  return {.reader = handle_of(std::move(reader)), .writer = handle_of(std::move(writer))};
}

std::unique_ptr<Reader> Tcp::open_reader(Handle handle, const Options&) {
  return std::make_unique<DescriptorReader>(take_descriptor(handle));
}

std::unique_ptr<Writer> Tcp::open_writer(Handle handle, const Options&) {
  return std::make_unique<SocketWriter>(take_descriptor(handle));
}

}  // namespace farcall::channel
