// SPDX-License-Identifier: Apache-2.0
//
// A main thread that leaves by thr_exit() while others run; GoogleTest's cannot. Exits with 0 where
// the process ends with its last thread that is no daemon, and with 42 from such a thread.
#include <thread.h>
#include <unistd.h>

#include <cstring>

namespace {

void* pause_for_ever(void*) {
  while (true) pause();
}
void* end_soon(void*) {
  usleep(20'000);
  return nullptr;
}
void* exit_later(void*) {
  usleep(300'000);
  _exit(42);
}

}  // namespace

int main(int argc, char** argv) {
  const bool last_exits = argc > 1 && std::strcmp(argv[1], "exit") == 0;
  alarm(30);
  if (thr_create(nullptr, 0, &pause_for_ever, nullptr, THR_DAEMON, nullptr) != 0) return 1;
  if (thr_create(nullptr, 0, last_exits ? &exit_later : &end_soon, nullptr, THR_DETACHED,
                 nullptr) != 0)
    return 1;
  thr_exit(nullptr);
}
