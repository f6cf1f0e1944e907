// SPDX-License-Identifier: Apache-2.0
//
// Names that programs give, sockets that pass for connections, and what may answer under a name.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "door/fuzz/input.hpp"
#include "farcall/error.hpp"
#include "farcall/message.h"
#include "message/engine.hpp"
#include "message/names.hpp"
#include "message/shared.hpp"

namespace {

using namespace farcall;
using namespace farcall::message;
using farcall::door::fuzz::Input;
using farcall::door::fuzz::require;

std::string text(Input& input) {
  const auto bytes = input.piece(input.number<std::uint8_t>() % 120);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void name(Input& input) {
  const std::string wanted = text(input);
  try {
    const std::string full = own_name(wanted);
    require(full == std::to_string(::geteuid()) + "/" + wanted);
    require(wanted.find('/') == std::string::npos && wanted.size() <= FARCALL_NAME_MAX);
  } catch (const SystemError& error) {
    require(error.code().value() == EINVAL || error.code().value() == ENAMETOOLONG);
  }
  try {
    for (const std::string& full : full_names(wanted)) {
      const std::size_t slash = full.find('/');
      require(slash != 0 && slash != std::string::npos && slash + 1 < full.size());
      require(full.find_first_not_of("0123456789") == slash);
      for (const char c : full) require(static_cast<unsigned char>(c) > ' ');
    }
  } catch (const SystemError& error) {
    require(error.code().value() == EINVAL || error.code().value() == ENAMETOOLONG);
  }
}

// Bound to a name that begins as one of ours, or not.
void connection(Input& input) {
  std::string bound = input.number<std::uint8_t>() % 4 == 0 ? "" : std::string(kConnectionPrefix);
  bound += text(input);
  if (bound.empty() || bound.size() > AbstractAddress::kLongest) return;
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const AbstractAddress address(bound);
  if (::bind(fd.get(), address.get(), address.size()) != 0) return;
  const bool ours = bound.starts_with(kConnectionPrefix);
  const auto adopted = shared_engine().adopt(fd);
  require((adopted == nullptr) == static_cast<bool>(fd));
  require(ours || adopted == nullptr);
  if (adopted) adopted->close();
}

void answer_of_a_name(Input input) {
  static const std::string name = "fuzz-" + std::to_string(::getpid());
  static const UniqueFd listener = listen_at(kOpenPrefix, own_name(name));
  const auto flags = input.number<std::uint8_t>();
  const std::string bytes = text(input);
  std::thread server([&] {
    pollfd ready{.fd = listener.get(), .events = POLLIN, .revents = 0};
    (void)::poll(&ready, 1, 1000);
    const UniqueFd client = UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!client) return;
    try {
      if ((flags & 1U) != 0) {
        FdMessage fd_message;
        fd_message.bytes.resize(bytes.size());
        if (!bytes.empty()) std::memcpy(fd_message.bytes.data(), bytes.data(), bytes.size());
        for (unsigned i = 0; i < flags >> 6U; ++i)
          fd_message.descriptors.emplace_back(::dup(listener.get()));
        send_fd_message(client.get(), fd_message);
      } else {
        (void)!::send(client.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      }
    } catch (const SystemError&) {  // NOLINT(bugprone-empty-catch): it has gone
    }
  });
  try {
    const auto opened =
        shared_engine().open(name, Deadline::after(std::chrono::seconds(2)), SignalCount::now());
    require(false);
  } catch (const SystemError& error) {
    require(error.code().value() > 0 && error.code().value() < 134);
  }
  server.join();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  switch (input.number<std::uint8_t>() % 3) {
    case 0: name(input); break;
    case 1: connection(input); break;
    default: answer_of_a_name(input);
  }
  return 0;
}
