/* SPDX-License-Identifier: Apache-2.0 */
/* Answers one message, in capitals. */
#include <ctype.h>
#include <farcall/message.h>
#include <stdio.h>

int main(int count, char **arguments)
{
  char text[100];
  struct farcall_info info;
  int64_t id;
  size_t i;
  int channel;
  if (count != 2 || (channel = farcall_name_attach(arguments[1], FARCALL_DISCONNECT, 0600)) < 0) {
    perror("farcall_name_attach");
    return 1;
  }
  /* Pulses are not answered. */
  do {
    id = farcall_receive(channel, text, sizeof text, &info);
  } while (id == 0);
  if (id < 0) {
    perror("farcall_receive");
    return 1;
  }
  for (i = 0; i < info.received; ++i) text[i] = (char)toupper((unsigned char)text[i]);
  if (farcall_reply(id, 0, text, info.received) != 0) {
    perror("farcall_reply");
    return 1;
  }
  return farcall_channel_destroy(channel);
}
