// SPDX-License-Identifier: Apache-2.0
//
// What door_call() refuses, and which refusal comes first where several apply.
#include <gtest/gtest.h>
#include <sys/epoll.h>

#include <list>

#include "door/scoped_server.hpp"

namespace farcall::door::test {
namespace {

char* const kNowhere = reinterpret_cast<char*>(8);
constexpr size_t kEnormous = size_t{1} << 46;

// A call with exactly these arguments; its errno.
struct Request {
  char* data = nullptr;
  size_t size = 0;
  door_desc_t* descriptors = nullptr;
  uint_t count = 0;
};
int error_of_request(int door, const Request& request) {
  std::array<char, 4096> buffer;
  door_arg_t arguments{};
  arguments.data_ptr = request.data;
  arguments.data_size = request.size;
  arguments.desc_ptr = request.descriptors;
  arguments.desc_num = request.count;
  arguments.rbuf = buffer.data();
  arguments.rsize = buffer.size();
  return ERROR_OF(::door_call(door, &arguments));
}

char text[] = "text";
door_desc_t bad[] = {pass(9999), pass(9999), pass(9999)};
door_desc_t good[] = {pass(0), pass(0), pass(0)};
door_desc_t plain[] = {pass(0, 0)};

int revoked_door() {
  const int door = ::door_create(echo, nullptr, DOOR_REFUSE_DESC);
  EXPECT_EQ(::door_setparam(door, DOOR_PARAM_DATA_MIN, 3), 0);
  const int second = ::dup(door);
  EXPECT_EQ(::door_revoke(door), 0);
  return second;
}

TEST(DoorCall, RefusesParametersThatCannotBeRead) {
  const int door = ::door_create(echo, nullptr, 0);
  in_server_and_client([&] {
    EXPECT_EQ(ERROR_OF(::door_call(door, reinterpret_cast<door_arg_t*>(16))), EFAULT);
    void* page = ::mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_EQ(ERROR_OF(::door_call(door, static_cast<door_arg_t*>(page))), EFAULT);
    ::munmap(page, 4096);
  });
}

TEST(DoorCall, RefusesWhatIsNoDoor) {
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
  for (const int fd : {-1, DOOR_QUERY, 9999, 0, pair[0], ::epoll_create1(EPOLL_CLOEXEC)}) {
    EXPECT_EQ(error_of(fd, "x"), EBADF) << fd;
    EXPECT_EQ(ERROR_OF(::door_call(fd, nullptr)), EBADF) << fd;
  }
}

TEST(DoorCall, RefusesARevokedDoor) {
  const int door = revoked_door();
  in_server_and_client([&] { EXPECT_EQ(error_of(door, "long enough"), EBADF); });
}

TEST(DoorCall, RefusesDescriptorsWhereTheDoorDoes) {
  const int door = ::door_create(echo, nullptr, DOOR_REFUSE_DESC);
  in_server_and_client([&] {
    EXPECT_EQ(error_of_request(door, {text, 4, good, 1}), ENOTSUP);
    EXPECT_EQ(error_of_request(door, {text, 4, nullptr, 0}), 0);
  });
}

TEST(DoorCall, RefusesWhatCannotFitTheServerThread) {
  const int door = ::door_create(echo, nullptr, 0);
  std::vector<char> data(1000);
  in_server_and_client([&] {
    EXPECT_EQ(error_of_request(door, {data.data(), kEnormous, nullptr, 0}), E2BIG);
    EXPECT_EQ(error_of_request(door, {data.data(), SIZE_MAX, nullptr, 0}), E2BIG);
    EXPECT_EQ(error_of(door, "x"), 0);
  });
}

TEST(DoorCall, RefusesDataThatCannotBeRead) {
  const int door = ::door_create(echo, nullptr, 0);
  in_server_and_client([&] {
    void* pages = ::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(pages, MAP_FAILED);
    char* hole = static_cast<char*>(pages) + 4096;
    ::mprotect(hole, 4096, PROT_NONE);
    for (const size_t size : {size_t{1}, size_t{100}, size_t{100'000}, size_t{1} << 22}) {
      EXPECT_EQ(error_of_request(door, {kNowhere, size, nullptr, 0}), EFAULT) << size;
      EXPECT_EQ(error_of_request(door, {nullptr, size, nullptr, 0}), EFAULT) << size;
      EXPECT_EQ(error_of_request(door, {hole - 1, size + 1, nullptr, 0}), EFAULT) << size;
      EXPECT_EQ(error_of_request(door, {hole - 1, 1, nullptr, 0}), 0);
    }
    ::munmap(pages, 8192);
  });
}

// Pages one after the other, which end at one that nobody can use.
class Pages {
 public:
  explicit Pages(size_t count) : size_((count + 1) * kPage) {
    void* const memory =
        ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    begin_ = static_cast<char*>(memory);
    if (::mprotect(end(), kPage, PROT_NONE) != 0) std::abort();
  }
  ~Pages() { ::munmap(begin_, size_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  static constexpr size_t kPage = 4096;
  [[nodiscard]] char* begin() const { return begin_; }
  [[nodiscard]] char* end() const { return begin_ + size_ - kPage; }

 private:
  size_t size_;
  char* begin_;
};

TEST(DoorCall, RefusesDataOfWhichOneByteCannotBeRead) {
  const int door = ::door_create(echo, nullptr, 0);
  // All stay: a thread takes what it has found to be memory for that later.
  std::list<Pages> all;
  for (const size_t count : std::initializer_list<size_t>{1, 2, 3, 4, 5, 15, 16, 17, 18, 40, 300}) {
    in_server_and_client([&] {
      const Pages& pages = all.emplace_back(count);
      const size_t size = count * Pages::kPage;
      EXPECT_EQ(error_of_request(door, {.data = pages.end() - 10, .size = 10}), 0);
      EXPECT_EQ(error_of_request(door, {.data = pages.end() - 10, .size = 11}), EFAULT);
      EXPECT_EQ(error_of_request(door, {.data = pages.begin(), .size = size + 1}), EFAULT);
    });
  }
}

// The server goes on, and may still answer.
TEST(DoorReturn, RefusesDataOfWhichAPageCannotBeRead) {
  static int error;
  const int door = ::door_create(
      [](void*, char*, size_t, door_desc_t*, uint_t) {
        const Pages pages(40);
        ::mprotect(pages.begin() + 30 * Pages::kPage, Pages::kPage, PROT_NONE);
        error = ERROR_OF(::door_return(pages.begin(), 40 * Pages::kPage, nullptr, 0));
        ::door_return(reinterpret_cast<char*>(&error), sizeof error, nullptr, 0);
      },
      nullptr, 0);
  EXPECT_EQ(call(door).number<int>(), EFAULT);
}

TEST(DoorCall, RefusesDataWithAHole) {
  const int door = ::door_create(echo, nullptr, 0);
  for (const size_t hole : std::initializer_list<size_t>{1, 3, 4, 5, 13, 15, 16, 17, 30, 38}) {
    in_child([&] {  // where no other thread maps anything there
      const Pages pages(40);
      EXPECT_EQ(error_of_request(door, {.data = pages.begin(), .size = 10}), 0);
      char* const nothing = pages.begin() + hole * Pages::kPage;
      ASSERT_EQ(::munmap(nothing, Pages::kPage), 0);
      EXPECT_EQ(error_of_request(door, {.data = pages.begin(), .size = 40 * Pages::kPage}), EFAULT)
          << hole;
      EXPECT_EQ(::mmap(nothing, Pages::kPage, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0),
                nothing);
      EXPECT_EQ(error_of_request(door, {.data = pages.begin(), .size = 40 * Pages::kPage}), EFAULT)
          << hole << ", where something is mapped";
      EXPECT_EQ(error_of(door, "the server is well"), 0);
    });
  }
}

// That many pages can be read is known for a while, but not that there is memory.
TEST(DoorCall, RefusesDataWithAHoleWhereMemoryWas) {
  const int door = ::door_create(echo, nullptr, 0);
  in_child([&] {  // where no other thread maps anything there
    const Pages pages(40);
    constexpr size_t kSize = 40 * Pages::kPage;
    const auto send = [&] { return error_of_request(door, {pages.begin(), kSize, nullptr, 0}); };
    const auto receive = [&] {
      door_arg_t arguments{};
      arguments.rbuf = pages.begin();
      arguments.rsize = kSize;
      return ERROR_OF(::door_call(door, &arguments));
    };
    EXPECT_EQ(send(), 0);
    EXPECT_EQ(receive(), 0);
    ASSERT_EQ(::munmap(pages.begin() + 20 * Pages::kPage, Pages::kPage), 0);
    EXPECT_EQ(send(), EFAULT);
    // The module looks at what it writes to, which is nothing here.
    EXPECT_EQ(receive(), over_module() ? 0 : EFAULT);
    EXPECT_EQ(error_of(door, "the server is well"), 0);
  });
}

// Of many pages that are to be written to not all are looked at.
TEST(DoorCall, RefusesDataWithAHoleThatWasInABuffer) {
  const int door = ::door_create(echo, nullptr, 0);
  in_child([&] {
    const Pages pages(40);
    ASSERT_EQ(::mprotect(pages.begin() + 26 * Pages::kPage, Pages::kPage, PROT_NONE), 0);
    constexpr size_t kSize = 40 * Pages::kPage;
    door_arg_t arguments{};
    arguments.rbuf = pages.begin();
    arguments.rsize = kSize;
    EXPECT_EQ(ERROR_OF(::door_call(door, &arguments)), 0);
    EXPECT_EQ(error_of_request(door, {pages.begin(), kSize, nullptr, 0}), EFAULT);
  });
}

// That a page can be read is known for a while. It says nothing of what can be written to it.
TEST(DoorCall, RefusesABufferThatItHasOnlyRead) {
  const int door = ::door_create(echo, nullptr, 0);
  in_server_and_client([&] {
    const Pages page(1);
    ASSERT_EQ(::mprotect(page.begin(), Pages::kPage, PROT_READ), 0);
    EXPECT_EQ(error_of_request(door, {.data = page.begin(), .size = 10}), 0);
    door_arg_t arguments{};
    arguments.data_ptr = text;
    arguments.data_size = sizeof text;
    arguments.rbuf = page.begin();
    arguments.rsize = Pages::kPage;
    EXPECT_EQ(ERROR_OF(::door_call(door, &arguments)), EFAULT);
  });
}

TEST(DoorCall, RefusesDescriptorArraysThatCannotBeRead) {
  const int door = ::door_create(echo, nullptr, 0);
  in_server_and_client([&] {
    for (const uint_t count : {1U, 5U, 1000U}) {
      EXPECT_EQ(error_of_request(door, {text, 4, reinterpret_cast<door_desc_t*>(kNowhere), count}),
                EFAULT);
      EXPECT_EQ(error_of_request(door, {text, 4, nullptr, count}), EFAULT);
    }
    EXPECT_EQ(error_of(door, "x"), 0);
  });
}

TEST(DoorCall, IgnoresPointersToNothing) {
  const int door = ::door_create(echo, nullptr, 0);
  in_server_and_client([&] {
    EXPECT_EQ(error_of_request(door, {kNowhere, 0, reinterpret_cast<door_desc_t*>(kNowhere), 0}),
              0);
  });
}

TEST(DoorCall, RefusesBadDescriptors) {
  const int door = ::door_create(echo, nullptr, 0);
  in_server_and_client([&] {
    EXPECT_EQ(error_of_request(door, {text, 4, bad, 1}), EINVAL);
    EXPECT_EQ(error_of(door, "x", {pass(0), pass(-1)}), EINVAL) << "one of two";
    EXPECT_EQ(error_of(door, "x"), 0);
  });
}

TEST(DoorCall, RefusesDescriptorsThatAreNotSaidToBeSuch) {
  const int door = ::door_create(echo, nullptr, 0);
  in_server_and_client([&] {
    EXPECT_EQ(error_of_request(door, {text, 4, plain, 1}), EINVAL);
    EXPECT_EQ(error_of(door, "x", {pass(0, DOOR_RELEASE)}), EINVAL);
    EXPECT_EQ(::fcntl(0, F_GETFD) < 0, false) << "released although the call failed";
  });
}

// ---- of two, the earlier one ----

TEST(DoorCallOrder, ParametersComeBeforeTheDoor) {
  EXPECT_EQ(ERROR_OF(::door_call(-1, reinterpret_cast<door_arg_t*>(16))), EFAULT);
  EXPECT_EQ(ERROR_OF(::door_call(revoked_door(), reinterpret_cast<door_arg_t*>(16))), EFAULT);
}

TEST(DoorCallOrder, TheDoorComesBeforeAllThatIsWrongWithTheRequest) {
  const int door = revoked_door();
  in_server_and_client([&] {
    EXPECT_EQ(error_of_request(door, {text, 1, nullptr, 0}), EBADF);              // ENOBUFS
    EXPECT_EQ(error_of_request(door, {text, 4, good, 1}), EBADF);                 // ENOTSUP
    EXPECT_EQ(error_of_request(door, {kNowhere, kEnormous, nullptr, 0}), EBADF);  // E2BIG
    EXPECT_EQ(error_of_request(door, {kNowhere, 4, nullptr, 0}), EBADF);          // EFAULT
    EXPECT_EQ(error_of_request(door, {text, 4, bad, 1}), EBADF);                  // EINVAL
  });
}

TEST(DoorCallOrder, ADeadServerComesBeforeItsLimits) {
  // Also where this thread has called it before, and knows the limits.
  for (const bool dies : {true, false}) {
    const Shared<Event> revoke;
    const Shared<Event> revoked;
    ScopedServer server([&] {
      const int door = ::door_create(echo, nullptr, DOOR_REFUSE_DESC);
      EXPECT_EQ(::door_setparam(door, DOOR_PARAM_DATA_MAX, 3), 0);
      const int second = ::dup(door);
      std::thread([&, second] {
        if (!revoke->wait()) return;
        EXPECT_EQ(::door_revoke(second), 0);
        revoked->happens();
      }).detach();
      return door;
    });
    EXPECT_EQ(call(server.door(), "123").data, "123");
    if (dies) {
      server.kill();
    } else {
      revoke->happens();
      ASSERT_TRUE(revoked->wait());
    }
    EXPECT_EQ(error_of(server.door(), "1234"), EBADF);
    EXPECT_EQ(error_of(server.door(), "", {pass(0)}), EBADF);
    EXPECT_EQ(error_of(server.door(), "123"), EBADF);
  }
}

TEST(DoorCallOrder, TheSizeComesBeforeDescriptors) {
  const int door = ::door_create(echo, nullptr, DOOR_REFUSE_DESC);
  ASSERT_EQ(::door_setparam(door, DOOR_PARAM_DATA_MAX, 3), 0);
  in_server_and_client([&] {
    EXPECT_EQ(error_of_request(door, {text, 4, good, 1}), ENOBUFS);
    EXPECT_EQ(error_of_request(door, {text, 4, bad, 1}), ENOBUFS);
    EXPECT_EQ(error_of_request(door, {kNowhere, 4, nullptr, 0}), ENOBUFS);
    EXPECT_EQ(error_of_request(door, {kNowhere, kEnormous, nullptr, 0}), ENOBUFS);
  });
  const int limited = ::door_create(echo, nullptr, 0);
  ASSERT_EQ(::door_setparam(limited, DOOR_PARAM_DATA_MAX, 3), 0);
  ASSERT_EQ(::door_setparam(limited, DOOR_PARAM_DESC_MAX, 1), 0);
  EXPECT_EQ(error_of_request(limited, {text, 4, good, 2}), ENOBUFS);
}

TEST(DoorCallOrder, RefusedDescriptorsComeBeforeTooManyAndBadOnes) {
  const int door = ::door_create(echo, nullptr, DOOR_REFUSE_DESC);
  in_server_and_client([&] {
    EXPECT_EQ(error_of_request(door, {text, 4, good, 3}), ENOTSUP);
    EXPECT_EQ(error_of_request(door, {text, 4, bad, 1}), ENOTSUP);
    EXPECT_EQ(error_of_request(door, {kNowhere, 4, good, 1}), ENOTSUP);
    EXPECT_EQ(error_of_request(door, {text, 4, reinterpret_cast<door_desc_t*>(kNowhere), 1}),
              ENOTSUP);
  });
}

TEST(DoorCallOrder, TooManyDescriptorsComeBeforeBadDataAndBadDescriptors) {
  const int door = ::door_create(echo, nullptr, 0);
  ASSERT_EQ(::door_setparam(door, DOOR_PARAM_DESC_MAX, 2), 0);
  in_server_and_client([&] {
    EXPECT_EQ(error_of_request(door, {kNowhere, 4, good, 3}), ENFILE);
    EXPECT_EQ(error_of_request(door, {kNowhere, kEnormous, good, 3}), ENFILE);
    EXPECT_EQ(error_of_request(door, {text, 4, bad, 3}), ENFILE);
    EXPECT_EQ(error_of_request(door, {text, 4, reinterpret_cast<door_desc_t*>(kNowhere), 3}),
              ENFILE);
  });
}

TEST(DoorCallOrder, LimitsAreCheckedBeforeWaitingForAThread) {
  const int refusing = deserted_door(DOOR_REFUSE_DESC);
  ASSERT_EQ(::door_setparam(refusing, DOOR_PARAM_DATA_MAX, 4), 0);
  const int limited = deserted_door();
  ASSERT_EQ(::door_setparam(limited, DOOR_PARAM_DESC_MAX, 1), 0);
  in_server_and_client([&] {
    EXPECT_EQ(error_of(refusing, "12345"), ENOBUFS);
    EXPECT_EQ(error_of(refusing, "1234", {pass(0)}), ENOTSUP);
    EXPECT_EQ(error_of(limited, "", {pass(0), pass(0)}), ENFILE);
  });
}

// Waits for a thread in another thread; the errno once a signal comes.
int error_after_signal(int door, const Request& request) {
  Caller caller([&] {
    return Reply{.error = error_of_request(door, request), .data = {}, .descriptors = {}};
  });
  EXPECT_TRUE(caller.waits()) << "it did not wait";
  return caller.interrupt().error;
}

TEST(DoorCallOrder, WaitingForAThreadComesBeforeLookingAtTheRequest) {
  const int door = deserted_door();
  in_server_and_client([&] {
    EXPECT_EQ(error_after_signal(door, {text, 4, nullptr, 0}), EAGAIN);
    EXPECT_EQ(error_after_signal(door, {kNowhere, kEnormous, nullptr, 0}), EAGAIN);
    EXPECT_EQ(error_after_signal(door, {kNowhere, 4, nullptr, 0}), EAGAIN);
    EXPECT_EQ(error_after_signal(door, {text, 4, bad, 1}), EAGAIN);
    EXPECT_EQ(error_after_signal(door, {text, 4, plain, 1}), EAGAIN);
  });
}

TEST(DoorCallOrder, TooBigComesBeforeUnreadable) {
  const int door = ::door_create(echo, nullptr, 0);
  in_server_and_client([&] {
    EXPECT_EQ(error_of_request(door, {kNowhere, kEnormous, nullptr, 0}), E2BIG);
    EXPECT_EQ(error_of_request(door, {kNowhere, kEnormous, bad, 1}), E2BIG);
  });
}

TEST(DoorCallOrder, TooManyDescriptorsComeBeforeUnreadable) {
  if (over_module()) GTEST_SKIP() << "the module is here";
  const int door = ::door_create(echo, nullptr, 0);
  in_server_and_client([&] {
    EXPECT_EQ(error_of_request(door, {kNowhere, 4, bad, 1025}), E2BIG);  // see door_call(3)
  });
}

TEST(DoorCallOrder, UnreadableDataComesBeforeBadDescriptors) {
  const int door = ::door_create(echo, nullptr, 0);
  in_server_and_client([&] {
    EXPECT_EQ(error_of_request(door, {kNowhere, 4, bad, 1}), EFAULT);
    EXPECT_EQ(error_of_request(door, {kNowhere, 4, plain, 1}), EFAULT);
    EXPECT_EQ(error_of_request(door, {kNowhere, 300'000, bad, 1}), EFAULT);
  });
}

// ---- NULL arguments ----

TEST(DoorPing, IsAnsweredWithNothing) {
  auto procedure = [](char*, size_t size, door_desc_t*, uint_t count) {
    EXPECT_EQ(size, 0U);
    EXPECT_EQ(count, 0U);
    ::door_return(nullptr, 0, nullptr, 0);
  };
  const int door = make_door(procedure);
  in_server_and_client([&] { EXPECT_EQ(::door_call(door, nullptr), 0) << std::strerror(errno); });
}

TEST(DoorPing, ARealAnswerToItFailsWithE2bigAndTheClientKeepsWaiting) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  struct Attempts {
    std::atomic<int> data{0};
    std::atomic<int> descriptors{0};
    Event second;
    Event release;
  };
  const Shared<Attempts> attempts;
  auto procedure = [&](char*, size_t, door_desc_t*, uint_t) {
    attempts->data = ERROR_OF(::door_return(text, 4, nullptr, 0));
    attempts->descriptors = ERROR_OF(::door_return(nullptr, 0, good, 1));
    attempts->second.happens();
    attempts->release.await();
    ::door_return(nullptr, 0, nullptr, 0);
  };
  const int door = make_door(procedure);
  in_server_and_client([&] {
    std::promise<int> promise;
    std::future<int> result = promise.get_future();
    std::thread caller([&] { promise.set_value(::door_call(door, nullptr)); });
    ASSERT_TRUE(attempts->second.wait());
    EXPECT_EQ(attempts->data, E2BIG);
    EXPECT_EQ(attempts->descriptors, E2BIG);
    EXPECT_EQ(result.wait_for(kGlance), std::future_status::timeout);
    attempts->release.happens();
    EXPECT_EQ(result.get(), 0);
    caller.join();
  });
}

}  // namespace
}  // namespace farcall::door::test
