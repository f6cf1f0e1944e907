// SPDX-License-Identifier: Apache-2.0
//
// One process reading another's memory, as far as the kernel lets it.
#include "farcall/channel/process_vm.hpp"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "channel/conformance.hpp"

namespace farcall::channel::test {
namespace {

TEST(ProcessVm, KeepsTheWriterWaitingUntilAMessageIsReadInFull) {
  auto [child, reader] = spawn_writer(Channel<ProcessVm>(), [](Writer& out) {
    std::vector<std::byte> message(10'000);
    Pattern().fill(message);
    out.send(message);
    // Had the reader not been through, it would find this.
    std::ranges::fill(message, std::byte{0xff});
    out.send(message);
    return 0;
  });
  Pattern pattern;
  std::vector<std::byte> part(999);
  for (std::size_t got = 0; got < 10'000;) {
    const std::size_t size =
        reader->read({part.data(), std::min<std::size_t>(part.size(), 10'000 - got)});
    ASSERT_TRUE(pattern.check({part.data(), size})) << got;
    got += size;
  }
  std::vector<std::byte> second(10'000);
  ASSERT_EQ(reader->receive(second), second.size());
  EXPECT_EQ(second[5], std::byte{0xff});
  EXPECT_TRUE(child.wait().success());
}

// The reader's right to look into this process goes: another user, or a process that nobody may
// look into.
void forbid() {
  if (::geteuid() == 0)
    require(::setresuid(65534, 65534, 65534) == 0, "another user");
  else
    require(::prctl(PR_SET_DUMPABLE, 0) == 0, "a process that is closed to others");
}

TEST(ProcessVm, SaysWhyTheKernelRefuses) {
  const bool privileged = ::geteuid() == 0;
  // A privileged process may read every other, so there the reader gives up its rights.
  auto [child, writer] = spawn_reader(Channel<ProcessVm>(), [privileged](Reader& in) {
    if (privileged) forbid();
    std::vector<std::byte> into(10);
    try {
      in.receive(into);
    } catch (const SystemError& error) {
      require(error.code().value() == EPERM, "EPERM");
      require(std::string(error.what()).find("ptrace_scope") != std::string::npos, "the cure");
      return 0;
    }
    return 1;
  });
  if (!privileged) forbid();
  EXPECT_EQ(error_of([&writer = writer] { writer->send(bytes_of("secret")); }), EPERM);
  EXPECT_EQ(child.wait().describe(), "exited with 0");
  if (!privileged) ::prctl(PR_SET_DUMPABLE, 1);
}

// Who may look into every process does not for a writer that says where: that one may have become
// another program, whose memory is not its own.
TEST(ProcessVm, ReadsNobodyElsesMemoryAsRoot) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to be another user";
  auto [child, reader] = spawn_writer(Channel<ProcessVm>(), [](Writer& out) {
    require(::setresgid(65534, 65534, 65534) == 0 && ::setresuid(65534, 65534, 65534) == 0,
            "another user");
    require(error_of([&] { out.send(bytes_of("secret")); }) == EPERM, "EPERM");
    return 0;
  });
  std::vector<std::byte> into(10);
  EXPECT_EQ(error_of([&reader = reader, &into] { reader->receive(into); }), EPERM);
  EXPECT_EQ(into, std::vector<std::byte>(10));
  EXPECT_EQ(child.wait().describe(), "exited with 0");
}

TEST(ProcessVm, KeepsTheRightsOfWhoReads) {
  const auto effective = [] {
    std::ifstream status("/proc/thread-self/status");
    for (std::string line; std::getline(status, line);)
      if (line.starts_with("CapEff")) return line;
    return std::string();
  };
  const std::string before = effective();
  auto [child, reader] = spawn_writer(Channel<ProcessVm>(), [](Writer& out) {
    out.send(bytes_of("told"));
    return 0;
  });
  std::vector<std::byte> into(4);
  EXPECT_EQ(reader->receive(into), 4U);
  EXPECT_EQ(effective(), before);
  EXPECT_TRUE(child.wait().success());
}

TEST(ProcessVm, FinishesThoughTheReaderWasNeverMet) {
  auto [reader, writer] = Channel<ProcessVm>().take_both();
  writer.reset();
  std::vector<std::byte> into(10);
  EXPECT_EQ(reader->receive(into), std::nullopt);
}

// A writer by hand, in the process of the reader.
class ByHand {
 public:
  enum Kind : std::uint64_t { hello = 1, offer, done, finish };
  ByHand() {
    Handles handles = ProcessVm::create({});
    socket_ = std::move(handles.writer.message.descriptors.at(0));
    reader = ProcessVm::open_reader(std::move(handles.reader), {});
  }
  void send(std::uint64_t kind, std::span<const std::byte> bytes) const {
    const std::array<std::uint64_t, 4> packet{kind, reinterpret_cast<std::uintptr_t>(bytes.data()),
                                              bytes.size(), 0};
    ASSERT_EQ(::send(socket_.get(), packet.data(), sizeof packet, MSG_NOSIGNAL),
              static_cast<ssize_t>(sizeof packet));
  }
  void go() { socket_.reset(); }

  std::unique_ptr<Reader> reader;

 private:
  UniqueFd socket_;
};

// Another process may have got its number, and be what has been read.
TEST(ProcessVm, APartIsSureOnlyIfItsWriterLivesAfterwards) {
  const std::vector<std::byte> message(8000);
  std::vector<std::byte> part(1000);
  ByHand writer;
  writer.send(ByHand::offer, message);
  EXPECT_EQ(writer.reader->read(part), part.size());
  writer.go();
  EXPECT_EQ(error_of([&] { writer.reader->read(part); }), ECONNRESET);
}

TEST(ProcessVm, WhatIsNoOfferIsAnError) {
  const std::vector<std::byte> message(10);
  for (const std::uint64_t kind :
       {std::uint64_t{ByHand::hello}, std::uint64_t{ByHand::done}, std::uint64_t{7}}) {
    ByHand writer;
    writer.send(kind, message);
    std::vector<std::byte> into(10);
    EXPECT_EQ(error_of([&] { writer.reader->receive(into); }), EPROTO) << kind;
  }
}

// Its writer goes on, and what is read next is what it offers then.
TEST(ProcessVm, AMessageThatDoesNotFitIsGone) {
  const std::vector<std::byte> first(100, std::byte{1});
  const std::vector<std::byte> second(5, std::byte{2});
  ByHand writer;
  writer.send(ByHand::offer, first);
  std::vector<std::byte> into(10);
  EXPECT_EQ(error_of([&] { writer.reader->receive(into); }), EMSGSIZE);
  writer.send(ByHand::offer, second);
  EXPECT_EQ(writer.reader->read(into), second.size());
  EXPECT_EQ(into[0], std::byte{2});
}

}  // namespace
}  // namespace farcall::channel::test
