// SPDX-License-Identifier: Apache-2.0
//
// Doors for which no thread can be made, or none that can serve: nobody is to wait for one.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "door/scoped_server.hpp"

namespace {

// Of the process whose number this is every thread but the first, and but those that serve no door.
std::atomic<pid_t> without_memory{0};

bool may_have_memory() noexcept {
  const pid_t process = without_memory.load(std::memory_order_relaxed);
  if (process == 0 || process != ::getpid() || process == ::gettid()) return true;
  char name[16] = "";
  ::prctl(PR_GET_NAME, name);
  return std::string_view(name).starts_with("farcall-");
}

}  // namespace

// The library's, too. Sanitizers have their own.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void* operator new(std::size_t size) {
  void* const memory = may_have_memory() ? std::malloc(size) : nullptr;
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#else
[[maybe_unused]] const auto kNotAsked = may_have_memory;
#endif

namespace farcall::door::test {
namespace {

class NoMemoryForThreads {
 public:
  NoMemoryForThreads() { without_memory = ::getpid(); }
  ~NoMemoryForThreads() { without_memory = 0; }
  NoMemoryForThreads(const NoMemoryForThreads&) = delete;
  NoMemoryForThreads& operator=(const NoMemoryForThreads&) = delete;
};

class NoMore {
 public:
  NoMore(__rlimit_resource what, rlim_t most) : what_(what) {
    EXPECT_EQ(::getrlimit(what_, &before_), 0);
    const rlimit none{.rlim_cur = most, .rlim_max = before_.rlim_max};
    EXPECT_EQ(::setrlimit(what_, &none), 0);
  }
  ~NoMore() { ::setrlimit(what_, &before_); }
  NoMore(const NoMore&) = delete;
  NoMore& operator=(const NoMore&) = delete;

 private:
  const __rlimit_resource what_;
  rlimit before_{};
};

// What doors need beside threads that serve them is there already: the reactor.
void be_ready() {
  ::door_server_create([](door_info_t*) {});
  const int door = ::door_create(echo, nullptr, DOOR_PRIVATE);
  ASSERT_GE(door, 0) << std::strerror(errno);
  EXPECT_EQ(::door_revoke(door), 0);
  ::door_server_create(nullptr);
}

// Limits of this kind are nothing to root.
void be_limited() {
  be_ready();
  if (is_root()) {
    ASSERT_TRUE(become(kNobody));
  }
}

// Of this process, in bytes.
rlim_t address_space() {
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE));
}

// Who has become somebody else cannot count them.
int lowest_free_descriptor() { return UniqueFd(::dup(STDIN_FILENO)).get(); }

void expect_door_that_serves() {
  const int door = ::door_create(echo, nullptr, 0);
  ASSERT_GE(door, 0) << std::strerror(errno);
  EXPECT_EQ(call(door, "x").data, "x");
}

TEST(DoorStarting, WhereNoThreadCanBeMadeThereIsNoDoor) {
  in_child([] {
    be_limited();
    const int before = lowest_free_descriptor();
    {
      const NoMore threads(RLIMIT_NPROC, 0);
      for (int i = 0; i < 20; ++i) EXPECT_EQ(ERROR_OF(::door_create(echo, nullptr, 0)), EAGAIN);
    }
    // What the shared pool is made of stays.
    EXPECT_TRUE(eventually([&] { return lowest_free_descriptor() < before + 10; }));
    expect_door_that_serves();
  });
}

TEST(DoorStarting, NorWhereThereIsNoRoomForItsStack) {
  if (kSlow > 1) GTEST_SKIP() << "sanitizers need all the address space there is";
  in_child([] {
    be_ready();
    {
      const NoMore memory(RLIMIT_AS, 1 << 20);
      EXPECT_EQ(ERROR_OF(::door_create(echo, nullptr, 0)), EAGAIN);
    }
    expect_door_that_serves();
  });
}

TEST(DoorStarting, NorWhereTheThreadHasNoMemory) {
  FARCALL_SKIP_UNDER_ASAN("has an allocator of its own");
  FARCALL_SKIP_UNDER_TSAN("has an allocator of its own");
  in_child([] {
    be_ready();
    {
      const NoMemoryForThreads guard;
      EXPECT_EQ(ERROR_OF(::door_create(echo, nullptr, 0)), ENOMEM);
    }
    expect_door_that_serves();
  });
}

// One that could not be made when the call before was served.
TEST(DoorStarting, AThreadThatCouldNotBeMadeOnceIsAskedForWithTheNextCall) {
  if (kSlow > 1) GTEST_SKIP() << "sanitizers need all the address space there is";
  in_child([] {
    static int door = -1;
    door = ::door_create(
        [](void*, char* data, size_t size, door_desc_t*, uint_t) {
          if (size > 1) {
            EXPECT_EQ(call(door, "x").data, "x");
          }
          ::door_return(data, size, nullptr, 0);
        },
        nullptr, 0);
    ASSERT_GE(door, 0) << std::strerror(errno);
    ASSERT_TRUE(others_come_to_rest());
    char byte = 'x';
    door_arg_t arguments{};
    arguments.data_ptr = &byte;
    arguments.data_size = 1;
    arguments.rbuf = &byte;
    arguments.rsize = 1;
    {
      // Room for a session, but not for a stack.
      const NoMore memory(RLIMIT_AS, address_space() + (rlim_t{4} << 20));
      EXPECT_EQ(::door_call(door, &arguments), 0) << std::strerror(errno);
    }
    Caller caller(door, "nested");
    EXPECT_EQ(caller.interrupt_after(kPatience).data, "nested");
  });
}

int create_bound_thread(door_info_t*, void* (*start)(void*), void* argument, void*) {
  std::thread(start, argument).detach();
  return 1;
}

TEST(DoorStarting, NorWhereABoundThreadHasNoMemory) {
  FARCALL_SKIP_UNDER_ASAN("has an allocator of its own");
  FARCALL_SKIP_UNDER_TSAN("has an allocator of its own");
  in_child([] {
    be_ready();
    std::thread([] {}).join();
    const auto create = [] {
      return ::door_xcreate(echo, nullptr, 0, create_bound_thread, nullptr, nullptr, 2);
    };
    {
      const NoMemoryForThreads guard;
      EXPECT_EQ(ERROR_OF(create()), EPIPE);
    }
    const int door = create();
    ASSERT_GE(door, 0) << std::strerror(errno);
    EXPECT_EQ(call(door, "x").data, "x");
  });
}

void return_or_echo(void*, char* data, size_t size, door_desc_t*, uint_t) {
  if (std::string_view(data, size) != "end") ::door_return(data, size, nullptr, 0);
}

// A procedure that returns ends its thread, but for this.
TEST(DoorStarting, TheOnlyThreadThereCanBeStays) {
  in_child([] {
    be_limited();
    const int door = ::door_create(return_or_echo, nullptr, 0);
    ASSERT_GE(door, 0) << std::strerror(errno);
    const NoMore threads(RLIMIT_NPROC, 0);
    for (int i = 0; i < 5; ++i) {
      EXPECT_EQ(error_of(door, "end"), EINTR);
      EXPECT_EQ(call(door, "x").data, "x");
    }
  });
}

}  // namespace
}  // namespace farcall::door::test
