// SPDX-License-Identifier: Apache-2.0
//
// What rings do beyond the other mechanisms, wherever their memory comes from.
#include <sys/mman.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "channel/conformance.hpp"
#include "farcall/channel/memfd.hpp"
#include "farcall/channel/ring.hpp"

namespace farcall::channel::test {
namespace {

using namespace std::chrono_literals;

using Rings = Conformance;
INSTANTIATE_TEST_SUITE_P(Channel, Rings, testing::ValuesIn(mechanisms_where(&Properties::waits)),
                         test_name);

constexpr WaitMode kModes[] = {WaitMode::spin, WaitMode::adaptive, WaitMode::block};

TEST_P(Rings, CarryBytesWithEveryWayOfWaiting) {
  constexpr std::size_t kSize = 1 << 20;
  for (const WaitMode mode : kModes) {
    SCOPED_TRACE(to_string(mode));
    const Options options{.buffer_bytes = 8192, .wait = mode};
    auto [child, reader] = spawn_writer(AnyChannel(mechanism(), options), [](Writer& out) {
      write_pattern(out, kSize);
      std::this_thread::sleep_for(40ms);  // the reader goes through all phases of waiting
      out.write(bytes_of("x"));
      return 0;
    });
    EXPECT_EQ(read_pattern(*reader, kSize), kSize);
    std::vector<std::byte> into(2);
    EXPECT_EQ(reader->read_fully(into), 1U);
    EXPECT_TRUE(child.wait().success());
  }
}

TEST_P(Rings, NoticeDeathWithEveryWayOfWaiting) {
  for (const WaitMode mode : kModes) {
    SCOPED_TRACE(to_string(mode));
    auto [child, reader] =
        spawn_writer(AnyChannel(mechanism(), Options{.wait = mode}), [](Writer&) -> int {
          std::this_thread::sleep_for(40ms);
          ::_exit(0);
        });
    EXPECT_EQ(error_of([&, &reader = reader] { read_pattern(*reader); }), ECONNRESET);
  }
}

TEST_P(Rings, KnowAtOnceThatTheReaderHasClosed) {
  auto [reader, writer] = channel().take_both();
  writer->write(bytes_of("a"));
  reader.reset();
  EXPECT_EQ(error_of([&, &writer = writer] { writer->write(bytes_of("b")); }), EPIPE);
}

TEST_P(Rings, HoldAtLeastHalfOfWhatWasAskedFor) {
  // Rounded up to 16 KiB; messages take some of that for their headers.
  const auto [reader, writer] = channel(10'000).take_both();
  std::vector<std::byte> bytes(properties().boundaries ? 1'000 : 16'384);
  for (std::size_t done = 0; done < 5'000; done += bytes.size()) writer->write(bytes);
  EXPECT_EQ(reader->read_fully(bytes), bytes.size());
}

TEST_P(Rings, AreNotOpenedWithoutWhatBelongsToThem) {
  EXPECT_EQ(error_of([] { mechanism().open_reader(Handle(), {}); }), EPROTO);
  EXPECT_EQ(error_of([] { mechanism().open_writer(Handle(), {}); }), EPROTO);
}

// A handle as a hostile peer might send it: with other memory than create() made.
Handle with_memory(Handle handle, UniqueFd memory) {
  handle.message.descriptors.at(1) = std::move(memory);
  return handle;
}

TEST(Ring, RefusesMemoryThatTheSenderCouldShrink) {
  UniqueFd unsealed(::memfd_create("unsealed", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(unsealed.get(), 4096 + 65536), 0);
  Handle handle = with_memory(Ring::create({}).reader, std::move(unsealed));
  EXPECT_EQ(error_of([&] { Ring::open_reader(std::move(handle), {}); }), EPERM);
}

TEST(Ring, RefusesMemoryThatIsNotARing) {
  Handle empty = with_memory(Ring::create({}).writer, SharedMemory::create(4096 + 65536).release());
  EXPECT_EQ(error_of([&] { Ring::open_writer(std::move(empty), {}); }), EPROTO);
  Handle odd = with_memory(Memfd::create({}).writer, SharedMemory::create(12288).release());
  EXPECT_EQ(error_of([&] { Memfd::open_writer(std::move(odd), {}); }), EPROTO);
}

}  // namespace
}  // namespace farcall::channel::test
