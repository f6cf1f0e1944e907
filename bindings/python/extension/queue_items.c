/* SPDX-License-Identifier: Apache-2.0 */
/* Queues: items in and out. */
#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "queue.h"

static const int64_t kLockSlice = 50000000; /* nanoseconds */
static const int64_t kBriefly = 1000000;
static const int64_t kPatience = 100000000; /* of who does not wait, with who holds a lock */
static const int64_t kSpin = 30000;         /* before a wait is left to the kernel */
static const int64_t kSleep = 200000000;    /* at most; see sleep_at() */
enum { kHeader = 8 };

enum { kSizeBits = 56, kSmall = 256 };

static uint64_t room_of(size_t size) { return kHeader + ((uint64_t)size + 7) / 8 * 8; }
static uint64_t header_of(enum queue_kind kind, size_t size) {
  return (uint64_t)kind << kSizeBits | size;
}

/* ---- bells ---- */

void queue_ring(struct queue* queue, int bell) {
  /* What has changed has been stored sequentially consistently: pairs with the count of who waits.
   */
  const uint64_t one = 1;
  if (atomic_load(&queue->memory->waiting[bell]) != 0 &&
      write(queue->descriptors[bell], &one, sizeof one) < 0)
    return; /* it rings already */
}

/* Nothing goes through the queue any more; who waits learns of it. */
static void break_queue(struct queue* queue) {
  atomic_store(&queue->memory->broken, 1);
  for (int bell = kItems; bell < kBells; ++bell) queue_ring(queue, bell);
}

/* ---- locks ---- */

static struct deadline in(int64_t nanoseconds) { return begin_timeout(nanoseconds); }

/* Moves over what has been got, which are `items` items. With the lock held. */
static void move_over(struct queue_side* get, uint64_t position, uint64_t items) {
  const uint64_t next = atomic_load_explicit(&get->items, memory_order_relaxed) + items;
  atomic_store_explicit(&get->next_items, next, memory_order_relaxed);
  atomic_store_explicit(&get->next_position, position, memory_order_release);
  atomic_store(&get->items, next);
  atomic_store(&get->position, position);
}

/* Who died on its way through that has got nothing, and may have counted an item. */
static void count_anew(struct queue_side* get) {
  const uint64_t next = atomic_load(&get->next_position);
  if (next != atomic_load(&get->position))
    atomic_store(&get->items, atomic_load(&get->next_items) - 1);
}

/* Moves to where what has been put ends, which is the end of `items` items, which have places of
 * `process`, or of nobody. With the lock held. */
static void move_to(struct queue* queue, uint64_t position, uint64_t items,
                    struct queue_process* process) {
  struct queue_side* const put = &queue->memory->put;
  const uint64_t total = atomic_load_explicit(&put->items, memory_order_relaxed) + items;
  const unsigned index = process ? (unsigned)(process - queue->memory->processes) : kProcesses;
  /* In this order: see count_put(). */
  atomic_store_explicit(&put->next_position, position, memory_order_release);
  if (process)
    atomic_store_explicit(&put->next_items, atomic_load(&process->put) + items,
                          memory_order_release);
  atomic_store_explicit(&put->next_process, index, memory_order_release);
  atomic_store_explicit(&put->next_total, total, memory_order_release);
  atomic_store(&put->position, position);
  if (process)
    atomic_store_explicit(&process->put, atomic_load(&put->next_items), memory_order_release);
  atomic_store_explicit(&put->items, total, memory_order_release);
}

/* Who died on its way through that has put an item where the position has moved, and may not have
 * counted it. */
static void count_put(struct queue_memory* memory) {
  struct queue_side* const put = &memory->put;
  if (atomic_load(&put->next_position) != atomic_load(&put->position)) return;
  const unsigned process = atomic_load(&put->next_process);
  if (process < kProcesses)
    atomic_store(&memory->processes[process].put, atomic_load(&put->next_items));
  atomic_store(&put->items, atomic_load(&put->next_total));
}

/* What the last holder has left: nothing, as positions move last; but for long items, and the
 * counts. */
int64_t queue_check_lock(struct queue* queue, struct queue_side* side, int error) {
  if (error == EOWNERDEAD) {
    pthread_mutex_consistent(&side->lock);
    if (atomic_load(&side->holder) == kIsInALongItem) break_queue(queue);
    if (side == &queue->memory->get) count_anew(side);
    if (side == &queue->memory->put) count_put(queue->memory);
    if (side == &queue->memory->places) queue_count_reserved(queue->memory);
    atomic_store(&side->holder, kGoesOn);
    error = 0;
  }
  if (error == 0 && atomic_load(&queue->memory->broken)) {
    pthread_mutex_unlock(&side->lock);
    error = EOWNERDEAD;
  }
  return -error;
}

static int lock_released(struct queue_side* side, int64_t nanoseconds) {
  struct timespec until;
  PyThreadState* const thread = PyEval_SaveThread();
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_nsec += nanoseconds;
  until.tv_sec += until.tv_nsec / 1000000000;
  until.tv_nsec %= 1000000000;
  const int error = pthread_mutex_clocklock(&side->lock, CLOCK_MONOTONIC, &until);
  PyEval_RestoreThread(thread);
  return error;
}

int64_t queue_lock(struct queue* queue, struct queue_side* side, struct deadline deadline) {
  struct deadline patience = {0};
  int error = pthread_mutex_trylock(&side->lock);
  while (error == EBUSY) {
    /* Also who does not want to wait waits for a holder that goes on; not for long, as that one may
     * have been stopped. */
    if (deadline.at == 0 && atomic_load(&side->holder) != kGoesOn) return -EAGAIN;
    if (deadline.at == 0 && patience.at == 0) patience = in(kPatience);
    const int64_t left =
        deadline.at == 0 ? time_left(patience, kBriefly) : time_left(deadline, kLockSlice);
    if (left == 0) return deadline.at == 0 ? -EAGAIN : -ETIMEDOUT;
    error = lock_released(side, left);
    if (error != ETIMEDOUT) break;
    if (PyErr_CheckSignals() < 0) return kRaised;
    error = EBUSY;
  }
  return queue_check_lock(queue, side, error);
}

int64_t queue_lock_surely(struct queue* queue, struct queue_side* side) {
  int error = pthread_mutex_trylock(&side->lock);
  if (error == EBUSY) do {
      error = lock_released(side, kLockSlice);
    } while (error == ETIMEDOUT);
  return queue_check_lock(queue, side, error);
}

/* ---- waiting ---- */

/* Polls a bell. Not for long: one that silenced it and was killed, or stopped, before it looked has
 * taken the ring from all who had not run yet. Nobody can tell, so each looks again by itself. */
static int64_t sleep_at(const struct queue* queue, int bell, struct deadline deadline) {
  const struct deadline again = in(kSleep);
  return sleep_polling(queue->descriptors[bell], again.at < deadline.at ? again : deadline);
}

/* Until *word is not `seen`, for a while without the kernel; 0 also for nothing. Else -ETIMEDOUT,
 * kRaised. */
int64_t queue_wait_for_change(struct queue* queue, int bell, const atomic_ullong* word,
                              uint64_t seen, struct deadline deadline) {
  PyThreadState* const thread = PyEval_SaveThread();
  const struct deadline spin = in(kSpin);
  bool changed = false;
  while (!(changed = atomic_load_explicit(word, memory_order_acquire) != seen) &&
         time_left(spin, kSpin) > 0)
    for (int i = 0; i < 64; ++i)
#if defined(__x86_64__)
      __builtin_ia32_pause();
#else
      atomic_signal_fence(memory_order_seq_cst);
#endif
  PyEval_RestoreThread(thread);
  if (changed) return 0;
  atomic_uint* const waiting = &queue->memory->waiting[bell];
  atomic_fetch_add(waiting, 1);
  /* What rang before the look below is of no more use; what rings after it ends the sleep. */
  uint64_t rung;
  int64_t result =
      read(queue->descriptors[bell], &rung, sizeof rung) < 0 && errno != EAGAIN ? -errno : 0;
  if (result == 0 && atomic_load(word) == seen && !atomic_load(&queue->memory->broken))
    result = time_left(deadline, INT64_MAX) == 0 ? -ETIMEDOUT : sleep_at(queue, bell, deadline);
  else
    changed = true;
  atomic_fetch_sub(waiting, 1);
  if (changed) queue_ring(queue, bell); /* others may not have seen it yet */
  return result;
}

/* ---- bytes ---- */

static void copy_in(struct queue_memory* memory, uint64_t position, const void* bytes,
                    size_t size) {
  const size_t at = position & (memory->capacity - 1);
  const size_t first = size < memory->capacity - at ? size : memory->capacity - at;
  memcpy(memory->data + at, bytes, first);
  memcpy(memory->data, (const char*)bytes + first, size - first);
}

static void copy_out(const struct queue_memory* memory, uint64_t position, void* bytes,
                     size_t size) {
  const size_t at = position & (memory->capacity - 1);
  const size_t first = size < memory->capacity - at ? size : memory->capacity - at;
  memcpy(bytes, memory->data + at, first);
  memcpy((char*)bytes + first, memory->data, size - first);
}

/* ---- put ---- */

/* With the lock held. What has been got since the last look is looked up only where it matters. */
static bool has_room(struct queue_memory* memory, uint64_t tail, uint64_t size) {
  const uint64_t seen = atomic_load_explicit(&memory->put.seen, memory_order_relaxed);
  /* A long item has moved the tail further than the ring is long since then. */
  const uint64_t used = tail - seen;
  if (used <= memory->capacity && size <= memory->capacity - used) return true;
  const uint64_t got = atomic_load(&memory->get.position);
  atomic_store_explicit(&memory->put.seen, got, memory_order_relaxed);
  return size <= memory->capacity - (tail - got);
}

/* With the lock held. All at once, so that whoever dies meanwhile leaves nothing behind. */
static bool put_if_room(struct queue* queue, enum queue_kind kind, const void* item, size_t size,
                        struct queue_process* process) {
  struct queue_memory* const memory = queue->memory;
  const uint64_t tail = atomic_load(&memory->put.position);
  const uint64_t header = header_of(kind, size);
  if (!has_room(memory, tail, room_of(size))) return false;
  copy_in(memory, tail, &header, kHeader);
  copy_in(memory, tail + kHeader, item, size);
  move_to(queue, tail + room_of(size), 1, process);
  return true;
}

int64_t queue_try_put(struct queue* queue, const struct queue_item* item) {
  struct queue_memory* const memory = queue->memory;
  if (room_of(item->size) > memory->capacity) return -EAGAIN;
  const int64_t error = queue_lock(queue, &memory->put, (struct deadline){0});
  if (error != 0) return error;
  const bool done = put_if_room(queue, item->kind, item->bytes, item->size,
                                memory->most != 0 ? queue->process : NULL);
  pthread_mutex_unlock(&memory->put.lock);
  if (!done) return -EAGAIN;
  queue_ring(queue, kItems);
  return 0;
}

/* With the lock held: until something has been got since `got`. */
static int64_t wait_for_room(struct queue* queue, uint64_t got) {
  struct queue_memory* const memory = queue->memory;
  const int64_t waited = queue_wait_for_change(queue, kRoom, &memory->get.position, got,
                                               begin_timeout(FARCALL_FOREVER));
  return waited == 0 && atomic_load(&memory->broken) ? -EOWNERDEAD : waited;
}

static int64_t put_whole(struct queue* queue, const void* item, size_t size) {
  for (;;) {
    const uint64_t got = atomic_load(&queue->memory->get.position);
    if (put_if_room(queue, kPickled, item, size, queue->process)) return 0;
    const int64_t waited = wait_for_room(queue, got);
    if (waited != 0) return waited;
  }
}

/* Longer than the queue. With the lock held. */
static int64_t put_in_parts(struct queue* queue, const char* item, size_t size) {
  struct queue_memory* const memory = queue->memory;
  uint64_t tail = atomic_load(&memory->put.position);
  const uint64_t header = header_of(kPickled, size);
  size_t done = 0;
  for (bool begun = false; done < size || !begun;) {
    const uint64_t got = atomic_load(&memory->get.position);
    uint64_t room = memory->capacity - (tail - got);
    if (room < 2 * kHeader) {
      const int64_t waited = wait_for_room(queue, got);
      if (waited != 0) return waited;
      continue;
    }
    if (!begun) {
      copy_in(memory, tail, &header, kHeader);
      tail += kHeader;
      room -= kHeader;
      begun = true;
    }
    const size_t part = size - done < room ? size - done : room / 8 * 8;
    copy_in(memory, tail, item + done, part);
    done += part;
    tail += (part + 7) / 8 * 8;
    move_to(queue, tail, done == size, queue->process);
    queue_ring(queue, kItems);
  }
  return 0;
}

int64_t queue_put(struct queue* queue, const void* item, size_t size) {
  struct queue_side* const put = &queue->memory->put;
  const bool whole = room_of(size) <= queue->memory->capacity;
  int64_t error = queue_lock(queue, put, begin_timeout(FARCALL_FOREVER));
  if (error != 0) return error;
  atomic_store(&put->holder, whole ? kWaits : kIsInALongItem);
  error = whole ? put_whole(queue, item, size) : put_in_parts(queue, item, size);
  if (error != 0 && !whole) break_queue(queue);
  atomic_store(&put->holder, kGoesOn);
  pthread_mutex_unlock(&put->lock);
  if (error == 0) queue_ring(queue, kItems);
  return error;
}

/* ---- get ---- */

/* Whether who puts a long item has died in the middle of it. */
static bool is_left(struct queue* queue) {
  struct queue_side* const put = &queue->memory->put;
  const int error = pthread_mutex_trylock(&put->lock);
  if (error == EBUSY) return false;
  if (queue_check_lock(queue, put, error) != 0) return true;
  pthread_mutex_unlock(&put->lock);
  return false; /* it has just got to its end */
}

/* The rest of a long item, with the lock held. A part has been taken: there is no way back. */
static int64_t get_in_parts(struct queue* queue, uint64_t head, char* item, size_t size) {
  struct queue_memory* const memory = queue->memory;
  for (size_t done = 0; done < size;) {
    const uint64_t tail = atomic_load(&memory->put.position);
    if (tail == head) {
      const int64_t waited =
          queue_wait_for_change(queue, kItems, &memory->put.position, tail, in(kLockSlice));
      if (waited != 0 && waited != -ETIMEDOUT) return waited;
      if (atomic_load(&memory->put.position) == tail && is_left(queue)) return -EOWNERDEAD;
      continue;
    }
    const size_t part = size - done < tail - head ? size - done : (size_t)(tail - head);
    copy_out(memory, head, item + done, part);
    done += part;
    head += (part + 7) / 8 * 8;
    move_over(&memory->get, head, done == size);
    queue_ring(queue, kRoom);
  }
  return 0;
}

/* The first item, with the lock held. */
static PyObject* take(struct queue* queue, uint64_t head, uint64_t tail, enum queue_kind* kind,
                      int64_t* error) {
  struct queue_memory* const memory = queue->memory;
  uint64_t header;
  copy_out(memory, head, &header, kHeader);
  const uint64_t size = header & (((uint64_t)1 << kSizeBits) - 1);
  *kind = (enum queue_kind)(header >> kSizeBits);
  const bool whole = room_of(size) <= tail - head;
  PyObject* item;
  if (whole && size <= kSmall) {
    char small[kSmall];
    copy_out(memory, head + kHeader, small, size);
    item = queue_object(*kind, small, size);
  } else {
    item = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (item && whole) copy_out(memory, head + kHeader, PyBytes_AsString(item), size);
    if (item && *kind == kText) { /* none of them is longer than the queue */
      PyObject* const text = queue_object(kText, PyBytes_AsString(item), size);
      Py_DECREF(item);
      item = text;
    }
  }
  if (!item) {
    *error = kRaised;
    return NULL;
  }
  if (whole) {
    move_over(&memory->get, head + room_of(size), 1);
    return item;
  }
  atomic_store(&memory->get.holder, kIsInALongItem);
  *error = get_in_parts(queue, head + kHeader, PyBytes_AsString(item), size);
  if (*error != 0) break_queue(queue);
  atomic_store(&memory->get.holder, kGoesOn);
  if (*error == 0) return item;
  Py_DECREF(item);
  return NULL;
}

PyObject* queue_get(struct queue* queue, struct deadline deadline, enum queue_kind* kind,
                    int64_t* error) {
  struct queue_memory* const memory = queue->memory;
  for (;;) {
    *error = queue_lock(queue, &memory->get, deadline);
    if (*error != 0) return NULL;
    const uint64_t head = atomic_load(&memory->get.position);
    uint64_t tail = atomic_load_explicit(&memory->get.seen, memory_order_relaxed);
    if (tail - head - 1 >= memory->capacity) { /* nothing, as far as it has been seen */
      tail = atomic_load(&memory->put.position);
      atomic_store_explicit(&memory->get.seen, tail, memory_order_relaxed);
    }
    if (head != tail) {
      PyObject* const item = take(queue, head, tail, kind, error);
      pthread_mutex_unlock(&memory->get.lock);
      queue_ring(queue, kRoom);
      if (memory->most != 0) queue_ring(queue, kPlaces);
      return item;
    }
    pthread_mutex_unlock(&memory->get.lock);
    *error = deadline.at == 0
                 ? -EAGAIN
                 : queue_wait_for_change(queue, kItems, &memory->put.position, tail, deadline);
    if (*error != 0) return NULL;
  }
}

bool queue_is_empty(const struct queue* queue) {
  return atomic_load(&queue->memory->get.position) == atomic_load(&queue->memory->put.position);
}
