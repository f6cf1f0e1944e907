// SPDX-License-Identifier: Apache-2.0
//
// Procedures that answer from elsewhere than where they were called: the function that their thread
// began with, and stacks of the program's own.
#include <gtest/gtest.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "door/scoped_server.hpp"

namespace farcall::door::test {
namespace {

// Where a thread began.
thread_local jmp_buf beginning;

[[gnu::noinline]] void answer_from_further_down(const char* text) {
  char room[4096];
  ::explicit_bzero(room, sizeof room);
  answer(text);
}

// The value of the jump: from where it is answered.
enum From { kStart = 1, kFurtherDown };
void begin_and_serve() {
  switch (setjmp(beginning)) {
    case kStart: answer("from the start"); break;
    case kFurtherDown: answer_from_further_down("from further down"); break;
    default: ::door_return(nullptr, 0, nullptr, 0);
  }
}

void expect_jumpers_to_answer(int door) {
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(call(door, "start").data, "from the start");
    EXPECT_EQ(call(door, "down").data, "from further down");
    EXPECT_EQ(call(door, "here").data, "from here");
  }
}

TEST(DoorStacks, AProcedureMayGoBackToTheFunctionThatItsThreadBeganWith) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  in_child([] {
    ::door_server_create([](door_info_t* info) {
      if (info == nullptr) std::thread(begin_and_serve).detach();
    });
    const int door = ::door_create(
        [](void*, char* data, size_t size, door_desc_t*, uint_t) {
          const std::string_view request(data, size);
          if (request == "start") longjmp(beginning, kStart);
          if (request == "down") longjmp(beginning, kFurtherDown);
          answer("from here");
        },
        nullptr, 0);
    expect_jumpers_to_answer(door);
  });
}

// What unwinds the stack of such a thread finds its way to the end of it.
TEST(DoorStacks, AThreadThatHasGoneBackCanEnd) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  in_child([] {
    static Event ended;
    ::door_server_create([](door_info_t* info) {
      if (info != nullptr) return;
      std::thread([] {
        struct AtEnd {
          ~AtEnd() { ended.happens(); }
        } at_end;
        begin_and_serve();
      }).detach();
    });
    const int door = ::door_create(
        [](void*, char*, size_t size, door_desc_t*, uint_t) {
          if (size != 0) longjmp(beginning, kStart);
          ::pthread_exit(nullptr);
        },
        nullptr, 0);
    EXPECT_EQ(call(door, "start").data, "from the start");
    EXPECT_EQ(error_of(door), EINTR);
    EXPECT_TRUE(ended.wait());
  });
}

// ---- coroutines ----

constexpr std::size_t kStack = 256 * 1024;

struct Coroutine {
  ucontext_t context;
  ucontext_t caller;
  std::string text;
};
thread_local Coroutine coroutine;

TEST(DoorStacks, AProcedureMayAnswerFromAStackOfItsOwn) {
  FARCALL_SKIP_UNDER_TSAN("does not know of stacks that a program makes");
  FARCALL_SKIP_UNDER_ASAN("does not know of stacks that a program makes");
  in_child([] {
    // The kernel puts what is mapped below what is there: this one is above the threads' stacks,
    // the next below.
    static char* stack = static_cast<char*>(
        ::mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    const int door = ::door_create(
        [](void*, char* data, size_t size, door_desc_t*, uint_t) {
          coroutine.text = {data, size};
          ::getcontext(&coroutine.context);
          coroutine.context.uc_stack.ss_sp = stack;
          coroutine.context.uc_stack.ss_size = kStack;
          coroutine.context.uc_link = &coroutine.caller;
          ::makecontext(
              &coroutine.context,
              [] { ::door_return(coroutine.text.data(), coroutine.text.size(), nullptr, 0); }, 0);
          ::swapcontext(&coroutine.caller, &coroutine.context);
        },
        nullptr, 0);
    for (int i = 0; i < 20; ++i) EXPECT_EQ(call(door, "x").data, "x");
    stack = static_cast<char*>(
        ::mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    for (int i = 0; i < 20; ++i) EXPECT_EQ(call(door, "y").data, "y");
  });
}

}  // namespace
}  // namespace farcall::door::test
