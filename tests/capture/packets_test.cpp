// SPDX-License-Identifier: Apache-2.0
#include "capture/packets.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace farcall::capture {
namespace {

using observe::Kind;
using observe::Role;
using observe::TapRecord;

constexpr auto kSent = TapRecord::kSent;
constexpr auto kReceived = TapRecord::kReceived;
constexpr std::int64_t kSecond = 1'000'000'000;

observe::Address address(std::uint16_t port) {
  observe::Address made{};
  made.bytes = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};
  made.port = port;
  made.known = 1;
  return made;
}

class Packets_ : public ::testing::Test {
 protected:
  // An end, by its process.
  struct Said {
    pid_t by;
    TapRecord::What what;
    std::string_view text;
    std::uint64_t before = 0;  // bytes that went this way, as the end counts
    Kind kind = Kind::call;
    Role role = Role::none;
    std::uint64_t session = 7;
  };
  void add(const Said& said) {
    time_ += 1'000;
    packets_.add(
        {.kind = said.kind,
         .what = said.what,
         .role = said.role,
         .user = 0,
         .pid = said.by,
         .peer = 0,
         .time = time_,
         .sent = said.what == kSent ? said.before : 0,
         .received = said.what == kReceived ? said.before : 0,
         .session = said.session,
         .opened = 1000 + said.by,
         .local = said.kind == Kind::udp ? address(said.what == kSent ? 1 : 2) : observe::Address{},
         .remote =
             said.kind == Kind::udp ? address(said.what == kSent ? 2 : 1) : observe::Address{},
         .size = static_cast<std::uint32_t>(said.text.size()),
         .bytes = std::as_bytes(std::span(said.text)),
         .name = {}},
        program_);
  }
  // Of messages.
  [[nodiscard]] std::uint64_t packets() const { return packets_.packets(); }
  [[nodiscard]] std::uint64_t bytes() const { return packets_.bytes(); }

  std::atomic<bool> stop_{false};
  std::string program_ = "program";
  int fd_ = ::memfd_create("test", MFD_CLOEXEC);
  PcapngFile file_{UniqueFd(fd_), "test", stop_};
  Packets packets_{file_, 0, false, 0};
  std::int64_t time_ = 100 * kSecond;
};

TEST_F(Packets_, HaveAMessageOnceThatBothEndsTellOf) {
  for (const Kind kind : {Kind::udp, Kind::call, Kind::ring, Kind::unix_packets}) {
    const std::uint64_t before = packets();
    add({1, kSent, "one", 0, kind});
    add({2, kReceived, "one", 0, kind});
    // Who has received it may look at the clock first.
    add({2, kReceived, "two", 3, kind});
    add({1, kSent, "two", 3, kind});
    EXPECT_EQ(packets() - before, 2U) << static_cast<int>(kind);
  }
}

TEST_F(Packets_, HaveWhatItsReceiverAloneTellsOf) {
  for (const Kind kind : {Kind::udp, Kind::call, Kind::ring, Kind::unix_packets}) {
    const std::uint64_t before = packets();
    add({1, kSent, "first", 0, kind});
    add({2, kReceived, "first", 0, kind});
    // Its sender is killed, or its rings are written over.
    add({2, kReceived, "second", 5, kind});
    add({2, kReceived, "second", 11, kind});
    EXPECT_EQ(packets() - before, 3U) << static_cast<int>(kind);
  }
}

TEST_F(Packets_, HaveTheBytesOfAStreamOnceInWhateverPieces) {
  struct Case {
    Kind kind;
    Role from;
    Role to;
  };
  for (const auto& [kind, from, to] : {Case{Kind::unix_stream, Role::client, Role::server},
                                       Case{Kind::ring, Role::writer, Role::reader}}) {
    const std::uint64_t before = bytes();
    add({1, kSent, "abcdef", 0, kind, from});
    add({2, kReceived, "abc", 0, kind, to});
    add({2, kReceived, "defgh", 3, kind, to});
    EXPECT_EQ(bytes() - before, 8U) << static_cast<int>(kind);
    add({2, kReceived, "ij", 8, kind, to});
    EXPECT_EQ(bytes() - before, 10U) << static_cast<int>(kind);
  }
}

TEST_F(Packets_, HaveBothDirectionsOfAStream) {
  add({1, kSent, "abc", 0, Kind::unix_stream, Role::client});
  add({2, kReceived, "abc", 0, Kind::unix_stream, Role::server});
  add({2, kSent, "abc", 0, Kind::unix_stream, Role::server});
  add({1, kReceived, "abc", 0, Kind::unix_stream, Role::client});
  EXPECT_EQ(packets(), 2U);
}

// Whose peer is not captured.
TEST_F(Packets_, HaveAnAnswerThatIsTheSameAsItsQuestion) {
  constexpr unsigned kMany = 100'000;
  for (unsigned i = 0; i < kMany; ++i) {
    add({1, kReceived, "same"});
    add({1, kSent, "same"});
  }
  EXPECT_EQ(packets(), 2U * kMany);
}

TEST_F(Packets_, HaveABroadcastOnceHoweverManyReceiveIt) {
  for (const std::string_view text : {"tick", "tack", "tick", "tick"}) {
    add({2, kReceived, text, 0, Kind::broadcast, Role::reader});
    add({1, kSent, text, 0, Kind::broadcast, Role::writer});
    add({3, kReceived, text, 0, Kind::broadcast, Role::reader});
  }
  EXPECT_EQ(packets(), 4U);
}

TEST_F(Packets_, KnowWhatWasSentBeforeTheMemoryWasKnown) {
  add({1, kSent, "early", 0, Kind::unix_stream, Role::client, 0});
  add({2, kReceived, "early", 0, Kind::unix_stream, Role::server});
  EXPECT_EQ(packets(), 1U);
}

// All that is written, and where in it are the times of packets, or what interfaces dropped.
class Written {
 public:
  explicit Written(int fd) : bytes_(static_cast<std::size_t>(::lseek(fd, 0, SEEK_END)), '\0') {
    EXPECT_EQ(::pread(fd, bytes_.data(), bytes_.size(), 0), static_cast<ssize_t>(bytes_.size()));
  }
  // Of packets, in the order of the file.
  std::vector<std::uint64_t> times() {
    std::vector<std::uint64_t> all;
    each(6, [&](std::size_t at) {
      all.push_back(std::uint64_t{word(at + 12)} << 32 | word(at + 16));
    });
    return all;
  }
  std::uint64_t dropped() {
    std::uint64_t sum = 0;
    each(5, [&](std::size_t at) {
      for (std::size_t option = at + 20; word(option) != 0;
           option += 4 + ((word(option) >> 16) + 3) / 4 * 4)
        if ((word(option) & 0xffff) == 5) sum += word(option + 4);
    });
    return sum;
  }
  [[nodiscard]] bool has(std::string_view text) const {
    return std::string_view(bytes_).find(text) != std::string_view::npos;
  }

 private:
  template <class Visit>
  void each(std::uint32_t type, Visit visit) {
    for (std::size_t at = 0; at + 12 <= bytes_.size() && word(at + 4) >= 12; at += word(at + 4))
      if (word(at) == type) visit(at);
  }
  [[nodiscard]] std::uint32_t word(std::size_t at) const {
    std::uint32_t value = 0;
    if (at + sizeof value <= bytes_.size()) std::memcpy(&value, bytes_.data() + at, sizeof value);
    return value;
  }
  std::string bytes_;
};

TEST_F(Packets_, AreDatedByTheClockAsItWasWhenTheyPassed) {
  constexpr std::int64_t kHour = 3600 * kSecond;
  add({1, kSent, "before"});
  packets_.note_clocks(time_, 10 * kHour);
  add({1, kSent, "now"});
  packets_.note_clocks(time_ + kSecond, 11 * kHour + kSecond);
  add({1, kSent, "still"});
  time_ += 2 * kSecond;
  add({1, kSent, "after"});
  file_.flush();
  const std::vector<std::uint64_t> times = Written(fd_).times();
  ASSERT_EQ(times.size(), 4U);
  EXPECT_EQ(times[1], static_cast<std::uint64_t>(10 * kHour + 1'000));
  EXPECT_EQ(times[2], times[1] + 1'000);
  EXPECT_EQ(times[3], static_cast<std::uint64_t>(11 * kHour + 2 * kSecond + 2'000));
}

TEST_F(Packets_, HaveTheLossesOfAllThatOneProcessWas) {
  add({1, kSent, "one"});
  packets_.add_loss(1, "program", 3);
  packets_.add_loss(1, "other", 4);
  packets_.add_loss(2, "third", 5);
  packets_.finish();
  file_.flush();
  EXPECT_EQ(Written(fd_).dropped(), 12U);
}

TEST_F(Packets_, NameTheProgramThatItsProcessExecutesNow) {
  add({1, kSent, "one"});
  program_ = "another";
  add({1, kSent, "two"});
  file_.flush();
  Written written(fd_);
  EXPECT_TRUE(written.has("program[1]"));
  EXPECT_TRUE(written.has("another[1]"));
}

TEST(ToldOnce, RemembersNoMoreThanItsBoundHoweverManySay) {
  constexpr std::uint32_t kAll = 2 * Told::kMostRemembered;
  Told told(false);
  // Of the message with the bytes of `i`, as one end tells of it.
  const auto is_new = [&](const std::uint32_t& i, bool is_sent) {
    return !told.rest_of({.kind = Kind::call,
                          .what = is_sent ? kSent : kReceived,
                          .role = is_sent ? Role::client : Role::server,
                          .user = 0,
                          .pid = is_sent ? 1 : 2,
                          .peer = 0,
                          .time = kSecond + i,
                          .sent = 0,
                          .received = 0,
                          .session = i % 1000 + 1,
                          .opened = i,
                          .local = {},
                          .remote = {},
                          .size = sizeof i,
                          .bytes = std::as_bytes(std::span(&i, 1)),
                          .name = {}})
                .empty();
  };
  for (std::uint32_t i = 0; i < kAll; ++i) ASSERT_TRUE(is_new(i, true));
  // The older half is forgotten, so it is told twice.
  for (const std::uint32_t i : {0U, kAll / 4, kAll / 2 - 1}) EXPECT_TRUE(is_new(i, false)) << i;
  for (const std::uint32_t i : {kAll / 2, kAll - 1}) EXPECT_FALSE(is_new(i, false)) << i;
}

}  // namespace
}  // namespace farcall::capture
