// SPDX-License-Identifier: Apache-2.0
//
// What the two ends say to each other besides Thrift's own messages.
//
//   client                                       server
//     hello, with a socket -- channel by name -->  accept(): makes a channel for this client
//            <-- a connection to it, by the socket --
//     request -------------- that channel ------>
//            <-- kWhole: the reply, or kLonger: its length, where there was too little room --
//     an empty message ------------------------->  wants the reply that was too long
//            <-- kWhole --
//
// Where the name leads to another machine (farcall-bridge(1)) no socket can go along, and each call
// may find another server. Then calls go to the name itself, behind kFar:
//     kFar ----------------- channel by name -->
//            <-- kWhole: it is served so
//     kFar, request ----------------------------> accept(): a transport for this call
//            <-- kWhole: the reply
#pragma once

#include <cstddef>
#include <cstdint>

namespace farcall::thrift {

inline constexpr std::uint32_t kHello = 0x31686366;
inline constexpr std::uint32_t kFar = 0x32686366;
inline constexpr int kWhole = 0;
inline constexpr int kLonger = 1;
// Longer one-way calls go as messages with a reply, which the server gives when it has them whole.
inline constexpr std::size_t kOneWayBytes = std::size_t{64} << 10;

}  // namespace farcall::thrift
