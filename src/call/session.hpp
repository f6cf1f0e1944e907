// SPDX-License-Identifier: Apache-2.0
//
// A session: what one client thread and a server share. One page of memory, two pairs of packet
// sockets.
//
//   offset   0  SessionControl: magic                      written once, by the client
//           64  Terms: refusal, seven words                written by the server, rarely
//          128  client's WaitState                              written by the client
//          256  server's WaitState                              written by the server
//          384  taken: number of the last request taken    written by the server
//          512  Slot: turn | extra | 48 bytes of data      written by whoever's turn it is
//          576  ...   the rest of the page: data
//
//   turn   bits 63..32         31..24   23..16   15..0
//          number of the call  kind     flags    bytes in the slot
//
// Request and reply go through the same lines: whoever reads the other's message takes the line
// over and writes the answer into it, so that a small call costs one line transfer each way, not
// two. `extra` is the word, the origin (24 bits) and the priority (8) of a request, the status of a
// reply.
//
//   client                              server
//     port:     memory, one end  ------->   checks both, makes a pair of its own
//     that end: <------------------------   one end of that; or none, and `refusal` says why
//
//     request  ------------------>   takes it            one_way: answered as soon as taken
//              <------------------ reply
//     none     ------------------>   an exchange for what is one_way still: it is taken back
//     leaving  ------------------>   the same for a request, in two steps: then `none`, unless the
//                                    server has said meanwhile that it has taken it
//   and, where descriptors are in the reply, which the server must know to have been taken:
//     done     ------------------>            its bytes: 0, or the errno of what went wrong, after
//              <------------------ reply      which the client waits for another reply
//
// Each side reads where it has made the pair itself and keeps its end to itself: nobody else can
// hold that one's locks, and so keep it from its deadlines, set its options, or say by it who they
// are. It writes at the end that the other has sent, which takes no lock that can be held for long.
//
// Data longer than the slot goes through memory of its own (transfer.hpp, kTransfer), made when
// first needed by whichever side needs it and announced with kTransferComes. Descriptors travel
// over the sockets before the turn is given. They also carry doorbells (packets of one byte), what
// the kernel says of the client's real and saved ids (kPurposeReal, kPurposeSaved), and tell each
// side of the other's death.
#pragma once

#include <cstring>
#include <deque>

#include "call/transfer.hpp"
#include "farcall/call.hpp"
#include "memory/load_once.hpp"
#include "process/background.hpp"
#include "process/private_mapping.hpp"
#include "process/process.hpp"

namespace farcall::call {

enum class Kind : std::uint8_t {
  none = 0,
  request = 1,
  one_way = 2,
  reply = 3,
  taking = 4,  // was one_way, and the server has begun to take it
  done = 5,
  leaving = 6,  // was a request, and the client is about to take it back
};
inline constexpr std::uint8_t kDescriptors = 1;    // packets of descriptors belong to it
inline constexpr std::uint8_t kTransfer = 2;       // the data is in the transfer memory
inline constexpr std::uint8_t kTransferComes = 4;  // a packet with that comes before
inline constexpr std::uint8_t kRefused = 16;       // a reply: the server could not take the request
inline constexpr std::uint16_t kHandedOver = 1;    // its size: the program has had what came
inline constexpr std::uint8_t kAfterOthers = 32;   // a request: look for what has come before it
inline constexpr std::uint8_t kFlags = kDescriptors | kTransfer | kTransferComes | kRefused;

// What packets on a port's and a session's sockets bring.
inline constexpr std::uint8_t kPurposeSession = 1;  // to a port: a session's memory, and a socket
inline constexpr std::uint8_t kPurposeData = 2;     // in a session: descriptors, or memory
inline constexpr std::uint8_t kPurposeReal = 3;     // in a session: sent with the real ids
inline constexpr std::uint8_t kPurposeSaved = 4;    // likewise, the saved ids

struct Turn {
  std::uint32_t number = 0;
  Kind kind = Kind::none;
  std::uint8_t flags = 0;
  std::uint16_t size = 0;

  [[nodiscard]] constexpr std::uint64_t pack() const noexcept {
    return std::uint64_t{number} << 32 | std::uint64_t{static_cast<std::uint8_t>(kind)} << 24 |
           std::uint64_t{flags} << 16 | size;
  }
  static constexpr Turn unpack(std::uint64_t word) noexcept {
    return {.number = static_cast<std::uint32_t>(word >> 32),
            .kind = static_cast<Kind>(word >> 24 & 0xff),
            .flags = static_cast<std::uint8_t>(word >> 16),
            .size = static_cast<std::uint16_t>(word)};
  }
};

struct Slot {
  std::atomic<std::uint64_t> turn;
  std::int64_t extra;
  std::byte data[kInlineBytes];
};
inline constexpr std::size_t kFirstLineBytes = kLine - 16;

struct TermsLine {
  std::atomic<std::uint32_t> refusal;  // the errno with which the server takes no session
  std::array<std::atomic<std::uint64_t>, kTerms> words;
};

struct SessionControl {
  static constexpr std::uint64_t kMagic = 0x346c6c6163636166;  // "faccall4"

  alignas(kFalseSharing) std::uint64_t magic;
  alignas(kLine) TermsLine terms;
  WaitState client;
  WaitState server;
  alignas(kFalseSharing) std::atomic<std::uint32_t> taken;
  std::atomic<std::uint32_t> discarded;  // not 0: the last reply in transfer memory may be gone
  alignas(kFalseSharing) Slot slot;
};
static_assert(offsetof(SessionControl, terms) == 64 && sizeof(TermsLine) == kLine);
static_assert(offsetof(SessionControl, client) == 128 && offsetof(SessionControl, server) == 256 &&
              offsetof(SessionControl, taken) == 384 && offsetof(SessionControl, slot) == 512);
inline constexpr std::size_t kSessionBytes = 4096;
static_assert(sizeof(SessionControl) == kSessionBytes);

// As memcpy(3), which costs more to call than a short message to copy. Some bytes are read twice:
// not for what a decision rests on.
[[gnu::always_inline]] inline void copy_bytes(std::byte* to, const std::byte* from,
                                              std::size_t size) noexcept {
  using Block [[gnu::vector_size(16)]] = char;
  constexpr std::size_t kBlock = sizeof(Block);
  if (size < kBlock || size > 3 * kBlock) {
    if (size != 0) std::memcpy(to, from, size);
    return;
  }
  const std::size_t last = size - kBlock;
  Block first_block;
  Block last_block;
  std::memcpy(&first_block, from, kBlock);
  std::memcpy(&last_block, from + last, kBlock);
  std::memcpy(to, &first_block, kBlock);
  if (last > kBlock) {
    Block middle;
    std::memcpy(&middle, from + kBlock, kBlock);
    std::memcpy(to + kBlock, &middle, kBlock);
  }
  std::memcpy(to + last, &last_block, kBlock);
}

// Takes over the memory that a client has sent. Throws SystemError: EPERM, EPROTO; then the
// descriptor stays the caller's. `inode`: gets the file's number.
PrivateMapping adopt_session(UniqueFd&& fd, std::uint64_t* inode = nullptr);

// What a session's packets go through: `mine` brings what the other side sends, and its death;
// `theirs` takes what this side sends.
struct SessionSockets {
  PrivateFd mine;
  PrivateFd theirs;
};
inline constexpr std::size_t kSessionDescriptors = 2;

// The process of who has made a socket's other end, while somebody waits for it: its children may
// hold copies of its sockets, which do not hang up when it dies.
struct WatchedProcess {
  WatchedProcess() noexcept = default;
  explicit WatchedProcess(int socket) noexcept;

  bool ended = false;
  PrivateFd descriptor;  // readable once it has; none where it cannot be watched
};

// What both halves have in common: the memory, the sockets and what came through them.
class SessionBase {
 public:
  SessionBase(PrivateMapping memory, SessionSockets sockets, WaitMode mode);
  SessionBase(const SessionBase&) = delete;
  SessionBase& operator=(const SessionBase&) = delete;

  [[nodiscard]] SessionControl& control() const noexcept {
    return *reinterpret_cast<SessionControl*>(memory_.data());
  }
  [[nodiscard]] Slot& slot() const noexcept { return control().slot; }
  // As the peer has it now.
  [[nodiscard]] std::int64_t extra() const noexcept {
    return load_once<std::int64_t>(&slot().extra);
  }
  // Where it is read.
  [[nodiscard]] int socket() const noexcept { return sockets_.mine.get(); }
  // acquire: pairs with the release in give_turn().
  [[nodiscard]] Turn turn() const noexcept {
    const std::uint64_t now = slot().turn.load(std::memory_order_acquire);
    order_for_sanitizer();
    return Turn::unpack(now);
  }
  // The same, for who looks again and again: after a long message both lines of the slot are
  // fetched at once, instead of the second after the first.
  [[nodiscard]] std::uint64_t look() const noexcept {
    const std::uint64_t now = slot().turn.load(std::memory_order_acquire);
    order_for_sanitizer();
    if (long_) __builtin_prefetch(slot().data + kFirstLineBytes);
    return now;
  }
  // Takes packets that have come: doorbells are dropped. Descriptors are kept, or left.
  void drain() noexcept { take_packets(keeps_early_descriptors()); }
  [[nodiscard]] Waiter& waiter() noexcept { return waiter_; }
  // Counts from now on what passes here, for who looks (farcall/observe.hpp).
  void observe(const observe::Description& description) noexcept;
  // Whether memory has been sent of which the next turn is to tell, whatever else is in it.
  [[nodiscard]] bool announced() const noexcept { return announce_; }
  // Whether descriptors have been sent that nothing can be sent after: they would be taken for one.
  [[nodiscard]] bool sent_in_part() const noexcept { return sent_in_part_; }
  // Whether packets that there was no room for stay in the socket. Nothing behind them is taken.
  [[nodiscard]] bool stuck() const noexcept { return stuck_ != 0; }
  // Whether the other side has closed. A system call.
  [[nodiscard]] bool hung_up() const noexcept;

 protected:
  ~SessionBase() = default;

  // What one message is made of.
  struct Load {
    std::int64_t extra;
    std::span<const std::byte> data;
    std::span<const int> descriptors;
    Deadline deadline;  // where the socket is full
  };

  // The line with the turn is written last, so that the other side, who looks at it, does not take
  // it away half-written.
  void fill_slot(std::int64_t extra, std::span<const std::byte> data) noexcept {
    if (data.size() > kFirstLineBytes) {
      copy_memory(slot().data + kFirstLineBytes, data.data() + kFirstLineBytes,
                  data.size() - kFirstLineBytes);
      std::atomic_signal_fence(std::memory_order_seq_cst);
      slot().extra = extra;
      std::memcpy(slot().data, data.data(), kFirstLineBytes);
    } else {
      slot().extra = extra;
      copy_bytes(slot().data, data.data(), data.size());
    }
  }
  void give_turn(Turn turn, WaitState& mine, WaitState& peer) noexcept {
    order_for_sanitizer();
    // release: the message is visible before the turn passes.
    slot().turn.store(turn.pack(), std::memory_order_release);
    waiter_.wake(mine, peer);
  }
  // Fills the slot and sends what goes before the turn; `turn` gets its flags. Throws SystemError:
  // ETIMEDOUT where the socket is full.
  void prepare(const Load& load, Turn& turn);
  // Takes over the transfer memory that the packet brings which announced it. Returns 0; EMFILE
  // where this process has no room for it; E2BIG where it is for more than `most` bytes; EPROTO for
  // what is none.
  int accept_transfer(std::size_t most);
  // ok, broken, or too_big: this process has no room for them, but for those that it gets.
  Outcome next_descriptors(ReceivedFds& into);
  // Who the other side is, for the accounts of what it sends.
  [[nodiscard]] virtual uid_t owner() const noexcept = 0;
  // Any other packet. False: it makes no sense.
  virtual bool other_packet(const Packet&) noexcept { return false; }
  // Whether these have been dropped meanwhile.
  virtual bool look_whether_dropped() noexcept { return false; }
  // Which of the two sides this is.
  [[nodiscard]] virtual bool is_client() const noexcept = 0;
  // Whether descriptors are taken before the message that they belong to. Who does so can be made
  // to hold the other side's end of a socket, and never learns that the other side has gone. A
  // server leaves them with the kernel, which finds out what nobody can reach any more.
  [[nodiscard]] bool keeps_early_descriptors() const noexcept { return is_client(); }
  // Whether nothing has come beside what has been taken.
  [[nodiscard]] bool nothing_left() const noexcept { return arrived_.empty(); }
  [[nodiscard]] std::size_t arrived_descriptors() const noexcept;
  // Whether the next packet may be taken, which says that it brings so many descriptors.
  virtual bool may_take(std::size_t, process::InHand&) noexcept { return true; }
  // Two questions, of which a server asks the ids each time, as they may change while a session
  // lasts; a client knows both from the beginning. Whether what comes may be long in closing, as of
  // anybody but root and the process's own user: what began as a stranger's stays so, for accounts
  // rest on it. And whether the other side, the very same user, may be relied upon to leave the
  // memory alone that both have.
  [[nodiscard]] virtual bool is_strangers() noexcept = 0;
  [[nodiscard]] virtual bool trusts_other() const noexcept = 0;
  // Whether the socket tells who has sent a packet.
  [[nodiscard]] virtual bool tells_sender() const noexcept { return false; }
  // Whether more descriptors may be kept here than there are now.
  virtual bool may_keep(std::size_t) noexcept { return true; }
  // Whether memory may be made for a long message; `charge`: for the accounts.
  virtual bool may_hold(std::size_t, Charge&) noexcept { return true; }
  // Before other memory takes the place of the one that there is.
  virtual void let_go_of_transfer() noexcept { transfer_ = {}; }
  // So much has come that nobody has asked for.
  virtual void count_unsolicited(std::size_t, std::size_t) noexcept {}
  void shut_down() const noexcept { ::shutdown(socket(), SHUT_RDWR); }

  PrivateMapping memory_;
  SessionSockets sockets_;
  Waiter waiter_;
  TransferMemory transfer_;
  unsigned stuck_ = 0;    // so many sets of packets
  bool sending_ = false;  // some of what is prepared has been sent
  bool has_sent_descriptors_ = false;
  bool sent_in_part_ = false;      // some packets of one set of descriptors, and not the last
  bool announce_ = false;          // memory has been sent, and no turn has told of it
  observe::Half* sent_ = nullptr;  // of entry_
  observe::Half* received_ = nullptr;

 private:
  struct Arrived {
    ReceivedFds descriptors;
    bool overflow = false;
    bool complete = false;
  };
  void keep(Packet& packet);
  void take_packets(bool with_descriptors) noexcept;
  Packet next_packet(process::InHand& in_hand);
  [[nodiscard]] bool has_overflow() const noexcept {
    return !arrived_.empty() && arrived_.front().overflow;
  }
  int watch_process(bool on) noexcept;

  WatchedProcess process_;  // while somebody here waits long for the other side
  observe::Entry entry_;
  std::deque<Arrived> arrived_;
  bool garbage_ = false;

 protected:
  bool long_ = false;  // the last message that came had more than one line
};

}  // namespace farcall::call
