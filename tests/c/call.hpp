// SPDX-License-Identifier: Apache-2.0
//
// Servers and clients for tests of the C interface.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <functional>

#include "c/pipe.hpp"
#include "harness/sandbox.hpp"

namespace farcall::c::test {

struct CloseServer {
  void operator()(farcall_server* server) const noexcept { farcall_server_close(server); }
};
struct CloseClient {
  void operator()(farcall_client* client) const noexcept { farcall_client_close(client); }
};
using Server = std::unique_ptr<farcall_server, CloseServer>;
using Client = std::unique_ptr<farcall_client, CloseClient>;

// With what is usual, but for what `set` changes.
template <class T, class Set>
T with(Set set) {
  T options{};
  options.size = sizeof options;
  set(options);
  return options;
}
template <class T>
T usual() {
  return with<T>([](T&) {});
}
template <class Set>
farcall_call_options calling(Set set) {
  return with<farcall_call_options>(set);
}
template <class Set>
farcall_server_options serving(Set set) {
  return with<farcall_server_options>(set);
}

using Procedure = std::function<int(std::string_view request, farcall_call_reply* reply)>;

inline int run(void* context, const void* request, std::size_t size, farcall_call_reply* reply) {
  return (*static_cast<Procedure*>(context))({static_cast<const char*>(request), size}, reply);
}
inline int write(farcall_call_reply* reply, std::string_view text) {
  return farcall_reply_write(reply, text.data(), text.size());
}
inline int send_back(std::string_view request, farcall_call_reply* reply) {
  return write(reply, "<") + write(reply, request) + write(reply, ">");
}

inline Server serve(const std::string& path, Procedure procedure,
                    farcall_server_options options = usual<farcall_server_options>()) {
  if (options.release == nullptr)
    options.release = [](void* context) { delete static_cast<Procedure*>(context); };
  auto* const context = new Procedure(std::move(procedure));
  farcall_server* server = nullptr;
  const int error = farcall_server_create(path.c_str(), run, context, &options, &server);
  EXPECT_EQ(error, 0) << ::strerror(-error);
  return Server(server);
}
// Until the process is killed. That a call has come `happens`.
inline void serve_without_an_answer(const std::string& path, Event& called) {
  const Server server = serve(path, [&](std::string_view, farcall_call_reply*) {
    called.happens();
    ::pause();
    return 0;
  });
  ::pause();
}
inline Client open(const std::string& path, std::int64_t timeout = kLong) {
  farcall_client* client = nullptr;
  const int error = farcall_client_open(path.c_str(), timeout, &client);
  EXPECT_EQ(error, 0) << ::strerror(-error);
  return Client(client);
}

// The reply, or the symbolic name of the error.
inline std::string call(const Client& client, std::string_view request,
                        farcall_call_options options = usual<farcall_call_options>()) {
  if (options.timeout == 0) options.timeout = kLong;
  char room[64];
  auto answer = usual<farcall_answer>();
  answer.bytes = room;
  answer.room = sizeof room;
  const int error =
      farcall_client_call(client.get(), request.data(), request.size(), &answer, &options);
  if (error != 0) return ::strerrorname_np(-error);
  std::string text(static_cast<const char*>(answer.bytes), answer.length);
  farcall_answer_free(&answer);
  return text;
}

struct CCall : ::testing::Test {
  const Sandbox sandbox;
  const std::string path = sandbox.path() + "/called";
};

}  // namespace farcall::c::test
