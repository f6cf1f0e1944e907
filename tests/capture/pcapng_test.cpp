// SPDX-License-Identifier: Apache-2.0
#include "capture/pcapng.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "farcall/error.hpp"

namespace farcall::capture {
namespace {

const std::atomic<bool> kNeverStops{false};

UniqueFd memory_file() { return UniqueFd(::memfd_create("capture", MFD_CLOEXEC)); }

std::vector<std::byte> contents(int fd) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(::lseek(fd, 0, SEEK_END)));
  EXPECT_EQ(::pread(fd, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  return bytes;
}

std::uint32_t word_at(const std::vector<std::byte>& bytes, std::size_t at) {
  std::uint32_t word = 0;
  if (at + sizeof word <= bytes.size()) std::memcpy(&word, bytes.data() + at, sizeof word);
  return word;
}

struct Block {
  std::uint32_t type;
  std::size_t at;
  std::uint32_t size;
};

// The blocks, each of which must say its length twice.
std::vector<Block> blocks_of(const std::vector<std::byte>& bytes) {
  std::vector<Block> blocks;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::uint32_t size = word_at(bytes, at + 4);
    EXPECT_GE(size, 12U);
    EXPECT_EQ(size % 4, 0U);
    EXPECT_EQ(word_at(bytes, at + size - 4), size);
    if (::testing::Test::HasFailure()) break;
    blocks.push_back({word_at(bytes, at), at, size});
    at += size;
  }
  return blocks;
}

std::span<const std::byte> bytes_of(const char* text) {
  return std::as_bytes(std::span(text, std::strlen(text)));
}

TEST(Pcapng, IsASequenceOfBlocksThatTellTheirLengths) {
  const UniqueFd copy = memory_file();
  PcapngFile file(UniqueFd(::dup(copy.get())), "memory", kNeverStops);
  const std::uint32_t one = file.add_interface(LinkType::ip, "one", "the first");
  const std::uint32_t two = file.add_interface(LinkType::farcall, "", "");
  EXPECT_EQ(one, 0U);
  EXPECT_EQ(two, 1U);
  for (const char* payload : {"", "1", "12", "123", "1234"})
    file.add({.interface = two,
              .time = 1,
              .header = bytes_of("header"),
              .payload = bytes_of(payload),
              .missing = 2,
              .way = Way::inbound,
              .comment = payload});
  file.add_statistics(one, 2, 3, 4);
  file.flush();
  const std::vector<std::byte> bytes = contents(copy.get());
  EXPECT_EQ(bytes.size(), file.bytes());
  const std::vector<Block> blocks = blocks_of(bytes);
  ASSERT_EQ(blocks.size(), 9U);
  EXPECT_EQ(blocks[0].type, 0x0a0d0d0aU);
  EXPECT_EQ(word_at(bytes, blocks[1].at + 8) & 0xffff, 101U);
  EXPECT_EQ(word_at(bytes, blocks[2].at + 8) & 0xffff, 147U);
  EXPECT_EQ(blocks[7].type, 6U);
  EXPECT_EQ(word_at(bytes, blocks[7].at + 8), two);
  EXPECT_EQ(word_at(bytes, blocks[7].at + 20), 10U);
  EXPECT_EQ(word_at(bytes, blocks[7].at + 24), 12U);
  EXPECT_EQ(std::memcmp(bytes.data() + blocks[7].at + 28, "header1234", 10), 0);
  EXPECT_EQ(blocks[8].type, 5U);
}

TEST(Pcapng, SaysThatTheDiskIsFull) {
  PcapngFile file(UniqueFd(::open("/dev/full", O_WRONLY | O_CLOEXEC)), "/dev/full", kNeverStops);
  try {
    file.flush();
    FAIL() << "nothing was said";
  } catch (const SystemError& error) {
    EXPECT_EQ(error.code().value(), ENOSPC);
    EXPECT_NE(std::string(error.what()).find("write /dev/full"), std::string::npos);
  }
}

}  // namespace
}  // namespace farcall::capture
