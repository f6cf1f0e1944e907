// SPDX-License-Identifier: Apache-2.0
//
// Procedures that are served at a path, and who calls them.
#include "c/call.hpp"

#include <sys/resource.h>

#include <atomic>
#include <future>
#include <thread>

#include "farcall/doors.h"

namespace farcall::c::test {
namespace {

TEST_F(CCall, IsAnswered) {
  const Server server = serve(path, send_back);
  const Client client = open(path);
  EXPECT_EQ(call(client, "hello"), "<hello>");
  EXPECT_EQ(call(client, ""), "<>");
  auto answer = usual<farcall_answer>();
  EXPECT_EQ(farcall_client_call(client.get(), nullptr, 0, &answer, nullptr), 0);
  EXPECT_EQ(std::string(static_cast<char*>(answer.bytes), answer.length), "<>");
  farcall_answer_free(&answer);
}

TEST_F(CCall, LongRepliesComeInMemoryOfTheirOwn) {
  const Server server = serve(path, send_back);
  const Client client = open(path);
  for (const std::size_t size : {std::size_t{63}, std::size_t{5000}, std::size_t{3} << 20}) {
    const std::string text(size, static_cast<char>('a' + size % 26));
    EXPECT_EQ(call(client, text), "<" + text + ">");
  }
}

TEST_F(CCall, ALongReplyThatCannotBeMappedIsAWantOfMemory) {
  if (kSlow > 1) GTEST_SKIP() << "sanitizers need all the address space there is";
  const Server server = serve(path, send_back);
  in_child([&] {
    const Client client = open(path);
    const std::string text(1 << 20, 'x');
    ASSERT_EQ(call(client, text).size(), text.size() + 2);
    const rlimit little{.rlim_cur = 1 << 20, .rlim_max = RLIM_INFINITY};  // less than is mapped
    ASSERT_EQ(::setrlimit(RLIMIT_AS, &little), 0);
    EXPECT_EQ(call(client, text), "ENOMEM");
    EXPECT_EQ(call(client, "x"), "<x>");
  });
}

TEST_F(CCall, AnAnswerIsUsedAgainOnceItHasBeenFreed) {
  const Server server = serve(path, send_back);
  const Client client = open(path);
  char room[4];
  auto answer = usual<farcall_answer>();
  answer.bytes = room;
  answer.room = sizeof room;
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(farcall_client_call(client.get(), "hello", 5, &answer, nullptr), 0) << i;
    EXPECT_EQ(std::string(static_cast<char*>(answer.bytes), answer.length), "<hello>");
    farcall_answer_free(&answer);
  }
}

TEST_F(CCall, GoesToAnotherProcessAndBack) {
  const Server server = serve(path, send_back);
  in_child([&] {
    const Client client = open(path);
    EXPECT_EQ(call(client, "from a child"), "<from a child>");
  });
}

TEST_F(CCall, AClientOutlivesAFork) {
  const Server server = serve(path, send_back);
  const Client client = open(path);
  EXPECT_EQ(call(client, "before"), "<before>");
  in_child([&] { EXPECT_EQ(call(client, "child"), "<child>"); });
  EXPECT_EQ(call(client, "after"), "<after>");
}

TEST_F(CCall, AForkedChildEndsNoServer) {
  Server server = serve(path, send_back);
  in_child([&] { server.reset(); });
  EXPECT_EQ(call(open(path), "still"), "<still>");
}

TEST_F(CCall, ThreadsShareAClient) {
  const Server server = serve(path, send_back);
  const Client client = open(path);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&, text = std::string(1, static_cast<char>('a' + i))] {
      for (int n = 0; n < 200; ++n) ASSERT_EQ(call(client, text), "<" + text + ">");
    });
  for (std::thread& thread : threads) thread.join();
}

TEST_F(CCall, TellsWhoCalls) {
  auto mine = usual<farcall_caller>();
  EXPECT_EQ(farcall_caller_get(&mine), -EINVAL) << "nothing is served here";
  const Server server = serve(path, [](std::string_view, farcall_call_reply* reply) {
    auto caller = usual<farcall_caller>();
    EXPECT_EQ(farcall_caller_get(&caller), 0);
    return write(reply, std::to_string(caller.pid) + " " + std::to_string(caller.uid));
  });
  in_child([&] {
    EXPECT_EQ(call(open(path), "who"),
              std::to_string(::getpid()) + " " + std::to_string(::geteuid()));
  });
}

// A program of another version has a shorter structure or a longer one, with anything in it.
TEST_F(CCall, TellsWhoCallsInAsMuchRoomAsThereIs) {
  struct Later {
    farcall_caller first;
    unsigned char more[16];
  };
  const Server server = serve(path, [](std::string_view, farcall_call_reply* reply) {
    Later later;
    std::memset(&later, 0x5a, sizeof later);
    later.first.size = sizeof later;
    EXPECT_EQ(farcall_caller_get(&later.first), 0);
    EXPECT_EQ(later.first.size, sizeof later);
    EXPECT_EQ(later.first.pid, ::getpid());
    EXPECT_EQ(later.first.gid, ::getegid());
    for (const unsigned char each : later.more) EXPECT_EQ(each, 0) << "not known to this version";
    farcall_caller shorter;
    std::memset(&shorter, 0x5a, sizeof shorter);
    shorter.size = offsetof(farcall_caller, uid);
    EXPECT_EQ(farcall_caller_get(&shorter), 0);
    EXPECT_EQ(shorter.pid, ::getpid());
    EXPECT_EQ(shorter.uid, 0x5a5a5a5aU) << "beyond its room";
    for (const std::size_t size : {std::size_t{0}, sizeof(std::size_t) - 1, SIZE_MAX}) {
      shorter.size = size;
      EXPECT_EQ(farcall_caller_get(&shorter), -EINVAL);
    }
    return write(reply, "seen");
  });
  EXPECT_EQ(call(open(path), "who"), "seen");
}

TEST_F(CCall, TellsTheGroupThatTheCallerActsFor) {
  if (!is_root()) GTEST_SKIP() << "needs root, to act for another group";
  const Server server = serve(path, [](std::string_view, farcall_call_reply* reply) {
    auto caller = usual<farcall_caller>();
    EXPECT_EQ(farcall_caller_get(&caller), 0);
    return write(reply, std::to_string(caller.uid) + " " + std::to_string(caller.gid));
  });
  in_child([&] {
    ASSERT_EQ(::setegid(kNobody), 0);
    EXPECT_EQ(call(open(path), "who"), "0 " + std::to_string(kNobody));
  });
}

TEST_F(CCall, OfAProcedureThatFailsHasNoAnswer) {
  const Server server = serve(path, [](std::string_view request, farcall_call_reply* reply) {
    return request == "fail" ? -1 : write(reply, "done");
  });
  const Client client = open(path);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(call(client, "fail"), "ECONNABORTED");
    EXPECT_EQ(call(client, "do"), "done");
  }
}

TEST_F(CCall, OfAServerThatDiesHasNoAnswer) {
  const Shared<Event> called;
  Child child([&] { serve_without_an_answer(path, *called); });
  const Client client = open(path);
  std::thread killer([&] {
    EXPECT_TRUE(called->wait());
    ::kill(child.pid(), SIGKILL);
  });
  EXPECT_EQ(call(client, "die"), "ECONNABORTED");
  killer.join();
  EXPECT_EQ(call(client, "again"), "EPIPE");
}

TEST_F(CCall, OfTooManyClientsIsRefusedAsOneThatIsBegunIs) {
  if (kAddressSanitizer) GTEST_SKIP() << "the sanitizer itself needs descriptors to look at memory";
  const Shared<Event> called;
  Child child([&] {
    const rlimit few{.rlim_cur = 64, .rlim_max = 64};  // each call in progress takes two
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    serve_without_an_answer(path, *called);
  });
  const Client client = open(path);
  std::promise<std::string> first;
  std::once_flag is_first;
  std::vector<std::thread> threads;
  for (int i = 0; i < 64; ++i)
    threads.emplace_back([&] {
      const std::string result = call(client, "x");
      std::call_once(is_first, [&] { first.set_value(result); });
    });
  EXPECT_EQ(first.get_future().get(), "EUSERS");
  ::kill(child.pid(), SIGKILL);
  for (std::thread& thread : threads) thread.join();
}

TEST_F(CCall, AClientTooManyIsNotOpened) {
  if (!is_root()) GTEST_SKIP() << "needs root, to be another user";
  ASSERT_EQ(::chmod(sandbox.path().c_str(), 0755), 0);
  const Shared<Event> called;
  Child child([&] {
    const rlimit few{.rlim_cur = 64, .rlim_max = 64};  // of which another user has a quarter
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    const Server server =
        serve(path, send_back, serving([](auto& options) { options.mode = 0644; }));
    ::pause();
  });
  open(path).reset();
  in_child([&] {
    ASSERT_EQ(::setresuid(kNobody, kNobody, kNobody), 0);
    std::vector<Client> clients;
    int error = 0;
    for (int i = 0; i < 64 && error == 0; ++i) {
      farcall_client* client = nullptr;
      error = farcall_client_open(path.c_str(), kLong, &client);
      if (error == 0) clients.emplace_back(client);
    }
    EXPECT_EQ(error, -EUSERS);
  });
}

TEST_F(CCall, OfAServerThatHasClosedHasNotBeenSeen) {
  Server server = serve(path, send_back);
  const Client client = open(path);
  EXPECT_EQ(call(client, "one"), "<one>");
  server.reset();
  EXPECT_EQ(call(client, "two"), "EPIPE");
  EXPECT_NE(::access(path.c_str(), F_OK), 0) << "the file is left";
}

TEST_F(CCall, EndsWhenItsTimeIsUp) {
  // The call may be over when nobody waits for it any more: a reply would be there at once then.
  const auto go_on = std::make_shared<std::atomic<bool>>(false);
  const Server server = serve(path, [go_on](std::string_view, farcall_call_reply*) {
    EXPECT_TRUE(eventually([&] { return go_on->load(); }));
    return 0;
  });
  const Client client = open(path);
  const std::int64_t start = now_ns();
  EXPECT_EQ(call(client, "slow", calling([](auto& o) { o.timeout = kShort; })), "ETIMEDOUT");
  EXPECT_GE(now_ns() - start, kShort);
  *go_on = true;
  EXPECT_EQ(call(client, "slow"), "");
}

TEST_F(CCall, OfMoreBytesThanTheServerTakesIsRefused) {
  const Server server = serve(path, send_back, serving([](auto& o) { o.longest = 4; }));
  const Client client = open(path);
  EXPECT_EQ(call(client, "four"), "<four>");
  EXPECT_EQ(call(client, "fives"), "EMSGSIZE");
  EXPECT_EQ(call(client, "four"), "<four>");
}

TEST_F(CCall, NothingIsWrittenToNoReply) {
  EXPECT_EQ(farcall_reply_write(nullptr, "x", 1), -EINVAL);
  EXPECT_EQ(farcall_reply_write(nullptr, nullptr, 0), -EINVAL);
}

TEST_F(CCall, APathHasOneServer) {
  farcall_server* second = nullptr;
  const auto create = [&](const std::string& at, mode_t mode = 0) {
    const auto options = serving([&](auto& o) { o.mode = mode; });
    return farcall_server_create(at.c_str(), run, nullptr, &options, &second);
  };
  const Server server = serve(path, send_back);
  EXPECT_EQ(create(path), -EADDRINUSE);
  EXPECT_EQ(create(sandbox.path() + "/none/there"), -ENOENT);
  EXPECT_EQ(create(""), -EINVAL);
  EXPECT_EQ(create(sandbox.path() + "/mode", 01000), -EINVAL);
  EXPECT_EQ(farcall_server_create(path.c_str(), nullptr, nullptr, nullptr, &second), -EINVAL);
  EXPECT_EQ(second, nullptr);
}

TEST_F(CCall, AFileOfItsOwnIsForItsUserUnlessToldOtherwise) {
  struct stat status {};
  {
    const Server server = serve(path, send_back);
    ASSERT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777U, 0600U);
  }
  const mode_t before = ::umask(0);
  const Server server = serve(path, send_back, serving([](auto& o) { o.mode = 0644; }));
  ::umask(before);
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777U, 0644U);
}

TEST_F(CCall, AFileThatWasThereStays) {
  ::close(::open(path.c_str(), O_CREAT | O_WRONLY, 0600));
  {
    const Server server = serve(path, send_back);
    EXPECT_EQ(call(open(path), "x"), "<x>");
  }
  EXPECT_EQ(::access(path.c_str(), F_OK), 0);
}

TEST_F(CCall, WaitsForItsServer) {
  farcall_client* client = nullptr;
  EXPECT_EQ(farcall_client_open(path.c_str(), 0, &client), -ENOENT);
  EXPECT_EQ(farcall_client_open(path.c_str(), kShort, &client), -ENOENT);
  ::close(::open(path.c_str(), O_CREAT | O_WRONLY, 0600));
  EXPECT_EQ(farcall_client_open(path.c_str(), kShort, &client), -ECONNREFUSED);
  EXPECT_EQ(client, nullptr);
  Server server;
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::nanoseconds(kShort));
    server = serve(path, send_back);
  });
  const Client opened = open(path);
  later.join();
  EXPECT_EQ(call(opened, "late"), "<late>");
}

TEST_F(CCall, TheContextIsReleasedOnce) {
  static std::atomic<int> released;
  released = 0;
  auto options = usual<farcall_server_options>();
  options.release = [](void* context) {
    ++released;
    delete static_cast<Procedure*>(context);
  };
  {
    const Server server = serve(path, send_back, options);
    const Client client = open(path);
    EXPECT_EQ(call(client, "x"), "<x>");
    EXPECT_EQ(released, 0);
  }
  EXPECT_TRUE(eventually([&] { return released == 1; }));
  // Not while it is in use.
  Event inside;
  Event go_on;
  Server server = serve(
      path,
      [&](std::string_view, farcall_call_reply* reply) {
        inside.happens();
        EXPECT_TRUE(go_on.wait());
        return write(reply, "finished");
      },
      options);
  std::thread caller([&] { EXPECT_EQ(call(open(path), "wait"), "finished"); });
  EXPECT_TRUE(inside.wait());
  server.reset();
  EXPECT_EQ(released, 1);
  go_on.happens();
  caller.join();
  EXPECT_TRUE(eventually([&] { return released == 2; }));
}

TEST_F(CCall, ArgumentsThatCannotBeAreRefused) {
  const Server server = serve(path, send_back);
  const Client client = open(path);
  auto answer = usual<farcall_answer>();
  EXPECT_EQ(farcall_client_call(nullptr, "x", 1, &answer, nullptr), -EINVAL);
  EXPECT_EQ(farcall_client_call(client.get(), "x", 1, nullptr, nullptr), -EINVAL);
  EXPECT_EQ(farcall_client_call(client.get(), nullptr, 1, &answer, nullptr), -EINVAL);
  answer.size = 8;
  EXPECT_EQ(farcall_client_call(client.get(), "x", 1, &answer, nullptr), -EINVAL);
  farcall_server_close(nullptr);
  farcall_client_close(nullptr);
  farcall_answer_free(nullptr);
}

// A door of another library, which sends its client what it has not asked for.
void send_descriptors(void*, char*, std::size_t, door_desc_t*, uint_t) {
  door_desc_t sent[3]{};
  for (door_desc_t& descriptor : sent) {
    descriptor.d_attributes = DOOR_DESCRIPTOR;
    descriptor.d_data.d_desc.d_descriptor = STDERR_FILENO;
  }
  char text[] = "take these";
  ::door_return(text, sizeof text - 1, sent, 3);
}

TEST_F(CCall, DescriptorsThatADoorSendsAreClosed) {
  Child server([&] {
    const int door = ::door_create(send_descriptors, nullptr, 0);
    ::close(::open(path.c_str(), O_CREAT | O_WRONLY, 0600));
    ASSERT_EQ(::fattach(door, path.c_str()), 0) << std::strerror(errno);
    ::pause();
  });
  const Client client = open(path);
  ASSERT_EQ(call(client, "x"), "take these");
  const std::size_t before = open_descriptors();
  for (int i = 0; i < 100; ++i) ASSERT_EQ(call(client, "x"), "take these");
  EXPECT_TRUE(eventually([&] { return open_descriptors() <= before; })) << open_descriptors();
}

TEST_F(CCall, NothingIsLeftOfManyServersAndClients) {
  const auto round = [&] {
    const Server server = serve(path, send_back);
    const Client client = open(path);
    ASSERT_EQ(call(client, "x"), "<x>");
  };
  for (int i = 0; i < 20; ++i) round();
  const std::size_t before = open_descriptors();
  for (int i = 0; i < 200; ++i) round();
  // What is closed is closed by a thread of the library, when it finds the time.
  EXPECT_TRUE(eventually([&] { return open_descriptors() <= before; }))
      << open_descriptors() << " of " << before;
}

}  // namespace
}  // namespace farcall::c::test
