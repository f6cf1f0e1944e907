// SPDX-License-Identifier: Apache-2.0
//
// The control for throughput: one copy of the message, from memory to memory of one process.
#include <cstring>

#include "compare/rows/rows.hpp"

namespace farcall::compare {
namespace {

class Copy final : public Endpoint {
 public:
  void send(std::span<const std::byte>) override {}
  void receive(std::span<std::byte>) override {}
  void round_trip(std::span<const std::byte> request, std::span<std::byte> reply) override {
    copy_(reply.data(), request.data(), reply.size());
  }

 private:
  // volatile: the compiler must not leave out copies that nobody looks at.
  void* (*volatile copy_)(void*, const void*, std::size_t) = std::memcpy;
};

}  // namespace

void add_memcpy(RowList& list) {
  list.add({.mechanism = "memcpy",
            .engine = "control",
            .wait = "spin",
            .description = "one copy of the message within one process",
            .one_process = true},
           makes<LocalConnection<Copy>>(), [](const Conditions& conditions) {
             return conditions.message_bytes == 0 ? "there is nothing to copy" : "";
           });
}

}  // namespace farcall::compare
