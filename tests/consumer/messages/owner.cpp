// SPDX-License-Identifier: Apache-2.0
// A channel with an owner, and a thread that sends to it.
#include <array>
#include <cctype>
#include <cstddef>
#include <farcall/message.hpp>
#include <iostream>
#include <span>
#include <string_view>
#include <thread>

int main() {
  const farcall::MessageChannel channel;
  const farcall::MessageConnection connection = channel.connect();
  std::thread server([&] {
    std::array<std::byte, 100> buffer{};
    int pulses = 0;
    for (;;) {
      farcall::ReceivedMessage message = channel.receive(buffer);
      if (!message) {
        ++pulses;
        continue;
      }
      const auto text = std::span(buffer).first(message.info().received);
      for (std::byte& letter : text) letter = std::byte(std::toupper(static_cast<int>(letter)));
      message.reply(text, pulses);
      return;
    }
  });
  for (int i = 0; i < 3; ++i) connection.pulse(1);
  constexpr std::string_view kText = "hello";
  std::array<std::byte, 100> room{};
  const auto reply = connection.send(std::as_bytes(std::span(kText)), room);
  server.join();
  std::cout << std::string_view(reinterpret_cast<const char*>(reply.data.data()), reply.data.size())
            << ", " << reply.status << " pulses\n";
}
