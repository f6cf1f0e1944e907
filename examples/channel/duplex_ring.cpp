// SPDX-License-Identifier: Apache-2.0
//
// Questions and answers with a child, as messages through two rings.
#include <algorithm>
#include <array>
#include <iostream>
#include <span>
#include <string_view>

#include "farcall/channel/ring.hpp"
#include "farcall/channel/subprocess.hpp"

using namespace farcall::channel;

int main() {
  auto [child, end] = spawn(Duplex<Ring>(), [](DuplexEnd there) {
    std::array<std::byte, 64> message;
    while (const auto size = there.reader->receive(message)) {
      const std::span answer = std::span(message).first(*size);
      std::reverse(answer.begin(), answer.end());
      there.writer->send(answer);
    }
    return 0;
  });

  for (const std::string_view word : {"stressed", "drawer"}) {
    end.writer->send(std::as_bytes(std::span(word)));
    std::array<char, 64> answer;
    const auto size = end.reader->receive(std::as_writable_bytes(std::span(answer)));
    std::cout << word << " " << std::string_view(answer.data(), size.value()) << "\n";
  }
  end.writer->finish();
  return child.wait().success() ? 0 : 1;
}
