// SPDX-License-Identifier: Apache-2.0
//
// Those who come to a channel's name, or serve it, and are not what the other side expects.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "channel/conformance.hpp"
#include "farcall/socket.hpp"

namespace farcall::channel::test {
namespace {

using namespace std::chrono_literals;

std::string a_name(const char* what) {
  return std::string("visitors-") + what + "-" + std::to_string(::getpid());
}

FdMessage words(std::uint32_t first, std::int32_t second) {
  FdMessage message;
  message.bytes.resize(sizeof first + sizeof second);
  std::memcpy(message.bytes.data(), &first, sizeof first);
  std::memcpy(message.bytes.data() + sizeof first, &second, sizeof second);
  return message;
}

// `visit` comes first; then comes who wants what is served, and gets it.
template <class Visit>
void expect_service_after(const char* what, Visit visit) {
  const AnyMechanism& mechanism = *find_mechanism("pipe");
  const std::string name = a_name(what);
  int error = 0;
  std::size_t got = 0;
  std::thread server([&] {
    error = error_of([&] {
      got = read_pattern(*AnyChannel::serve_reader(mechanism, name, {}, Deadline::after(30s)));
    });
  });
  UniqueFd visitor = connect_named(name, Deadline::after(20s));
  visit(visitor);
  EXPECT_EQ(error_of([&] {
              write_pattern(*AnyChannel::open_writer(mechanism, name, {}, Deadline::after(15s)), 5);
            }),
            0);
  server.join();
  EXPECT_EQ(error, 0);
  EXPECT_EQ(got, 5U);
}

TEST(NamedVisitor, WhoAsksForNothingHoldsUpOthersForAMoment) {
  expect_service_after("silent", [](UniqueFd&) {});
}

TEST(NamedVisitor, WhoGoesAtOnceIsForgotten) {
  expect_service_after("gone", [](UniqueFd& visitor) { visitor.reset(); });
}

TEST(NamedVisitor, WhoTalksNonsenseIsForgotten) {
  expect_service_after("nonsense", [](UniqueFd& visitor) {
    ASSERT_EQ(::send(visitor.get(), "nonsense", 8, MSG_NOSIGNAL), 8);
  });
  expect_service_after("other",
                       [](UniqueFd& visitor) { send_fd_message(visitor.get(), words(1, 2)); });
}

// Who serves the name may be any program of the same user.
TEST(NamedServer, WhoAnswersSomethingElseServesNoChannel) {
  constexpr std::uint32_t kMagic = 0x66636831;  // what both sides begin with
  const auto error_of_answer = [](const FdMessage& answer) {
    const std::string name = a_name("answers");
    const NamedListener listener(name);
    std::thread server([&] {
      const UniqueFd client = listener.accept(Deadline::after(20s));
      EXPECT_TRUE(receive_fd_message(client.get(), Deadline::after(20s)));
      send_fd_message(client.get(), answer);
      // Until it has seen that.
      EXPECT_FALSE(receive_fd_message(client.get(), Deadline::after(20s)));
    });
    const int error = error_of(
        [&] { AnyChannel::open_writer(*find_mechanism("pipe"), name, {}, Deadline::after(20s)); });
    server.join();
    return error;
  };
  EXPECT_EQ(error_of_answer(words(kMagic, EPERM)), EPERM);
  EXPECT_EQ(error_of_answer(words(kMagic + 1, 0)), EPROTO);
  EXPECT_EQ(error_of_answer(words(kMagic + 1, EPERM)), EPROTO);
  EXPECT_EQ(error_of_answer({.bytes = std::vector<std::byte>(4), .descriptors = {}}), EPROTO);
}

}  // namespace
}  // namespace farcall::channel::test
