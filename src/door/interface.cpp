// SPDX-License-Identifier: Apache-2.0
//
// The functions of <door.h> that make doors and ask what they are.
#include <door.h>

#include <cerrno>

#include "door/door.hpp"
#include "door/pages.hpp"
#include "door/real.hpp"
#include "door/server.hpp"
#include "farcall/error.hpp"

// Programs, and other languages' bindings, rest on these.
static_assert(sizeof(door_desc_t) == 24 && alignof(door_desc_t) == 4);
static_assert(offsetof(door_desc_t, d_data) == 4);
static_assert(offsetof(door_desc_t, d_data.d_desc.d_id) == 8);
static_assert(sizeof(door_info_t) == 48 && alignof(door_info_t) == 4);
static_assert(offsetof(door_info_t, di_proc) == 4 && offsetof(door_info_t, di_data) == 12);
static_assert(offsetof(door_info_t, di_attributes) == 20);
static_assert(offsetof(door_info_t, di_uniquifier) == 24 && offsetof(door_info_t, di_resv) == 32);
static_assert(sizeof(door_arg_t) == 48 && alignof(door_arg_t) == 8);
static_assert(offsetof(door_arg_t, data_size) == 8 && offsetof(door_arg_t, desc_ptr) == 16);
static_assert(offsetof(door_arg_t, desc_num) == 24 && offsetof(door_arg_t, rbuf) == 32);
static_assert(offsetof(door_arg_t, rsize) == 40);
static_assert(sizeof(door_cred_t) == 36);

namespace farcall::door {
namespace {

constexpr unsigned kCreateAttributes =
    DOOR_UNREF | DOOR_PRIVATE | DOOR_UNREF_MULTI | DOOR_REFUSE_DESC | DOOR_NO_CANCEL;

bool may_be_ordered(const OwnDoor::Order& order, unsigned allowed) noexcept {
  constexpr unsigned kEither = DOOR_UNREF | DOOR_UNREF_MULTI;
  return order.procedure != nullptr && (order.attributes & ~allowed) == 0 &&
         (order.attributes & kEither) != kEither;
}

int create(const OwnDoor::Order& order, std::shared_ptr<OwnDoor>& door) {
  const NoCancel guard;
  return guarded([&] { return engine().create(order, door); });
}

// Throws nothing but what asks the server.
int checked(int d, int param, std::shared_ptr<AnyDoor>& door) {
  door = door_behind(d);
  if (!door) return EBADF;
  return param == DOOR_PARAM_DESC_MAX || param == DOOR_PARAM_DATA_MAX ||
                 param == DOOR_PARAM_DATA_MIN
             ? 0
             : EINVAL;
}

int result_of(int error) noexcept { return error == 0 ? 0 : fail(error); }

// Nobody is to call it any more, and `d` is closed.
int revoke(int d, AnyDoor& door) {
  if (const int error = door.revoke(d); error != 0) return fail(error);
  return closing(d, [d] { return real::close(d); });
}

// A door that cannot be served is none: its callers would wait for ever.
int give_up(int d, int error) {
  const NoCancel guard;
  (void)guarded([&] { return revoke(d, *door_behind(d)); });
  return fail(error);
}

// The first shared door of a process has a thread made. Whether a function of the program's makes
// one is not known. Returns 0 or an errno value.
int start_shared_pool() {
  Process& process = Process::here();
  door_server_func_t* const create_thread = Process::create_thread.load();
  if (create_thread != create_default_thread) {
    if (process.first_shared_door()) create_thread(nullptr);
    return 0;
  }
  const NoCancel no_cancel;
  const std::lock_guard guard(process.starting);
  if (!process.first_shared_door()) return 0;
  const int result = guarded([] { return start_first_thread(); });
  const int error = result < 0 ? errno : result;
  if (error != 0) process.forget_first_shared_door();
  return error;
}

}  // namespace
}  // namespace farcall::door

using namespace farcall::door;  // what follows is C's

extern "C" {

int door_limits_set(const farcall_limits* limits) { return farcall::call::set_limits(limits); }
int door_limits_get(farcall_limits* limits) { return farcall::call::get_limits(limits); }

int door_create(door_server_procedure_t* procedure, void* cookie, uint_t attributes) {
  const OwnDoor::Order order{.procedure = procedure, .cookie = cookie, .attributes = attributes};
  if (!may_be_ordered(order, kCreateAttributes)) return fail(EINVAL);
  std::shared_ptr<OwnDoor> door;
  const int fd = create(order, door);
  if (fd < 0) return -1;
  if (door) {
    Process::create_thread.load()(door->lasting_info());
    return fd;
  }
  const int error = start_shared_pool();
  return error == 0 ? fd : give_up(fd, error);
}

int door_xcreate(door_server_procedure_t* procedure, void* cookie, uint_t attributes,
                 door_xcreate_server_func_t* create_thread, door_xcreate_thrsetup_func_t* set_up,
                 void* create_cookie, int nthread) {
  OwnDoor::Order order{
      .procedure = procedure,
      .cookie = cookie,
      .attributes = attributes,
      .maker = {.create = create_thread, .set_up = set_up, .cookie = create_cookie}};
  if (!may_be_ordered(order, kCreateAttributes | DOOR_NO_DEPLETION_CB) || nthread < 1 ||
      create_thread == nullptr)
    return fail(EINVAL);
  order.attributes = (attributes & ~unsigned{DOOR_NO_DEPLETION_CB}) | DOOR_PRIVATE;
  if ((attributes & DOOR_NO_DEPLETION_CB) == 0) order.attributes |= DOOR_DEPLETION_CB;
  std::shared_ptr<OwnDoor> door;
  const int fd = create(order, door);
  if (fd < 0) return -1;
  const int error = start_bound_threads(door, nthread);
  return error == 0 ? fd : give_up(fd, error);
}

int door_revoke(int d) {
  const NoCancel guard;
  return guarded([&] {
    const auto door = door_behind(d);
    return door ? revoke(d, *door) : fail(EBADF);
  });
}

int door_info(int d, door_info_t* info) {
  const NoCancel guard;
  return guarded([&] {
    door_info_t found;
    if (d == DOOR_QUERY) {
      const auto door = bound_door();
      if (!door) return fail(EBADF);
      found = door->info();
    } else {
      const auto door = door_behind(d);
      if (const int error = door ? door->info(d, found) : EBADF; error != 0) return fail(error);
    }
    if (!writable(info, sizeof *info)) return fail(EFAULT);
    *info = found;
    return 0;
  });
}

int door_getparam(int d, int param, size_t* value) {
  const NoCancel guard;
  return guarded([&] {
    std::shared_ptr<AnyDoor> door;
    std::uint64_t found = 0;
    int error = checked(d, param, door);
    if (error == 0) error = door->param(d, param, found);
    if (error == 0 && !writable(value, sizeof *value)) error = EFAULT;
    if (error == 0) *value = found;
    return result_of(error);
  });
}

int door_setparam(int d, int param, size_t value) {
  const NoCancel guard;
  return guarded([&] {
    std::shared_ptr<AnyDoor> door;
    // Whose it is comes before what is wrong with it.
    if (checked(d, param, door) == EBADF) return fail(EBADF);
    return result_of(door->set_param(d, param, value));
  });
}

}  // extern "C"
