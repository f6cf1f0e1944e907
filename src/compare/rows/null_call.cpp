// SPDX-License-Identifier: Apache-2.0
//
// The control for calls: an empty function behind a pointer, one word in and the same word out.
#include <cstring>

#include "compare/rows/rows.hpp"

namespace farcall::compare {
namespace {

std::uint64_t empty(std::uint64_t word) { return word; }

class NullCall final : public Endpoint {
 public:
  void send(std::span<const std::byte>) override {}
  void receive(std::span<std::byte>) override {}
  void round_trip(std::span<const std::byte> request, std::span<std::byte> reply) override {
    std::uint64_t word = 0;
    std::memcpy(&word, request.data(), sizeof word);
    word = callee_(word);
    std::memcpy(reply.data(), &word, sizeof word);
  }

 private:
  // volatile: the compiler must not know whom it calls.
  std::uint64_t (*volatile callee_)(std::uint64_t) = empty;
};

}  // namespace

void add_null_call(RowList& list) {
  list.add({.mechanism = "null_call",
            .engine = "control",
            .wait = "spin",
            .description = "an empty function, called through a pointer in one process",
            .fixed_bytes = sizeof(std::uint64_t),
            .one_process = true},
           makes<LocalConnection<NullCall>>());
}

}  // namespace farcall::compare
