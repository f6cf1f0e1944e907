// SPDX-License-Identifier: Apache-2.0
//
// What bridges say to each other beside the data: in a NATS header, "Farcall", or, of a request, at
// the end of its reply subject, behind a semicolon (libnats copies the data of what has a header).
//
//   importer                        cluster                        exporter
//      │ call, one-way, pulse ──> subject, queue group ──────────────>│
//      │<─────────────────── the call's own subject <── alive, credit,│
//      │                                                  reply, data │
//      │ cancel, credit, data ──> the session's own subject ─────────>│
//
// A call's own subject is its reply subject; the session's is the reply subject of what the
// exporter sends. A request with neither is a call of a program that knows nothing of
// bridges, and a reply without it is a whole answer of status 0, from such a program or from a
// bridge.
//
// The value is "1;k=c;u=0;...": the version, then fields of one letter with decimal numbers.
// Unknown fields are skipped; another version is refused (EPROTO).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace farcall::bridge {

inline constexpr const char* kHeaderName = "Farcall";
inline constexpr std::uint64_t kLongest = std::uint64_t{64} << 20;  // request or reply, in bytes
// What is longer travels in pieces, even where the cluster would take it whole: on a slow line
// others would wait behind it.
inline constexpr std::uint64_t kWholeBytes = std::uint64_t{256} << 10;
inline constexpr std::uint64_t kPieceBytes = std::uint64_t{64} << 10;
inline constexpr std::uint64_t kWindow = 32;          // pieces on their way, at most
inline constexpr std::uint64_t kUsualBoundMs = 2000;  // what is not said

enum class Kind : char {
  call = 'c',
  one_way = 'o',
  pulse = 'p',
  reply = 'r',
  alive = 'a',   // the call is being served
  credit = 'w',  // so many more pieces may come
  data = 'd',    // a piece after the first
  cancel = 'x',
  probe = 'n',  // whether one may publish; nothing is done about it
};

// Who called, in the word of the bridge that took the call in.
struct Caller {
  std::int64_t pid = 0;
  std::int64_t tid = 0;
  std::int64_t uid = -1;  // -1: not told
  std::int64_t gid = -1;
  std::int64_t connection = 0;
};

struct Header {
  Kind kind = Kind::call;
  std::uint64_t total = 0;   // bytes of all pieces; in the first of them
  std::uint64_t offset = 0;  // of a piece
  std::uint64_t credit = 0;
  std::uint64_t room = 0;                  // for the reply
  std::uint64_t deadline_ms = 0;           // from now; 0: none
  std::uint64_t bound_ms = kUsualBoundMs;  // the caller's, for signs of life; 0: it wants none
  int error = 0;                           // of a reply: an errno that there is here
  int status = 0;                          // of a reply
  bool not_taken = false;  // of a reply: nothing was done, another exporter may be asked
  bool message = false;    // of a call: through a channel
  int priority = 0;
  int code = 0;  // of a pulse
  std::int64_t value = 0;
  Caller caller = {};
};

// Of characters that may stand in a subject.
std::string encode(const Header& header);
// Nothing where it is malformed or of another version. Never throws.
std::optional<Header> parse(std::string_view text) noexcept;
// What stands at the end of a reply subject; empty where nothing does.
std::string_view text_in_subject(std::string_view subject) noexcept;

}  // namespace farcall::bridge
