// SPDX-License-Identifier: Apache-2.0
//
// A main thread that leaves by thr_exit() while others run; GoogleTest's cannot. Exits with 0 where
// the process ends with its last thread that is no daemon, and with 42 from such a thread. What
// threads there are is the program's argument.
#include <pthread.h>
#include <sys/wait.h>
#include <thread.h>
#include <unistd.h>

#include <string_view>

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
bool start(void* (*function)(void*), long flags) {
  return thr_create(nullptr, 0, function, nullptr, flags, nullptr) == 0;
}

// As the child, which runs `work`, ends.
template <class Work>
void end_as_child(Work work) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    work();
    _exit(1);
  }
  int status = 0;
  _exit(waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

// The child's only thread is a daemon, until it starts another.
void* fork_as_daemon(void*) {
  end_as_child([] {
    if (start(&end_soon, THR_DETACHED)) pause_for_ever(nullptr);
  });
  return nullptr;
}

// That the main thread has left was true of the parent.
pthread_t main_thread;
void* fork_without_main(void*) {
  pthread_join(main_thread, nullptr);
  end_as_child([] {
    if (start(&pause_for_ever, THR_DAEMON) && start(&end_soon, THR_DETACHED)) exit_later(nullptr);
  });
  return nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view which = argc > 1 ? argv[1] : "";
  alarm(30);
  if (which == "fork_as_daemon") {
    if (start(&fork_as_daemon, THR_DAEMON)) pause_for_ever(nullptr);
    return 1;
  }
  if (which == "fork_without_main") {
    main_thread = pthread_self();
    pthread_t other;
    if (pthread_create(&other, nullptr, &fork_without_main, nullptr) != 0) return 1;
    thr_exit(nullptr);
  }
  if (!start(&pause_for_ever, THR_DAEMON)) return 1;
  if (!start(which == "exit" ? &exit_later : &end_soon, THR_DETACHED)) return 1;
  thr_exit(nullptr);
}
