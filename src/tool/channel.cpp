// SPDX-License-Identifier: Apache-2.0
//
// farcall channel: looks at channels and sends to them.
#include "tool/channel/channel.hpp"

#include <memory>

#include "tool/command.hpp"

namespace farcall::tool {

void add_channel(Command root, int& exit_code) {
  const Command group = root.subcommand("channel", "Look at channels of messages, send to them");
  group.requires_subcommand();

  auto threads = std::make_shared<bool>(false);
  const Command list = group.subcommand("list", "Names, their servers, states and counters");
  list.flag("--threads", *threads, "Tell of each thread that waits, and for whom");
  list.runs([threads, &exit_code] { exit_code = channel::list(*threads); });

  auto send = std::make_shared<channel::Send>();
  const Command command = group.subcommand("send", "Send a message and print its reply");
  command.option("NAME", send->name, "Of the channel; somebody else's is UID/NAME").required();
  const Option data =
      command.option("DATA", send->data, "The message; without it, all of standard input");
  const Option one_way =
      command.flag("--one-way", send->one_way, "Wait until it is received, for no reply");
  command.option("--timeout", send->timeout_s, "Give up after so many seconds (10)").not_negative();
  const Option pulse = command.option("--pulse", send->pulse, "A pulse of this code instead")
                           .not_negative()
                           .excludes(one_way)
                           .excludes(data);
  command.option("--value", send->value, "Of the pulse").needs(pulse);
  command.runs([send, &exit_code] { exit_code = channel::send(*send); });
}

}  // namespace farcall::tool
