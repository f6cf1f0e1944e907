// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

namespace farcall::watch {

// While it lives the calling thread has the rights of the user whose process it looks at, where it
// is root: so what it reads and writes there is what that user may, whatever the process becomes
// meanwhile (by executing something privileged). Others have no more rights than their own anyway.
class ActAs {
 public:
  ActAs(uid_t user, gid_t group) noexcept;
  ~ActAs();
  ActAs(const ActAs&) = delete;
  ActAs& operator=(const ActAs&) = delete;
  // False: it could not become that user, and must not look.
  explicit operator bool() const noexcept { return fits_; }

 private:
  bool changed_ = false;
  bool fits_ = true;
  gid_t group_ = 0;
};

}  // namespace farcall::watch
