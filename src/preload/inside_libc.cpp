// SPDX-License-Identifier: Apache-2.0
//
// Hooks: what the C library, liburing or their threads read and write inside themselves. Such a
// socket must be the kernel's before.
#include <aio.h>
#include <dlfcn.h>
#include <stdio.h>

#include <cstdarg>

#include "preload/address.hpp"
#include "preload/hooked_call.hpp"
#include "preload/privilege.hpp"
#include "preload/real.hpp"
#include "preload/udp/udp.hpp"

namespace farcall::preload {
namespace {

// A library that the program has opened for itself is not behind this one; but it is loaded.
template <real::Symbol kSymbol, class Function>
Function* of_uring() noexcept {
  if (Function* const known = real::next<kSymbol, Function>()) return known;
  for (const char* const name : {"liburing.so.2", "liburing.so.1"})
    if (void* const library = ::dlopen(name, RTLD_LAZY | RTLD_NOLOAD)) {
      void* const found = ::dlsym(library, kSymbol.name);
      ::dlclose(library);
      if (found != nullptr) return reinterpret_cast<Function*>(found);
    }
  return nullptr;
}

// What goes through such a ring is not seen here, see uring.hpp. liburing asks the kernel for it
// without the C library, but is itself called by the program. Its functions return the negative
// errno.
template <class Function, class... Arguments>
int set_up_uring(Function* function, Arguments... arguments) {
  if (function == nullptr) return -ENOSYS;
  const int result = function(arguments...);
  if (result >= 0) leave_for_good();
  return result;
}

}  // namespace
}  // namespace farcall::preload

using namespace farcall::preload;

extern "C" {

// Streams are read, written and closed inside the C library; the number may be that of another file
// afterwards.
FILE* fdopen(int fd, const char* mode) {
  leave_socket(fd);
  FILE* const stream = real::next<"fdopen", FILE*(int, const char*)>()(fd, mode);
  if (stream != nullptr && in_own_process()) {
    const int error = errno;
    release(forget(fd), Ending::goes_on);
    udp_forget(fd);
    errno = error;
  }
  return stream;
}

// Read and written by threads of the C library.
int aio_read(aiocb* request) {
  if (!is_no_address(request)) leave_socket(request->aio_fildes);
  return real::next<"aio_read", int(aiocb*)>()(request);
}
int aio_read64(aiocb64* request) { return aio_read(reinterpret_cast<aiocb*>(request)); }
int aio_write(aiocb* request) {
  if (!is_no_address(request)) leave_socket(request->aio_fildes);
  return real::next<"aio_write", int(aiocb*)>()(request);
}
int aio_write64(aiocb64* request) { return aio_write(reinterpret_cast<aiocb*>(request)); }
int lio_listio(int mode, aiocb* const* requests, int count, sigevent* event) {
  for (int i = 0; i < count && !is_no_address(requests); ++i)
    if (!is_no_address(requests[i])) leave_socket(requests[i]->aio_fildes);
  using List = int(int, aiocb* const*, int, sigevent*);
  return real::next<"lio_listio", List>()(mode, requests, count, event);
}
int lio_listio64(int mode, aiocb64* const* requests, int count, sigevent* event) {
  return lio_listio(mode, reinterpret_cast<aiocb* const*>(requests), count, event);
}
static_assert(sizeof(aiocb) == sizeof(aiocb64));

// Of liburing; the types are its own, and only passed on.
int io_uring_queue_init(unsigned entries, void* ring, unsigned flags) {
  using Init = int(unsigned, void*, unsigned);
  return set_up_uring(of_uring<"io_uring_queue_init", Init>(), entries, ring, flags);
}
int io_uring_queue_init_params(unsigned entries, void* ring, void* parameters) {
  using Init = int(unsigned, void*, void*);
  return set_up_uring(of_uring<"io_uring_queue_init_params", Init>(), entries, ring, parameters);
}
int io_uring_queue_init_mem(unsigned entries, void* ring, void* parameters, void* memory,
                            size_t size) {
  using Init = int(unsigned, void*, void*, void*, size_t);
  return set_up_uring(of_uring<"io_uring_queue_init_mem", Init>(), entries, ring, parameters,
                      memory, size);
}
int io_uring_setup(unsigned entries, void* parameters) {
  using Setup = int(unsigned, void*);
  return set_up_uring(of_uring<"io_uring_setup", Setup>(), entries, parameters);
}

// Written inside the C library, too.
int vdprintf(int fd, const char* format, va_list arguments) {
  using Print = int(int, const char*, va_list);
  leave_socket(fd);
  return real::next<"vdprintf", Print>()(fd, format, arguments);
}

int dprintf(int fd, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int written = vdprintf(fd, format, arguments);
  va_end(arguments);
  return written;
}

int __vdprintf_chk(int fd, int flag, const char* format, va_list arguments) {
  using Print = int(int, int, const char*, va_list);
  leave_socket(fd);
  return real::next<"__vdprintf_chk", Print>()(fd, flag, format, arguments);
}

int __dprintf_chk(int fd, int flag, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int written = __vdprintf_chk(fd, flag, format, arguments);
  va_end(arguments);
  return written;
}

}  // extern "C"
