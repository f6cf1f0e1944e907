// SPDX-License-Identifier: Apache-2.0
//
// What FARCALL_ENGINE chooses, and what is told of choices that cannot be.
#include "door/engines.hpp"

#include <gtest/gtest.h>

#include "door/scoped_server.hpp"

namespace farcall::door::test {
namespace {

// What this process writes to stderr meanwhile.
template <class Body>
std::string said(Body body) {
  int ends[2];
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd before(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0));
  ::dup2(ends[1], STDERR_FILENO);
  ::close(ends[1]);
  body();
  ::dup2(before.get(), STDERR_FILENO);
  std::string text(1000, 0);
  const ssize_t size = ::read(ends[0], text.data(), text.size());
  ::close(ends[0]);
  text.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
  return text;
}

TEST(DoorEngine, IsSharedMemoryUnlessAnotherIsAskedFor) {
  for (const char* word : {"", "auto", "shared"})
    in_child([&] {
      choose(word);
      EXPECT_STREQ(engine_of(::door_create(echo, nullptr, 0)), "shared") << word;
    });
}

TEST(DoorEngine, AWordThatIsNoneIsToldOfOnceWithItsCure) {
  in_child([] {
    choose("fast");
    const std::string text = said([] {
      EXPECT_EQ(ERROR_OF(::door_create(echo, nullptr, 0)), EINVAL);
      EXPECT_EQ(ERROR_OF(::door_create(echo, nullptr, 0)), EINVAL);
    });
    EXPECT_EQ(text,
              "farcall-doors: FARCALL_ENGINE=fast names no engine; set it to auto, shared or "
              "kernel\n");
  });
}

TEST(DoorEngine, AThreadThatWouldServeNoneIsToldSo) {
  in_child([] {
    choose("fast");
    (void)said([] { EXPECT_EQ(ERROR_OF(::door_return(nullptr, 0, nullptr, 0)), EINVAL); });
  });
}

TEST(DoorEngine, TheKernelsWithoutAModuleIsToldOfWithItsCure) {
  if (::access("/dev/door", F_OK) == 0) GTEST_SKIP() << "the module is here";
  in_child([] {
    choose("kernel");
    const std::string text =
        said([] { EXPECT_EQ(ERROR_OF(::door_create(echo, nullptr, 0)), ENODEV); });
    EXPECT_EQ(text,
              "farcall-doors: FARCALL_ENGINE=kernel, but there is no /dev/door; load the module "
              "(modprobe stplr), or set FARCALL_ENGINE=shared\n");
  });
}

}  // namespace
}  // namespace farcall::door::test
