// SPDX-License-Identifier: Apache-2.0
//
// A child writes to a pipe, this process reads it, both as ordinary C++ streams.
#include <iostream>
#include <string>

#include "farcall/channel/pipe.hpp"
#include "farcall/channel/subprocess.hpp"

using namespace farcall::channel;

int main() {
  auto [child, reader] = spawn_writer(Channel<Pipe>(), [](Writer& writer) {
    std::ostream out(&writer);
    out << "6 x 7 = " << 6 * 7 << "\n";
    return 0;
  });

  std::istream in(reader.get());
  for (std::string line; std::getline(in, line);) std::cout << line << "\n";

  const ExitStatus status = child.wait();
  std::cout << "the child " << status.describe() << "\n";
  return status.success() ? 0 : 1;
}
