// SPDX-License-Identifier: Apache-2.0
//
// Processes that lack what sessions and long messages are made of: files, addresses, descriptors, a
// server that goes on.
#include <gtest/gtest.h>

#include "door/scoped_server.hpp"
#include "farcall/limits.h"
#include "harness/sandbox.hpp"

namespace farcall::door::test {
namespace {

void allow_no_files() {
  const rlimit none{.rlim_cur = 0, .rlim_max = 0};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &none), 0);
}

// Answers with so many bytes as the request says; or with the errno of that.
struct Lengthy {
  std::vector<char> bytes = std::vector<char>(200'000, 'x');
  void operator()(char* data, size_t size, door_desc_t*, uint_t) {
    const std::size_t wanted = std::strtoul(std::string(data, size).c_str(), nullptr, 10);
    answer_number(ERROR_OF(::door_return(bytes.data(), wanted, nullptr, 0)));
  }
};

TEST(DoorScarcity, AServerThatMayMakeNoFilesIsTold) {
  ScopedServer server([] {
    allow_no_files();
    static Lengthy lengthy;
    return make_door(lengthy);
  });
  EXPECT_EQ(call(server.door(), "10").data, "xxxxxxxxxx");
  EXPECT_EQ(call(server.door(), "10" + std::string(5'000, ' ')).data, "xxxxxxxxxx");
  EXPECT_EQ(call(server.door(), "150000").number<int>(), EFBIG);
  // What a stranger has sent is not mapped, but written to.
  in_child([&] {
    if (is_root()) {
      ASSERT_TRUE(become(kNobody));
    }
    const std::string request = "150000" + std::string(2 << 20, ' ');
    EXPECT_EQ(call(server.door(), request).number<int>(), EFBIG);
  });
  EXPECT_EQ(call(server.door(), "10").data, "xxxxxxxxxx") << "it goes on";
}

TEST(DoorScarcity, AClientThatMayMakeNoFilesIsTold) {
  const ScopedServer server([] { return ::door_create(echo, nullptr, 0); });
  in_child([&] {
    EXPECT_EQ(call(server.door(), "x").data, "x");
    allow_no_files();
    EXPECT_EQ(error_of(server.door(), std::string(100'000, 'x')), EFBIG);
    EXPECT_EQ(call(server.door(), "x").data, "x") << "with the session that it has";
  });
  in_child([&] {
    allow_no_files();
    EXPECT_EQ(error_of(server.door(), "x"), EFBIG) << "there is no session yet";
  });
}

// Memory for long requests comes in powers of two; what a server takes does not.
TEST(DoorScarcity, ARequestOfOneByteMoreThanIsTakenIsRefused) {
  constexpr std::size_t kMost = 100'000;
  const ScopedServer server([] {
    farcall_limits limits{};
    limits.size = sizeof limits;
    limits.request_bytes = kMost;
    EXPECT_EQ(::door_limits_set(&limits), 0);
    return ::door_create(echo, nullptr, 0);
  });
  in_child([&] {
    EXPECT_EQ(error_of(server.door(), std::string(kMost, 'x')), 0);
    EXPECT_EQ(error_of(server.door(), std::string(kMost + 1, 'x')), E2BIG);
    EXPECT_EQ(error_of(server.door(), std::string(kMost, 'x')), 0);
  });
}

TEST(DoorScarcity, AClientWithoutADescriptorForItsSessionKeepsWhatItReleases) {
  FARCALL_SKIP_UNDER_ASAN("and its companions need descriptors to look at memory");
  const ScopedServer server([] { return ::door_create(echo, nullptr, 0); });
  in_child([&] {
    const int mine = ::dup(STDIN_FILENO);
    {
      const FewDescriptors none;
      EXPECT_EQ(error_of(server.door(), "x", {pass(mine, DOOR_DESCRIPTOR | DOOR_RELEASE)}), EMFILE);
    }
    EXPECT_GE(::fcntl(mine, F_GETFD), 0);
  });
}

// A request is written as a file where it cannot be mapped. The results, which are the same, need
// room of the client's.
TEST(DoorScarcity, LongResultsThatFindNoRoomCostNoSession) {
  if (kSlow > 1) GTEST_SKIP() << "sanitizers need all the address space there is";
  const ScopedServer server([] { return ::door_create(echo, nullptr, 0); });
  in_child([&] {
    ASSERT_EQ(call(server.door(), "x").data, "x");
    const std::string request(1 << 20, 'x');
    const rlimit little{.rlim_cur = 1 << 20, .rlim_max = RLIM_INFINITY};
    ASSERT_EQ(::setrlimit(RLIMIT_AS, &little), 0);
    char buffer[16];
    door_arg_t arguments{};
    arguments.data_ptr = const_cast<char*>(request.data());
    arguments.data_size = request.size();
    arguments.rbuf = buffer;
    arguments.rsize = sizeof buffer;
    EXPECT_EQ(ERROR_OF(::door_call(server.door(), &arguments)), EOVERFLOW);
    for (int i = 0; i < 3; ++i) {
      arguments.data_size = 3;
      EXPECT_EQ(ERROR_OF(::door_call(server.door(), &arguments)), 0);
      EXPECT_EQ(arguments.data_size, 3U);
    }
  });
}

// What comes with it belongs to no later reply.
TEST(DoorScarcity, LongResultsThatFindNoDescriptorSpoilNoLaterOnes) {
  const ScopedServer server([] {
    static Lengthy lengthy;
    return make_door(lengthy);
  });
  in_child([&] {
    ASSERT_EQ(call(server.door(), "10").data, "xxxxxxxxxx");
    rlimit limit{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
    const rlimit none{.rlim_cur = 3, .rlim_max = limit.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
    EXPECT_EQ(error_of(server.door(), "150000"), EOVERFLOW);
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(call(server.door(), "150000").data.size(), 150'000U);
      EXPECT_EQ(call(server.door(), "10").data, "xxxxxxxxxx");
    }
  });
}

// Each door that an answer brings is a socket that the server holds.
TEST(DoorScarcity, OneClientsDoorsLeaveTheServerRoomForOthers) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  struct Giver {
    int gift = ::door_create(echo, nullptr, 0);
    void operator()(char*, size_t, door_desc_t*, uint_t) const {
      door_desc_t descriptor = pass(gift);
      answer_number(ERROR_OF(::door_return(nullptr, 0, &descriptor, 1)));
    }
  };
  const ScopedServer server([] {
    const rlimit few{.rlim_cur = 400, .rlim_max = 400};
    ::setrlimit(RLIMIT_NOFILE, &few);
    static Giver giver;
    return make_door(giver);
  });
  const auto take_one = [&] { return call(server.door()).descriptors.size() == 1; };
  in_child([&] {
    ASSERT_TRUE(become(kNobody));
    int taken = 0;
    while (taken < 400 && take_one()) ++taken;
    EXPECT_GT(taken, 20);
    EXPECT_LT(taken, 200) << "a quarter of the table is for one user";
    EXPECT_EQ(call(server.door()).number<int>(), EMFILE);
  });
  in_child([&] { EXPECT_TRUE(take_one()) << "another user"; });
  in_child([&] {
    ASSERT_TRUE(become(kNobody));
    EXPECT_TRUE(eventually(take_one)) << "what has been given back is free";
  });
}

TEST(DoorScarcity, AServerWithNoRoomForAnotherClientIsNotTakenForDead) {
  FARCALL_SKIP_UNDER_ASAN("and its companions need descriptors to look at memory");
  struct Full {
    std::vector<UniqueFd> taken;
    Answer operator()(char* data, size_t size, door_desc_t*, uint_t) {
      const std::string_view wish(data, size);
      if (wish == "free") taken.clear();
      if (wish == "full") {
        (void)others_come_to_rest();
        for (int fd; (fd = ::fcntl(0, F_DUPFD_CLOEXEC, 0)) >= 0;) taken.emplace_back(fd);
      }
      return Answer("done");
    }
  };
  const Sandbox sandbox;
  const std::string path = sandbox.file("covered");
  const auto size = std::filesystem::file_size(path);
  ScopedServer server([&] {
    const rlimit few{.rlim_cur = 200, .rlim_max = 200};
    ::setrlimit(RLIMIT_NOFILE, &few);
    static Full full;
    const int door = make_door(full);
    EXPECT_EQ(::fattach(door, path.c_str()), 0);
    return door;
  });
  const auto call_as_new_client = [&](int error) {
    in_child([&] { EXPECT_EQ(error_of(server.door(), "x"), error); });
  };
  ASSERT_EQ(call(server.door(), "full").data, "done");
  call_as_new_client(EAGAIN);
  in_child([&] {
    door_info_t info{};
    EXPECT_EQ(ERROR_OF(::door_info(server.door(), &info)), 0);
    EXPECT_EQ(info.di_target, server.pid());
  });
  for (const int flags : {O_RDONLY, O_RDWR, O_WRONLY | O_TRUNC}) {
    const int error = ERROR_OF(::open(path.c_str(), flags));
    EXPECT_TRUE(error == EAGAIN || error == ETIMEDOUT) << error;
  }
  struct stat status {};
  EXPECT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(static_cast<std::size_t>(status.st_size), size) << "cut off, though a door covers it";
  ASSERT_EQ(call(server.door(), "free").data, "done");
  EXPECT_TRUE(eventually([&] { return UniqueFd(::open(path.c_str(), O_RDWR)) && true; }));
  call_as_new_client(0);
  server.kill();
  call_as_new_client(EBADF);
}

// What somebody else's server does not say is not waited for: who asks may have others to serve.
TEST(DoorScarcity, AStrangersStoppedServerKeepsNobodyWaiting) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  ScopedServer server([] {
    EXPECT_TRUE(become(kNobody));
    return ::door_create(echo, &lasting<int>(), 0);
  });
  door_info_t info{};
  const auto told = [&] { return ::door_info(server.door(), &info) == 0 && info.di_data != 0; };
  ASSERT_TRUE(eventually(told));
  ASSERT_TRUE(stop_process(server.pid()));
  in_child([&] {
    std::int64_t quickest = INT64_MAX;
    for (int i = 0; i < 5; ++i) {
      const std::int64_t begin = now_ns();
      ASSERT_EQ(::door_info(server.door(), &info), 0);
      size_t value = 0;
      EXPECT_EQ(ERROR_OF(::door_getparam(server.door(), DOOR_PARAM_DATA_MAX, &value)), EAGAIN);
      quickest = std::min(quickest, now_ns() - begin);
    }
    EXPECT_EQ(info.di_data, 0U) << "nobody says";
    EXPECT_EQ(info.di_target, server.pid());
    EXPECT_LT(quickest, 500'000'000);
  });
  ::kill(server.pid(), SIGCONT);
}

// Memory for it comes as a descriptor.
TEST(DoorScarcity, AServerWithoutADescriptorForALongRequestSaysSo) {
  FARCALL_SKIP_UNDER_ASAN("and its companions need descriptors to look at memory");
  struct Full {
    std::vector<UniqueFd> taken;
    Answer operator()(char* data, size_t size, door_desc_t*, uint_t) {
      const std::string_view wish(data, size);
      if (wish == "free") taken.clear();
      if (wish == "full") {
        (void)others_come_to_rest();
        for (int fd; (fd = ::fcntl(0, F_DUPFD_CLOEXEC, 0)) >= 0;) taken.emplace_back(fd);
      }
      return std::to_string(size);
    }
  };
  const ScopedServer server([] {
    const rlimit few{.rlim_cur = 200, .rlim_max = 200};
    ::setrlimit(RLIMIT_NOFILE, &few);
    static Full full;
    return make_door(full);
  });
  const std::string request(100'000, 'x');
  ASSERT_EQ(call(server.door(), "full").data, "4");
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(error_of(server.door(), request), EMFILE);
    EXPECT_EQ(call(server.door(), "x").data, "1");
  }
  ASSERT_EQ(call(server.door(), "free").data, "4");
  EXPECT_EQ(call(server.door(), request).data, "100000");
}

// All that a client refers to goes at once, and each door is told.
TEST(DoorScarcity, EachOfManyDoorsThatADeadClientHeldIsTold) {
  constexpr int kDoors = 1'000 / kSlow;
  struct Told {
    std::atomic<int> doors{0};
    Event all;
  };
  struct Server {
    Told* told;
    std::vector<int> doors;
    Answer operator()(char* data, size_t, door_desc_t*, uint_t) {
      if (static_cast<void*>(data) == DOOR_UNREF_DATA) {
        if (++told->doors == kDoors) told->all.happens();
        return {};
      }
      std::vector<door_desc_t> passed;
      for (int i = 0; i < 100 && static_cast<int>(doors.size()) < kDoors; ++i) {
        doors.push_back(make_door(*this, DOOR_UNREF));
        passed.push_back(pass(doors.back()));
      }
      return Answer(passed);
    }
  };
  const Shared<Told> told;
  const ScopedServer server([&] {
    rlimit many{};
    ::getrlimit(RLIMIT_NOFILE, &many);
    many.rlim_cur = std::min<rlim_t>(many.rlim_max, 20'000);
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &many), 0);
    static Server own{told.get(), {}};
    return make_door(own);
  });
  {
    const Shared<Event> has_all;
    Child holder([&] {
      std::size_t held = 0;
      for (std::size_t got = 1; got > 0; held += got) {
        const Reply reply = call(server.door(), "more");
        ASSERT_EQ(reply.error, 0);
        got = reply.descriptors.size();
      }
      EXPECT_EQ(held, std::size_t{kDoors});
      has_all->happens();
      for (;;) ::pause();
    });
    ASSERT_TRUE(has_all->wait());
    holder.kill();
  }
  // Others are let in meanwhile.
  for (int i = 0; i < 5; ++i) in_child([&] { EXPECT_EQ(error_of(server.door(), "x"), 0); });
  EXPECT_TRUE(told->all.wait()) << told->doors;
}

}  // namespace
}  // namespace farcall::door::test
