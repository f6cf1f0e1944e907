// SPDX-License-Identifier: Apache-2.0
//
// Sockets that serve as lifelines, in which there should be nothing but doorbells. A peer may put
// anything into one, a socket that lingers above all: the last close of that waits as long as the
// peer likes. So what comes along is closed by threads that serve nobody, and so is a socket in
// which something is left.
#pragma once

#include <utility>

#include "farcall/wait.hpp"
#include "process/process.hpp"

namespace farcall {

unsigned take_doorbells(void* context, int lifeline) noexcept;
// Before anything is read from a socket that may come from anybody: what is sent out of band comes
// as the rest does. Else the kernel throws it away in the thread that reads, and closes there what
// came with it.
void take_out_of_band_as_well(int socket) noexcept;
inline constexpr Drain kDoorbells{take_doorbells, nullptr};

// An end of one, of this process alone. The peer is told at once when this goes.
class DoorbellSocket {
 public:
  DoorbellSocket() noexcept = default;
  explicit DoorbellSocket(process::PrivateFd socket) noexcept : socket_(std::move(socket)) {
    if (socket_.is_here()) take_out_of_band_as_well(socket_.get());
  }
  DoorbellSocket(DoorbellSocket&&) noexcept = default;
  DoorbellSocket& operator=(DoorbellSocket&& other) noexcept {
    if (this == &other) return *this;
    hang_up();
    socket_ = std::move(other.socket_);
    return *this;
  }
  ~DoorbellSocket() { hang_up(); }

  [[nodiscard]] int get() const noexcept { return socket_.get(); }

 private:
  void hang_up() noexcept;

  process::PrivateFd socket_;
};

}  // namespace farcall
