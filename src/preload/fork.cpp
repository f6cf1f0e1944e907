// SPDX-License-Identifier: Apache-2.0
#include "preload/fork.hpp"

#include <pthread.h>

#include <array>
#include <cstddef>

namespace farcall::preload {
namespace {

constinit std::array<ForkHandlers, 12> known{};
constinit std::size_t known_count = 0;

}  // namespace

void at_fork(const ForkHandlers& handlers) noexcept {
  ::pthread_atfork(handlers.before, handlers.in_parent, handlers.in_child);
  if (known_count < known.size()) known[known_count++] = handlers;
}

void before_bare_fork() noexcept {
  for (std::size_t i = known_count; i-- != 0;) known[i].before();
}
void after_bare_fork_in_parent() noexcept {
  for (std::size_t i = 0; i < known_count; ++i) known[i].in_parent();
}
void after_bare_fork_in_child() noexcept {
  for (std::size_t i = 0; i < known_count; ++i) known[i].in_child();
}

}  // namespace farcall::preload
