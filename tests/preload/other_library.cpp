// SPDX-License-Identifier: Apache-2.0
//
// Another library that stands in front of the C library: it notes what it is asked for, and passes
// it on.
#include <dlfcn.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdarg>

namespace {

int asked = 0;

template <class Function>
Function* next(const char* name, int bit) {
  asked |= 1 << bit;
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

int other_library_asked() { return asked; }

int socket(int family, int type, int protocol) {
  return next<int(int, int, int)>("socket", 0)(family, type, protocol);
}
int bind(int fd, const sockaddr* address, socklen_t size) {
  return next<int(int, const sockaddr*, socklen_t)>("bind", 1)(fd, address, size);
}
int close(int fd) { return next<int(int)>("close", 2)(fd); }
int setsockopt(int fd, int level, int option, const void* value, socklen_t size) {
  return next<int(int, int, int, const void*, socklen_t)>("setsockopt", 3)(fd, level, option, value,
                                                                           size);
}
int fcntl(int fd, int command, ...) {
  va_list list;
  va_start(list, command);
  const unsigned long argument = va_arg(list, unsigned long);
  va_end(list);
  return next<int(int, int, ...)>("fcntl", 4)(fd, command, argument);
}
int dup(int fd) { return next<int(int)>("dup", 5)(fd); }
int shutdown(int fd, int how) { return next<int(int, int)>("shutdown", 6)(fd, how); }
int epoll_ctl(int set, int operation, int fd, epoll_event* event) {
  return next<int(int, int, int, epoll_event*)>("epoll_ctl", 7)(set, operation, fd, event);
}

}  // extern "C"
