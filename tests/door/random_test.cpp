// SPDX-License-Identifier: Apache-2.0
//
// Doors called, limited, passed, duplicated, revoked and closed at random, each result compared
// with what a model of them says: over shared memory and, in the guests, over the module.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <optional>
#include <random>

#include "door/scoped_server.hpp"

namespace farcall::door::test {
namespace {

constexpr uint_t kAttributes[] = {0, DOOR_REFUSE_DESC, DOOR_NO_CANCEL,
                                  DOOR_REFUSE_DESC | DOOR_NO_CANCEL};
constexpr std::size_t kDoors = 6;

// ---- what client and server agree on ----

struct Request {
  std::uint32_t seed;
  std::uint32_t reply_size;
  std::uint16_t files;  // to be passed with the reply
  std::uint16_t doors;  // a bit for each door to be passed
};
// Bytes that follow from a seed.
std::string text_of(std::uint64_t seed, std::size_t size) {
  std::string text(size, 0);
  for (std::size_t i = 0; i < size; ++i) {
    if (i % 8 == 0) seed = seed * 6364136223846793005U + 1442695040888963407U;
    text[i] = static_cast<char>(seed >> (32 + i % 8 * 4));
  }
  return text;
}
std::uint64_t digest_of(std::string_view text) { return std::hash<std::string_view>{}(text); }
int file_of(std::uint64_t content) {
  const int file = ::memfd_create("random", MFD_CLOEXEC);
  EXPECT_EQ(::pwrite(file, &content, sizeof content, 0), 8);
  return file;
}
// What a descriptor is known by.
std::uint64_t content_of(int fd) {
  door_info_t info{};
  if (::door_info(fd, &info) == 0) return info.di_uniquifier;
  std::uint64_t content = 0;
  EXPECT_EQ(::pread(fd, &content, sizeof content, 0), 8) << std::strerror(errno);
  return content;
}

// ---- the server ----

struct Order {
  enum Kind : std::uint32_t { kCreate, kLimit, kRevoke } kind;
  std::uint32_t door;
  std::uint32_t what;  // attributes, or which limit
  std::uint64_t value;
};

int& door_at(std::size_t place) {
  static int doors[kDoors] = {-1, -1, -1, -1, -1, -1};
  return doors[place];
}

Answer serve(char* data, std::size_t size, door_desc_t* passed, uint_t count) {
  std::uint64_t digest = digest_of({data, size});
  for (uint_t i = 0; i < count; ++i) {
    digest = digest * 31 + content_of(fd_of(passed[i]));
    ::close(fd_of(passed[i]));
  }
  Request request{};
  if (size < sizeof request) return {std::string(reinterpret_cast<char*>(&digest), sizeof digest)};
  std::memcpy(&request, data, sizeof request);
  Answer answer(text_of(digest ^ request.seed, request.reply_size));
  for (std::uint16_t i = 0; i < request.files; ++i)
    answer.descriptors.push_back(pass(file_of(request.seed + i), DOOR_DESCRIPTOR | DOOR_RELEASE));
  for (std::size_t i = 0; i < kDoors; ++i)
    if ((request.doors >> i & 1) != 0) answer.descriptors.push_back(pass(door_at(i)));
  return answer;
}

// A number as the reply: an errno, 0 if there was none.
Answer obey(char* data, std::size_t size, door_desc_t*, uint_t) {
  static auto procedure = serve;
  Order order{};
  EXPECT_EQ(size, sizeof order);
  std::memcpy(&order, data, sizeof order);
  int error = 0;
  std::vector<door_desc_t> made;
  int& door = door_at(order.door);
  switch (order.kind) {
    case Order::kCreate:
      if (door >= 0) ::close(door);
      door = make_door(procedure, order.what);
      error = door < 0 ? errno : 0;
      if (door >= 0) made.push_back(pass(door));
      break;
    case Order::kLimit:
      error = ERROR_OF(::door_setparam(door, static_cast<int>(order.what), order.value));
      break;
    case Order::kRevoke: {
      const int kept = ::dup(door);
      error = ERROR_OF(::door_revoke(door));
      door = kept;
      break;
    }
  }
  return Answer(made, std::string(reinterpret_cast<char*>(&error), sizeof error));
}

// ---- the client, and the model ----

struct Modelled {
  bool made = false;
  bool revoked = false;
  uint_t attributes = 0;
  std::uint64_t id = 0;
  std::size_t least = 0;
  std::size_t most = SIZE_MAX;
  std::size_t descriptors = INT_MAX;
  std::vector<int> numbers;  // of the client
};

class Program {
 public:
  Program(int control, std::uint64_t seed) : control_(control), random_(seed) {}
  ~Program() {
    for (const Modelled& door : doors_)
      for (const int number : door.numbers) ::close(number);
  }

  void run(int steps) {
    for (int i = 0; i < steps && !::testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE("step " + std::to_string(i));
      Modelled& door = doors_[below(kDoors)];
      if (door.numbers.empty()) {
        create(door);
        continue;
      }
      switch (below(16)) {
        case 0: create(door); break;
        case 1: revoke(door); break;
        case 2:
        case 3: limit(door); break;
        case 4: duplicate(door); break;
        case 5: close_one(door); break;
        case 6: look(door); break;
        case 7: in_child([&] { call(door); }); break;
        default: call(door);
      }
    }
  }

 private:
  std::size_t below(std::size_t bound) { return random_() % bound; }
  bool once_in(std::size_t times) { return below(times) == 0; }
  std::uint32_t place_of(const Modelled& door) const {
    return static_cast<std::uint32_t>(&door - doors_.data());
  }
  int a_number_of(const Modelled& door) { return door.numbers[below(door.numbers.size())]; }

  Reply order(Order::Kind kind, const Modelled& door, std::uint32_t what = 0,
              std::uint64_t value = 0) {
    const Order order{kind, place_of(door), what, value};
    return test::call(control_, {reinterpret_cast<const char*>(&order), sizeof order});
  }

  // In place of one that was there, of which clients have descriptors left: that goes on.
  void create(Modelled& door) {
    for (const int number : door.numbers) ::close(number);
    const uint_t attributes = kAttributes[below(std::size(kAttributes))];
    const Reply reply = order(Order::kCreate, door, attributes);
    ASSERT_EQ(reply.number<int>(), 0);
    ASSERT_EQ(reply.descriptors.size(), 1U);
    door = {};
    door.made = true;
    door.attributes = attributes;
    door.numbers = {fd_of(reply.descriptors[0])};
    door.id = reply.descriptors[0].d_data.d_desc.d_id;
    if ((attributes & DOOR_REFUSE_DESC) != 0) door.descriptors = 0;
  }

  void revoke(Modelled& door) {
    EXPECT_EQ(ERROR_OF(::door_revoke(a_number_of(door))), EPERM);
    EXPECT_EQ(order(Order::kRevoke, door).number<int>(), 0);
    door.revoked = true;
  }

  void limit(Modelled& door) {
    const int which[] = {DOOR_PARAM_DATA_MIN, DOOR_PARAM_DATA_MAX, DOOR_PARAM_DESC_MAX};
    const int what = which[below(3)];
    const std::size_t value =
        once_in(8) ? std::size_t{INT_MAX} + 1 : below(what == DOOR_PARAM_DESC_MAX ? 5 : 6000);
    int expected = 0;
    if (door.revoked) {
      expected = EBADF;
    } else if (what == DOOR_PARAM_DESC_MAX) {
      if (value > INT_MAX) {
        expected = ERANGE;
      } else if (value > 0 && (door.attributes & DOOR_REFUSE_DESC) != 0) {
        expected = ENOTSUP;
      } else {
        door.descriptors = value;
      }
    } else if (what == DOOR_PARAM_DATA_MIN ? value > door.most : value < door.least) {
      expected = EINVAL;
    } else {
      (what == DOOR_PARAM_DATA_MIN ? door.least : door.most) = value;
    }
    EXPECT_EQ(order(Order::kLimit, door, static_cast<std::uint32_t>(what), value).number<int>(),
              expected);
    if (door.revoked) return;
    std::size_t seen = 0;
    EXPECT_EQ(::door_getparam(a_number_of(door), DOOR_PARAM_DATA_MIN, &seen), 0);
    EXPECT_EQ(seen, door.least);
    EXPECT_EQ(::door_getparam(a_number_of(door), DOOR_PARAM_DATA_MAX, &seen), 0);
    EXPECT_EQ(seen, door.most);
    EXPECT_EQ(::door_getparam(a_number_of(door), DOOR_PARAM_DESC_MAX, &seen), 0);
    EXPECT_EQ(seen, door.descriptors);
    EXPECT_EQ(ERROR_OF(::door_setparam(a_number_of(door), what, seen)), EPERM);
  }

  void duplicate(Modelled& door) {
    const int from = a_number_of(door);
    const int number = once_in(2) ? ::dup(from) : ::fcntl(from, F_DUPFD_CLOEXEC, 100 + below(100));
    ASSERT_GE(number, 0);
    door.numbers.push_back(number);
  }

  void close_one(Modelled& door) {
    std::swap(door.numbers[below(door.numbers.size())], door.numbers.back());
    EXPECT_EQ(::close(door.numbers.back()), 0);
    door_info_t info{};
    EXPECT_EQ(ERROR_OF(::door_info(door.numbers.back(), &info)), EBADF);
    door.numbers.pop_back();
  }

  void look(const Modelled& door) {
    door_info_t info{};
    ASSERT_EQ(::door_info(a_number_of(door), &info), 0);
    EXPECT_EQ(info.di_uniquifier, door.id);
    EXPECT_EQ(info.di_attributes, door.attributes | (door.revoked ? DOOR_REVOKED : 0U));
  }

  // ---- calls ----

  // What is passed along, and what the server makes of it.
  struct Passed {
    std::vector<door_desc_t> descriptors;
    std::vector<int> files;  // the caller's own
    bool bad = false;
    std::uint64_t digest;
  };
  Passed something_to_pass(std::uint64_t digest) {
    Passed all{.descriptors = {}, .files = {}, .digest = digest};
    for (std::size_t left = once_in(2) ? 0 : below(5); left > 0; --left) {
      if (once_in(20)) {
        all.bad = true;
        all.descriptors.push_back(once_in(2) ? pass(-1) : pass(control_, 0));
        continue;
      }
      const Modelled& other = doors_[below(kDoors)];
      if (!other.numbers.empty() && once_in(3)) {
        all.descriptors.push_back(pass(a_number_of(other)));
        all.digest = all.digest * 31 + other.id;
        continue;
      }
      const std::uint64_t content = random_();
      all.files.push_back(file_of(content));
      all.descriptors.push_back(
          pass(all.files.back(), DOOR_DESCRIPTOR | (once_in(2) ? DOOR_RELEASE : 0U)));
      all.digest = all.digest * 31 + content;
    }
    return all;
  }
  // Closes what is left of the caller's own, and expects of those to be released that they were
  // released, or were not.
  static void take_back(const Passed& passed, bool released) {
    std::size_t file = 0;
    for (const door_desc_t& descriptor : passed.descriptors) {
      if (file == passed.files.size() || fd_of(descriptor) != passed.files[file]) continue;
      const bool gone = ::fcntl(passed.files[file++], F_GETFD) < 0;
      EXPECT_EQ(gone, released && (descriptor.d_attributes & DOOR_RELEASE) != 0);
      if (!gone) ::close(fd_of(descriptor));
    }
  }

  std::size_t some_size() {
    const std::size_t bounds[] = {1, 64, 4096, 100'000, 1'000'000};
    return below(bounds[below(std::size(bounds))]);
  }

  int expected_error(const Modelled& door, std::size_t size, const Passed& passed) {
    if (door.revoked) return EBADF;
    if (size < door.least || size > door.most) return ENOBUFS;
    if (passed.descriptors.empty()) return 0;
    if ((door.attributes & DOOR_REFUSE_DESC) != 0) return ENOTSUP;
    if (passed.descriptors.size() > door.descriptors) return ENFILE;
    return passed.bad ? EINVAL : 0;
  }

  void call(const Modelled& door) {
    const Request request{.seed = static_cast<std::uint32_t>(random_()),
                          .reply_size = static_cast<std::uint32_t>(some_size()),
                          .files = static_cast<std::uint16_t>(once_in(3) ? below(4) : 0),
                          .doors = static_cast<std::uint16_t>(once_in(4) ? made() & random_() : 0)};
    std::string data = text_of(random_(), some_size());
    if (data.size() >= sizeof request) std::memcpy(data.data(), &request, sizeof request);
    Passed passed = something_to_pass(digest_of(data));

    std::vector<char> room(some_size());
    door_arg_t arguments{.data_ptr = data.data(),
                         .data_size = data.size(),
                         .desc_ptr = passed.descriptors.data(),
                         .desc_num = static_cast<uint_t>(passed.descriptors.size()),
                         .rbuf = room.data(),
                         .rsize = room.size()};
    const int error = ERROR_OF(::door_call(a_number_of(door), &arguments));
    const int expected = expected_error(door, data.size(), passed);
    EXPECT_EQ(error, expected) << std::strerror(error);
    take_back(passed, error == 0 || error == EINVAL);
    if (error != 0 || expected != 0) return;
    if (data.size() < sizeof request) {
      EXPECT_EQ(std::string_view(arguments.data_ptr, arguments.data_size),
                std::string_view(reinterpret_cast<char*>(&passed.digest), sizeof passed.digest));
      EXPECT_EQ(arguments.desc_num, 0U);
    } else {
      EXPECT_TRUE(std::string_view(arguments.data_ptr, arguments.data_size) ==
                  text_of(passed.digest ^ request.seed, request.reply_size));
      compare_descriptors(request, arguments);
    }
    const std::size_t needed = needed_for(arguments);
    if (arguments.rbuf != room.data()) {
      EXPECT_GT(needed, room.size()) << "it would have fitted";
      EXPECT_EQ(::munmap(arguments.rbuf, arguments.rsize), 0);
    } else {
      EXPECT_LE(needed, room.size());
    }
  }
  // Descriptors lie at a multiple of their size.
  static std::size_t needed_for(const door_arg_t& reply) {
    constexpr std::size_t kSize = sizeof(door_desc_t);
    if (reply.desc_num == 0) return reply.data_size;
    return (reply.data_size + kSize - 1) / kSize * kSize + reply.desc_num * kSize;
  }

  void compare_descriptors(const Request& request, const door_arg_t& arguments) {
    std::vector<std::uint64_t> expected;
    for (std::uint16_t i = 0; i < request.files; ++i) expected.push_back(request.seed + i);
    for (std::size_t i = 0; i < kDoors; ++i)
      if ((request.doors >> i & 1) != 0) expected.push_back(doors_[i].id);
    std::vector<std::uint64_t> got;
    for (uint_t i = 0; i < arguments.desc_num; ++i) {
      const int fd = fd_of(arguments.desc_ptr[i]);
      got.push_back(content_of(fd));
      EXPECT_EQ(::fcntl(fd, F_GETFD), 0) << "received descriptors stay open over execve()";
      ::close(fd);
    }
    EXPECT_EQ(got, expected);
  }

  std::uint16_t made() const {
    std::uint16_t all = 0;
    for (std::size_t i = 0; i < kDoors; ++i)
      all |= static_cast<std::uint16_t>(doors_[i].made ? 1U << i : 0U);
    return all;
  }

  int control_;
  std::mt19937_64 random_;
  std::array<Modelled, kDoors> doors_;
};

class RandomDoors : public ::testing::TestWithParam<int> {};

TEST_P(RandomDoors, DoWhatTheModelSays) {
  const int programs = over_module() ? 4 : 25;
  for (int i = 0; i < programs && !HasFailure(); ++i) {
    const std::uint64_t seed =
        static_cast<std::uint64_t>(GetParam()) * 1000 + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    static auto procedure = obey;
    ScopedServer server([] { return make_door(procedure); });
    const std::size_t open_before = open_descriptors();
    { Program(server.door(), seed).run(60); }
    // The session of the control door stays, with two of them.
    EXPECT_TRUE(eventually([&] { return open_descriptors() <= open_before + 2; }))
        << list_descriptors();
    EXPECT_EQ(server.exit(), 0);
    EXPECT_EQ(error_of(server.door(), "anybody"), EBADF);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomDoors, ::testing::Range(0, 4));

}  // namespace
}  // namespace farcall::door::test
