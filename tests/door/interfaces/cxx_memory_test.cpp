// SPDX-License-Identifier: Apache-2.0
//
// farcall/door.hpp where there is no memory for the descriptors that came along.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "farcall/door.hpp"
#include "harness/child.hpp"

namespace {

constexpr std::size_t kPassed = 7;
constexpr std::size_t kBytes = kPassed * sizeof(int);  // that the library asks for as well

// The how manieth such piece is not to be had, by the first thread or by another; 0: all are.
std::atomic<int> refused{0};
std::atomic<bool> refused_to_first{false};

[[maybe_unused]] void* allocate(std::size_t bytes) {
  const bool counts = bytes == kBytes && (::gettid() == ::getpid()) == refused_to_first;
  void* const memory = counts && refused > 0 && --refused == 0 ? nullptr : std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

// Sanitizers have an allocator of their own.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void* operator new(std::size_t bytes) { return allocate(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#endif

namespace farcall {
namespace {

int lowest_free_descriptor() { return DoorDescriptor(::dup(STDIN_FILENO)).get(); }

// Returns how many calls failed.
int expect_nothing_left(const Door& door, std::string_view request, std::vector<int> passed) {
  (void)door.call("warm");
  const int before = lowest_free_descriptor();
  int failed = 0;
  for (int which = 1; which <= 8; ++which) {
    refused = which;
    try {
      (void)door.call(request, passed);
    } catch (const std::exception&) {
      ++failed;
    }
    refused = 0;
  }
  EXPECT_TRUE(test::eventually(
      [&] { return lowest_free_descriptor() < before + static_cast<int>(kPassed); }));
  EXPECT_EQ(door.call("still").text(), "still");
  return failed;
}

TEST(DoorCxx, WhatThereIsNoMemoryForIsClosed) {
  FARCALL_SKIP_UNDER_ASAN("has an allocator of its own");
  FARCALL_SKIP_UNDER_TSAN("has an allocator of its own");
  const Door door = Door::create([](DoorRequest& request, DoorReply& reply) {
    if (request.text() == "back")
      for (std::size_t i = 0; i < kPassed; ++i) reply.pass(STDIN_FILENO);
    reply.write(request.text());
  });
  EXPECT_GE(expect_nothing_left(door, "take", std::vector<int>(kPassed, STDIN_FILENO)), 1);
  refused_to_first = true;
  EXPECT_GE(expect_nothing_left(door, "back", {}), 2) << "the library's, and the header's";
}

}  // namespace
}  // namespace farcall
