// SPDX-License-Identifier: Apache-2.0
//
// Messages at random: a client and a server follow the same plan, and each compares what it gets
// with what the plan says. Over shared memory and, in the guests, over the module.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <random>

#include "message/channel.hpp"

namespace farcall::message::test {
namespace {

// Parts of a message, in the order in which they go over each other.
struct Write {
  std::size_t offset;
  std::string text;
};
enum class Kind { message, one_way, pulse };
enum class End { reply, reply_and_receive, error };

// What happens in one step; both sides derive it from the same numbers.
struct Step {
  Kind kind;
  std::string text;
  std::size_t room;    // of the client, for the reply
  std::size_t buffer;  // of the server
  unsigned descriptors;
  std::vector<std::pair<std::size_t, std::size_t>> reads;  // offset and length
  std::vector<Write> writes;
  End end;
  int status;
  std::string reply;
  int code;
  std::int64_t value;
  std::size_t cut;  // at which buffers are parted

  // What the client finds in its room, which was full of dots, and how far it reaches.
  [[nodiscard]] std::string expected_room() const {
    std::string all(room, '.');
    for (const Write& write : writes) put(all, write);
    if (end != End::error) put(all, {0, reply});
    return all;
  }
  [[nodiscard]] std::size_t expected_reach() const {
    std::size_t reach = std::min(reply.size(), room);
    for (const Write& write : writes)
      if (const std::size_t count = written(write); count > 0)
        reach = std::max(reach, write.offset + count);
    return reach;
  }
  [[nodiscard]] std::size_t written(const Write& write) const {
    return std::min(write.text.size(), room - std::min(room, write.offset));
  }

 private:
  void put(std::string& all, const Write& write) const {
    const std::size_t count = written(write);
    if (count > 0) all.replace(write.offset, count, write.text, 0, count);
  }
};

class Steps {
 public:
  explicit Steps(std::uint64_t seed) : random_(seed) {}

  Step next() {
    Step plan{};
    plan.kind = once_in(6) ? Kind::pulse : once_in(6) ? Kind::one_way : Kind::message;
    plan.text = some_text();
    plan.room = some_size();
    plan.buffer = once_in(2) ? some_size() : plan.text.size();
    plan.descriptors = once_in(5) ? 1 + below(FARCALL_DESCRIPTORS) : 0;
    for (std::size_t left = below(4); left > 0; --left)
      plan.reads.emplace_back(below(plan.text.size() + 10), some_size());
    for (std::size_t left = once_in(2) ? 0 : below(5); left > 0; --left)
      plan.writes.push_back({.offset = below(plan.room + 10), .text = some_text()});
    plan.end = once_in(8) ? End::error : once_in(2) ? End::reply : End::reply_and_receive;
    plan.status = once_in(2) ? 0 : static_cast<int>(below(INT_MAX));
    plan.reply = once_in(4) ? std::string() : some_text();
    plan.code = static_cast<int>(below(128));
    plan.value = static_cast<std::int64_t>(random_());
    plan.cut = below(100);
    return plan;
  }

 private:
  unsigned below(std::size_t bound) { return static_cast<unsigned>(random_() % bound); }
  bool once_in(std::size_t times) { return below(times) == 0; }
  std::size_t some_size() {
    constexpr std::size_t kBounds[] = {1, 60, 4000, 9000, 70'000, 400'000};
    return below(kBounds[below(std::size(kBounds))]);
  }
  std::string some_text() {
    std::string text(some_size(), 0);
    const std::uint64_t salt = random_();
    for (std::size_t i = 0; i < text.size(); ++i)
      text[i] = static_cast<char>((i * (salt | 1)) >> 13);
    return text;
  }

  std::mt19937_64 random_;
};

// One buffer as two, of which either may be empty.
std::array<iovec, 2> parted(char* data, std::size_t size, std::size_t cut) {
  cut = std::min(cut, size);
  return {iovec{.iov_base = data, .iov_len = cut},
          iovec{.iov_base = data + cut, .iov_len = size - cut}};
}

// ---- the client ----

int file_of(std::int64_t content) {
  const int file = ::memfd_create("random", MFD_CLOEXEC);
  EXPECT_EQ(::pwrite(file, &content, sizeof content, 0), 8);
  return file;
}

void send_message(int connection, Step& plan) {
  std::string room(plan.room, '.');
  const auto out = parted(plan.text.data(), plan.text.size(), plan.cut);
  const auto in = parted(room.data(), room.size(), plan.cut * 3);
  std::vector<int> files;
  for (unsigned i = 0; i < plan.descriptors; ++i) files.push_back(file_of(plan.value + i));
  farcall_message message{};
  message.send = out.data();
  message.send_count = 2;
  message.reply = in.data();
  message.reply_count = 2;
  message.descriptors = files.data();
  message.descriptor_count = plan.descriptors;
  const int status = farcall_send_message(connection, &message);
  const int error = errno;
  for (const int file : files) EXPECT_EQ(::close(file), 0);
  if (plan.end == End::error) {
    EXPECT_EQ(status, -1);
    EXPECT_EQ(error, 1 + plan.code);
    return;
  }
  EXPECT_EQ(status, plan.status) << std::strerror(error);
  EXPECT_EQ(message.replied, plan.expected_reach());
  EXPECT_TRUE(room == plan.expected_room());
}

void be_client(int connection, std::uint64_t seed, int steps) {
  Steps all(seed);
  for (int i = 0; i < steps && !::testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE("client, step " + std::to_string(i));
    Step plan = all.next();
    switch (plan.kind) {
      case Kind::message: send_message(connection, plan); break;
      case Kind::one_way:
        EXPECT_EQ(farcall_send_one_way(connection, plan.text.data(), plan.text.size()), 0)
            << std::strerror(errno);
        break;
      case Kind::pulse:
        EXPECT_EQ(farcall_pulse(connection, 0, plan.code, plan.value), 0) << std::strerror(errno);
        break;
    }
  }
}

// ---- the server ----

void expect_files(const Step& plan, const farcall_info& info) {
  EXPECT_EQ(info.descriptor_count, plan.descriptors);
  for (unsigned i = 0; i < info.descriptor_count; ++i) {
    std::int64_t content = 0;
    EXPECT_EQ(::pread(info.descriptors[i], &content, sizeof content, 0), 8) << std::strerror(errno);
    EXPECT_EQ(content, plan.value + i);
    EXPECT_EQ(::fcntl(info.descriptors[i], F_GETFD), FD_CLOEXEC);
    EXPECT_EQ(::close(info.descriptors[i]), 0);
  }
}

class Server {
 public:
  explicit Server(int channel) : channel_(channel) {}

  void run(std::uint64_t seed, int steps) {
    Steps all(seed);
    for (int i = 0; i < steps && !::testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE("server, step " + std::to_string(i));
      Step plan = all.next();
      std::string buffer(plan.buffer, 0);
      farcall_info info{};
      serve(plan, receive(plan, buffer, info), buffer, info);
    }
    if (owed_ == 0) return;
    EXPECT_EQ(farcall_reply(owed_, status_, reply_.data(), reply_.size()), 0);
  }

 private:
  std::int64_t receive(const Step& plan, std::string& buffer, farcall_info& info) {
    farcall_timeout(std::chrono::nanoseconds(kPatience).count());
    std::int64_t id = -1;
    if (owed_ > 0) {
      id = farcall_reply_receive(owed_, status_, reply_.data(), reply_.size(), channel_,
                                 buffer.data(), buffer.size(), &info);
      owed_ = 0;
    } else {
      const auto in = parted(buffer.data(), buffer.size(), plan.cut * 2);
      id = farcall_receivev(channel_, in.data(), 2, &info);
    }
    EXPECT_GE(id, 0) << std::strerror(errno);
    return id;
  }

  void serve(Step& plan, std::int64_t id, const std::string& buffer, const farcall_info& info) {
    if (plan.kind == Kind::pulse) {
      EXPECT_EQ(id, 0);
      EXPECT_EQ(info.code, plan.code);
      EXPECT_EQ(info.value, plan.value);
      return;
    }
    const std::size_t received = std::min(plan.text.size(), plan.buffer);
    EXPECT_EQ(info.length, plan.text.size());
    EXPECT_EQ(info.received, received);
    EXPECT_EQ(buffer.compare(0, received, plan.text, 0, received), 0);
    if (plan.kind == Kind::one_way) {
      EXPECT_EQ(id, FARCALL_ONE_WAY);
      return;
    }
    EXPECT_GT(id, FARCALL_ONE_WAY);
    EXPECT_EQ(info.room, plan.room);
    expect_files(plan, info);
    use_memory(plan, id);
    answer(plan, id);
    if (owed_ != 0) return;
    EXPECT_EQ(farcall_reply(id, 0, nullptr, 0), -1) << "an id is good for one answer";
    EXPECT_EQ(errno, ESRCH);
  }

  static void use_memory(Step& plan, std::int64_t id) {
    for (const auto& [offset, length] : plan.reads) {
      const std::size_t there =
          std::min(length, plan.text.size() - std::min(plan.text.size(), offset));
      std::string text(length, 0);
      EXPECT_EQ(farcall_read(id, offset, text.data(), length), static_cast<ssize_t>(there))
          << std::strerror(errno);
      EXPECT_TRUE(there == 0 || text.compare(0, there, plan.text, offset, there) == 0);
    }
    for (Write& write : plan.writes) {
      const auto from = parted(write.text.data(), write.text.size(), plan.cut);
      EXPECT_EQ(farcall_writev(id, write.offset, from.data(), 2),
                static_cast<ssize_t>(plan.written(write)))
          << std::strerror(errno);
    }
  }

  void answer(const Step& plan, std::int64_t id) {
    switch (plan.end) {
      case End::error:
        EXPECT_EQ(farcall_error(id, 1 + plan.code), 0) << std::strerror(errno);
        break;
      case End::reply:
        EXPECT_EQ(farcall_reply(id, plan.status, plan.reply.data(), plan.reply.size()), 0)
            << std::strerror(errno);
        break;
      case End::reply_and_receive:
        owed_ = id;
        status_ = plan.status;
        reply_ = plan.reply;
        break;
    }
  }

  int channel_;
  std::int64_t owed_ = 0;  // answered with the next receive
  int status_ = 0;
  std::string reply_;
};

class RandomMessages : public ::testing::TestWithParam<int> {};

TEST_P(RandomMessages, AreWhatThePlanSays) {
  const int programs = over_module() ? 4 : 20;
  for (int i = 0; i < programs && !HasFailure(); ++i) {
    const std::uint64_t seed =
        static_cast<std::uint64_t>(GetParam()) * 1000 + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    constexpr int kSteps = 60;
    Channel channel;
    Child client([&] { be_client(channel.connection, seed, kSteps); });
    Server(channel.id).run(seed, kSteps);
    if (HasFailure()) return;
    EXPECT_EQ(client.join(), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomMessages, ::testing::Range(0, 4));

}  // namespace
}  // namespace farcall::message::test
