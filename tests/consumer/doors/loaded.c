/* SPDX-License-Identifier: Apache-2.0
 *
 * A program that loads the library while it runs. loaded LIBRARY local|deep|global PATH
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <farcall/doors.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int (*return_of_door)(char *, size_t, door_desc_t *, uint_t);

static void echo(void *cookie, char *data, size_t size, door_desc_t *descriptors, uint_t count) {
  (void)cookie, (void)descriptors, (void)count;
  return_of_door(data, size, NULL, 0);
}

int main(int argc, char **argv) {
  int (*create)(door_server_procedure_t *, void *, uint_t);
  int (*call)(int, door_arg_t *);
  int (*info)(int, door_info_t *);
  int (*attach)(int, const char *);
  int (*detach)(const char *);
  int (*open_path)(const char *, int);
  door_info_t about;
  door_arg_t arguments;
  char answer[6];
  void *library;
  int door, opened, how = RTLD_NOW;

  alarm(30);
  if (argc != 4) return 126;
  if (strcmp(argv[2], "local") == 0) how |= RTLD_LOCAL;
  if (strcmp(argv[2], "deep") == 0) how |= RTLD_LOCAL | RTLD_DEEPBIND;
  if (strcmp(argv[2], "global") == 0) how |= RTLD_GLOBAL;
  library = dlopen(argv[1], how);
  if (library == NULL) {
    puts(dlerror());
    return 1;
  }
  *(void **)&create = dlsym(library, "door_create");
  *(void **)&return_of_door = dlsym(library, "door_return");
  *(void **)&call = dlsym(library, "door_call");
  *(void **)&info = dlsym(library, "door_info");
  *(void **)&attach = dlsym(library, "fattach");
  *(void **)&detach = dlsym(library, "fdetach");
  *(void **)&open_path = dlsym(library, "door_open");

  door = create(echo, NULL, 0);
  close(open(argv[3], O_CREAT | O_RDWR, 0600));
  if (door < 0 || attach(door, argv[3]) != 0) return 2;
  opened = open_path(argv[3], O_RDONLY);
  if (opened < 0 || info(opened, &about) != 0 || about.di_target != getpid()) return 3;
  memset(&arguments, 0, sizeof arguments);
  arguments.data_ptr = memcpy(answer, "hello", 6);
  arguments.data_size = 6;
  arguments.rbuf = answer;
  arguments.rsize = sizeof answer;
  if (call(opened, &arguments) != 0 || arguments.data_size != 6) return 4;
  if (close(opened) != 0 || detach(argv[3]) != 0) return 5;
  /* Its threads go on, so it stays. */
  if (dlclose(library) != 0 || dlopen(argv[1], RTLD_NOW | RTLD_NOLOAD) == NULL) return 6;
  return puts(answer) < 0;
}
