// SPDX-License-Identifier: Apache-2.0
//
// Who is who. The kernel shows users that it has no number for, in the user namespace of the
// process that asks, as one and the same number: the overflow id.
#pragma once

#include <sys/types.h>

namespace farcall::process {

// Whether this is that number: 65534, and what the system is set to. As the owner of a file it may
// stand for anybody.
bool is_overflow_id(uid_t id) noexcept;

// Whether every user has a number here, so that the overflow id of a process is that of a user, of
// "nobody". False where that cannot be found out. Reads a file each time: for what happens seldom.
bool knows_all_users() noexcept;

// Whether two processes' user ids are those of one user. A number that may stand for several is
// nobody's: it does not even equal itself.
bool same_user(uid_t a, uid_t b) noexcept;

// Whether this process is that user and nobody else: by its real, effective and saved ids. Who acts
// for a user, and can become another again, is not: that user may not trace it, nor end it.
bool is_only(uid_t user) noexcept;

}  // namespace farcall::process
