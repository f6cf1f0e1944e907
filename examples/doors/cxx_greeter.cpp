// SPDX-License-Identifier: Apache-2.0
//
// Doors for C++: the server procedure is any callable, replies own what they hold, failures are
// exceptions, and names go with what attached them: cxx_greeter PATH
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <farcall/door.hpp>
#include <iostream>
#include <stdexcept>
#include <string>

using farcall::Door;

namespace {

void be_client(const std::string& path) {
  const Door door = Door::open(path);
  for (const char* name : {"Ada", "Grace"}) std::cout << door.call(name).text() << std::endl;
  try {
    door.call("nobody");
  } catch (const farcall::DoorError& error) {
    std::cout << (error.code().value() == EINTR ? "no answer" : error.what()) << std::endl;
  }
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string path = argc > 1 ? argv[1] : "greeter.door";
  std::atomic<int> calls{0};
  const Door door = Door::create([&](farcall::DoorRequest& request, farcall::DoorReply& reply) {
    ++calls;
    if (request.text() == "nobody") throw std::invalid_argument("nobody to greet");
    reply.write("hello, ");
    reply.write(request.text());
  });
  const farcall::AttachedDoor name(door, path);  // makes the file where there is none

  const pid_t client = ::fork();
  if (client == 0) {
    be_client(path);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(client, &status, 0);
  std::cout << calls << " calls" << std::endl;
  return status;
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
