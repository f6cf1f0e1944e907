// SPDX-License-Identifier: Apache-2.0
//
// Programs with rings (io_uring): what moves bytes through one finds all of them, and who only
// changes an epoll set by it, as libuv does, keeps its fast connections. These tests run twice, as
// they are and with the library preloaded.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <linux/io_uring.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "stream_pair.hpp"

namespace farcall::preload {
namespace {

constexpr std::uint32_t kNoArray = 1U << 16;

struct Answer {
  std::uint64_t whose;
  std::int32_t result;
  bool operator==(const Answer&) const = default;
};
void PrintTo(const Answer& answer, std::ostream* out) {
  *out << answer.whose << ": " << answer.result;
}

// As a program has it that asks the kernel by syscall(2).
class Uring {
 public:
  explicit Uring(std::uint32_t flags = 0) {
    parameters_.flags = flags;
    fd_ = UniqueFd(static_cast<int>(::syscall(SYS_io_uring_setup, 8, &parameters_)));
    if (fd_.get() < 0) return;
    const std::size_t size =
        parameters_.cq_off.cqes + parameters_.cq_entries * sizeof(io_uring_cqe);
    control_ =
        map(std::max(size, std::size_t{parameters_.sq_off.array} + 4 * 8), IORING_OFF_SQ_RING);
    requests_ = map(8 * sizeof(io_uring_sqe), IORING_OFF_SQES);
  }
  Uring(const Uring&) = delete;
  Uring& operator=(const Uring&) = delete;
  [[nodiscard]] bool made() const { return fd_.get() >= 0; }
  [[nodiscard]] int fd() const { return fd_.get(); }

  void put(io_uring_sqe request) {
    const std::uint32_t tail = word(parameters_.sq_off.tail).load();
    const std::uint32_t index = tail & 7;
    reinterpret_cast<io_uring_sqe*>(requests_)[index] = request;
    if ((parameters_.flags & kNoArray) == 0)
      word(parameters_.sq_off.array + 4 * index).store(index);
    word(parameters_.sq_off.tail).store(tail + 1);
  }
  void put_control(int set, int operation, int fd, epoll_event* event, std::uint64_t whose) {
    io_uring_sqe request{};
    request.opcode = IORING_OP_EPOLL_CTL;
    request.fd = set;
    request.len = static_cast<std::uint32_t>(operation);
    request.off = static_cast<unsigned>(fd);
    request.addr = reinterpret_cast<std::uint64_t>(event);
    request.user_data = whose;
    put(request);
  }
  // The same request once more, as it stands there.
  void put_again(std::uint32_t index) {
    const std::uint32_t tail = word(parameters_.sq_off.tail).load();
    word(parameters_.sq_off.array + 4 * (tail & 7)).store(index);
    word(parameters_.sq_off.tail).store(tail + 1);
  }
  void put_receive(int fd, void* buffer, std::size_t size, std::uint64_t whose) {
    io_uring_sqe request{};
    request.opcode = IORING_OP_RECV;
    request.fd = fd;
    request.addr = reinterpret_cast<std::uint64_t>(buffer);
    request.len = static_cast<std::uint32_t>(size);
    request.user_data = whose;
    put(request);
  }
  [[nodiscard]] long ask(unsigned submit, unsigned await, unsigned flags) const {
    return ::syscall(SYS_io_uring_enter, fd_.get(), submit, await, flags, nullptr, 0);
  }
  // Submits so many, and waits for as many answers.
  std::vector<Answer> enter(unsigned count) {
    EXPECT_EQ(ask(count, count, IORING_ENTER_GETEVENTS), static_cast<long>(count)) << errno_name();
    return answers();
  }
  std::vector<Answer> answers() {
    std::vector<Answer> all;
    std::atomic<std::uint32_t>& head = word(parameters_.cq_off.head);
    while (head.load() != word(parameters_.cq_off.tail).load()) {
      const auto* const answers =
          reinterpret_cast<const io_uring_cqe*>(control_ + parameters_.cq_off.cqes);
      const io_uring_cqe& one = answers[head.load() & (parameters_.cq_entries - 1)];
      all.push_back({one.user_data, one.res});
      ++head;
    }
    return all;
  }

 private:
  [[nodiscard]] std::byte* map(std::size_t size, off_t offset) const {
    void* const memory =
        ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), offset);
    EXPECT_NE(memory, MAP_FAILED) << errno_name();
    return static_cast<std::byte*>(memory);  // for the rest of the process
  }
  [[nodiscard]] std::atomic<std::uint32_t>& word(std::uint32_t offset) const {
    return *reinterpret_cast<std::atomic<std::uint32_t>*>(control_ + offset);
  }

  io_uring_params parameters_{};
  UniqueFd fd_;
  std::byte* control_ = nullptr;
  std::byte* requests_ = nullptr;
};

// The rings of this kernel; skips the test where there are none.
#define MAKE_RING(name, flags)                                                              \
  auto name##_made = std::make_unique<Uring>(flags);                                        \
  if (!name##_made->made()) GTEST_SKIP() << "the kernel has no io_uring: " << errno_name(); \
  [[maybe_unused]] Uring& name = *name##_made

// What goes round the library finds the bytes of the connection.
void expect_to_be_with_the_kernel(const Pair& pair) {
  for (int i = 0; i < 20; ++i) {
    const std::string text = "text" + std::to_string(i);
    EXPECT_EQ(send(pair.client.get(), text), std::to_string(text.size()));
    char bytes[16] = {};
    EXPECT_EQ(kernel(SYS_read, pair.server.get(), reinterpret_cast<long>(bytes),
                     static_cast<long>(text.size())),
              static_cast<long>(text.size()));
    EXPECT_EQ(bytes, text);
  }
}
void expect_no_more_to_be_accelerated() {
  const Pair later(false);
  const int before = stream_mappings();
  later.talk(20);
  EXPECT_EQ(stream_mappings(), before);
}

void expect_to_be_told(int set, const Pair& pair) {
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(send(pair.client.get(), "question"), "8");
    epoll_event event{};
    ASSERT_EQ(::epoll_wait(set, &event, 1, 10'000), 1) << i;
    EXPECT_EQ(event.data.u64, 77U);
    EXPECT_EQ(receive(pair.server.get()), "question");
  }
}

class UringOfAnEpollSet : public ::testing::TestWithParam<std::uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Rings, UringOfAnEpollSet,
                         ::testing::Values(0U, kNoArray, IORING_SETUP_CLAMP));

TEST_P(UringOfAnEpollSet, IsAnsweredAsTheKernelDoes) {
  MAKE_RING(ring, GetParam());
  const Pair pair;
  const UniqueFd set(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{.events = EPOLLIN, .data = {.u64 = 77}};
  ring.put_control(set.get(), EPOLL_CTL_ADD, pair.server.get(), &event, 1);
  ring.put_control(set.get(), EPOLL_CTL_ADD, pair.server.get(), &event, 2);
  ring.put_control(set.get(), EPOLL_CTL_MOD, pair.server.get(), &event, 3);
  ring.put_control(set.get(), EPOLL_CTL_MOD, pair.client.get(), &event, 4);
  ring.put_control(set.get(), EPOLL_CTL_ADD, -1, &event, 5);
  EXPECT_EQ(ring.enter(5),
            (std::vector<Answer>{{1, 0}, {2, -EEXIST}, {3, 0}, {4, -ENOENT}, {5, -EBADF}}));
  expect_to_be_told(set.get(), pair);
  ring.put_control(set.get(), EPOLL_CTL_DEL, pair.server.get(), nullptr, 6);
  EXPECT_EQ(ring.enter(1), (std::vector<Answer>{{6, 0}}));
  EXPECT_EQ(send(pair.client.get(), "x"), "1");
  EXPECT_EQ(::epoll_wait(set.get(), &event, 1, 0), 0);
  EXPECT_EQ(receive(pair.server.get()), "x");
}

TEST_P(UringOfAnEpollSet, KeepsItsConnectionsFast) {
  MAKE_RING(ring, GetParam());
  const UniqueFd set(::epoll_create1(EPOLL_CLOEXEC));
  const Pair pair;  // which says so if it is not accelerated
  epoll_event event{.events = EPOLLIN, .data = {.u64 = 77}};
  // More than the ring holds, so that positions wrap.
  for (std::uint64_t i = 0; i < 20; ++i) {
    ring.put_control(set.get(), EPOLL_CTL_ADD, pair.server.get(), &event, 2 * i);
    ring.put_control(set.get(), EPOLL_CTL_DEL, pair.server.get(), nullptr, 2 * i + 1);
    EXPECT_EQ(ring.enter(2), (std::vector<Answer>{{2 * i, 0}, {2 * i + 1, 0}}));
  }
  ring.put_control(set.get(), EPOLL_CTL_ADD, pair.server.get(), &event, 100);
  EXPECT_EQ(ring.enter(1), (std::vector<Answer>{{100, 0}}));
  expect_to_be_told(set.get(), pair);
  const Pair later;
}

// Requests are carried out in their order, those that fail, too.
TEST_P(UringOfAnEpollSet, FollowsWhatFailsInTheMiddle) {
  MAKE_RING(ring, GetParam());
  const Pair pair;
  const UniqueFd set(::epoll_create1(EPOLL_CLOEXEC));
  const int fd = pair.server.get();
  epoll_event event{.events = EPOLLIN, .data = {.u64 = 77}};
  epoll_event other{.events = EPOLLIN, .data = {.u64 = 78}};
  ASSERT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_ADD, fd, &event), 0);
  ring.put_control(set.get(), EPOLL_CTL_ADD, fd, &other, 1);
  ring.put_control(set.get(), EPOLL_CTL_DEL, fd, nullptr, 2);
  EXPECT_EQ(ring.enter(2), (std::vector<Answer>{{1, -EEXIST}, {2, 0}}));
  EXPECT_EQ(send(pair.client.get(), "x"), "1");
  EXPECT_EQ(::epoll_wait(set.get(), &other, 1, 0), 0);
  EXPECT_EQ(receive(fd), "x");
  ring.put_control(set.get(), EPOLL_CTL_DEL, fd, nullptr, 3);
  ring.put_control(set.get(), EPOLL_CTL_MOD, fd, &other, 4);
  ring.put_control(set.get(), EPOLL_CTL_ADD, fd, &event, 5);
  EXPECT_EQ(ring.enter(3), (std::vector<Answer>{{3, -ENOENT}, {4, -ENOENT}, {5, 0}}));
  expect_to_be_told(set.get(), pair);
}

// Nothing is submitted behind an event that cannot be read.
TEST(Uring, ABadAddressEndsTheSubmission) {
  MAKE_RING(ring, 0);
  const Pair pair;
  const UniqueFd set(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{.events = EPOLLIN, .data = {.u64 = 77}};
  auto* const nowhere = reinterpret_cast<epoll_event*>(8);
  ring.put_control(set.get(), EPOLL_CTL_ADD, pair.server.get(), nowhere, 1);
  ring.put_control(set.get(), EPOLL_CTL_ADD, pair.server.get(), &event, 2);
  EXPECT_EQ(ring.ask(2, 0, 0), 1);
  EXPECT_EQ(ring.answers(), (std::vector<Answer>{{1, -EFAULT}}));
  EXPECT_EQ(ring.enter(1), (std::vector<Answer>{{2, 0}}));
  expect_to_be_told(set.get(), pair);
}

TEST(Uring, ACallThatFailsCarriesOutNothing) {
  MAKE_RING(ring, 0);
  const Pair pair;
  const UniqueFd set(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{.events = EPOLLIN, .data = {.u64 = 77}};
  ring.put_control(set.get(), EPOLL_CTL_ADD, pair.server.get(), &event, 1);
  EXPECT_EQ(ring.ask(1, 0, 1U << 30), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_ADD, pair.server.get(), &event), 0);
  EXPECT_EQ(ring.enter(1), (std::vector<Answer>{{1, -EEXIST}}));
  expect_to_be_told(set.get(), pair);
}

TEST(Uring, OneRequestMayBeSubmittedAgain) {
  MAKE_RING(ring, 0);
  const Pair pair;
  const UniqueFd set(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{.events = EPOLLIN, .data = {.u64 = 77}};
  ring.put_control(set.get(), EPOLL_CTL_ADD, pair.server.get(), &event, 1);
  ring.put_again(0);
  EXPECT_EQ(ring.enter(2), (std::vector<Answer>{{1, 0}, {1, -EEXIST}}));
  ASSERT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_DEL, pair.server.get(), nullptr), 0);
  ring.put_again(0);
  EXPECT_EQ(ring.enter(1), (std::vector<Answer>{{1, 0}}));
  expect_to_be_told(set.get(), pair);
}

TEST(Uring, WhatIsLinkedToAFailureIsNotCarriedOut) {
  MAKE_RING(ring, 0);
  const Pair pair;
  const UniqueFd set(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{.events = EPOLLIN, .data = {.u64 = 77}};
  io_uring_sqe first{};
  first.opcode = IORING_OP_TIMEOUT_REMOVE;
  first.flags = IOSQE_IO_LINK;
  first.user_data = 1;
  ring.put(first);
  ring.put_control(set.get(), EPOLL_CTL_ADD, pair.server.get(), &event, 2);
  EXPECT_EQ(ring.enter(2), (std::vector<Answer>{{1, -ENOENT}, {2, -ECANCELED}}));
  EXPECT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_ADD, pair.server.get(), &event), 0);
  expect_to_be_told(set.get(), pair);
}

TEST(Uring, OnlyWhatIsSubmittedIsCarriedOut) {
  MAKE_RING(ring, 0);
  const Pair pair;
  const UniqueFd set(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{.events = EPOLLIN, .data = {.u64 = 77}};
  ring.put_control(set.get(), EPOLL_CTL_ADD, pair.server.get(), &event, 1);
  ring.put_control(set.get(), EPOLL_CTL_DEL, pair.server.get(), nullptr, 2);
  EXPECT_EQ(ring.enter(1), (std::vector<Answer>{{1, 0}}));
  expect_to_be_told(set.get(), pair);
  EXPECT_EQ(ring.enter(1), (std::vector<Answer>{{2, 0}}));
}

TEST(Uring, WhoReceivesThroughItIsLeftToTheKernel) {
  MAKE_RING(ring, 0);
  const Pair pair;
  EXPECT_EQ(send(pair.client.get(), "before"), "6");
  char bytes[16] = {};
  ring.put_receive(pair.server.get(), bytes, sizeof bytes, 9);
  EXPECT_EQ(ring.enter(1), (std::vector<Answer>{{9, 6}}));
  EXPECT_STREQ(bytes, "before");
  expect_to_be_with_the_kernel(pair);
  expect_no_more_to_be_accelerated();
}

// It keeps the socket when the descriptor is closed.
TEST(Uring, WhoGivesItADescriptorIsLeftToTheKernel) {
  MAKE_RING(ring, 0);
  Pair pair;
  EXPECT_EQ(send(pair.client.get(), "before"), "6");
  const int fd = pair.server.get();
  ASSERT_EQ(::syscall(SYS_io_uring_register, ring.fd(), IORING_REGISTER_FILES, &fd, 1), 0)
      << errno_name();
  pair.server.reset();
  char bytes[16] = {};
  io_uring_sqe request{};
  request.opcode = IORING_OP_RECV;
  request.flags = IOSQE_FIXED_FILE;
  request.fd = 0;
  request.addr = reinterpret_cast<std::uint64_t>(bytes);
  request.len = sizeof bytes;
  request.user_data = 3;
  ring.put(request);
  EXPECT_EQ(ring.enter(1), (std::vector<Answer>{{3, 6}}));
  EXPECT_STREQ(bytes, "before");
}

TEST(Uring, WhatIsMixedIsAllTheKernels) {
  MAKE_RING(ring, 0);
  const Pair pair;
  const UniqueFd set(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{.events = EPOLLIN, .data = {.u64 = 77}};
  EXPECT_EQ(send(pair.client.get(), "before"), "6");
  char bytes[16] = {};
  ring.put_control(set.get(), EPOLL_CTL_ADD, pair.server.get(), &event, 1);
  ring.put_receive(pair.server.get(), bytes, sizeof bytes, 2);
  EXPECT_EQ(ring.enter(2), (std::vector<Answer>{{1, 0}, {2, 6}}));
  EXPECT_STREQ(bytes, "before");
  expect_to_be_told(set.get(), pair);
  expect_to_be_with_the_kernel(pair);
}

TEST(Uring, AnotherOfTheSameNumberIsAnotherRing) {
  epoll_event event{.events = EPOLLIN, .data = {.u64 = 77}};
  const UniqueFd set(::epoll_create1(EPOLL_CLOEXEC));
  const Pair pair;
  int number = -1;
  for (std::uint64_t i = 0; i < 300; ++i) {
    MAKE_RING(ring, 0);
    if (number < 0) number = ring.fd();
    EXPECT_EQ(ring.fd(), number);
    ring.put_control(set.get(), EPOLL_CTL_ADD, pair.server.get(), &event, i);
    EXPECT_EQ(ring.enter(1), (std::vector<Answer>{{i, 0}}));
    ring.put_control(set.get(), EPOLL_CTL_DEL, pair.server.get(), nullptr, i);
    if (i % 2 == 0)
      EXPECT_EQ(ring.enter(1), (std::vector<Answer>{{i, 0}}));
    else
      EXPECT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_DEL, pair.server.get(), nullptr), 0);
  }
  const Pair later;
}

TEST(Uring, AChildThatUsesItsParentsIsLeftToTheKernel) {
  MAKE_RING(ring, 0);
  const Pair pair;
  const pid_t child = ::fork();
  if (child == 0) {
    EXPECT_EQ(send(pair.client.get(), "child"), "5");
    char bytes[16] = {};
    ring.put_receive(pair.server.get(), bytes, sizeof bytes, 1);
    EXPECT_EQ(ring.enter(1), (std::vector<Answer>{{1, 5}}));
    EXPECT_STREQ(bytes, "child");
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(Uring, OneThatTheKernelReadsByItselfIsLeftToIt) {
  const Pair pair;
  MAKE_RING(ring, IORING_SETUP_SQPOLL);
  expect_to_be_with_the_kernel(pair);
  expect_no_more_to_be_accelerated();
}

TEST(Uring, WhoAsksLiburingForOneIsLeftToTheKernel) {
  if (::dlopen("liburing.so.2", RTLD_NOW | RTLD_GLOBAL) == nullptr)
    GTEST_SKIP() << "there is no liburing";
  using Init = int(unsigned, void*, unsigned);
  auto* const init = reinterpret_cast<Init*>(::dlsym(RTLD_DEFAULT, "io_uring_queue_init"));
  ASSERT_NE(init, nullptr);
  alignas(8) static std::byte ring[4096] = {};
  const Pair pair;
  const int result = init(4, ring, 0);
  if (result < 0) GTEST_SKIP() << "the kernel has no io_uring: " << -result;
  expect_to_be_with_the_kernel(pair);
}

// The mappings that the library has made of them go, too.
TEST(Uring, OneThatIsClosedWithARangeIsForgotten) {
  const auto mappings = [] {
    std::ifstream maps("/proc/self/maps");
    int count = 0;
    for (std::string line; std::getline(maps, line);)
      if (line.find("[io_uring]") != std::string::npos) ++count;
    return count;
  };
  auto ring = std::make_unique<Uring>(0);
  if (!ring->made()) GTEST_SKIP() << "the kernel has no io_uring: " << errno_name();
  const auto fd = static_cast<unsigned>(ring->fd());
  ASSERT_EQ(::close_range(fd, fd, 0), 0);
  EXPECT_EQ(mappings(), 2) << "those of this program";
}

// The kernel submits nothing behind one that it refuses as it is.
TEST(Uring, APersonalityThatIsNoneEndsTheSubmission) {
  MAKE_RING(ring, 0);
  const Pair pair;
  const UniqueFd set(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{.events = EPOLLIN, .data = {.u64 = 77}};
  io_uring_sqe request{};
  request.opcode = IORING_OP_EPOLL_CTL;
  request.fd = set.get();
  request.len = EPOLL_CTL_ADD;
  request.off = static_cast<unsigned>(pair.server.get());
  request.addr = reinterpret_cast<std::uint64_t>(&event);
  request.user_data = 1;
  request.personality = 77;
  ring.put(request);
  ring.put_control(set.get(), EPOLL_CTL_ADD, pair.server.get(), &event, 2);
  EXPECT_EQ(ring.ask(2, 0, 0), 1);
  EXPECT_EQ(ring.answers(), (std::vector<Answer>{{1, -EINVAL}}));
  EXPECT_EQ(ring.enter(1), (std::vector<Answer>{{2, 0}}));
  expect_to_be_told(set.get(), pair);
}

}  // namespace
}  // namespace farcall::preload
