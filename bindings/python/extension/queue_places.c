/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queues: the places of one that holds `most` items at once.
 *
 * A place is reserved before its item is put, which may be much later, by a thread that waits for
 * room. One that holds any number has places for such items only, so that they are counted. So each
 * process has an entry where it counts what it has reserved and what of that it has put. Whoever
 * finds no place gives back those that processes had which are gone. Where all entries are of
 * processes whose items wait, there is no place for one more process until one of them owes nothing
 * any more; of any number, what more processes have to put is counted together, and stays counted
 * where they are killed.
 *
 * What is reserved is counted with the lock of the places, where their number is limited, what is
 * put with the lock of those who put: whatever a process was doing when it was killed, who finds
 * its lock sets the counts right (queue_check_lock()).
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "queue.h"

static const int64_t kLook = 200000000; /* nanoseconds between looks at who is gone */

/* ---- which process it is ---- */

/* Of /proc/PID/stat: the state, the number of threads, and when it began; false: it is not known.
 */
static bool read_stat(pid_t pid, char* state, long* threads, unsigned long long* began) {
  char path[32];
  char text[1024];
  snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  const ssize_t size = read(file, text, sizeof text - 1);
  close(file);
  if (size <= 0) return false;
  text[size] = 0;
  const char* const name_end = strrchr(text, ')');
  return name_end && sscanf(name_end + 1,
                            " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
                            "%ld %*s %llu",
                            state, threads, began) == 3;
}

/* Where process ids mean the same; 0: it is not known. */
static uint64_t pid_space(void) {
  struct stat space;
  return stat("/proc/self/ns/pid", &space) == 0 ? space.st_ino : 0;
}

/* Only what is sure: a place too many would be one too many for ever. */
static bool is_gone(const struct queue_process* process, uint64_t here) {
  const pid_t pid = atomic_load(&process->pid);
  if (pid == 0 || here == 0 || process->space != here) return false;
  if (kill(pid, 0) != 0 && errno == ESRCH) return true;
  char state;
  long threads;
  unsigned long long began;
  if (!read_stat(pid, &state, &threads, &began)) return false;
  /* Also what its parent has not waited for is gone; not one whose first thread alone has ended. */
  return began != process->began || ((state == 'Z' || state == 'X') && threads <= 1);
}

/* ---- entries; with the lock of the places ---- */

static uint64_t owed(const struct queue_process* process) {
  return atomic_load(&process->reserved) - atomic_load(&process->put);
}

void queue_count_reserved(struct queue_memory* memory) {
  if (memory->most == 0) return; /* it only says that anybody ever had any */
  uint64_t reserved = 0;
  for (int i = 0; i < kProcesses; ++i) reserved += atomic_load(&memory->processes[i].reserved);
  atomic_store(&memory->reserved, reserved);
}

/* Whether anybody has places for what is not in the queue yet. */
static bool is_owed(const struct queue_memory* memory) {
  if (atomic_load(&memory->reserved) == 0) return false;
  for (int i = 0; i < kProcesses; ++i)
    if (owed(&memory->processes[i]) != 0) return true;
  return false;
}

/* Gives back the places of who is gone. Whether there were any. */
static bool give_back_of_gone(struct queue* queue) {
  struct queue_memory* const memory = queue->memory;
  /* Who holds it may be setting right what a dead one has put; there is another look later. */
  const int error = pthread_mutex_trylock(&memory->put.lock);
  if (error == EBUSY || queue_check_lock(queue, &memory->put, error) != 0) return false;
  const uint64_t here = pid_space();
  bool found = false;
  for (int i = 1; i < kProcesses; ++i) {
    struct queue_process* const process = &memory->processes[i];
    if (owed(process) == 0 || !is_gone(process, here)) continue;
    atomic_store(&process->reserved, atomic_load(&process->put));
    atomic_store(&process->pid, 0);
    found = true;
  }
  if (found) queue_count_reserved(memory);
  pthread_mutex_unlock(&memory->put.lock);
  return found;
}

/* One that this process can have; NULL: there is none. Of places of a limited number nobody needs
 * an entry who owes nothing: it takes another one when it next reserves a place. */
static struct queue_process* free_entry(struct queue_memory* memory, uint64_t here) {
  for (int i = 1; i < kProcesses; ++i)
    if (atomic_load(&memory->processes[i].pid) == 0) return &memory->processes[i];
  for (int i = 1; i < kProcesses; ++i) {
    struct queue_process* const process = &memory->processes[i];
    if (owed(process) == 0 && (memory->most != 0 || is_gone(process, here))) return process;
  }
  return NULL;
}

/* Whether there is one now. Where only counts depend on it, or it cannot be said which process this
 * is, that is the first, which nobody gives anything back of. */
static bool take_entry(struct queue* queue) {
  struct queue_memory* const memory = queue->memory;
  const uint64_t here = pid_space();
  char state;
  long threads;
  unsigned long long began = 0;
  const bool is_known = read_stat(getpid(), &state, &threads, &began);
  struct queue_process* process = is_known ? free_entry(memory, here) : memory->processes;
  if (!process && memory->most == 0) process = memory->processes;
  queue->process = process;
  if (!process) return false;
  queue->owner = 0;
  if (process == memory->processes) return true;
  atomic_store(&process->pid, 0);
  queue->owner = atomic_fetch_add(&process->owner, 1) + 1;
  process->space = here;
  process->began = began;
  atomic_store(&process->pid, getpid());
  return true;
}

/* Whether it is still this process's: somebody may have taken it while nothing was owed. */
static bool has_entry(const struct queue* queue) {
  return queue->process && atomic_load(&queue->process->owner) == queue->owner;
}

void queue_leave_entry(struct queue* queue) {
  struct queue_side* const places = &queue->memory->places;
  if (!queue->process || queue->process == queue->memory->processes) return;
  /* Where somebody else has the lock it stays until this process has gone, or another needs it. */
  const int error = pthread_mutex_trylock(&places->lock);
  if (error == EBUSY || queue_check_lock(queue, places, error) != 0) return;
  if (has_entry(queue) && owed(queue->process) == 0) atomic_store(&queue->process->pid, 0);
  queue->process = NULL;
  pthread_mutex_unlock(&places->lock);
}

/* ---- places ---- */

/* Where there always is one. The lock is needed for an entry alone: who has to wait long for it, as
 * its holder was stopped, counts where all do who have none. */
static int64_t reserve_of_any_number(struct queue* queue) {
  struct queue_memory* const memory = queue->memory;
  if (!queue->process) {
    const int64_t error = queue_lock(queue, &memory->places, (struct deadline){0});
    if (error != 0 && error != -EAGAIN) return error;
    if (error == 0 && !queue->process) take_entry(queue);
    if (error == 0) pthread_mutex_unlock(&memory->places.lock);
    if (!queue->process) queue->process = memory->processes;
  }
  if (atomic_load(&memory->reserved) == 0) atomic_store(&memory->reserved, 1);
  atomic_fetch_add(&queue->process->reserved, 1);
  return 0;
}

int64_t queue_reserve(struct queue* queue, struct deadline deadline) {
  struct queue_memory* const memory = queue->memory;
  if (memory->most == 0) return reserve_of_any_number(queue);
  for (;;) {
    const uint64_t got = atomic_load(&memory->get.items);
    const int64_t error = queue_lock(queue, &memory->places, deadline);
    if (error != 0) return error;
    const uint64_t reserved = atomic_load(&memory->reserved);
    const bool there_is_one =
        reserved - got < memory->most && (has_entry(queue) || take_entry(queue));
    if (there_is_one) {
      atomic_fetch_add(&queue->process->reserved, 1);
      atomic_store(&memory->reserved, reserved + 1);
    }
    const bool some_are_owed = !there_is_one && is_owed(memory);
    const bool given_back = some_are_owed && give_back_of_gone(queue);
    pthread_mutex_unlock(&memory->places.lock);
    if (there_is_one) return 0;
    if (given_back) {
      queue_ring(queue, kPlaces);
      continue;
    }
    if (deadline.at == 0) return -EAGAIN;
    struct deadline until = some_are_owed ? begin_timeout(kLook) : deadline;
    if (until.at > deadline.at) until = deadline;
    const int64_t waited = queue_wait_for_change(queue, kPlaces, &memory->get.items, got, until);
    if (waited != 0 && (waited != -ETIMEDOUT || until.at == deadline.at)) return waited;
  }
}

void queue_give_back(struct queue* queue) {
  struct queue_memory* const memory = queue->memory;
  if (memory->most == 0) {
    atomic_fetch_sub(&queue->process->reserved, 1);
    return;
  }
  if (queue_lock_surely(queue, &memory->places) != 0) return;
  atomic_fetch_sub(&queue->process->reserved, 1);
  atomic_fetch_sub(&memory->reserved, 1);
  pthread_mutex_unlock(&memory->places.lock);
  queue_ring(queue, kPlaces);
}

/* Items put, and how many of those had places of `*process`: that one has put `*put` in all.
 * Whoever was killed when it had moved the position has not counted its item; what it would have
 * counted is read between two looks that show that it belongs to this position. */
static uint64_t items_put(const struct queue_side* side, unsigned* process, uint64_t* put) {
  *process = kProcesses;
  const uint64_t position = atomic_load(&side->position);
  const unsigned next_process = atomic_load(&side->next_process);
  const uint64_t next_items = atomic_load(&side->next_items);
  const uint64_t next_total = atomic_load(&side->next_total);
  if (atomic_load(&side->next_position) != position) return atomic_load(&side->items);
  *process = next_process;
  *put = next_items;
  return next_total;
}

/* All that is in the queue or has a place. */
static int64_t taken(const struct queue_memory* memory) {
  const uint64_t got = atomic_load(&memory->get.items);
  if (memory->most != 0) return (int64_t)(atomic_load(&memory->reserved) - got);
  unsigned last = kProcesses;
  uint64_t put_by_last = 0;
  int64_t count = (int64_t)(items_put(&memory->put, &last, &put_by_last) - got);
  if (atomic_load(&memory->reserved) != 0) /* since it was made */
    for (unsigned i = 0; i < kProcesses; ++i) {
      const struct queue_process* const one = &memory->processes[i];
      count += (int64_t)(i == last ? atomic_load(&one->reserved) - put_by_last : owed(one));
    }
  return count > 0 ? count : 0; /* who puts counts an item when others may have got it */
}

int64_t queue_size(struct queue* queue) {
  struct queue_memory* const memory = queue->memory;
  if (atomic_load(&memory->reserved) != 0 && time_left(queue->next_look, kLook) == 0 &&
      is_owed(memory)) {
    queue->next_look = begin_timeout(kLook);
    const int64_t error = queue_lock(queue, &memory->places, (struct deadline){0});
    if (error == kRaised) return error;
    const bool given_back = error == 0 && give_back_of_gone(queue);
    if (error == 0) pthread_mutex_unlock(&memory->places.lock);
    if (given_back) queue_ring(queue, kPlaces);
  }
  return taken(memory);
}
