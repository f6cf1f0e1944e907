// SPDX-License-Identifier: Apache-2.0
//
// The kinds of rows, one file and one function each; all.cpp calls them all.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>

#include "compare/row.hpp"
#include "farcall/memory.hpp"
#include "farcall/wait.hpp"

namespace farcall::compare {

void add_null_call(RowList& list);
void add_memcpy(RowList& list);
void add_cacheline(RowList& list);
void add_lines(RowList& list);
void add_copy_pair(RowList& list);
void add_futex(RowList& list);
void add_eventfd(RowList& list);
void add_channels(RowList& list);
void add_call(RowList& list);
void add_door(RowList& list);
void add_message(RowList& list);
void add_zeromq(RowList& list);
void add_nng(RowList& list);
void add_boost_mq(RowList& list);
void add_onc_rpc(RowList& list);
void add_accelerated(RowList& list);
void add_nats(RowList& list);
void add_thrift(RowList& list);
void add_dbus(RowList& list);
void add_asio(RowList& list);

// Those of broadcasts.
void add_broadcast(RowList& list);
void add_channel_for_each(RowList& list);
void add_zeromq_broadcast(RowList& list);
void add_iceoryx(RowList& list);

// Those that many clients can use at once.
void add_call_of_many(RowList& list);
void add_door_of_many(RowList& list);
void add_message_of_many(RowList& list);
void add_streams_of_many(RowList& list);

inline constexpr std::array kAllWaits{WaitMode::spin, WaitMode::adaptive, WaitMode::block};

// For a row whose connection is a `Made`, of `arguments` and in front of them, if it takes them,
// the conditions.
template <class Made, class... Arguments>
Row::Make makes(Arguments... arguments) {
  return [arguments...](const Conditions& conditions) -> std::unique_ptr<Connection> {
    if constexpr (std::is_constructible_v<Made, const Conditions&, const Arguments&...>)
      return std::make_unique<Made>(conditions, arguments...);
    else
      return std::make_unique<Made>(arguments...);
  };
}

inline std::string refuses_empty(const Conditions& conditions) {
  return conditions.message_bytes == 0
             ? "a stream of bytes has no empty messages; the least is 1 byte"
             : "";
}

// How much the channel is to hold, where the mechanism has no default of its own.
inline std::size_t default_depth(const Conditions& conditions) {
  return conditions.depth_bytes != 0 ? conditions.depth_bytes : std::size_t{1} << 20;
}
// How many messages that are; one of 0 bytes counts as one byte.
inline std::size_t messages_in(std::size_t depth_bytes, const Conditions& conditions) {
  return depth_bytes / std::max<std::size_t>(conditions.message_bytes, 1);
}

// Sends `descriptor`, by which a server is reached, to each of its clients: as many messages as
// there are clients, of which each takes one from the same socket. Throw SystemError.
void hand_out(int socket, int descriptor, const Conditions& conditions);
UniqueFd take_descriptor(int socket);

// A word each way, which shows that both ends are ready.
inline void greet(Endpoint& end, Role role) {
  std::byte hello{};
  if (role == Role::client) end.send({&hello, 1});
  end.receive({&hello, 1});
  if (role == Role::server) end.send({&hello, 1});
}

// For rows that measure within one process: nothing to make, one end.
template <class End>
class LocalConnection final : public Connection {
 public:
  std::unique_ptr<Endpoint> open(Role) override { return std::make_unique<End>(); }
};

}  // namespace farcall::compare
