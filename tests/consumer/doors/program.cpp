// SPDX-License-Identifier: Apache-2.0
//
// A C++ program as it is written for Solaris: a door to itself, a member function behind it.
#include <door.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <iostream>
#include <string>

class Shouter {
 public:
  Shouter() : door_(door_create(&Shouter::serve, this, DOOR_REFUSE_DESC)) {
    if (door_ < 0) {
      std::cerr << "door_create: " << strerror(errno) << std::endl;
      exit(1);
    }
  }
  ~Shouter() { door_revoke(door_); }
  int door() const { return door_; }

 private:
  static void serve(void* cookie, char* argp, size_t size, door_desc_t*, uint_t) {
    static_cast<Shouter*>(cookie)->shout(argp, size);
    door_return(argp, size, 0, 0);
  }
  void shout(char* text, size_t size) {
    for (size_t i = 0; i < size; ++i)
      if (text[i] >= 'a' && text[i] <= 'z') text[i] = static_cast<char>(text[i] - 'a' + 'A');
  }

  int door_;
};

int main() {
  Shouter shouter;
  char text[] = "hello";
  char reply[32];
  door_arg_t arguments;
  memset(&arguments, 0, sizeof arguments);
  arguments.data_ptr = text;
  arguments.data_size = sizeof text - 1;
  arguments.rbuf = reply;
  arguments.rsize = sizeof reply;
  if (door_call(shouter.door(), &arguments) != 0) {
    std::cerr << "door_call: " << strerror(errno) << std::endl;
    return 1;
  }
  std::cout << std::string(arguments.data_ptr, arguments.data_size) << std::endl;
  return 0;
}
