// SPDX-License-Identifier: Apache-2.0
//
// Two programs that know nothing of each other but a name:
//
//   channel-by-name read NAME &
//   channel-by-name write NAME TEXT
#include <chrono>
#include <iostream>
#include <iterator>
#include <string>
#include <string_view>

#include "farcall/channel/ring.hpp"

using farcall::Deadline;
using namespace farcall::channel;

int main(int argc, char** argv) try {
  const std::string_view role = argc > 2 ? argv[1] : "";
  const Deadline deadline = Deadline::after(std::chrono::seconds(10));

  if (role == "read" && argc == 3) {
    const auto reader = Channel<Ring>::serve_reader(argv[2], {}, deadline);
    const std::string all{std::istreambuf_iterator<char>(reader.get()), {}};
    std::cout << "somebody wrote: " << all << "\n";
  } else if (role == "write" && argc == 4) {
    const auto writer = Channel<Ring>::open_writer(argv[2], {}, deadline);
    std::ostream(writer.get()) << argv[3];
    writer->finish();
  } else {
    std::cerr << "usage: " << argv[0] << " read NAME | write NAME TEXT\n";
    return 2;
  }
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
