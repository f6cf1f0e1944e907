// SPDX-License-Identifier: Apache-2.0
//
// The C functions of those who serve calls.
#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "c/translate.hpp"
#include "farcall/door.hpp"
#include "farcall/error.hpp"
#include "farcall/farcall.h"

namespace farcall::c {
namespace {

constexpr mode_t kOwnUser = 0600;

// What a program's procedure is called with. Shared by the door and the calls in progress.
struct Context {
  explicit Context(void* given) noexcept : pointer(given) {}
  ~Context() {
    if (release != nullptr) release(pointer);
  }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  void* const pointer;
  void (*release)(void*) = nullptr;
};

struct Failed {};  // thrown: the call ends without an answer

struct Server {
  Door door;
  AttachedDoor name;
};

// What programs have of these is a pointer to a type that nobody knows.
Server* of(farcall_server* handle) noexcept { return reinterpret_cast<Server*>(handle); }
DoorReply& of(farcall_call_reply* handle) noexcept { return *reinterpret_cast<DoorReply*>(handle); }

farcall_server* serve(const char* path, farcall_procedure procedure, void* given,
                      const farcall_server_options& options) {
  const auto context = std::make_shared<Context>(given);
  Door door = Door::create(
      [procedure, context](const DoorRequest& request, DoorReply& reply) {
        const auto data = request.data();
        auto* const handle = reinterpret_cast<farcall_call_reply*>(&reply);
        if (procedure(context->pointer, data.data(), data.size(), handle) != 0) throw Failed();
      },
      {.attributes = DOOR_REFUSE_DESC});
  if (options.longest != 0) door.set_limit(DOOR_PARAM_DATA_MAX, options.longest);
  AttachedDoor name(door, path, options.mode == 0 ? kOwnUser : options.mode);
  std::unique_ptr<Server> server(new Server{std::move(door), std::move(name)});
  context->release = options.release;  // where nothing is served it stays the caller's
  return reinterpret_cast<farcall_server*>(server.release());
}

}  // namespace
}  // namespace farcall::c

using namespace farcall;  // C functions follow
using namespace farcall::c;

int farcall_server_create(const char* path, farcall_procedure procedure, void* context,
                          const farcall_server_options* options, farcall_server** server) {
  return guarded([&] {
    const farcall_server_options known = known_options(options);
    if (path == nullptr || *path == '\0' || procedure == nullptr || server == nullptr ||
        (known.mode & ~mode_t{0777}) != 0)
      return -EINVAL;
    try {
      *server = serve(path, procedure, context, known);
    } catch (const DoorError& error) {
      if (error.code().value() == EBUSY) return -EADDRINUSE;
      throw;
    }
    return 0;
  });
}

void farcall_server_close(farcall_server* server) {
  guarded([&] {
    delete of(server);
    return 0;
  });
}

int farcall_reply_write(farcall_call_reply* reply, const void* bytes, size_t size) {
  return translated([&] {
    if (reply == nullptr) return -EINVAL;
    check_buffer(bytes, size);
    of(reply).write(std::span(static_cast<const std::byte*>(bytes), size));
    return 0;
  });
}

int farcall_caller_get(farcall_caller* caller) {
  return guarded([&] {
    const DoorCaller found = DoorRequest::caller();
    fill_in(
        caller,
        {.size = 0, .pid = found.pid, .uid = found.effective_user, .gid = found.effective_group});
    return 0;
  });
}
