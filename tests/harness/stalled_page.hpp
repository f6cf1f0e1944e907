// SPDX-License-Identifier: Apache-2.0
//
// How a process holds the lock of a socket that it has a descriptor of, for as long as it likes.
#pragma once

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <chrono>
#include <cstdint>
#include <thread>

#include "farcall/memory.hpp"

namespace farcall::test {

// A page that nobody ever fills: who touches it waits for ever, in the kernel, too.
class StalledPage {
 public:
  StalledPage() : fault_(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC))) {
    page_ = Mapping(
        ::mmap(nullptr, page_size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
        page_size());
    uffdio_api api{};
    api.api = UFFD_API;
    uffdio_register wanted{};
    wanted.range = {.start = reinterpret_cast<std::uintptr_t>(page_.data()), .len = page_size()};
    wanted.mode = UFFDIO_REGISTER_MODE_MISSING;
    valid_ = fault_ && ::ioctl(fault_.get(), UFFDIO_API, &api) == 0 &&
             ::ioctl(fault_.get(), UFFDIO_REGISTER, &wanted) == 0;
  }
  explicit operator bool() const { return valid_; }
  // Takes what comes next at the socket, and holds its lock from then on.
  void hold_lock(int socket) const {
    std::thread([this, socket] { (void)!::recv(socket, page_.data(), page_size(), 0); }).detach();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }

 private:
  UniqueFd fault_;
  Mapping page_;
  bool valid_ = false;
};

}  // namespace farcall::test
