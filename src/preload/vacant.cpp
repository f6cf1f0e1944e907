// SPDX-License-Identifier: Apache-2.0
#include "preload/vacant.hpp"

#include <sys/mman.h>

#include <array>
#include <cstdint>
#include <cstring>

#include "preload/lock.hpp"
#include "preload/real.hpp"
#include "preload/side.hpp"
#include "preload/waiting.hpp"

namespace farcall::preload {
namespace {

// Where closed connections were mapped. A thread may still be looking there, so the addresses stay
// mapped, to zeroes or to the next connection: whoever looks compares generations before it
// believes what it saw. Many that nobody needs for long are given up.
struct Vacant {
  std::byte* mapping;
  std::size_t size;
  std::int64_t since;
};
constexpr std::size_t kMostVacant = 4096;
constexpr std::size_t kFewVacant = 64;
constexpr std::int64_t kVacantFor = 2'000'000'000;
constinit std::array<Vacant, kMostVacant> vacant{};
constinit std::size_t vacant_count = 0;

// Keeps the latest; holds life_lock().
void unmap_old() noexcept {
  if (vacant_count <= kFewVacant) return;
  const std::int64_t now = monotonic_ns();
  std::size_t old = 0;
  while (vacant_count - old > kFewVacant && now - vacant[old].since > kVacantFor) {
    kernel(SYS_munmap, vacant[old].mapping, vacant[old].size);
    ++old;
  }
  if (old == 0) return;
  vacant_count -= old;
  std::memmove(vacant.data(), vacant.data() + old, vacant_count * sizeof(Vacant));
}

}  // namespace

void unmap_connection(std::byte* mapping, std::size_t size) noexcept {
  unmap_old();
  kernel(SYS_mmap, mapping, size, PROT_READ | PROT_WRITE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
  if (vacant_count < kMostVacant)
    vacant[vacant_count++] = {.mapping = mapping, .size = size, .since = monotonic_ns()};
  else
    kernel(SYS_munmap, mapping, size);
}

std::byte* map_connection(std::size_t size, int memory) noexcept {
  const Guard guard(life_lock());
  std::byte* place = nullptr;
  for (std::size_t i = vacant_count; i != 0 && place == nullptr; --i)
    if (vacant[i - 1].size == size) {
      place = vacant[i - 1].mapping;
      vacant[i - 1] = vacant[--vacant_count];
    }
  const long mapped = kernel(SYS_mmap, place, size, PROT_READ | PROT_WRITE,
                             MAP_SHARED | (place == nullptr ? 0 : MAP_FIXED), memory, 0);
  return mapped < 0 ? nullptr : reinterpret_cast<std::byte*>(mapped);
}

}  // namespace farcall::preload
