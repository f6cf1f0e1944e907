// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <linux/capability.h>

namespace farcall::channel {

// While it lives the calling thread has no right to look into processes of others (CAP_SYS_PTRACE):
// the kernel then lets it read what a process with its own ids may, and no more, whatever the other
// process becomes meanwhile. For who has that right and reads where somebody else tells it to.
class NoTracing {
 public:
  NoTracing() noexcept;
  ~NoTracing();
  NoTracing(const NoTracing&) = delete;
  NoTracing& operator=(const NoTracing&) = delete;
  // False: it could not be given away, and nothing must be read.
  explicit operator bool() const noexcept { return fits_; }

 private:
  __user_cap_data_struct held_[2]{};
  bool changed_ = false;
  bool fits_ = true;
};

}  // namespace farcall::channel
