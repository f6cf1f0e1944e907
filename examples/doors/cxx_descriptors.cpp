// SPDX-License-Identifier: Apache-2.0
//
// Descriptors have owners on both sides: the client hands over the writing end of a pipe, and gets
// a door in return, made for it alone.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <farcall/door.hpp>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>

using namespace farcall;

namespace {

// Counters by name, each behind a door of its own, made when it is first asked for.
class Counters {
 public:
  void open(DoorRequest& request, DoorReply& reply) {
    const std::lock_guard guard(lock_);
    const std::string name(request.text());
    auto found = counters_.find(name);
    if (found == counters_.end()) {
      Door counter = Door::create(
          [value = std::make_shared<std::atomic<int>>(0)](DoorRequest&, DoorReply& next) {
            next.write(std::to_string(++*value));
          });
      found = counters_.emplace(name, std::move(counter)).first;
    }
    reply.pass(found->second.get());  // the client gets a duplicate
    for (const DoorDescriptor& log : request.descriptors()) {
      const std::string line = "opened " + name + "\n";
      if (::write(log.get(), line.data(), line.size()) < 0) throw std::runtime_error("log");
    }
  }

 private:
  std::mutex lock_;  // protects `counters_`
  std::map<std::string, Door> counters_;
};

void be_client(const Door& counters) {
  std::array<int, 2> log{};
  if (::pipe(log.data()) != 0) throw std::runtime_error("pipe");
  DoorResult opened = counters.call("apples", std::array{log[1]});
  const Door apples = Door::adopt(opened.descriptors().at(0).release());
  apples.call("");
  std::cout << "apples: " << apples.call("").text() << std::endl;

  std::array<char, 100> line{};
  const auto length = ::read(log[0], line.data(), line.size());
  std::cout << std::string_view(line.data(), static_cast<std::size_t>(length)) << std::flush;
}

}  // namespace

int main() try {
  Counters counters;
  const Door door =
      Door::create([&](DoorRequest& request, DoorReply& reply) { counters.open(request, reply); });
  const pid_t client = ::fork();
  if (client == 0) {
    be_client(door);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(client, &status, 0);
  return status;
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
