// SPDX-License-Identifier: Apache-2.0
//
// A port with threads that answer, for tests.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "farcall/call.hpp"
#include "farcall/error.hpp"
#include "harness/error_of.hpp"

namespace farcall::test {

inline Deadline soon() { return Deadline::after(std::chrono::seconds(20)); }

using Handler = std::function<void(ServerThread&, Incoming&)>;

inline void echo(ServerThread& thread, Incoming& incoming) {
  if (incoming.wants_reply()) thread.reply(incoming, incoming.data());
}

class Server {
 public:
  explicit Server(Handler handler = echo, int threads = 1, WaitMode mode = WaitMode::adaptive,
                  const PortLimits& limits = {})
      : port(limits) {
    for (int i = 0; i < threads; ++i) {
      threads_.emplace_back([this, handler, mode] {
        ServerThread thread(port, mode);
        Incoming incoming;
        for (;;) {
          const Outcome outcome = thread.receive(incoming, Deadline::never());
          if (outcome == Outcome::finished) return;
          if (outcome == Outcome::ok) handler(thread, incoming);
        }
      });
    }
  }
  ~Server() {
    port.close();
    for (std::thread& thread : threads_) thread.join();
  }

  Port port;

 private:
  std::vector<std::thread> threads_;
};

// Longer than anything takes that must happen.
inline Deadline before_long() { return Deadline::after(std::chrono::seconds(20)); }

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}
inline std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A call that must succeed; the reply as text.
inline std::string ask(Client& client, std::string_view question) {
  std::vector<std::byte> buffer(question.size() + 100);
  CallResults results;
  results.buffer = buffer;
  const Outcome outcome = client.call({.data = bytes_of(question), .descriptors = {}}, results,
                                      Deadline::after(std::chrono::seconds(20)));
  EXPECT_EQ(outcome, Outcome::ok) << to_string(outcome);
  return text_of(results.data);
}

}  // namespace farcall::test
