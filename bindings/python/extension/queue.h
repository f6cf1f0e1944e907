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
 * A side that finds nothing to do counts itself as waiting, silences its eventfd, looks again, and
 * polls it. Who moves a position rings the other side if anybody waits there, and his own where he
 * leaves something behind: so the bell is silenced only by who then finds nothing.
 *
 * Those who share a queue trust each other, as they unpickle what the others put.
 */
#ifndef FARCALL_PYTHON_QUEUE_H
#define FARCALL_PYTHON_QUEUE_H

#include <pthread.h>

#include "extension.h"

/* On lines of their own: what only this side touches, what both read and few write, what this side
 * writes for each item. */
struct queue_side {
  pthread_mutex_t lock; /* robust, of several processes */
  atomic_uint in_parts; /* the holder is in the middle of a long item */
  atomic_ullong seen;   /* the other side's position, as it was: it only grows; for the holder */
  _Alignas(64) atomic_uint waiting;
  _Alignas(64) atomic_ullong position; /* bytes put, or got; its writer holds the lock */
  atomic_ullong items;                 /* put or got */
};

struct queue_memory {
  uint64_t magic;
  uint64_t capacity; /* a power of two */
  uint64_t most;     /* items at once; 0: any number */
  atomic_uint broken;
  _Alignas(64) atomic_ullong
      reserved; /* items that have been promised a place, and may still be on their way */
  _Alignas(64) struct queue_side put;
  _Alignas(64) struct queue_side get;
  _Alignas(64) unsigned char data[];
};

enum {
  kMemory,
  kItems,
  kRoom,
  kQueueDescriptors
}; /* kItems is rung when one is put, kRoom when one is got */

struct queue {
  struct queue_memory* memory;
  size_t size;
  int descriptors[kQueueDescriptors];
};

/* Return NULL with an exception. Opened ones take the descriptors if they succeed. */
struct queue* queue_create(size_t capacity, size_t most);
struct queue* queue_open(const int descriptors[kQueueDescriptors]);
void queue_free(void* queue);

/* 0, or -EAGAIN, -ETIMEDOUT, -EOWNERDEAD, kRaised. */
int64_t queue_reserve(struct queue* queue, struct deadline deadline);
/* An item that has been reserved, or is so now where any number may be there. -EAGAIN also where
 * there is no room for the whole item: it stays reserved. */
int64_t queue_try_put(struct queue* queue, const void* item, size_t size);
/* Waits for ever, also in the middle of the item; not for threads that handle signals. */
int64_t queue_put(struct queue* queue, const void* item, size_t size);
/* The item as bytes; NULL: see *error. */
PyObject* queue_get(struct queue* queue, struct deadline deadline, int64_t* error);
bool queue_is_empty(const struct queue* queue);

#endif
