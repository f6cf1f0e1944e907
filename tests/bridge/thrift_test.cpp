// SPDX-License-Identifier: Apache-2.0
//
// Thrift over an imported name, as over a local one.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thrift/protocol/TBinaryProtocol.h>
#include <unistd.h>

#include "bridge/harness.hpp"
#include "farcall/thrift/transport.hpp"

namespace farcall::test {
namespace {

using apache::thrift::protocol::T_CALL;
using apache::thrift::protocol::T_REPLY;
using apache::thrift::protocol::TBinaryProtocol;
using apache::thrift::protocol::TMessageType;

// What the compiler of Thrift would write for a method with one string.
void write(TBinaryProtocol& protocol, TMessageType type, const std::string& text) {
  protocol.writeMessageBegin("turn", type, 0);
  protocol.writeString(text);
  protocol.writeMessageEnd();
  protocol.getTransport()->writeEnd();
  protocol.getTransport()->flush();
}

std::string read(TBinaryProtocol& protocol) {
  std::string name;
  std::string text;
  TMessageType type = T_CALL;
  std::int32_t number = 0;
  protocol.readMessageBegin(name, type, number);
  protocol.readString(text);
  protocol.readMessageEnd();
  protocol.getTransport()->readEnd();
  return text;
}

[[noreturn]] void serve(const std::string& channel, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  thrift::TFarcallServerTransport listener(channel);
  listener.listen();
  for (;;) {  // as TSimpleServer does it
    const auto transport = listener.accept();
    TBinaryProtocol protocol(transport);
    do {
      const std::string text = read(protocol);
      write(protocol, T_REPLY, std::string(text.rbegin(), text.rend()));
    } while (transport->peek());
  }
}

TEST(BridgeThrift, WorksOverAnImportedName) {
  if (const std::string reason = no_nats(); !reason.empty()) GTEST_SKIP() << reason;
  const ScratchDirectory scratch;
  const Nats nats(scratch);
  const std::string channel = "bridge-thrift-" + std::to_string(::getpid());
  const pid_t parent = ::getpid();
  const pid_t server = ::fork();
  if (server == 0) serve(channel, parent);
  const auto exporter = start_bridge(
      scratch, channel + "-x", {"--nats", nats.url(), "--export", "channel:" + channel + "=t.v1"});
  const auto importer =
      start_bridge(scratch, channel + "-i",
                   {"--nats", nats.url(), "--import", "t.v1=channel:" + channel + "-far"});
  EXPECT_TRUE(comes_true([&] {
    return bridge_status(channel + "-x").find("\"local_server\":true") != std::string::npos;
  }));
  auto transport = std::make_shared<thrift::TFarcallTransport>(channel + "-far");
  transport->open();
  TBinaryProtocol protocol(transport);
  for (const std::size_t size : {std::size_t{5}, std::size_t{5000}, std::size_t{3} << 20}) {
    std::string text(size, 'a');
    text.front() = 'z';
    write(protocol, T_CALL, text);
    EXPECT_TRUE(read(protocol) == std::string(text.rbegin(), text.rend())) << size;
  }
  ::kill(server, SIGKILL);
  ::waitpid(server, nullptr, 0);
}

}  // namespace
}  // namespace farcall::test
