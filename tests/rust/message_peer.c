// SPDX-License-Identifier: Apache-2.0
//
// The other side of the tests of messages in Rust, in C:
//
//   message-peer answer NAME   answers with what it gets and its size until its input ends, and
//                              writes "hello" to a descriptor that comes along; prints the rest
//   message-peer ask NAME      sends of many sizes, one way, and a pulse
//   message-peer hold NAME     receives one message, and does not answer
//   message-peer block NAME    sends one message that nobody answers
#include <errno.h>
#include <farcall/message.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { kMost = 100000, kSeconds = 60 };

static unsigned char received[kMost];
static unsigned char sent[kMost];

/* By which a test sees it fail. */
static void check(int good, const char* what) {
  if (good) return;
  fprintf(stderr, "%s: %s\n", what, strerror(errno));
  exit(1);
}

static int attach(const char* name) {
  const int channel = farcall_name_attach(name, 0, 0600);
  check(channel > 0, "attach");
  printf("ready\n");
  fflush(stdout);
  return channel;
}

/* Whether there was one. */
static int answer_one(int channel, int* one_way, long long* pulses) {
  struct farcall_info info;
  farcall_timeout(0);
  const int64_t id = farcall_receive(channel, received, sizeof received, &info);
  if (id < 0 && (errno == ETIMEDOUT || errno == EAGAIN)) return 0;
  check(id >= 0, "receive");
  if (id == 0) {
    *pulses += info.value;
  } else if (id == FARCALL_ONE_WAY) {
    ++*one_way;
  } else {
    if (info.descriptor_count == 1) {
      check(write(info.descriptors[0], "hello", 5) == 5, "write");
      close(info.descriptors[0]);
    }
    check(farcall_reply(id, (int)info.received, received, info.received) == 0, "reply");
  }
  return 1;
}

static void answer(const char* name) {
  const int channel = attach(name);
  struct pollfd ready[2] = {{.fd = farcall_channel_descriptor(channel), .events = POLLIN},
                            {.fd = STDIN_FILENO, .events = POLLIN}};
  int one_way = 0;
  long long pulses = 0;
  while (ready[1].revents == 0) {
    check(poll(ready, 2, kSeconds * 1000) > 0, "poll");
    answer_one(channel, &one_way, &pulses);
  }
  /* Of what was sent before its input ended some may wait yet. */
  while (answer_one(channel, &one_way, &pulses)) {
  }
  printf("%d one way, pulses of %lld\n", one_way, pulses);
}

static int open_name(const char* name) {
  const int connection = farcall_name_open(name);
  check(connection > 0, "open");
  return connection;
}

static void ask(const char* name) {
  static const size_t sizes[] = {0, 1, 5000, 16384, 16385, kMost};
  const int connection = open_name(name);
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
    memset(sent, (int)i, sizes[i]);
    memset(received, 0xff, sizeof received);
    farcall_timeout(kSeconds * INT64_C(1000000000));
    const int status = farcall_send(connection, sent, sizes[i], received, sizeof received);
    check(status == (int)i && memcmp(sent, received, sizes[i]) == 0, "send");
  }
  check(farcall_send_one_way(connection, "one", 3) == 0, "send one way");
  check(farcall_pulse(connection, 0, 7, -8) == 0, "pulse");
}

static void hold(const char* name) {
  const int channel = attach(name);
  check(farcall_receive(channel, received, sizeof received, NULL) > FARCALL_ONE_WAY, "receive");
  printf("ready\n");
  fflush(stdout);
  check(read(STDIN_FILENO, received, 1) >= 0, "read");
}

static void block(const char* name) {
  farcall_send(open_name(name), sent, sizeof sent, received, sizeof received);
}

int main(int argc, char** argv) {
  static const struct {
    const char* name;
    void (*play)(const char* name);
  } roles[] = {{"answer", answer}, {"ask", ask}, {"hold", hold}, {"block", block}};
  for (size_t i = 0; argc == 3 && i < sizeof roles / sizeof *roles; ++i)
    if (strcmp(argv[1], roles[i].name) == 0) {
      roles[i].play(argv[2]);
      return 0;
    }
  return 2;
}
