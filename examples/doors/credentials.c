// SPDX-License-Identifier: Apache-2.0
//
// Who calls? The kernel says so, not the client.
#include <door.h>
#include <sys/wait.h>
#include <ucred.h>
#include <unistd.h>

#include "check.h"

struct Caller {
  pid_t pid;
  uid_t effective_user;
  gid_t real_group;
  int groups;
};

static void tell(void* cookie, char* data, size_t size, door_desc_t* passed, uint_t count) {
  (void)cookie;
  (void)data;
  (void)size;
  (void)passed;
  (void)count;
  ucred_t* credentials = NULL;  // allocated by the first call, to be freed
  check(door_ucred(&credentials), "door_ucred");
  const gid_t* groups = NULL;
  struct Caller caller = {.pid = ucred_getpid(credentials),
                          .effective_user = ucred_geteuid(credentials),
                          .real_group = ucred_getrgid(credentials),
                          .groups = ucred_getgroups(credentials, &groups)};
  ucred_free(credentials);

  door_cred_t older;  // the older interface, which knows less
  check(door_cred(&older), "door_cred");
  if (older.dc_pid != caller.pid || older.dc_euid != caller.effective_user)
    fprintf(stderr, "the two interfaces disagree\n");
  door_return((char*)&caller, sizeof caller, NULL, 0);
}

int main(void) {
  const int door = check(door_create(tell, NULL, 0), "door_create");
  const pid_t client = check(fork(), "fork");
  if (client == 0) {
    struct Caller me;
    door_arg_t arguments = {.rbuf = (char*)&me, .rsize = sizeof me};
    check(door_call(door, &arguments), "door_call");
    ucred_t* mine = ucred_get(P_MYID);  // what this process is, told in the same way
    if (mine == NULL) check(-1, "ucred_get");
    printf("process: %s\n", me.pid == ucred_getpid(mine) ? "right" : "wrong");
    printf("user: %s\n", me.effective_user == ucred_geteuid(mine) ? "right" : "wrong");
    ucred_free(mine);
    printf("group: %s\n", me.real_group == getgid() ? "right" : "wrong");
    printf("supplementary groups: %s\n", me.groups == getgroups(0, NULL) ? "right" : "wrong");
    return 0;
  }
  int status = 0;
  check(waitpid(client, &status, 0), "waitpid");
  return status != 0;
}
