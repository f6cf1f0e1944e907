// SPDX-License-Identifier: Apache-2.0
//
// What goes wrong, and what it is called.
#include <signal.h>
#include <thrift/transport/TBufferTransports.h>

#include <array>
#include <cerrno>
#include <optional>
#include <vector>

#include "farcall/message.h"
#include "thrift/server.hpp"

namespace farcall::thrift::test {
namespace {

// Signals for the thread that makes this, as long as it lives.
class Signals {
 public:
  Signals() {
    struct sigaction action {};
    action.sa_handler = [](int) {};
    ::sigaction(SIGUSR1, &action, nullptr);
    nuisance_ = std::thread([this, self = ::pthread_self()] {
      while (!stop_) {
        ::pthread_kill(self, SIGUSR1);
        ++sent_;
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    });
  }
  ~Signals() {
    stop_ = true;
    nuisance_.join();
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;
  // Returns when some have been sent since.
  void wait_for_some() const {
    const int before = sent_;
    while (sent_ < before + 4) std::this_thread::yield();
  }

 private:
  std::atomic<bool> stop_{false};
  std::atomic<int> sent_{0};
  std::thread nuisance_;
};

TEST(ThriftTransport, ANameThatNobodyServesIsNotOpen) {
  TFarcallTransport transport("nobody-serves-this");
  EXPECT_EQ(type_of([&] { transport.open(); }), TTransportException::NOT_OPEN);
  EXPECT_FALSE(transport.isOpen());
  const std::uint8_t byte = 0;
  transport.write(&byte, 1);
  EXPECT_EQ(type_of([&] { transport.flush(); }), TTransportException::NOT_OPEN);
}

// Else the next call gets the answer to one that its program has given up.
TEST(ThriftTransport, ACallThatIsRefusedIsNeverMade) {
  const auto handler = std::make_shared<Ping>();
  const Server<> server(Kind::threaded, std::make_shared<rpc::pingProcessor>(handler),
                        std::make_shared<TTransportFactory>());
  Caller<rpc::pingClient> caller(server.name);
  rpc::test_struct reply;
  caller.transport->close();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(type_of([&] { caller->ping(reply, sample(1)); }), TTransportException::NOT_OPEN);
    EXPECT_EQ(type_of([&] { caller->hello("refused"); }), TTransportException::NOT_OPEN);
  }
  caller.transport->open();
  caller->ping(reply, sample(2));
  EXPECT_EQ(reply.values.a_string.size(), 2U);
  caller->hello("made");
  caller->ping(reply, sample(3));
  EXPECT_EQ(reply.values.a_string.size(), 3U);
  EXPECT_EQ(handler->hellos, 1);
}

TEST(ThriftTransport, AFramedCallThatIsRefusedIsNeverMade) {
  const Server<> server(Kind::threaded,
                        std::make_shared<rpc::calculatorProcessor>(std::make_shared<Calculator>()),
                        std::make_shared<TFramedTransportFactory>());
  const auto transport = std::make_shared<TFarcallTransport>(server.name);
  rpc::calculatorClient client(
      std::make_shared<TBinaryProtocol>(std::make_shared<TFramedTransport>(transport)));
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(type_of([&] { client.add(1, 2); }), TTransportException::NOT_OPEN);
  transport->open();
  EXPECT_EQ(client.add(30, 40), 70);
  EXPECT_EQ(client.add(500, 600), 1100);
}

// A name that passes no descriptors on, as that of a bridge.
class Far {
 public:
  explicit Far(const std::string& to)
      : name(to + "-far"),
        channel_(::farcall_name_attach(name.c_str(), 0, 0600)),
        server_([this, to] { relay(to.c_str()); }) {}
  Far(const Far&) = delete;
  Far& operator=(const Far&) = delete;
  ~Far() {
    ::farcall_channel_destroy(channel_);
    server_.join();
  }
  const std::string name;

 private:
  void relay(const char* to) const {
    std::vector<char> sent(4096);
    std::vector<char> replied(4096);
    farcall_info info{};
    for (std::int64_t id = 0;
         (id = ::farcall_receive(channel_, sent.data(), sent.size(), &info)) >= 0;) {
      if (info.descriptor_count != 0) {
        ::farcall_drop_descriptors(&info);
        ::farcall_error(id, EOPNOTSUPP);
        continue;
      }
      const int connection = ::farcall_name_open(to);
      const iovec out{.iov_base = sent.data(), .iov_len = info.received};
      const iovec in{.iov_base = replied.data(), .iov_len = replied.size()};
      farcall_message message{};
      message.send = &out;
      message.send_count = 1;
      message.reply = &in;
      message.reply_count = 1;
      const int status = ::farcall_send_message(connection, &message);
      if (status < 0)
        ::farcall_error(id, errno);
      else
        ::farcall_reply(id, status, replied.data(), message.replied);
      ::farcall_disconnect(connection);
    }
  }

  const int channel_;
  std::thread server_;
};

// Serves one client, that sends words of four bytes, as many as it likes in a message.
template <class Client>
void with_words(std::shared_ptr<TTransport> (*over)(std::shared_ptr<TTransport>), Client client,
                bool from_afar = false) {
  const std::string name = "words-" + std::to_string(::getpid());
  TFarcallServerTransport listener(name);
  listener.listen();
  std::thread server([&] {
    const auto transport = over(listener.accept());
    try {
      for (std::array<std::uint8_t, 4> word{};;) {
        transport->readAll(word.data(), word.size());
        word[0] = 'R';
        transport->write(word.data(), word.size());
        transport->flush();
      }
    } catch (const TTransportException&) {
      transport->close();
    }
  });
  {
    std::optional<Far> far;
    if (from_afar) far.emplace(name);
    TFarcallTransport transport(far ? far->name : name);
    transport.setTimeout(kPatience);
    transport.open();
    client(transport);
  }
  server.join();
}
std::shared_ptr<TTransport> itself(std::shared_ptr<TTransport> transport) { return transport; }
std::shared_ptr<TTransport> reading_ahead(std::shared_ptr<TTransport> transport) {
  return std::make_shared<apache::thrift::transport::TBufferedTransport>(std::move(transport));
}

void write_words(TFarcallTransport& transport, std::string_view text) {
  transport.write(reinterpret_cast<const std::uint8_t*>(text.data()),
                  static_cast<std::uint32_t>(text.size()));
}
std::string read_words(TFarcallTransport& transport, std::size_t size) {
  std::string text(size, ' ');
  transport.readAll(reinterpret_cast<std::uint8_t*>(text.data()), static_cast<std::uint32_t>(size));
  return text;
}

TEST(ThriftTransport, RepliesAreReadInOrderAfterSeveralCalls) {
  with_words(itself, [](TFarcallTransport& transport) {
    write_words(transport, "q-01");
    transport.flush();
    write_words(transport, "q-02");
    transport.flush();
    EXPECT_EQ(read_words(transport, 2), "R-");
    write_words(transport, "q-03");
    transport.flush();
    EXPECT_EQ(read_words(transport, 10), "01R-02R-03");
  });
}

TEST(ThriftTransport, CallsThatAreFlushedAtOnceAreAllAnswered) {
  with_words(itself, [](TFarcallTransport& transport) {
    write_words(transport, "q-01q-02");
    transport.flush();
    EXPECT_EQ(read_words(transport, 8), "R-01R-02");
  });
  with_words(reading_ahead, [](TFarcallTransport& transport) {
    write_words(transport, "q-01q-02");
    transport.flush();
    EXPECT_EQ(read_words(transport, 4), "R-01");
    EXPECT_EQ(type_of([&] { (void)read_words(transport, 4); }), TTransportException::END_OF_FILE);
  });
}

TEST(ThriftTransport, CallsThatAreFlushedAtOnceAreAllAnsweredFromAfar) {
  with_words(
      itself,
      [](TFarcallTransport& transport) {
        write_words(transport, "q-01q-02");
        transport.flush();
        EXPECT_EQ(read_words(transport, 8), "R-01R-02");
      },
      true);
  with_words(
      reading_ahead,
      [](TFarcallTransport& transport) {
        write_words(transport, "q-01q-02");
        transport.flush();
        EXPECT_EQ(read_words(transport, 4), "R-01");
        EXPECT_EQ(type_of([&] { (void)read_words(transport, 4); }),
                  TTransportException::END_OF_FILE);
      },
      true);
}

TEST(ThriftTransport, TooManyRepliesThatNobodyReadsAreAnError) {
  with_words(itself, [](TFarcallTransport& transport) {
    constexpr std::size_t kWords = 10'000;
    std::string many;
    for (std::size_t i = 0; i < kWords; ++i) many += "q-01";
    std::size_t sent = 0;
    const auto send_on = [&] {
      for (; sent < 1000; ++sent) {
        write_words(transport, many);
        transport.flush();
      }
    };
    EXPECT_EQ(type_of(send_on), TTransportException::BAD_ARGS);
    EXPECT_GT(sent, 1U);
    EXPECT_EQ(read_words(transport, sent * many.size()).size(), sent * many.size());
    write_words(transport, "q-02");
    transport.flush();
    EXPECT_EQ(read_words(transport, 4), "R-02");
  });
}

TEST(ThriftTransport, ANameIsServedOnce) {
  const std::string name = unique_name();
  TFarcallServerTransport one(name);
  TFarcallServerTransport two(name);
  one.listen();
  EXPECT_TRUE(one.isOpen());
  EXPECT_EQ(type_of([&] { two.listen(); }), TTransportException::NOT_OPEN);
  one.close();
  EXPECT_FALSE(one.isOpen());
  EXPECT_EQ(type_of([&] { one.accept(); }), TTransportException::NOT_OPEN);
  two.listen();
}

TEST(ThriftTransport, AcceptIsInterrupted) {
  TFarcallServerTransport server(unique_name());
  server.listen();
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    server.interrupt();
  });
  EXPECT_EQ(type_of([&] { server.accept(); }), TTransportException::INTERRUPTED);
  later.join();
}

TEST(ThriftTransport, AServerThatDiesIsTheEndOfTheFile) {
  const std::string name = unique_name();
  const Shared<Event> ready;
  Child server([&] {
    const auto transport = std::make_shared<TFarcallServerTransport>(name);
    const auto handler = std::make_shared<Ping>();
    TThreadedServer threaded(std::make_shared<rpc::pingProcessor>(handler), transport,
                             std::make_shared<TTransportFactory>(),
                             std::make_shared<TBinaryProtocolFactory>());
    std::thread watch([&] {
      while (!transport->isOpen()) std::this_thread::yield();
      ready->happens();
    });
    threaded.serve();
  });
  ASSERT_TRUE(ready->wait());
  Caller<rpc::pingClient> caller(name);
  std::string text;
  caller->name(text);
  EXPECT_TRUE(caller.transport->peek());
  server.kill();
  EXPECT_TRUE(eventually([&] { return !caller.transport->peek(); }));
  EXPECT_EQ(type_of([&] { caller->name(text); }), TTransportException::END_OF_FILE);
  EXPECT_FALSE(caller.transport->isOpen());
  EXPECT_EQ(type_of([&] { caller.transport->open(); }), TTransportException::NOT_OPEN);
}

TEST(ThriftTransport, AServerOutlivesClientsThatDie) {
  const Server<> server(Kind::threaded,
                        std::make_shared<rpc::pingProcessor>(std::make_shared<Ping>()));
  for (int i = 0; i < 20 / kSlow; ++i) {
    Child client([&] {
      Caller<rpc::pingClient> caller(server.name);
      rpc::test_struct reply;
      for (;;) caller->ping(reply, sample(static_cast<std::size_t>(i) * 10'000));
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    client.kill();
    Caller<rpc::pingClient> caller(server.name);
    std::string name;
    caller->name(name);
    ASSERT_EQ(name, "ping");
  }
}

TEST(ThriftTransport, ATimeoutIsOne) {
  const std::string name = unique_name();
  TFarcallServerTransport server(name);
  server.listen();
  std::shared_ptr<TTransport> accepted;
  std::thread accepting([&] { accepted = server.accept(); });
  TFarcallTransport client(name);
  client.open();
  accepting.join();
  // Not before: who accepts may get no processor for so long.
  client.setTimeout(std::chrono::milliseconds(50));
  const std::uint8_t bytes[8] = {};
  client.write(bytes, sizeof bytes);
  EXPECT_EQ(type_of([&] { client.flush(); }), TTransportException::TIMED_OUT);
  EXPECT_FALSE(client.isOpen());
}

TEST(ThriftTransport, AServerTellsWhoItsClientIs) {
  const std::string name = unique_name();
  TFarcallServerTransport server(name);
  server.listen();
  std::thread client([&] { TFarcallTransport(name).open(); });
  const auto accepted = server.accept();
  client.join();
  EXPECT_EQ(accepted->getOrigin(),
            "pid " + std::to_string(::getpid()) + " uid " + std::to_string(::geteuid()));
  // It has gone by now.
  std::uint8_t byte = 0;
  EXPECT_EQ(accepted->read(&byte, 1), 0U);
  EXPECT_FALSE(accepted->isOpen());
}

TEST(ThriftTransport, SignalsDoNotDisturbACall) {
  const auto handler = std::make_shared<Ping>();
  handler->pause = std::chrono::milliseconds(100);
  const Server<> server(Kind::threaded, std::make_shared<rpc::pingProcessor>(handler));
  Caller<rpc::pingClient> caller(server.name);
  const Signals signals;
  caller->hello("x");
  std::string name;
  caller->name(name);
  EXPECT_EQ(name, "ping");
}

TEST(ThriftTransport, SignalsDoNotDisturbAnOpen) {
  const std::string name = unique_name();
  TFarcallServerTransport server(name);
  server.listen();
  const Signals signals;
  std::thread accepting([&] {
    signals.wait_for_some();
    (void)type_of([&] { (void)server.accept(); });
  });
  TFarcallTransport client(name);
  EXPECT_NO_THROW(client.open());
  server.interrupt();  // unless it has been accepted
  accepting.join();
}

// A far server that is told that the time is over says EINTR, as a signal does.
TEST(ThriftTransport, ACallWhoseTimeIsOverIsNotMadeAgain) {
  const std::string name = unique_name();
  const int channel = ::farcall_name_attach(name.c_str(), FARCALL_UNBLOCK, 0600);
  ASSERT_GT(channel, 0);
  std::atomic<int> calls{0};
  const auto serve = [&] {
    for (std::uint32_t word[16];;) {
      farcall_info info{};
      const std::int64_t id = ::farcall_receive(channel, word, sizeof word, &info);
      if (id < 0 && errno == EBADF) return;
      const bool has_descriptors = info.descriptor_count != 0;
      (void)::farcall_drop_descriptors(&info);
      if (id == 0 && info.code == FARCALL_PULSE_UNBLOCK) ::farcall_error(info.value, EINTR);
      if (id <= 0) continue;
      if (has_descriptors)
        ::farcall_error(id, EOPNOTSUPP);
      else if (info.length == sizeof word[0])
        ::farcall_reply(id, 0, nullptr, 0);
      else
        ++calls;
    }
  };
  // One of them waits for a message whatever the others are at.
  std::vector<std::thread> far;
  for (int i = 0; i < 4; ++i) far.emplace_back(serve);
  TFarcallTransport client(name);
  EXPECT_NO_THROW(client.open());
  for (int i = 1; i <= 20; ++i) {
    client.setTimeout(std::chrono::milliseconds(50));
    const std::uint8_t bytes[8] = {};
    client.write(bytes, sizeof bytes);
    EXPECT_EQ(type_of([&] { client.flush(); }), TTransportException::TIMED_OUT);
    client.setTimeout(std::chrono::milliseconds(0));
    EXPECT_NO_THROW(client.open());  // so that all that was sent before has been received
    EXPECT_LE(calls, i);  // whose time is over may be withdrawn before anybody has received it
  }
  ::farcall_channel_destroy(channel);
  for (std::thread& each : far) each.join();
  EXPECT_GT(calls, 0);
}

// A bridge has errors of its own for what happens to a server.
TEST(ThriftTransport, WhatABridgeSaysIsCalledAsBesideAServer) {
  using Type = TTransportException::TTransportExceptionType;
  const std::string name = unique_name();
  const int channel = ::farcall_name_attach(name.c_str(), 0, 0600);
  ASSERT_GT(channel, 0);
  std::atomic<int> said{0};
  std::thread far([&] {
    for (std::uint32_t word[16];;) {
      farcall_info info{};
      const std::int64_t id = ::farcall_receive(channel, word, sizeof word, &info);
      if (id < 0) return;
      const bool has_descriptors = info.descriptor_count != 0;
      (void)::farcall_drop_descriptors(&info);
      if (has_descriptors)
        ::farcall_error(id, EOPNOTSUPP);
      else if (info.length == sizeof word[0])
        ::farcall_reply(id, 0, nullptr, 0);
      else
        ::farcall_error(id, said);
    }
  });
  TFarcallTransport client(name);
  for (const auto& [error, type] :
       {std::pair{ECONNRESET, Type::END_OF_FILE}, std::pair{ECONNREFUSED, Type::NOT_OPEN},
        std::pair{ENETDOWN, Type::NOT_OPEN}, std::pair{ETIMEDOUT, Type::TIMED_OUT},
        std::pair{EPROTO, Type::UNKNOWN}}) {
    said = error;
    EXPECT_NO_THROW(client.open());
    const std::uint8_t bytes[8] = {};
    client.write(bytes, sizeof bytes);
    EXPECT_EQ(type_of([&] { client.flush(); }), type) << ::strerrorname_np(error);
    EXPECT_FALSE(client.isOpen());
  }
  ::farcall_channel_destroy(channel);
  far.join();
}

// However many come: each ends a wait, which begins anew.
TEST(ThriftTransport, ATimeoutIsOneBesideSignals) {
  const std::string name = unique_name();
  TFarcallServerTransport server(name);
  server.setReceiveTimeout(std::chrono::milliseconds(100));
  server.listen();
  for (const std::uint8_t type : {std::uint8_t{4} /* one-way */, std::uint8_t{1} /* a call */}) {
    std::shared_ptr<TTransport> accepted;
    std::thread accepting([&] { accepted = server.accept(); });
    TFarcallTransport client(name);
    client.open();
    accepting.join();
    client.setTimeout(std::chrono::milliseconds(100));
    const Signals signals;
    std::uint8_t byte = 0;
    EXPECT_EQ(type_of([&] { accepted->read(&byte, 1); }), TTransportException::TIMED_OUT);
    const std::uint8_t bytes[] = {0x80, 0x01, 0, type, 0, 0, 0, 0, 0, 0, 0, 1, 0};
    client.write(bytes, sizeof bytes);
    EXPECT_EQ(type_of([&] { client.flush(); }), TTransportException::TIMED_OUT);
  }
}

}  // namespace
}  // namespace farcall::thrift::test
