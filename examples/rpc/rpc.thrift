// SPDX-License-Identifier: Apache-2.0
//
// The interfaces that all programs of this example serve and call, over whatever carries them.
namespace cpp farcall.rpc

struct version_struct {
  1: i32 major_version
  2: i32 minor_version
  3: i32 micro_version
}

service example {
  string name()
  version_struct version()
}

enum operation {
  PING = 0
  PONG = 1
}

struct test_values {
  1: bool a_bool
  2: i8 an_i8
  3: i16 an_i16
  4: i32 an_i32
  5: i64 an_i64
  6: double a_double
  7: string a_string
  8: binary a_binary
}

struct test_containers {
  1: map<i8, string> a_map
  2: list<i16> a_list
  3: set<i32> a_set
}

struct test_struct {
  1: operation what
  2: test_values values
  3: test_containers containers
}

service ping extends example {
  // Gives back what it got, as a PONG.
  test_struct ping(1: test_struct request)
  oneway void hello(1: string greeting)
}

exception division_by_zero {
  1: string message
}

service calculator extends example {
  i32 add(1: i32 a, 2: i32 b)
  i32 subtract(1: i32 a, 2: i32 b)
  i32 multiply(1: i32 a, 2: i32 b)
  i32 divide(1: i32 a, 2: i32 b) throws (1: division_by_zero error)
}

typedef i64 timer_id
const timer_id INVALID_TIMER_ID = -1

struct timestamp {
  1: i64 counter
  // CLOCK_MONOTONIC, in nanoseconds, when the interval had passed.
  2: i64 abstime
}

service timer extends example {
  timer_id start(1: i64 interval_us)
  void stop(1: timer_id id)
  // Returns when the next interval has passed, at once for those that were missed; for a timer that
  // there is not, with a counter of -1.
  timestamp tick(1: timer_id id)
}
