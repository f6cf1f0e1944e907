// SPDX-License-Identifier: Apache-2.0
// Bytes to and fro between Thrift's transports.
#include <unistd.h>

#include <cstdint>
#include <farcall/thrift/transport.hpp>
#include <iostream>
#include <memory>
#include <string>
#include <thread>

int main() {
  const std::string name = "consumer-thrift-" + std::to_string(::getpid());
  farcall::thrift::TFarcallServerTransport listener(name);
  listener.listen();
  std::thread server([&] {
    const std::shared_ptr<apache::thrift::transport::TTransport> line = listener.accept();
    std::uint8_t bytes[5];
    line->readAll(bytes, sizeof bytes);
    line->readEnd();
    line->write(bytes, sizeof bytes);
    line->flush();
    line->close();
  });
  farcall::thrift::TFarcallTransport client(name);
  client.open();
  const std::string text = "hello";
  client.write(reinterpret_cast<const std::uint8_t*>(text.data()), 5);
  client.flush();
  std::uint8_t bytes[5];
  client.readAll(bytes, sizeof bytes);
  std::cout << std::string(bytes, bytes + sizeof bytes) << '\n';
  client.close();
  server.join();
}
