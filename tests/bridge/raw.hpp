// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "bridge/harness.hpp"

namespace farcall::test {

// A client of NATS that sends what it likes.
class Raw {
 public:
  explicit Raw(int port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
    address.sin_port = ::htons(static_cast<std::uint16_t>(port));
    EXPECT_EQ(::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    send(
        "CONNECT {\"verbose\":false,\"pedantic\":false,\"headers\":true,\"no_responders\":true}"
        "\r\nSUB > 1\r\n");
  }
  ~Raw() { ::close(fd_); }
  Raw(const Raw&) = delete;
  Raw& operator=(const Raw&) = delete;

  void send(const std::string& text) const {
    ASSERT_EQ(::send(fd_, text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }
  void publish(const std::string& subject, const std::string& reply, const std::string& header,
               const std::string& data) const {
    const std::string head = "NATS/1.0\r\nFarcall: " + header + "\r\n\r\n";
    send("HPUB " + subject + " " + reply + (reply.empty() ? "" : " ") +
         std::to_string(head.size()) + " " + std::to_string(head.size() + data.size()) + "\r\n" +
         head + data + "\r\n");
  }
  // Until that has come among what comes; "" where it does not.
  std::string read_until(const std::string& text) const {
    std::string all;
    const bool came = comes_true([&] {
      all += read(5);
      return all.find(text) != std::string::npos;
    });
    return came ? all : std::string();
  }
  // What has come, and answers to the server's pings.
  std::string read(int milliseconds) const {
    std::string all;
    pollfd wanted{.fd = fd_, .events = POLLIN, .revents = 0};
    while (::poll(&wanted, 1, milliseconds) > 0) {
      std::string part(65536, '\0');
      const ssize_t size = ::recv(fd_, part.data(), part.size(), 0);
      if (size <= 0) return all;
      all.append(part, 0, static_cast<std::size_t>(size));
      if (all.find("PING\r\n") != std::string::npos) send("PONG\r\n");
      if (all.size() > (std::size_t{4} << 20)) return all;
    }
    return all;
  }

 private:
  const int fd_;
};

}  // namespace farcall::test
