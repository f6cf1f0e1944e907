/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of a queue: items of several processes, in the order in which they were put.
 *
 *   | head of the file: locks, positions | data, a ring of `capacity` bytes                     |
 *   |                                    |   ...item][size | item ...... | 0..7 ][size | item ... |
 *                                              ^ taken                             ^ put
 *
 * Whoever puts holds the lock of those who put, and whoever gets that of those who get: so between
 * the two there is one writer and one reader. The locks survive their holders: an item counts once
 * its position has been moved over it. An item longer than the ring goes through it in parts, with
 * the lock held; who dies in the middle of that breaks the queue, and others learn of it
 * (EOWNERDEAD).
 *
 * Who finds nothing to do counts itself as waiting at a bell, an eventfd, silences it, looks
 * again, and polls it. Who changes something rings the bell if anybody waits there, and whoever
 * leaves something behind rings it once more. One that is killed, or stopped, when it has silenced
 * the bell does not: so everybody looks again by itself a few times a second. Those at one bell
 * wait for the same thing, so it is silenced only where none of them has anything to do: for room
 * only the holder of the lock waits, as others may need less of it.
 *
 * Where the queue holds a number of items at most, each has a place before it is put
 * (queue_places.c); else only what waits to be put.
 *
 * An item begins with a word: its size, and above that what it is.
 *
 * Those who share a queue trust each other, as they unpickle what the others put.
 */
#ifndef FARCALL_PYTHON_QUEUE_H
#define FARCALL_PYTHON_QUEUE_H

#include <pthread.h>
#include <sys/types.h>

#include "extension.h"

enum { kMemory, kItems, kRoom, kPlaces, kQueueDescriptors };
enum {
  kBells = kQueueDescriptors
}; /* by descriptor: kItems is rung when one is put, the others
      when one is got */

/* What the holder of a lock does. */
enum { kGoesOn, kWaits, kIsInALongItem };

/* On a line of its own what this side writes for each item, and the other side reads. */
struct queue_side {
  pthread_mutex_t lock; /* robust, of several processes */
  atomic_uint holder;
  atomic_ullong seen; /* the other side's position, as it was: it only grows; for the holder */
  _Alignas(64) atomic_ullong position; /* bytes put, or got; its writer holds the lock */
  atomic_ullong items;                 /* put, or got */
  /* What both will be once the item has been got whose getter is about to move them: who finds its
   * lock tells from these how far it came. Of who puts: the position, and the count and the index
   * of its process, if that counts them, and the count of all. */
  atomic_ullong next_position;
  atomic_ullong next_items;
  atomic_uint next_process;
  atomic_ullong next_total;
};

/* One that puts into a queue with places. */
struct queue_process {
  _Alignas(64) atomic_int pid; /* 0: nobody's; the first is everybody's who cannot have another */
  uint64_t space;              /* of process ids */
  uint64_t began;              /* as /proc has it */
  atomic_ullong reserved;      /* places, in all, also by who had the entry before: with their lock,
                                  which those of any number need only to take the entry */
  atomic_ullong put;           /* of those: with the lock of who puts */
  atomic_ullong owner;         /* grows with each: who has taken it knows by this that it still has
                                  it; with the lock of the places */
};
enum { kProcesses = 128 };

struct queue_memory {
  uint64_t magic;
  uint64_t capacity; /* a power of two */
  uint64_t most;     /* items at once; 0: any number */
  atomic_uint broken;
  _Alignas(64) atomic_ullong reserved; /* items that have been promised a place, and may still be on
                                          their way; of any number: 0 until there is one */
  _Alignas(64) atomic_uint waiting[kBells]; /* all read it for each item, and few write it */
  _Alignas(64) struct queue_side put;
  _Alignas(64) struct queue_side get;
  _Alignas(64) struct queue_side places; /* its lock alone */
  struct queue_process processes[kProcesses];
  _Alignas(64) unsigned char data[];
};

struct queue {
  struct queue_memory* memory;
  size_t size;
  int descriptors[kQueueDescriptors];
  struct queue_process* process; /* this one's, once it has reserved a place, while it is `owner` */
  uint64_t owner;
  struct deadline next_look; /* at who is gone, of who asks for the size */
};

/* Return NULL with an exception. Opened ones take the descriptors if they succeed. */
struct queue* queue_create(size_t capacity, size_t most);
struct queue* queue_open(const int descriptors[kQueueDescriptors]);
void queue_free(void* queue);

/* ---- queue_objects.c ---- */

enum queue_kind { kPickled, kBytes, kText, kInteger, kFloat, kNone, kTrue, kFalse };

/* An object on its way into a queue. */
struct queue_item {
  enum queue_kind kind;
  const void* bytes;
  size_t size;
  char small[8];
  Py_buffer buffer; /* of kPickled */
};
/* False with an exception. The object has to stay until queue_let_go(). */
bool queue_hold(struct queue_item* item, PyObject* object);
void queue_let_go(struct queue_item* item);
/* The same as bytes, for later. It is let go of as before. */
PyObject* queue_pickled(struct queue_item* item, PyObject* object);
/* The object; of kPickled the bytes, for queue_unpickled(). */
PyObject* queue_object(enum queue_kind kind, const char* bytes, size_t size);
PyObject* queue_unpickled(PyObject* pickled);

/* ---- queue_items.c ---- */

/* With the GIL, which is given away while another one holds the lock. 0, or -EAGAIN, -ETIMEDOUT,
 * -EOWNERDEAD, kRaised. */
int64_t queue_lock(struct queue* queue, struct queue_side* side, struct deadline deadline);
/* The same for as long as it takes, unmoved by signals; for locks that nobody keeps. */
int64_t queue_lock_surely(struct queue* queue, struct queue_side* side);
/* Of a lock taken with `error`: sets right what a dead holder has left. Where it returns an error
 * the lock is not held. */
int64_t queue_check_lock(struct queue* queue, struct queue_side* side, int error);
/* Until *word is not `seen`, or for nothing: 0. Else -ETIMEDOUT, kRaised. */
int64_t queue_wait_for_change(struct queue* queue, int bell, const atomic_ullong* word,
                              uint64_t seen, struct deadline deadline);
void queue_ring(struct queue* queue, int bell);
/* An item, which is reserved where there are places. -EAGAIN also where there is no room for the
 * whole item. */
int64_t queue_try_put(struct queue* queue, const struct queue_item* item);
/* A reserved one that has been pickled. Waits for ever, also in the middle of the item; not for
 * threads that handle signals. */
int64_t queue_put(struct queue* queue, const void* pickled, size_t size);
/* The object, or the bytes of one that has been pickled; NULL: see *error. */
PyObject* queue_get(struct queue* queue, struct deadline deadline, enum queue_kind* kind,
                    int64_t* error);
bool queue_is_empty(const struct queue* queue);

/* ---- queue_places.c ---- */

/* A place for an item. 0, or -EAGAIN, -ETIMEDOUT, -EOWNERDEAD, kRaised. */
int64_t queue_reserve(struct queue* queue, struct deadline deadline);
/* One that is not needed after all. */
void queue_give_back(struct queue* queue);
/* Items in the queue, and those that wait to be put; kRaised. */
int64_t queue_size(struct queue* queue);
/* With the lock of the places. */
void queue_count_reserved(struct queue_memory* memory);
/* Of a process that puts nothing more through this. */
void queue_leave_entry(struct queue* queue);

#endif
