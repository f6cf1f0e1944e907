// SPDX-License-Identifier: Apache-2.0
//
// Descriptors that travel with calls and replies.
#include <gtest/gtest.h>
#include <linux/io_uring.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>

#include "door/scoped_server.hpp"

namespace farcall::door::test {
namespace {

std::vector<door_desc_t> copied(const door_desc_t* descriptors, uint_t count) {
  return {descriptors, descriptors + count};
}
void close_all(const std::vector<door_desc_t>& descriptors) {
  for (const door_desc_t& descriptor : descriptors) ::close(fd_of(descriptor));
}
bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

bool same_file(int first, int second) {
  struct stat one {};
  struct stat other {};
  return ::fstat(first, &one) == 0 && ::fstat(second, &other) == 0 && one.st_dev == other.st_dev &&
         one.st_ino == other.st_ino;
}

// Turns O_NONBLOCK over, which all holders of an open file description see, and sends back what
// came, with its attributes as the text.
Answer turn_and_send_back(char*, size_t, door_desc_t* descriptors, uint_t count) {
  std::string seen;
  std::vector<door_desc_t> back;
  for (const door_desc_t& descriptor : copied(descriptors, count)) {
    const int fd = fd_of(descriptor);
    if (::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) ^ O_NONBLOCK) != 0) seen += "cannot be set; ";
    seen += std::to_string(descriptor.d_attributes) + ":" + std::to_string(::fcntl(fd, F_GETFD));
    back.push_back(pass(fd, DOOR_DESCRIPTOR | DOOR_RELEASE));
  }
  return Answer(std::move(back), std::move(seen));
}

struct Kind {
  const char* name;
  int fd;
};
std::vector<Kind> kinds() {
  std::vector<Kind> all;
  int ends[2];
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  all.push_back({"pipe, to read", ends[0]});
  all.push_back({"pipe, to write", ends[1]});
  for (const int type : {SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET}) {
    EXPECT_EQ(::socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends), 0);
    all.push_back({"unix socket", ends[0]});
    all.push_back({"unix socket", ends[1]});
  }
  all.push_back({"tcp socket", ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)});
  all.push_back({"file", ::open("/proc/self/exe", O_RDONLY | O_CLOEXEC)});
  all.push_back({"directory", ::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC)});
  all.push_back({"device", ::open("/dev/null", O_RDWR | O_CLOEXEC)});
  all.push_back({"memory", ::memfd_create("memory", MFD_CLOEXEC)});
  all.push_back({"eventfd", ::eventfd(0, EFD_CLOEXEC)});
  all.push_back({"epoll", ::epoll_create1(EPOLL_CLOEXEC)});
  all.push_back({"timer", ::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC)});
  sigset_t none;
  ::sigemptyset(&none);
  all.push_back({"signals", ::signalfd(-1, &none, SFD_CLOEXEC)});
  all.push_back({"process", static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0))});
  return all;
}

TEST(DoorDescriptors, EveryKindTravelsBothWaysAndStaysTheSameOpenFile) {
  auto procedure = turn_and_send_back;
  const int door = make_door(procedure);
  in_server_and_client([&] {
    for (const Kind& kind : kinds()) {
      SCOPED_TRACE(kind.name);
      ASSERT_GE(kind.fd, 0);
      const int flags = ::fcntl(kind.fd, F_GETFL);
      const Reply reply = call(door, "", {pass(kind.fd)});
      ASSERT_EQ(reply.error, 0) << std::strerror(reply.error);
      EXPECT_EQ(::fcntl(kind.fd, F_GETFL), flags ^ O_NONBLOCK);
      ASSERT_EQ(reply.descriptors.size(), 1U);
      const int back = fd_of(reply.descriptors[0]);
      EXPECT_NE(back, kind.fd);
      EXPECT_TRUE(same_file(back, kind.fd));
      EXPECT_EQ(::fcntl(back, F_GETFL), flags ^ O_NONBLOCK);
      // What the server saw, and what came here: nothing but a descriptor, open across exec.
      EXPECT_EQ(reply.data, std::to_string(DOOR_DESCRIPTOR) + ":0");
      EXPECT_EQ(reply.descriptors[0].d_attributes, static_cast<uint_t>(DOOR_DESCRIPTOR));
      EXPECT_EQ(::fcntl(back, F_GETFD), 0);
      ::close(back);
      ::close(kind.fd);
    }
  });
}

// Sends back whatever came, without closing it.
Answer send_back(char* data, size_t size, door_desc_t* descriptors, uint_t count) {
  std::vector<door_desc_t> back = copied(descriptors, count);
  for (door_desc_t& descriptor : back) descriptor.d_attributes = DOOR_DESCRIPTOR | DOOR_RELEASE;
  return Answer(std::move(back), {data, size});
}

TEST(DoorDescriptors, KeepTheirOrderAmongData) {
  auto procedure = send_back;
  const int door = make_door(procedure);
  in_server_and_client([&] {
    for (const size_t size : {size_t{0}, size_t{100}, size_t{50'000}, size_t{1'000'000}}) {
      for (const size_t count : {size_t{1}, size_t{2}, size_t{16}, size_t{17}, size_t{60}}) {
        std::vector<door_desc_t> sent;
        for (size_t i = 0; i < count; ++i) sent.push_back(pass(::eventfd(0, EFD_CLOEXEC)));
        const std::string data(size, 'd');
        const Reply reply = call(door, data, sent);
        ASSERT_EQ(reply.error, 0) << std::strerror(reply.error) << ": " << count;
        ASSERT_EQ(reply.data, data);
        ASSERT_EQ(reply.descriptors.size(), count);
        for (size_t i = 0; i < count; ++i) {
          // Eventfds share an inode, but not their counters.
          const std::uint64_t number = i + 1;
          ASSERT_EQ(::write(fd_of(sent[i]), &number, sizeof number), 8);
        }
        for (size_t i = 0; i < count; ++i) {
          std::uint64_t number = 0;
          ASSERT_EQ(::read(fd_of(reply.descriptors[i]), &number, sizeof number), 8);
          EXPECT_EQ(number, i + 1);
        }
        close_all(sent);
        close_all(reply.descriptors);
      }
    }
  });
}

// Whose procedure closes what comes.
int make_closing_door() {
  static auto procedure = [](char*, size_t, door_desc_t* descriptors, uint_t count) {
    close_all(copied(descriptors, count));
    return Answer("closed");
  };
  return make_door(procedure);
}

TEST(DoorDescriptors, OneThatIsReleasedTwiceIsClosedOnce) {
  const int door = make_closing_door();
  in_server_and_client([&] {
    const door_desc_t twice = pass(::eventfd(0, EFD_CLOEXEC), DOOR_DESCRIPTOR | DOOR_RELEASE);
    std::array<door_desc_t, 2> both{twice, twice};
    door_arg_t arguments{};
    arguments.desc_ptr = both.data();
    arguments.desc_num = both.size();
    ASSERT_EQ(::door_call(door, &arguments), 0);  // has made a session
    both.fill(pass(::eventfd(0, EFD_CLOEXEC), DOOR_DESCRIPTOR | DOOR_RELEASE));
    arguments = {};
    arguments.desc_ptr = both.data();
    arguments.desc_num = both.size();
    errno = 0;
    ASSERT_EQ(::door_call(door, &arguments), 0);
    EXPECT_NE(errno, EBADF) << "what the second close has left: the number might be another's";
    EXPECT_FALSE(is_open(fd_of(both[0])));
  });
}

// Recent kernels pass no io_uring to other processes.
TEST(DoorDescriptors, ThatTheKernelRefusesAreReleasedAll) {
  const int door = make_closing_door();
  in_server_and_client([&] {
    io_uring_params parameters{};
    const int ring = static_cast<int>(::syscall(SYS_io_uring_setup, 4, &parameters));
    if (ring < 0) GTEST_SKIP() << "the kernel has no io_uring: " << std::strerror(errno);
    const int file = ::eventfd(0, EFD_CLOEXEC);
    const int error = error_of(
        door, "",
        {pass(file, DOOR_DESCRIPTOR | DOOR_RELEASE), pass(ring, DOOR_DESCRIPTOR | DOOR_RELEASE)});
    EXPECT_TRUE(error == 0 || error == EINVAL) << error;
    EXPECT_FALSE(is_open(file));
    EXPECT_FALSE(is_open(ring));
  });
}

TEST(DoorDescriptors, AThousandTravelInOneCall) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_max < 5000) GTEST_SKIP() << "this process may not open 5000 descriptors";
  limit.rlim_cur = 5000;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  auto procedure = send_back;
  const int door = make_door(procedure);
  in_server_and_client([&] {
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    for (const size_t count : {size_t{1000}, size_t{1024}}) {  // and no more, see door_call(3)
      const Reply reply = call(door, "x", std::vector<door_desc_t>(count, pass(ends[1])));
      ASSERT_EQ(reply.error, 0) << std::strerror(reply.error);
      ASSERT_EQ(reply.descriptors.size(), count);
      for (const door_desc_t& descriptor : reply.descriptors)
        ASSERT_TRUE(same_file(fd_of(descriptor), ends[1]));
      close_all(reply.descriptors);
    }
    ::close(ends[0]);
    ::close(ends[1]);
  });
}

TEST(DoorDescriptors, ReleaseClosesTheSendersInBothDirections) {
  auto procedure = send_back;
  const int door = make_door(procedure);
  in_server_and_client([&] {
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    const UniqueFd out(ends[0]);
    const Reply reply = call(door, "", {pass(ends[1], DOOR_DESCRIPTOR | DOOR_RELEASE)});
    ASSERT_EQ(reply.descriptors.size(), 1U);
    const int back = fd_of(reply.descriptors[0]);
    if (back != ends[1]) {
      EXPECT_FALSE(is_open(ends[1]));
    }
    // Nobody else holds it any more: neither the sender nor the server.
    ::close(back);
    pollfd closed{.fd = out.get(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(::poll(&closed, 1, 10'000), 1) << "somebody still holds the pipe";
  });
}

// The procedure has had them.
TEST(DoorDescriptors, ACallThatIsInterruptedReleasesThem) {
  if (kSlow > 1) GTEST_SKIP() << "a sanitizer's sigaction() is in front of the library's";
  // Threads that serve outlive the test.
  static const auto& over = *new Shared<Event>;
  static const auto& caller = *new Shared<std::atomic<pid_t>>;
  static auto serve = [](char*, size_t, door_desc_t* descriptors, uint_t count) {
    close_all(copied(descriptors, count));
    ::kill(caller->load(), SIGUSR1);
    (void)over->wait();
    ::door_return(nullptr, 0, nullptr, 0);
  };
  const int door = make_door(serve, DOOR_NO_CANCEL);
  in_child([&] {
    ::signal(SIGUSR1, [](int) {});
    caller->store(::getpid());
    const int mine = ::dup(STDIN_FILENO);
    EXPECT_EQ(error_of(door, "", {pass(mine, DOOR_DESCRIPTOR | DOOR_RELEASE)}), EINTR);
    EXPECT_FALSE(is_open(mine));
  });
  over->happens();
}

TEST(DoorDescriptors, WithoutReleaseTheSenderKeepsIts) {
  auto procedure = [](char*, size_t, door_desc_t* descriptors, uint_t count) {
    close_all(copied(descriptors, count));
    return Answer();
  };
  const int door = make_door(procedure);
  in_server_and_client([&] {
    const UniqueFd fd(::dup(0));
    EXPECT_EQ(error_of(door, "", {pass(fd.get())}), 0);
    EXPECT_TRUE(is_open(fd.get()));
  });
}

TEST(DoorDescriptors, ACallThatIsRefusedAtOnceReleasesNothing) {
  const int refusing = ::door_create(echo, nullptr, DOOR_REFUSE_DESC);
  const int limited = ::door_create(echo, nullptr, 0);
  ASSERT_EQ(::door_setparam(limited, DOOR_PARAM_DESC_MAX, 1), 0);
  in_server_and_client([&] {
    const UniqueFd fd(::dup(0));
    const door_desc_t released = pass(fd.get(), DOOR_DESCRIPTOR | DOOR_RELEASE);
    EXPECT_EQ(error_of(refusing, "", {released}), ENOTSUP);
    EXPECT_EQ(error_of(limited, "", {released, released}), ENFILE);
    EXPECT_TRUE(is_open(fd.get()));
  });
}

TEST(DoorDescriptors, ABadOneReleasesTheOthersAllTheSame) {
  const int door = ::door_create(echo, nullptr, 0);
  in_server_and_client([&] {
    const int before = ::dup(0);
    const int behind = ::dup(0);
    const int kept = ::dup(0);
    constexpr door_attr_t kReleased = DOOR_DESCRIPTOR | DOOR_RELEASE;
    EXPECT_EQ(error_of(door, "",
                       {pass(before, kReleased), pass(9999), pass(kept), pass(behind, kReleased)}),
              EINVAL);
    EXPECT_FALSE(is_open(before));
    EXPECT_FALSE(is_open(behind));
    EXPECT_TRUE(is_open(kept));
    ::close(kept);
  });
}

TEST(DoorDescriptors, ABadOneInAnAnswerReleasesTheOthersAllTheSame) {
  auto procedure = [](char*, size_t, door_desc_t*, uint_t) {
    const int released = ::dup(0);
    std::array array{pass(9999), pass(released, DOOR_DESCRIPTOR | DOOR_RELEASE)};
    const int error = ERROR_OF(::door_return(nullptr, 0, array.data(), array.size()));
    answer_number(error == EINVAL && !is_open(released) ? 1 : 0);
  };
  const int door = make_door(procedure);
  in_server_and_client([&] { EXPECT_EQ(call(door).number<int>(), 1); });
}

// There is nobody to pass them to.
TEST(DoorDescriptors, OfAThreadThatServesNoCallYetAreReleased) {
  in_child([] {
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    std::thread([end = ends[1]] {
      EXPECT_EQ(ERROR_OF(::door_return(nullptr, 0, reinterpret_cast<door_desc_t*>(8), 1)), EFAULT);
      static door_desc_t released;
      released = pass(end, DOOR_DESCRIPTOR | DOOR_RELEASE);
      ::door_return(nullptr, 0, &released, 1);
    }).detach();
    pollfd end{.fd = ends[0], .events = 0, .revents = 0};
    EXPECT_EQ(::poll(&end, 1, static_cast<int>(kPatience.count())), 1);
    EXPECT_EQ(end.revents, POLLHUP);
  });
}

TEST(DoorDescriptors, ADoorThatRefusesThemMaySendThem) {
  auto procedure = [](char*, size_t, door_desc_t*, uint_t) {
    return Answer({pass(::dup(0), DOOR_DESCRIPTOR | DOOR_RELEASE)}, "");
  };
  const int door = make_door(procedure, DOOR_REFUSE_DESC);
  in_server_and_client([&] {
    const Reply reply = call(door);
    ASSERT_EQ(reply.descriptors.size(), 1U);
    EXPECT_TRUE(same_file(fd_of(reply.descriptors[0]), 0));
    close_all(reply.descriptors);
  });
}

// ---- doors ----

struct SeenDoor {
  door_attr_t attributes;
  int flags;
  door_id_t id;
};
SeenDoor seen(const door_desc_t& descriptor) {
  return {descriptor.d_attributes, ::fcntl(fd_of(descriptor), F_GETFD),
          descriptor.d_data.d_desc.d_id};
}
Answer tell_door(char*, size_t, door_desc_t* descriptors, uint_t count) {
  if (count != 1) return "nothing came";
  const SeenDoor door = seen(descriptors[0]);
  ::close(fd_of(descriptors[0]));
  return Answer(std::string(reinterpret_cast<const char*>(&door), sizeof door));
}

TEST(DoorDescriptors, ADoorBringsItsAttributesAndItsId) {
  auto procedure = tell_door;
  const int teller = make_door(procedure);
  constexpr uint_t kAttributes = DOOR_PRIVATE | DOOR_REFUSE_DESC | DOOR_NO_CANCEL;
  ScopedServer other([] { return ::door_create(echo, nullptr, kAttributes); });
  in_server_and_client([&] {
    const auto door = call(teller, "", {pass(other.door())}).number<SeenDoor>();
    EXPECT_EQ(door.attributes, DOOR_DESCRIPTOR | kAttributes);
    EXPECT_EQ(door.id, id_of(other.door()));
    EXPECT_EQ(door.flags, 0);
  });
}

TEST(DoorDescriptors, ADoorThatComesHomeIsLocal) {
  auto procedure = tell_door;
  const int teller = make_door(procedure);
  const int mine = ::door_create(echo, nullptr, DOOR_NO_CANCEL);
  in_server_and_client([&] {
    const auto door = call(teller, "", {pass(mine)}).number<SeenDoor>();
    EXPECT_EQ(door.attributes, static_cast<uint_t>(DOOR_DESCRIPTOR | DOOR_NO_CANCEL | DOOR_LOCAL));
    EXPECT_EQ(door.id, id_of(mine));
  });
}

TEST(DoorDescriptors, ADoorInAReplyIsLocalToItsServerAlone) {
  auto give = [](char*, size_t, door_desc_t*, uint_t) {
    return Answer({pass(::door_create(echo, nullptr, 0), DOOR_DESCRIPTOR | DOOR_RELEASE)}, "");
  };
  const int giver = make_door(give);
  const pid_t server = ::getpid();
  in_server_and_client([&] {
    const Reply reply = call(giver);
    ASSERT_EQ(reply.descriptors.size(), 1U);
    const SeenDoor door = seen(reply.descriptors[0]);
    const int fd = fd_of(reply.descriptors[0]);
    const uint_t local = ::getpid() == server ? static_cast<uint_t>(DOOR_LOCAL) : 0U;
    EXPECT_EQ(door.attributes, DOOR_DESCRIPTOR | local);
    EXPECT_EQ(info_of(fd).di_attributes, local);
    EXPECT_EQ(door.id, id_of(fd));
    EXPECT_EQ(door.flags, 0);
    EXPECT_EQ(info_of(fd).di_target, server);
    EXPECT_EQ(call(fd, "x").data, "x");
    ::close(fd);
  });
}

TEST(DoorDescriptors, ADoorCanBePassedOnAndOn) {
  auto procedure = send_back;
  ScopedServer first([&] { return make_door(procedure); });
  ScopedServer second([&] { return make_door(procedure); });
  const int door = ::door_create(echo, nullptr, 0);
  int fd = ::dup(door);
  for (int i = 0; i < 20; ++i) {
    const Reply reply =
        call((i % 2 == 0 ? first : second).door(), "", {pass(fd, DOOR_DESCRIPTOR | DOOR_RELEASE)});
    ASSERT_EQ(reply.descriptors.size(), 1U);
    fd = fd_of(reply.descriptors[0]);
    EXPECT_EQ(call(fd, "x").data, "x");
    EXPECT_EQ(info_of(fd).di_attributes, static_cast<uint_t>(DOOR_LOCAL));
    EXPECT_EQ(id_of(fd), id_of(door));
  }
  ::close(fd);
}

TEST(DoorDescriptors, ARevokedDoorCanBePassed) {
  auto procedure = tell_door;
  const ScopedServer other([&] { return make_door(procedure); });
  const int teller = make_door(procedure);
  const int door = ::door_create(echo, nullptr, 0);
  const UniqueFd second(::dup(door));
  ASSERT_EQ(::door_revoke(door), 0);
  const auto told = call(teller, "", {pass(second.get())}).number<SeenDoor>();
  EXPECT_EQ(told.attributes, static_cast<uint_t>(DOOR_DESCRIPTOR | DOOR_LOCAL | DOOR_REVOKED));
  const auto elsewhere = call(other.door(), "", {pass(second.get())}).number<SeenDoor>();
  EXPECT_EQ(elsewhere.attributes, static_cast<uint_t>(DOOR_DESCRIPTOR | DOOR_REVOKED));
}

TEST(DoorDescriptors, NothingLeaksInManyCalls) {
  auto procedure = send_back;
  const int door = make_door(procedure);
  in_server_and_client([&] {
    auto round = [&](int i) {
      const Reply reply = call(door, std::string(i % 7 == 0 ? 100'000 : 10, 'x'),
                               std::vector<door_desc_t>(static_cast<size_t>(i % 5), pass(0)));
      ASSERT_EQ(reply.error, 0) << std::strerror(reply.error);
      ASSERT_EQ(reply.descriptors.size(), static_cast<size_t>(i % 5));
      close_all(reply.descriptors);
    };
    for (int i = 0; i <= 40; ++i) round(i);
    std::this_thread::sleep_for(kGlance);
    const std::size_t before = open_descriptors();
    for (int i = 0; i < 500; ++i) round(i);
    // The server closes what it has released a moment after the reply has come.
    EXPECT_TRUE(eventually([&] { return open_descriptors() <= before; }))
        << open_descriptors() << " instead of " << before << "\n"
        << list_descriptors();
  });
}

// dup(2) and close(2) are for handlers, whatever these have interrupted.
TEST(DoorDescriptors, HandlersMakeAndCloseThem) {
  FARCALL_SKIP_UNDER_TSAN("holds signals back while the program is in a function of its own");
  static std::atomic<int> door = -1;
  static std::atomic<int> handled = 0;
  in_child([] {
    door = ::door_create(echo, nullptr, 0);
    ASSERT_GE(door, 0);
    struct sigaction action {};
    action.sa_handler = [](int) {
      const int saved = errno;
      if (const int copy = ::dup(door); copy >= 0) ::close(copy);
      ++handled;
      errno = saved;
    };
    ASSERT_EQ(::sigaction(SIGALRM, &action, nullptr), 0);
    constexpr timeval kOften{.tv_sec = 0, .tv_usec = 200};
    const itimerval often{.it_interval = kOften, .it_value = kOften};
    ASSERT_EQ(::setitimer(ITIMER_REAL, &often, nullptr), 0);
    const Deadline end = Deadline::after(1s);
    while (monotonic_ns() < end.at() && !::testing::Test::HasFailure()) {
      const int copy = ::dup(door);
      EXPECT_GE(copy, 0);
      EXPECT_EQ(::close(copy), 0);
    }
    const itimerval never{};
    EXPECT_EQ(::setitimer(ITIMER_REAL, &never, nullptr), 0);
    EXPECT_GT(handled, 0);
  });
}

}  // namespace
}  // namespace farcall::door::test
