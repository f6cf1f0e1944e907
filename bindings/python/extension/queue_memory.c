/* SPDX-License-Identifier: Apache-2.0 */
/* Queues: how they are made, and found by another process. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "queue.h"

static const uint64_t kMagic = 0x3765756575716366; /* "fcqueue7" */

static int make_lock(pthread_mutex_t* lock) {
  pthread_mutexattr_t attributes;
  int error = pthread_mutexattr_init(&attributes);
  if (error != 0) return error;
  error = pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  if (error == 0) error = pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  if (error == 0) error = pthread_mutex_init(lock, &attributes);
  pthread_mutexattr_destroy(&attributes);
  return error;
}

void queue_free(void* pointer) {
  struct queue* const queue = pointer;
  if (queue->memory) queue_leave_entry(queue);
  if (queue->memory) munmap(queue->memory, queue->size);
  for (int i = 0; i < kQueueDescriptors; ++i)
    if (queue->descriptors[i] >= 0) close(queue->descriptors[i]);
  free(queue);
}

static struct queue* failed(struct queue* queue, int error) {
  if (queue) queue_free(queue);
  raise_error(-error);
  return NULL;
}

static bool map(struct queue* queue, size_t size) {
  queue->size = size;
  void* const memory =
      mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, queue->descriptors[kMemory], 0);
  if (memory != MAP_FAILED) queue->memory = memory;
  return memory != MAP_FAILED;
}

static struct queue* allocate(void) {
  struct queue* const queue = calloc(1, sizeof *queue);
  for (int i = 0; queue && i < kQueueDescriptors; ++i) queue->descriptors[i] = -1;
  return queue;
}

/* What a signal interrupts the kernel takes back whole: then it is done in smaller pieces. */
static int allocate_file(int file, off_t size) {
  off_t piece = size;
  for (off_t done = 0; done < size;) {
    const off_t now = piece < size - done ? piece : size - done;
    const int error = posix_fallocate(file, done, now);
    if (error == 0)
      done += now;
    else if (error != EINTR)
      return error;
    else if (piece > 4096)
      piece /= 2;
  }
  return 0;
}

/* Whether the kernel reckons that there is that much without its killing anybody, as it would to
 * fill a memory file. Asked only for what is large. */
static bool is_available(size_t size) {
  if (size < (size_t)64 << 20) return true;
  const int file = open("/proc/meminfo", O_RDONLY | O_CLOEXEC);
  if (file < 0) return true;
  char text[1024];
  const ssize_t got = read(file, text, sizeof text - 1);
  close(file);
  if (got <= 0) return true;
  text[got] = 0;
  const char* const line = strstr(text, "MemAvailable:");
  return !line || strtoull(line + sizeof "MemAvailable:", NULL, 10) >= size / 1024;
}

struct queue* queue_create(size_t capacity, size_t most) {
  size_t power = 4096;
  while (power < capacity && power < (size_t)1 << 40) power *= 2;
  if (!is_available(power)) return failed(NULL, ENOMEM);
  struct queue* const queue = allocate();
  if (!queue) return failed(queue, ENOMEM);
  const size_t size = sizeof *queue->memory + power;
  queue->descriptors[kMemory] = memfd_create("farcall-queue", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  for (int bell = kItems; bell < kBells; ++bell)
    queue->descriptors[bell] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  for (int i = 0; i < kQueueDescriptors; ++i)
    if (queue->descriptors[i] < 0) return failed(queue, errno);
  /* A shortage of memory is an error here, and no signal later. */
  const int error = allocate_file(queue->descriptors[kMemory], (off_t)size);
  if (error != 0) return failed(queue, error);
  if (fcntl(queue->descriptors[kMemory], F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) !=
          0 ||
      !map(queue, size))
    return failed(queue, errno);
  int locks = make_lock(&queue->memory->put.lock);
  if (locks == 0) locks = make_lock(&queue->memory->get.lock);
  if (locks == 0) locks = make_lock(&queue->memory->places.lock);
  if (locks != 0) return failed(queue, locks);
  queue->memory->capacity = power;
  queue->memory->most = most;
  queue->memory->magic = kMagic;
  return queue;
}

struct queue* queue_open(const int descriptors[kQueueDescriptors]) {
  struct queue* const queue = allocate();
  if (!queue) return failed(queue, ENOMEM);
  queue->descriptors[kMemory] = descriptors[kMemory];
  struct stat file;
  const int seals = fcntl(descriptors[kMemory], F_GET_SEALS); /* -1: of a file that has none */
  int error = 0;
  if (fstat(descriptors[kMemory], &file) != 0 || fcntl(descriptors[kItems], F_GETFD) < 0 ||
      fcntl(descriptors[kRoom], F_GETFD) < 0 || fcntl(descriptors[kPlaces], F_GETFD) < 0)
    error = errno;
  else if (!S_ISREG(file.st_mode) || (size_t)file.st_size <= sizeof *queue->memory || seals < 0 ||
           !(seals & F_SEAL_SHRINK))
    error = EPROTO;
  else if (!map(queue, (size_t)file.st_size))
    error = errno;
  else if (queue->memory->magic != kMagic ||
           queue->memory->capacity != queue->size - sizeof *queue->memory)
    error = EPROTO;
  if (error != 0) {
    queue->descriptors[kMemory] = -1; /* still the caller's */
    return failed(queue, error);
  }
  for (int i = 0; i < kQueueDescriptors; ++i) {
    queue->descriptors[i] = descriptors[i];
    fcntl(descriptors[i], F_SETFD, FD_CLOEXEC);
  }
  return queue;
}
