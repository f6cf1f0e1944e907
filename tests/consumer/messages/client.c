/* SPDX-License-Identifier: Apache-2.0 */
/* Sends one message to a server that may not be there yet. Also compiled as C++. */
#include <farcall/message.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static void pause_a_moment(void)
{
  const clock_t end = clock() + CLOCKS_PER_SEC / 100;
  while (clock() < end) {
  }
}

int main(int count, char **arguments)
{
  char answer[100] = "";
  int connection = -1;
  int i;
  if (count != 3) return 2;
  for (i = 0; i < 500 && (connection = farcall_name_open(arguments[1])) < 0; ++i) pause_a_moment();
  if (connection < 0) {
    perror("farcall_name_open");
    return 1;
  }
  if (farcall_send(connection, arguments[2], strlen(arguments[2]), answer, sizeof answer - 1) != 0) {
    perror("farcall_send");
    return 1;
  }
  puts(answer);
  return farcall_disconnect(connection);
}
