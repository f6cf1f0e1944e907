// SPDX-License-Identifier: Apache-2.0
//
// Unrelated processes that meet by a name. The other process is this program executed again, so
// it shares nothing with the test but the name.
#include <signal.h>

#include <cerrno>
#include <chrono>
#include <iostream>
#include <string>
#include <thread>

#include "channel/conformance.hpp"

namespace farcall::channel::test {
namespace {

using namespace std::chrono_literals;

using Named = Conformance;
INSTANTIATE_TEST_SUITE_P(Channel, Named, testing::ValuesIn(mechanisms_where(&Properties::by_name)),
                         test_name);
using Nameless = Conformance;
INSTANTIATE_TEST_SUITE_P(Channel, Nameless,
                         testing::ValuesIn(mechanisms_where(&Properties::by_name, false)),
                         test_name);
// A mechanism may or may not be able to leave its family; this test suite is then empty.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Nameless);

constexpr std::size_t kSize = 1 << 20;

Deadline soon() { return Deadline::after(kSanitized ? 40s : 20s); }

std::string unique_name() {
  static int count = 0;
  return "conformance-" + std::to_string(::getpid()) + "-" + std::to_string(++count);
}

// What the other process does, by the name of it.
int play(const std::string& role, const AnyMechanism& mechanism, const std::string& name) {
  if (role == "open_writer") {
    write_pattern(*AnyChannel::open_writer(mechanism, name, {}, soon()), kSize);
  } else if (role == "open_reader") {
    require(read_pattern(*AnyChannel::open_reader(mechanism, name, {}, soon())) == kSize, "bytes");
  } else if (role == "serve_writer") {
    write_pattern(*AnyChannel::serve_writer(mechanism, name, {}, soon()), kSize);
  } else if (role == "serve_a_word") {
    AnyChannel::serve_writer(mechanism, name, {}, soon())->write(bytes_of("word"));
  } else if (role == "open_writer_and_die") {
    const auto writer = AnyChannel::open_writer(mechanism, name, {}, soon());
    write_pattern(*writer, 100);
    ::kill(::getpid(), SIGKILL);
  } else if (role == "open_duplex") {
    const DuplexEnd end = AnyDuplex::open(mechanism, name, {}, soon());
    require(read_pattern(*end.reader) == kSize, "bytes");
    write_pattern(*end.writer, kSize);
  } else {
    throw std::runtime_error("no role " + role);
  }
  return 0;
}

// The program executed again, playing a role.
Subprocess unrelated(const char* role, const AnyMechanism& mechanism, const std::string& name) {
  return Subprocess([=, mechanism_name = std::string(mechanism.properties().name)] {
    ::execl("/proc/self/exe", "peer", "--play", role, mechanism_name.c_str(), name.c_str(),
            static_cast<char*>(nullptr));
    return errno;
  });
}

TEST_P(Named, ServedReaderGetsWhatAnotherProcessWrites) {
  const std::string name = unique_name();
  Subprocess other = unrelated("open_writer", mechanism(), name);
  const auto reader = AnyChannel::serve_reader(mechanism(), name, {}, soon());
  EXPECT_EQ(read_pattern(*reader), kSize);
  EXPECT_EQ(other.wait().describe(), "exited with 0");
}

TEST_P(Named, ServedWriterWritesToAnotherProcess) {
  const std::string name = unique_name();
  Subprocess other = unrelated("open_reader", mechanism(), name);
  const auto writer = AnyChannel::serve_writer(mechanism(), name, {}, soon());
  write_pattern(*writer, kSize);
  writer->finish();
  EXPECT_EQ(other.wait().describe(), "exited with 0");
}

TEST_P(Named, ReaderOpensWhatAnotherProcessServes) {
  const std::string name = unique_name();
  Subprocess other = unrelated("serve_writer", mechanism(), name);
  const auto reader = AnyChannel::open_reader(mechanism(), name, {}, soon());
  EXPECT_EQ(read_pattern(*reader), kSize);
  EXPECT_EQ(other.wait().describe(), "exited with 0");
}

TEST_P(Named, NothingIsLostWhenTheServerLeavesAtOnce) {
  for (int round = 0; round < 10; ++round) {
    const std::string name = unique_name();
    Subprocess other = unrelated("serve_a_word", mechanism(), name);
    const auto reader = AnyChannel::open_reader(mechanism(), name, {}, soon());
    std::vector<std::byte> into(10);
    ASSERT_EQ(reader->read_fully(into), 4U);
    ASSERT_EQ(other.wait().describe(), "exited with 0");
  }
}

TEST_P(Named, DuplexBetweenUnrelatedProcesses) {
  const std::string name = unique_name();
  Subprocess other = unrelated("open_duplex", mechanism(), name);
  const DuplexEnd end = AnyDuplex::serve(mechanism(), name, {}, soon());
  write_pattern(*end.writer, kSize);
  end.writer->finish();
  EXPECT_EQ(read_pattern(*end.reader), kSize);
  EXPECT_EQ(other.wait().describe(), "exited with 0");
}

TEST_P(Named, DeathOfAnUnrelatedProcessIsNoticed) {
  const std::string name = unique_name();
  Subprocess other = unrelated("open_writer_and_die", mechanism(), name);
  const auto reader = AnyChannel::serve_reader(mechanism(), name, {}, soon());
  const int error = error_of([&] { EXPECT_EQ(read_pattern(*reader), 100U); });
  EXPECT_EQ(error, properties().notices_death ? ECONNRESET : 0);
  EXPECT_EQ(other.wait().signal, SIGKILL);
}

TEST_P(Named, NobodyServesTheName) {
  const std::string name = unique_name();
  const std::int64_t start = monotonic_ns();
  EXPECT_EQ(
      error_of([&] { AnyChannel::open_reader(mechanism(), name, {}, Deadline::after(30ms)); }),
      ECONNREFUSED);
  EXPECT_GE(monotonic_ns() - start, 30'000'000);
}

TEST_P(Named, NobodyOpensTheName) {
  const std::string name = unique_name();
  EXPECT_EQ(
      error_of([&] { AnyChannel::serve_reader(mechanism(), name, {}, Deadline::after(30ms)); }),
      ETIMEDOUT);
  // It is free again.
  EXPECT_EQ(
      error_of([&] { AnyChannel::serve_reader(mechanism(), name, {}, Deadline::after(30ms)); }),
      ETIMEDOUT);
}

TEST_P(Named, ANameIsServedOnce) {
  const std::string name = unique_name();
  const NamedListener somebody(name);
  EXPECT_EQ(error_of([&] { AnyChannel::serve_reader(mechanism(), name, {}, soon()); }), EADDRINUSE);
  EXPECT_EQ(error_of([&] { AnyDuplex::serve(mechanism(), name, {}, soon()); }), EADDRINUSE);
}

// `ask` asks for what is not served and must be refused; the server serves the next one who asks.
template <class Ask>
void expect_refusal(const AnyMechanism& mechanism, Ask ask) {
  const std::string name = unique_name();
  Subprocess server([&] {
    const auto reader = AnyChannel::serve_reader(mechanism, name, {}, soon());
    return read_pattern(*reader) == 5 ? 0 : 1;
  });
  EXPECT_EQ(error_of([&] { ask(name); }), EPROTO);
  write_pattern(*AnyChannel::open_writer(mechanism, name, {}, soon()), 5);
  EXPECT_EQ(server.wait().describe(), "exited with 0");
}

TEST_P(Named, AnotherMechanismIsRefused) {
  const AnyMechanism* other = find_mechanism(properties().name == "pipe" ? "unix_stream" : "pipe");
  ASSERT_NE(other, nullptr);
  expect_refusal(mechanism(), [&](const std::string& name) {
    AnyChannel::open_writer(*other, name, {}, soon());
  });
}

TEST_P(Named, TheSameEndIsRefused) {
  expect_refusal(mechanism(), [&](const std::string& name) {
    AnyChannel::open_reader(mechanism(), name, {}, soon());
  });
}

TEST_P(Nameless, CannotBeServedOrOpened) {
  const std::string name = unique_name();
  EXPECT_THROW(AnyChannel::serve_reader(mechanism(), name, {}, soon()), MisuseError);
  EXPECT_THROW(AnyChannel::serve_writer(mechanism(), name, {}, soon()), MisuseError);
  EXPECT_THROW(AnyChannel::open_reader(mechanism(), name, {}, soon()), MisuseError);
  EXPECT_THROW(AnyChannel::open_writer(mechanism(), name, {}, soon()), MisuseError);
}

}  // namespace
}  // namespace farcall::channel::test

int main(int argc, char** argv) {
  using namespace farcall::channel;
  if (argc == 5 && std::string_view(argv[1]) == "--play") {
    try {
      return test::play(argv[2], *find_mechanism(argv[3]), argv[4]);
    } catch (const std::exception& error) {
      std::cerr << argv[2] << ' ' << argv[3] << ": " << error.what() << '\n';
      return 1;
    }
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
