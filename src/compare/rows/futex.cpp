// SPDX-License-Identifier: Apache-2.0
//
// The control for sleeping: two processes that wake each other by a bare futex. Whose turn it is
// is the futex; a sequence number, checked like any payload, goes with it in the same line.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "compare/rows/rows.hpp"
#include "farcall/memory.hpp"

namespace farcall::compare {
namespace {

struct Shared {
  std::atomic<std::uint32_t> turn;  // of the role with this number
  std::uint64_t word;               // written by the side that has the turn
};

class FutexEnd final : public Endpoint {
 public:
  FutexEnd(Shared& shared, Role role) : shared_(shared), me_(role == Role::client ? 0 : 1) {}

  void send(std::span<const std::byte> message) override {
    std::memcpy(&shared_.word, message.data(), sizeof shared_.word);
    // release: pairs with the acquire in receive(), for the word.
    shared_.turn.store(1 - me_, std::memory_order_release);
    ::syscall(SYS_futex, &shared_.turn, FUTEX_WAKE, 1, nullptr, nullptr, 0);
  }
  void receive(std::span<std::byte> message) override {
    while (shared_.turn.load(std::memory_order_acquire) != me_)
      ::syscall(SYS_futex, &shared_.turn, FUTEX_WAIT, 1 - me_, nullptr, nullptr, 0);
    std::memcpy(message.data(), &shared_.word, sizeof shared_.word);
  }

 private:
  Shared& shared_;
  std::uint32_t me_;
};

class FutexConnection final : public Connection {
 public:
  std::unique_ptr<Endpoint> open(Role role) override {
    return std::make_unique<FutexEnd>(*reinterpret_cast<Shared*>(memory_.data()), role);
  }

 private:
  Mapping memory_ = Mapping::anonymous_shared(sizeof(Shared));
};

}  // namespace

void add_futex(RowList& list) {
  list.add({.mechanism = "futex_pingpong",
            .engine = "control",
            .wait = "block",
            .description = "two processes that wake each other by a bare futex",
            .fixed_bytes = sizeof(std::uint64_t),
            .streams = false},
           makes<FutexConnection>());
}

}  // namespace farcall::compare
