// SPDX-License-Identifier: Apache-2.0
//
// The interface for C++20, as an installation has it.
#include <farcall/door.hpp>
#include <iostream>

int main() {
  const farcall::Door door =
      farcall::Door::create([](farcall::DoorRequest& request, farcall::DoorReply& reply) {
        reply.write(request.text());
        reply.write(", owned");
      });
  std::cout << door.call("called").text() << std::endl;
}
