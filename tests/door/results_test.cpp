// SPDX-License-Identifier: Apache-2.0
//
// Where the results of a call are, what door_return() refuses, and calls within calls.
#include <gtest/gtest.h>

#include "door/scoped_server.hpp"

namespace farcall::door::test {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kSizes[] = {1,      23,      24,      25,      47,      48,       49,     239,
                             240,    241,     4095,    4096,    4097,    16'383,   16'384, 65'536,
                             99'999, 131'071, 131'073, 300'000, 1 << 20, 5'000'001};

char letter(size_t i, size_t size) { return static_cast<char>((i * 31 + size * 7) % 251); }

// Answers with as many bytes and as many descriptors (duplicates of 0) as is asked for.
struct Wanted {
  size_t bytes = 0;
  size_t descriptors = 0;
};
Answer deliver(const char* data, size_t size, door_desc_t* descriptors, uint_t count) {
  for (uint_t i = 0; i < count; ++i) ::close(fd_of(descriptors[i]));
  Wanted wanted;
  EXPECT_EQ(size, sizeof wanted);
  std::memcpy(&wanted, data, sizeof wanted);
  Answer answer;
  for (size_t i = 0; i < wanted.bytes; ++i) answer.data += letter(i, wanted.bytes);
  for (size_t i = 0; i < wanted.descriptors; ++i)
    answer.descriptors.push_back(pass(::dup(0), DOOR_DESCRIPTOR | DOOR_RELEASE));
  return answer;
}

struct Call {
  Wanted wanted;
  std::vector<char> buffer;
  door_arg_t arguments{};
  int error = 0;

  Call(int door, Wanted what, size_t room) : wanted(what), buffer(room) {
    arguments.data_ptr = reinterpret_cast<char*>(&wanted);
    arguments.data_size = sizeof wanted;
    arguments.rbuf = room > 0 ? buffer.data() : nullptr;
    arguments.rsize = room;
    error = ERROR_OF(::door_call(door, &arguments));
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call() {
    for (uint_t i = 0; i < arguments.desc_num; ++i) ::close(fd_of(arguments.desc_ptr[i]));
    if (fresh()) {
      EXPECT_EQ(::munmap(arguments.rbuf, arguments.rsize), 0);
    }
  }
  [[nodiscard]] bool fresh() const {
    return !buffer.empty() ? arguments.rbuf != buffer.data() : arguments.rbuf != nullptr;
  }
  void expect_content() const {
    ASSERT_EQ(error, 0) << std::strerror(error);
    ASSERT_EQ(arguments.data_size, wanted.bytes);
    ASSERT_EQ(arguments.desc_num, wanted.descriptors);
    for (size_t i = 0; i < wanted.bytes; ++i)
      ASSERT_EQ(arguments.data_ptr[i], letter(i, wanted.bytes)) << i << " of " << wanted.bytes;
    for (uint_t i = 0; i < arguments.desc_num; ++i)
      ASSERT_GE(::fcntl(fd_of(arguments.desc_ptr[i]), F_GETFD), 0);
  }
};

struct DoorResults : ::testing::Test {
  static inline decltype(&deliver) procedure = deliver;
  int door = make_door(procedure);
};

TEST(DoorOverlap, ArgumentsThatTheReplyIsWrittenOverAreRight) {
  const int door = ::door_create(echo, nullptr, 0);
  in_server_and_client([&] {
    alignas(door_arg_t) std::array<char, 512> memory{};
    std::string request(300, '\x55');
    const door_arg_t given{.data_ptr = request.data(),
                           .data_size = request.size(),
                           .desc_ptr = nullptr,
                           .desc_num = 0,
                           .rbuf = memory.data(),
                           .rsize = memory.size()};
    auto* const arguments = new (memory.data()) door_arg_t(given);
    ASSERT_EQ(::door_call(door, arguments), 0) << std::strerror(errno);
    EXPECT_EQ(arguments->data_ptr, memory.data());
    EXPECT_EQ(arguments->data_size, request.size());
    EXPECT_EQ(arguments->desc_ptr, nullptr);
    EXPECT_EQ(arguments->desc_num, 0U);
    EXPECT_EQ(arguments->rbuf, memory.data());
    EXPECT_EQ(arguments->rsize, memory.size());
  });
}

// The server has done with them once the procedure has returned; the client may be long in reading.
struct DoorResultsAtTheEnd : ::testing::Test {
  static inline int door;
  static inline std::string reply = std::string(std::size_t{8} << 20, 'x');

  static void revoke_and_return(void*, char*, size_t, door_desc_t*, uint_t) {
    EXPECT_EQ(::door_revoke(door), 0);
    ::door_return(reply.data(), reply.size(), nullptr, 0);
  }
  // A client of that user, 20 times. Its call fails with none but that error.
  static void call_as(uid_t user, int may_fail_with) {
    for (int i = 0; i < 20; ++i) {
      door = ::door_create(revoke_and_return, nullptr, 0);
      ASSERT_GE(door, 0);
      in_child([&] {
        ASSERT_TRUE(user == ::geteuid() || become(user));
        door_arg_t call{};
        if (::door_call(door, &call) != 0) {
          EXPECT_EQ(errno, may_fail_with);
          return;
        }
        EXPECT_TRUE(std::string_view(call.data_ptr, call.data_size) == reply);
        EXPECT_EQ(::munmap(call.rbuf, call.rsize), 0);
      });
    }
  }
};

TEST_F(DoorResultsAtTheEnd, AreWholeWhereTheProcedureHasRevokedItsDoor) { call_as(::geteuid(), 0); }

// Who could keep the memory of it for ever.
TEST_F(DoorResultsAtTheEnd, AreWholeOrNoneForAnotherUser) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  call_as(kNobody, EINTR);
}

TEST_F(DoorResults, GoWhereTheCallerWantsThemIfTheyFit) {
  in_server_and_client([&] {
    for (const size_t size : kSizes) {
      for (const size_t room : {size, size + 1, size + 10'000}) {
        const Call call(door, {size, 0}, room);
        call.expect_content();
        EXPECT_EQ(call.arguments.rbuf, call.buffer.data());
        EXPECT_EQ(call.arguments.rsize, room);
        EXPECT_EQ(call.arguments.data_ptr, call.arguments.rbuf);
      }
    }
  });
}

TEST_F(DoorResults, GoToFreshPagesIfTheyDoNotFit) {
  in_server_and_client([&] {
    for (const size_t size : kSizes) {
      for (const size_t room : {size - 1, size / 2, size_t{0}}) {
        const Call call(door, {size, 0}, room);
        call.expect_content();
        ASSERT_TRUE(call.fresh()) << size << " in " << room;
        EXPECT_EQ(reinterpret_cast<uintptr_t>(call.arguments.rbuf) % kPage, 0U);
        EXPECT_EQ(call.arguments.rsize, (size + kPage - 1) / kPage * kPage);
        EXPECT_EQ(call.arguments.data_ptr, call.arguments.rbuf);
      }
    }
  });
}

TEST_F(DoorResults, FreshPagesAreTheCallersToWriteAndToKeep) {
  in_server_and_client([&] {
    const Call first(door, {10'000, 0}, 0);
    const Call second(door, {20'000, 0}, 0);
    first.expect_content();
    second.expect_content();
    std::memset(first.arguments.rbuf, 1, first.arguments.rsize);
    second.expect_content();
  });
}

TEST_F(DoorResults, FreshPagesAreNotTakenForAnEmptyReply) {
  in_server_and_client([&] {
    const Call call(door, {0, 0}, 0);
    call.expect_content();
    EXPECT_EQ(call.arguments.rbuf, nullptr);
    EXPECT_EQ(call.arguments.rsize, 0U);
  });
}

TEST_F(DoorResults, DataPointerNamesTheBufferOnlyWhereDataCameBack) {
  in_server_and_client([&] {
    const Call nothing(door, {0, 0}, 1000);
    nothing.expect_content();
    EXPECT_NE(nothing.arguments.data_ptr, nothing.arguments.rbuf);
    EXPECT_EQ(nothing.arguments.rbuf, nothing.buffer.data());
    const Call descriptors(door, {0, 1}, 1000);
    descriptors.expect_content();
    EXPECT_NE(descriptors.arguments.data_ptr, descriptors.arguments.rbuf);
  });
}

TEST_F(DoorResults, DescriptorsFollowTheDataAtAMultipleOf24) {
  in_server_and_client([&] {
    for (const int bytes : {0, 1, 23, 24, 25, 48, 1000, 300'000}) {
      for (const int descriptors : {1, 2, 5}) {
        const auto size = static_cast<size_t>(bytes);
        const auto count = static_cast<size_t>(descriptors);
        const size_t offset = (size + 23) / 24 * 24;
        for (const size_t room : {offset + count * 24, offset + count * 24 - 1, size_t{0}}) {
          const Call call(door, {size, count}, room);
          call.expect_content();
          EXPECT_EQ(reinterpret_cast<char*>(call.arguments.desc_ptr), call.arguments.rbuf + offset);
          EXPECT_EQ(call.fresh(), room < offset + count * 24) << size << ", " << count;
          if (call.fresh()) {
            EXPECT_EQ(call.arguments.rsize % kPage, 0U);
          }
        }
      }
    }
  });
}

TEST_F(DoorResults, DescriptorPointerIsSetOnlyWhereDescriptorsCameBack) {
  in_server_and_client([&] {
    const Call call(door, {100, 0}, 1000);
    call.expect_content();
    EXPECT_TRUE(call.arguments.desc_ptr == nullptr ||
                reinterpret_cast<char*>(call.arguments.desc_ptr) < call.buffer.data() ||
                reinterpret_cast<char*>(call.arguments.desc_ptr) >= call.buffer.data() + 1000);
  });
}

TEST_F(DoorResults, FailWithEfaultWhereTheBufferCannotBeWritten) {
  in_server_and_client([&] {
    Wanted wanted{100, 0};
    door_arg_t arguments{};
    arguments.data_ptr = reinterpret_cast<char*>(&wanted);
    arguments.data_size = sizeof wanted;
    arguments.rbuf = reinterpret_cast<char*>(8);
    arguments.rsize = 1000;
    EXPECT_EQ(ERROR_OF(::door_call(door, &arguments)), EFAULT);
    const Call call(door, {100, 0}, 1000);
    call.expect_content();
  });
}

TEST_F(DoorResults, MayOverwriteTheRequest) {
  auto reverse = [](char* data, size_t size, door_desc_t*, uint_t) {
    const std::string text(data, size);
    return Answer(std::string(text.rbegin(), text.rend()));
  };
  const int reversing = make_door(reverse);
  in_server_and_client([&] {
    for (const size_t size : kSizes) {
      std::string buffer(size, ' ');
      for (size_t i = 0; i < size; ++i) buffer[i] = letter(i, size);
      const std::string expected(buffer.rbegin(), buffer.rend());
      door_arg_t arguments{};
      arguments.data_ptr = arguments.rbuf = buffer.data();
      arguments.data_size = arguments.rsize = size;
      ASSERT_EQ(::door_call(reversing, &arguments), 0);
      ASSERT_EQ(arguments.data_ptr, buffer.data());
      ASSERT_EQ(buffer, expected);
    }
  });
}

TEST_F(DoorResults, FailWithEoverflowWhereTheyCannotBeMapped) {
  if (kSlow > 1) GTEST_SKIP() << "sanitizers need all the address space there is";
  in_child([&] {
    const Call warm(door, {100, 0}, 1000);
    warm.expect_content();
    const Call large(door, {1 << 20, 0}, 1 << 20);
    large.expect_content();
    rlimit limit{};
    ::getrlimit(RLIMIT_AS, &limit);
    limit.rlim_cur = 1 << 20;  // less than is mapped already
    ASSERT_EQ(::setrlimit(RLIMIT_AS, &limit), 0);
    Wanted wanted{100'000, 0};
    door_arg_t arguments{};
    arguments.data_ptr = reinterpret_cast<char*>(&wanted);
    arguments.data_size = sizeof wanted;
    EXPECT_EQ(ERROR_OF(::door_call(door, &arguments)), EOVERFLOW);
    // The procedure has had them.
    const int released = ::dup(0);
    door_desc_t descriptor = pass(released, DOOR_DESCRIPTOR | DOOR_RELEASE);
    arguments.desc_ptr = &descriptor;
    arguments.desc_num = 1;
    EXPECT_EQ(ERROR_OF(::door_call(door, &arguments)), EOVERFLOW);
    EXPECT_EQ(ERROR_OF(::fcntl(released, F_GETFD)), EBADF);
  });
  const Call call(door, {100, 0}, 1000);
  call.expect_content();
}

// ---- door_return ----

TEST(DoorReturn, FailsWithoutAnyDoorOnlyByWaiting) {
  // Outside a call there is nobody to answer: it parks. So this is all that can be seen of it.
  in_child([] {
    std::atomic<bool> returned{false};
    std::thread([&] {
      ::door_return(nullptr, 0, nullptr, 0);
      returned = true;
    }).detach();
    std::this_thread::sleep_for(kGlance);
    EXPECT_FALSE(returned);
  });
}

TEST(DoorReturn, FailuresLeaveTheClientWaitingForTheNext) {
  struct Errors {
    int data, large_data, array, descriptor, attributes, none;
  };
  auto procedure = [](char*, size_t, door_desc_t*, uint_t) {
    char* const nowhere = reinterpret_cast<char*>(8);
    char small[] = "small";
    door_desc_t bad = pass(9999);
    door_desc_t plain = pass(0, 0);
    Errors errors{};
    errors.data = ERROR_OF(::door_return(nowhere, 10, nullptr, 0));
    errors.large_data = ERROR_OF(::door_return(nowhere, 1'000'000, nullptr, 0));
    errors.array = ERROR_OF(::door_return(small, 5, reinterpret_cast<door_desc_t*>(nowhere), 2));
    errors.descriptor = ERROR_OF(::door_return(small, 5, &bad, 1));
    errors.attributes = ERROR_OF(::door_return(small, 5, &plain, 1));
    answer_number(errors);
  };
  const int door = make_door(procedure);
  in_server_and_client([&] {
    const auto errors = call(door).number<Errors>();
    EXPECT_EQ(errors.data, EFAULT);
    EXPECT_EQ(errors.large_data, EFAULT);
    EXPECT_EQ(errors.array, EFAULT);
    EXPECT_EQ(errors.descriptor, EINVAL);
    EXPECT_EQ(errors.attributes, EINVAL);
  });
}

TEST(DoorReturn, TakesTheReplyFromTheRequestItself) {
  auto procedure = [](char* data, size_t size, door_desc_t*, uint_t) {
    ::door_return(data + size / 2, size - size / 2, nullptr, 0);
  };
  const int door = make_door(procedure);
  in_server_and_client([&] {
    for (const size_t size : kSizes) {
      const std::string request = std::string(size / 2, 'a') + std::string(size - size / 2, 'b');
      ASSERT_EQ(call(door, request).data, std::string(size - size / 2, 'b'));
    }
  });
}

TEST(DoorReturn, TheRequestIsACopyThatTheServerMayChange) {
  auto procedure = [](char* data, size_t size, door_desc_t*, uint_t) {
    std::memset(data, 'z', size);
    ::door_return(nullptr, 0, nullptr, 0);
  };
  const int door = make_door(procedure);
  const std::string request(100'000, 'a');
  for (const size_t size : {size_t{5}, size_t{200}, size_t{100'000}}) {
    EXPECT_EQ(error_of(door, std::string_view(request).substr(0, size)), 0);
    EXPECT_EQ(request, std::string(100'000, 'a'));
  }
}

// ---- calls within calls ----

TEST(DoorNested, AServerThreadMayBeAClient) {
  auto inner = [](char* data, size_t size, door_desc_t*, uint_t) {
    return Answer("<" + std::string(data, size) + ">");
  };
  ScopedServer server([&] { return make_door(inner); });
  auto outer = [&](char* data, size_t size, door_desc_t*, uint_t) {
    const Reply first = call(server.door(), {data, size});
    const Reply second = call(server.door(), first.data);
    return Answer(second.data + std::string(data, size));  // the request is still there
  };
  const int door = make_door(outer);
  in_server_and_client([&] { EXPECT_EQ(call(door, "x").data, "<<x>>x"); });
}

TEST(DoorNested, AServerMayCallItself) {
  struct Depth {
    int door = -1;
    Answer operator()(char* data, size_t size, door_desc_t*, uint_t) const {
      const int depth = std::stoi(std::string(data, size));
      if (depth == 0) return "0";
      return Answer(std::to_string(depth) + call(door, std::to_string(depth - 1)).data);
    }
  };
  static Depth depth;
  depth.door = make_door(depth);
  in_server_and_client([&] { EXPECT_EQ(call(depth.door, "9").data, "9876543210"); });
}

TEST(DoorNested, TwoServersMayCallEachOtherInTurn) {
  // A calls B with A's own door, B calls back with one less, until nothing is left.
  auto b = [](char* data, size_t size, door_desc_t* descriptors, uint_t count) {
    const std::string text(data, size);
    if (count != 1) return Answer("no door");
    const UniqueFd back(fd_of(descriptors[0]));
    return Answer("b" + call(back.get(), text).data);
  };
  ScopedServer other([&] { return make_door(b); });
  struct A {
    int self = -1;
    int other = -1;
    Answer operator()(char* data, size_t size, door_desc_t*, uint_t) const {
      const int depth = std::stoi(std::string(data, size));
      if (depth == 0) return "!";
      return Answer("a" + call(other, std::to_string(depth - 1), {pass(self)}).data);
    }
  };
  static A a;
  a.other = other.door();
  a.self = make_door(a);
  in_server_and_client([&] { EXPECT_EQ(call(a.self, "5").data, "ababababab!"); });
}

}  // namespace
}  // namespace farcall::door::test
