// SPDX-License-Identifier: Apache-2.0
//
// Calls that wait, made by their numbers: syscall(SYS_ppoll, ...). They are as those of the C
// library, but that the kernel writes the time that is left where it does.
#pragma once

namespace farcall::preload {

// `words` are the six arguments; errno is set.
long epoll_wait_by_number(long number, const long* words);
long poll_by_number(long number, const long* words);
long select_by_number(long number, const long* words);

}  // namespace farcall::preload
