// SPDX-License-Identifier: Apache-2.0
//
// What the C library of Solaris has in <string.h>, and that of Debian 12 has not.
#include <string.h>

#include <algorithm>

extern "C" {

size_t strlcpy(char* to, const char* from, size_t size) {
  const size_t length = ::strlen(from);
  if (size != 0) {
    const size_t copied = std::min(length, size - 1);
    ::memcpy(to, from, copied);
    to[copied] = 0;
  }
  return length;
}

size_t strlcat(char* to, const char* from, size_t size) {
  const size_t used = ::strnlen(to, size);
  return used + strlcpy(to + used, from, size - used);
}

}  // extern "C"
