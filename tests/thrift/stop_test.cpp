// SPDX-License-Identifier: Apache-2.0
//
// A server that is stopped ends, whoever waits there and whatever else goes on.
#include <fcntl.h>
#include <sys/resource.h>

#include "harness/child.hpp"
#include "thrift/server.hpp"

namespace farcall::thrift::test {
namespace {

// A client that opens, and says nothing.
class Silent {
 public:
  explicit Silent(const std::string& name) : transport_(name) {
    transport_.setTimeout(kPatience);
    thread_ = std::thread([this] { EXPECT_NO_THROW(transport_.open()); });
  }
  ~Silent() { thread_.join(); }
  void opened() {
    thread_.join();
    thread_ = std::thread([] {});
  }

 private:
  TFarcallTransport transport_;
  std::thread thread_;
};

TEST(ThriftStop, WhoIsAcceptedAfterwardsIsInterruptedAsWell) {
  const std::string name = unique_name();
  TFarcallServerTransport server(name);
  server.setReceiveTimeout(kPatience);
  server.listen();
  server.interruptChildren();
  Silent client(name);
  const auto late = server.accept();
  EXPECT_EQ(type_of([&] { (void)late->peek(); }), TTransportException::INTERRUPTED);
}

TEST(ThriftStop, WhoListensAnewServesAgain) {
  const std::string name = unique_name();
  TFarcallServerTransport server(name);
  server.setReceiveTimeout(std::chrono::milliseconds(50));
  server.listen();
  server.interruptChildren();
  server.close();
  server.listen();
  Silent client(name);
  const auto fresh = server.accept();
  EXPECT_EQ(type_of([&] { (void)fresh->peek(); }), TTransportException::TIMED_OUT);
}

TEST(ThriftStop, ACallThatIsServedIsAnsweredFirst) {
  const std::string name = unique_name();
  TFarcallServerTransport server(name);
  server.listen();
  std::string answered;
  std::thread client([&] {
    TFarcallTransport transport(name);
    transport.setTimeout(kPatience);
    transport.open();
    transport.write(reinterpret_cast<const std::uint8_t*>("call"), 4);
    transport.flush();
    answered.resize(5);
    answered.resize(transport.read(reinterpret_cast<std::uint8_t*>(answered.data()), 5));
  });
  const auto served = server.accept();
  std::uint8_t call[4];
  EXPECT_EQ(served->read(call, sizeof call), sizeof call);
  server.interruptChildren();
  served->write(reinterpret_cast<const std::uint8_t*>("reply"), 5);
  served->flush();
  client.join();
  EXPECT_EQ(answered, "reply");
  EXPECT_EQ(type_of([&] { (void)served->peek(); }), TTransportException::INTERRUPTED);
}

// All descriptors that this process may have.
void take_all_descriptors() {
  rlimit table{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &table), 0);
  table.rlim_cur = 200;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &table), 0);
  while (::open("/dev/null", O_RDONLY | O_CLOEXEC) >= 0) continue;
}

// A thread that waits for clients is told, with no descriptor left, by `stop`.
template <class Stop>
void expect_told(Stop stop) {
  in_child([&] {
    TFarcallServerTransport server(unique_name());
    server.listen();
    std::thread acceptor([&] {
      EXPECT_EQ(type_of([&] { (void)server.accept(); }), TTransportException::INTERRUPTED);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    take_all_descriptors();
    stop(server);
    acceptor.join();
  });
}

TEST(ThriftStop, NoDescriptorIsNeededToStopAccepting) {
  FARCALL_SKIP_UNDER_ASAN("and its companions need descriptors to look at memory");
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  expect_told([](TFarcallServerTransport& server) { server.interrupt(); });
}

TEST(ThriftStop, NoDescriptorIsNeededToClose) {
  FARCALL_SKIP_UNDER_ASAN("and its companions need descriptors to look at memory");
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  expect_told([](TFarcallServerTransport& server) { server.close(); });
}

TEST(ThriftStop, NoDescriptorIsNeededToStopThoseWhoServe) {
  FARCALL_SKIP_UNDER_ASAN("and its companions need descriptors to look at memory");
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  in_child([] {
    const std::string name = unique_name();
    TFarcallServerTransport server(name);
    server.listen();
    Silent client(name);
    const auto accepted = server.accept();
    client.opened();
    std::thread serving([&] {
      EXPECT_EQ(type_of([&] { (void)accepted->peek(); }), TTransportException::INTERRUPTED);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    take_all_descriptors();
    server.interruptChildren();
    serving.join();
  });
}

// It is destroyed there as well.
TEST(ThriftStop, AForkedChildInterruptsNobodyHere) {
  const std::string name = unique_name();
  auto server = std::make_unique<TFarcallServerTransport>(name);
  server->listen();
  in_child([&] { server.reset(); });
  Silent client(name);
  EXPECT_NO_THROW((void)server->accept());
}

}  // namespace
}  // namespace farcall::thrift::test
