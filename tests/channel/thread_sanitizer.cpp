// SPDX-License-Identifier: Apache-2.0
//
// ThreadSanitizer by default ends a process that has threads, forks, and starts threads in the
// child. Ends of System V queues have threads, and tests have several such ends and fork.
#if defined(__SANITIZE_THREAD__)
extern "C" const char* __tsan_default_options();  // NOLINT: ThreadSanitizer's name
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }
#endif
