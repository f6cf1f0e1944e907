// SPDX-License-Identifier: Apache-2.0
//
// The C interface: numbers for objects, errno for exceptions.
#include "farcall/message.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <new>

#include "call/limits.hpp"
#include "farcall/error.hpp"
#include "message/engine.hpp"
#include "message/names.hpp"
#include "message/pending_reply.hpp"
#include "message/priority.hpp"
#include "message/shared.hpp"
#include "message/thread.hpp"
#include "process/background.hpp"
#include "process/process.hpp"

namespace farcall::message {
namespace {

// No exception crosses a C function. A thread that is cancelled does: its stack is unwound.
template <class Result, class Body>
Result translated(Body body) {
  (void)process::generation();
  try {
    return static_cast<Result>(body());
  } catch (const SystemError& error) {
    errno = error.code().value();
  } catch (const MisuseError&) {
    errno = EINVAL;
  } catch (const std::bad_alloc&) {
    errno = ENOMEM;
  } catch (const std::exception&) {
    errno = EIO;
  }
  return static_cast<Result>(-1);
}

// For what waits for others, and is a point of cancellation there.
template <class Result = int, class Body>
Result waiting(Body body) {
  return translated<Result>(body);
}

// For what is quick: it calls nothing that could be cancelled.
template <class Result = int, class Body>
Result quick(Body body) noexcept {
  return translated<Result>(body);
}

// For all else.
template <class Result = int, class Body>
Result guarded(Body body) noexcept {
  const process::NoCancel guard;
  return translated<Result>(body);
}

void check_flags(unsigned flags) {
  constexpr unsigned kKnown = FARCALL_UNBLOCK | FARCALL_DISCONNECT | FARCALL_INHERIT;
  if ((flags & ~kKnown) != 0) throw SystemError(EINVAL, "flags of a channel");
}

void check_length(std::size_t length) {
  if (length > FARCALL_MESSAGE_MAX) throw SystemError(EMSGSIZE, "buffer");
}

iovec one(const void* address, std::size_t length) {
  check_length(length);
  if (address == nullptr && length != 0) throw SystemError(EINVAL, "buffer");
  return {.iov_base = const_cast<void*>(address), .iov_len = length};
}

// Answers, and takes the id away unless the client waits on for a better answer.
template <class Body>
int answer(std::int64_t id, Body body) {
  Use use(id);
  try {
    body(use);
  } catch (const SystemError& error) {
    if (error.code().value() == ESRCH) use.end();
    throw;
  }
  use.end();
  return 0;
}

}  // namespace
}  // namespace farcall::message

using namespace farcall;  // C functions follow
using namespace farcall::message;

int farcall_limits_set(const farcall_limits* limits) { return call::set_limits(limits); }
int farcall_limits_get(farcall_limits* limits) { return call::get_limits(limits); }

int farcall_channel_create(unsigned flags) {
  return guarded([&] {
    check_flags(flags);
    return channels().add(chosen_engine().create({}, flags, 0));
  });
}

int farcall_name_attach(const char* name, unsigned flags, mode_t mode) {
  return guarded([&] {
    check_flags(flags);
    if (name == nullptr || *name == 0 || (mode & ~mode_t{0777}) != 0)
      throw SystemError(EINVAL, "attach a name");
    return channels().add(chosen_engine().create(name, flags, mode));
  });
}

int farcall_channel_destroy(int channel) {
  return guarded([&] {
    const std::shared_ptr<Channel> found = Thread::here().channel(channel).object();
    if (!found->shut()) throw SystemError(EBADF, "no such channel");
    channels().remove(channel);
    Thread::here().forget_recent();
    found->close();
    return 0;
  });
}

int farcall_channel_descriptor(int channel) {
  return guarded([&] { return Thread::here().channel(channel)->descriptor(); });
}

int farcall_name_open(const char* name) {
  const SignalCount now = SignalCount::now();
  return guarded([&] {
    const auto [deadline, since] = Thread::here().take_bound(now);
    if (name == nullptr) throw SystemError(EINVAL, "open a name");
    int error = ENOENT;
    for (Engine* engine : engines()) {
      try {
        return connections().add(engine->open(name, deadline, since));
      } catch (const SystemError& failure) {
        if (failure.code().value() != ENOENT) error = failure.code().value();
        if (error != ENOENT) break;
      }
    }
    throw SystemError(error, "open a name");
  });
}

namespace {

int adopt(UniqueFd descriptor) {
  // A connection may have come from a program that has the other engine.
  if (auto connection = shared_engine().adopt(descriptor))
    return connections().add(std::move(connection));
  if (Engine* kernel = kernel_engine())
    if (auto connection = kernel->adopt(descriptor))
      return connections().add(std::move(connection));
  const int number = descriptor.release();  // it stays the caller's
  throw SystemError(::fcntl(number, F_GETFD) < 0 ? EBADF : EINVAL,
                    "the descriptor is no connection");
}

}  // namespace

int farcall_connect(int channel) {
  return guarded([&] { return adopt(Thread::here().channel(channel)->connect()); });
}

int farcall_adopt(int descriptor) {
  return guarded([&] {
    if (descriptor < 0) throw SystemError(EBADF, "adopt a connection");
    return adopt(UniqueFd(descriptor));
  });
}

int farcall_disconnect(int connection) {
  return guarded([&] {
    const std::shared_ptr<Connection> found = Thread::here().connection(connection).object();
    if (!found->shut()) throw SystemError(EBADF, "no such connection");
    connections().remove(connection);
    Thread::here().forget_recent();
    found->close();
    return 0;
  });
}

int farcall_connection_descriptor(int connection) {
  return guarded([&] { return Thread::here().connection(connection)->descriptor(); });
}

int farcall_send(int connection, const void* message, size_t length, void* reply, size_t room) {
  const SignalCount now = SignalCount::now();
  return waiting([&] {
    Thread& thread = Thread::here();
    const auto [deadline, since] = thread.take_bound(now);
    const iovec out = one(message, length);
    const iovec in = one(reply, room);
    Sending sending{
        .message = Buffers(&out, 1), .room = Buffers(&in, 1), .descriptors = {}, .since = since};
    return thread.connection(connection)->send(sending, deadline);
  });
}

int farcall_sendv(int connection, const struct iovec* message, int count, const struct iovec* reply,
                  int reply_count) {
  const SignalCount now = SignalCount::now();
  return waiting([&] {
    Thread& thread = Thread::here();
    const auto [deadline, since] = thread.take_bound(now);
    Sending sending{.message = checked(message, count),
                    .room = checked(reply, reply_count),
                    .descriptors = {},
                    .since = since};
    return thread.connection(connection)->send(sending, deadline);
  });
}

int farcall_send_message(int connection, struct farcall_message* message) {
  const SignalCount now = SignalCount::now();
  return waiting([&] {
    Thread& thread = Thread::here();
    const auto [deadline, since] = thread.take_bound(now);
    if (message == nullptr || (message->flags & ~FARCALL_KEEP_WAITING) != 0 ||
        message->descriptor_count > FARCALL_DESCRIPTORS ||
        (message->descriptors == nullptr && message->descriptor_count != 0))
      throw SystemError(EINVAL, "a message");
    Sending sending{.message = checked(message->send, message->send_count),
                    .room = checked(message->reply, message->reply_count),
                    .descriptors = {message->descriptors, message->descriptor_count},
                    .keep_waiting = (message->flags & FARCALL_KEEP_WAITING) != 0,
                    .since = since};
    const int status = thread.connection(connection)->send(sending, deadline);
    message->replied = sending.replied;
    return status;
  });
}

int farcall_send_one_way(int connection, const void* message, size_t length) {
  const SignalCount now = SignalCount::now();
  return waiting([&] {
    Thread& thread = Thread::here();
    const auto [deadline, since] = thread.take_bound(now);
    const iovec out = one(message, length);
    Sending sending{.message = Buffers(&out, 1),
                    .room = {},
                    .descriptors = {},
                    .one_way = true,
                    .since = since};
    return thread.connection(connection)->send(sending, deadline);
  });
}

int64_t farcall_receive(int channel, void* buffer, size_t length, struct farcall_info* info) {
  const SignalCount now = SignalCount::now();
  return waiting<std::int64_t>([&] {
    Thread& thread = Thread::here();
    const auto [deadline, since] = thread.take_bound(now);
    const iovec into = one(buffer, length);
    return thread.channel(channel)->receive(Buffers(&into, 1), deadline, info, since);
  });
}

int64_t farcall_receivev(int channel, const struct iovec* buffers, int count,
                         struct farcall_info* info) {
  const SignalCount now = SignalCount::now();
  return waiting<std::int64_t>([&] {
    Thread& thread = Thread::here();
    const auto [deadline, since] = thread.take_bound(now);
    return thread.channel(channel)->receive(checked(buffers, count), deadline, info, since);
  });
}

int farcall_drop_descriptors(struct farcall_info* info) {
  return guarded([&] {
    if (info == nullptr || info->descriptor_count > FARCALL_DESCRIPTORS)
      throw SystemError(EINVAL, "descriptors");
    for (unsigned i = 0; i < info->descriptor_count; ++i)
      process::close_later(info->uid, UniqueFd(info->descriptors[i]));
    info->descriptor_count = 0;
    return 0;
  });
}

int farcall_reply(int64_t id, int status, const void* reply, size_t length) {
  return quick([&] {
    const iovec data = one(reply, length);
    if (status < 0) throw SystemError(EINVAL, "a status below 0");
    return answer(id, [&](Use& use) { use->reply(status, 0, Buffers(&data, 1), false); });
  });
}

int farcall_replyv(int64_t id, int status, const struct iovec* reply, int count) {
  return quick([&] {
    const Buffers data = checked(reply, count);
    if (status < 0) throw SystemError(EINVAL, "a status below 0");
    return answer(id, [&](Use& use) { use->reply(status, 0, data, false); });
  });
}

int farcall_error(int64_t id, int error) {
  return quick([&] {
    if (error < 1 || error > EHWPOISON) throw SystemError(EINVAL, "not an errno");
    return answer(id, [&](Use& use) { use->reply(0, error, {}, false); });
  });
}

int64_t farcall_reply_receive(int64_t id, int status, const void* reply, size_t length, int channel,
                              void* buffer, size_t size, struct farcall_info* info) {
  const SignalCount now = SignalCount::now();
  return waiting<std::int64_t>([&] {
    Thread& thread = Thread::here();
    const auto [deadline, since] = thread.take_bound(now);
    const iovec data = one(reply, length);
    const iovec into = one(buffer, size);
    if (status < 0) throw SystemError(EINVAL, "a status below 0");
    return thread.channel(channel)->reply_receive(id, status, Buffers(&data, 1), Buffers(&into, 1),
                                                  deadline, info, since);
  });
}

ssize_t farcall_read(int64_t id, size_t offset, void* to, size_t length) {
  return quick<ssize_t>([&] {
    const iovec into = one(to, length);
    return Use(id)->read(offset, Buffers(&into, 1));
  });
}

ssize_t farcall_readv(int64_t id, size_t offset, const struct iovec* to, int count) {
  return quick<ssize_t>([&] { return Use(id)->read(offset, checked(to, count)); });
}

ssize_t farcall_write(int64_t id, size_t offset, const void* from, size_t length) {
  return quick<ssize_t>([&] {
    const iovec data = one(from, length);
    return Use(id)->write(offset, Buffers(&data, 1));
  });
}

ssize_t farcall_writev(int64_t id, size_t offset, const struct iovec* from, int count) {
  return quick<ssize_t>([&] { return Use(id)->write(offset, checked(from, count)); });
}

int farcall_pulse(int connection, int priority, int code, int64_t value) {
  return guarded([&] {
    const int error =
        code < 0 || priority < 0 ? EINVAL : send_pulse(connection, priority, code, value);
    if (error != 0) errno = error;
    return error == 0 ? 0 : -1;
  });
}

int farcall_watch_death(int connection, int channel, int64_t value) {
  return guarded([&] {
    Thread& thread = Thread::here();
    const std::shared_ptr<Channel> told = thread.channel(channel).object();
    thread.connection(connection)->watch_death(told, value);
    return 0;
  });
}

void farcall_caught_signal() { note_signal(); }

int farcall_timeout(int64_t nanoseconds) {
  return quick([&] {
    Thread::here().set_timeout(nanoseconds);
    return 0;
  });
}

namespace {

ssize_t hand_out(const std::string& text, char* buffer, std::size_t size) {
  if (buffer != nullptr) std::ranges::copy(text.substr(0, size), buffer);
  return static_cast<ssize_t>(text.size());
}

}  // namespace

ssize_t farcall_channel_names(char* buffer, size_t size) {
  return guarded<ssize_t>([&] {
    std::string text;
    for (const std::string& name : all_names()) text += name + "\n";
    return hand_out(text, buffer, size);
  });
}

ssize_t farcall_channel_status(const char* full_name, char* buffer, size_t size) {
  return guarded<ssize_t>([&] {
    if (full_name == nullptr) throw SystemError(EINVAL, "a channel's status");
    return hand_out(ask_status(full_name), buffer, size);
  });
}

int farcall_priority(void) { return own_priority(); }

int farcall_priority_changed(void) {
  priority_changed();
  return 0;
}

const char* farcall_engine(void) {
  try {
    return chosen_engine().name();
  } catch (const SystemError& error) {
    errno = error.code().value();
    return nullptr;
  }
}
