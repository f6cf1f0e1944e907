// SPDX-License-Identifier: Apache-2.0
//
// The one place that lists all rows: what could be measured here, and what is missing for more.
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "compare/rows/module.hpp"
#include "compare/rows/rows.hpp"
#include "farcall/error.hpp"
#include "farcall/socket.hpp"
#include "farcall/wait.hpp"

namespace farcall::compare {
namespace {

// For rows whose library was not there when this was built.
[[maybe_unused]] void add_absent(RowList& list, std::string mechanism, std::string_view package) {
  list.absent.push_back(
      {std::move(mechanism),
       "farcall was built without it; it comes with the Debian package " + std::string(package)});
}

}  // namespace

void hand_out(int socket, int descriptor, const Conditions& conditions) {
  FdMessage message;
  message.descriptors.emplace_back(::dup(descriptor));
  if (!message.descriptors.front()) throw_errno("dup");
  for (unsigned i = 0; i < std::max(conditions.crowd.clients, 1U) + conditions.crowd.idle; ++i)
    send_fd_message(socket, message);
}

UniqueFd take_descriptor(int socket) {
  constexpr auto kStart = std::chrono::seconds(10);
  auto message = receive_fd_message(socket, Deadline::after(kStart));
  if (!message || message->descriptors.size() != 1)
    throw SystemError(EPROTO, "the server did not say how to reach it");
  return std::move(message->descriptors.front());
}

namespace {

// Mechanisms of others, which a build may lack.
void add_libraries(RowList& list) {
#ifdef FARCALL_HAVE_ZEROMQ
  add_zeromq(list);
#else
  add_absent(list, "zeromq", "libzmq3-dev");
#endif
#ifdef FARCALL_HAVE_NNG
  add_nng(list);
#else
  add_absent(list, "nng", "libnng-dev");
#endif
#ifdef FARCALL_HAVE_BOOST_MQ
  add_boost_mq(list);
#else
  add_absent(list, "boost_mq", "libboost-dev");
#endif
#ifdef FARCALL_HAVE_ONC_RPC
  add_onc_rpc(list);
#else
  add_absent(list, "onc_rpc", "libtirpc-dev");
#endif
#ifdef FARCALL_HAVE_THRIFT
  add_thrift(list);
#else
  add_absent(list, "thrift_tsocket", "libthrift-dev");
  add_absent(list, "thrift_farcall", "libthrift-dev");
#endif
#ifdef FARCALL_HAVE_NATS
  add_nats(list);
#else
  add_absent(list, "nats", "libnats-dev");
  add_absent(list, "bridge", "libnats-dev");
#endif
#ifdef FARCALL_HAVE_DBUS
  add_dbus(list);
#else
  add_absent(list, "dbus", "libsystemd-dev");
#endif
#ifdef FARCALL_HAVE_ASIO
  add_asio(list);
#else
  add_absent(list, "asio", "libasio-dev");
  add_absent(list, "asio_sync", "libasio-dev");
#endif
}

RowList pair_rows() {
  RowList list;
  add_null_call(list);
  add_memcpy(list);
  add_cacheline(list);
  add_lines(list);
  add_copy_pair(list);
  add_futex(list);
  add_call(list);
  add_door(list);
  add_message(list);
  add_channels(list);
#ifdef FARCALL_HAVE_PRELOAD
  add_accelerated(list);
#else
  for (const char* const name :
       {"tcp_accelerated", "unix_accelerated", "unix_seqpacket_accelerated", "udp_accelerated"})
    list.absent.push_back({name, "farcall was built without the preload library", "shared"});
#endif
  add_eventfd(list);
  add_libraries(list);
  add_modules(list, Workload::pair);
  return list;
}

RowList two_process_rows() {
  RowList list = pair_rows();
  std::erase_if(list.rows, [](const auto& row) { return row->info().one_process; });
  return list;
}

RowList broadcast_rows() {
  RowList list;
  add_broadcast(list);
  add_channel_for_each(list);
#ifdef FARCALL_HAVE_ZEROMQ
  add_zeromq_broadcast(list);
#else
  add_absent(list, "zeromq", "libzmq3-dev");
  add_absent(list, "zeromq_drop", "libzmq3-dev");
#endif
#ifdef FARCALL_HAVE_ICEORYX
  add_iceoryx(list);
#else
  add_absent(list, "iceoryx", "libiceoryx-posh-dev, which needs libacl1-dev");
  add_absent(list, "iceoryx_overwrite", "libiceoryx-posh-dev, which needs libacl1-dev");
#endif
  add_modules(list, Workload::broadcast);
  return list;
}

// A peer comes to these by a Connection whose open_client() many processes can call, and whose
// server's end serves them all.
RowList scaling_rows() {
  RowList list;
  add_call_of_many(list);
  add_door_of_many(list);
  add_message_of_many(list);
  add_streams_of_many(list);
  return list;
}

}  // namespace

RowList all_rows(Workload workload) {
  switch (workload) {
    case Workload::broadcast: return broadcast_rows();
    case Workload::scaling: return scaling_rows();
    case Workload::dead_peer: return two_process_rows();
    case Workload::pair: break;
  }
  return pair_rows();
}

}  // namespace farcall::compare
