// SPDX-License-Identifier: Apache-2.0
//
// A client that is interrupted gets EINTR, and the thread that works for it is cancelled, so that
// it can stop early and clean up. Threads of the default pool have cancellation disabled; these
// have not. DOOR_NO_CANCEL would leave them alone altogether.
#include <door.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <synch.h>
#include <sys/wait.h>
#include <thread.h>
#include <unistd.h>

#include "check.h"

static sema_t cleaned_up;

static void clean_up(void* what) {
  printf("the server gives up %s\n", (const char*)what);
  fflush(stdout);
  sema_post(&cleaned_up);
}

static void work_for_ever(void* cookie, char* data, size_t size, door_desc_t* passed,
                          uint_t count) {
  (void)cookie;
  (void)data;
  (void)size;
  (void)passed;
  (void)count;
  pthread_cleanup_push(clean_up, "its work");
  while (1) sleep(1);  // a cancellation point
  pthread_cleanup_pop(0);
}

static void* run(void* nothing) {
  pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
  door_return(NULL, 0, NULL, 0);
  return nothing;
}

static void create_thread(door_info_t* info) {
  (void)info;
  thr_create(NULL, 0, run, NULL, THR_DETACHED, NULL);
}

static void on_alarm(int signal) { (void)signal; }

int main(void) {
  sema_init(&cleaned_up, 0, USYNC_THREAD, NULL);
  door_server_create(create_thread);
  const int door = check(door_create(work_for_ever, NULL, 0), "door_create");
  const pid_t client = check(fork(), "fork");
  if (client == 0) {
    // A call is never restarted, whatever SA_RESTART says.
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    door_arg_t nothing = {0};
    int failed = 0;
    // EAGAIN: no thread had taken the call yet, so nothing has happened.
    do {
      ualarm(200 * 1000, 0);
      failed = door_call(door, &nothing);
    } while (failed != 0 && errno == EAGAIN);
    return failed != 0 && errno == EINTR ? 0 : 1;
  }
  while (sema_wait(&cleaned_up) != 0) continue;
  int status = 0;
  check(waitpid(client, &status, 0), "waitpid");
  printf("the client got %s\n", status == 0 ? "EINTR" : "something else");
  return status != 0;
}
