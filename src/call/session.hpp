// SPDX-License-Identifier: Apache-2.0
//
// A session: what one client thread and a server share. One page of memory, one packet socket.
//
//   offset   0  SessionControl: magic                      written once, by the client
//          128  client's Side                              written by the client
//          256  server's Side                              written by the server
//          384  taken: number of the last request taken    written by the server
//          512  Slot: turn | extra | 48 bytes of data      written by whoever's turn it is
//          576  ...   192 bytes more
//
//   turn   bits 63..32         31..24   23..16   15..0
//          number of the call  kind     flags    bytes in the slot
//
// Request and reply go through the same lines: whoever reads the other's message takes the line
// over and writes the answer into it, so that a small call costs one line transfer each way, not
// two. `extra` is the status of a reply.
//
// Data longer than the slot travels through two byte rings, made when first needed by whichever
// side needs them and announced with kBulkComes; then the slot holds its size, 8 bytes, and reading
// overlaps writing. Descriptors travel over the socket, in one packet, before the turn is given.
// The socket also carries doorbells (packets of one byte), and tells each side of the other's
// death.
#pragma once

#include <cstring>
#include <deque>

#include "farcall/call.hpp"
#include "farcall/ring.hpp"

namespace farcall::call {

enum class Kind : std::uint8_t { none = 0, request = 1, one_way = 2, reply = 3 };
inline constexpr std::uint8_t kDescriptors = 1;  // a packet of descriptors belongs to it
inline constexpr std::uint8_t kBulk = 2;         // the data goes through the rings
inline constexpr std::uint8_t kBulkComes = 4;    // a packet with the rings comes before that
inline constexpr std::uint8_t kFlags = kDescriptors | kBulk | kBulkComes;

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

struct SessionControl {
  static constexpr std::uint64_t kMagic = 0x316c6c6163636166;  // "faccall1"

  alignas(kFalseSharing) std::uint64_t magic;
  Side client;
  Side server;
  alignas(kFalseSharing) std::atomic<std::uint32_t> taken;
  alignas(kFalseSharing) Slot slot;
};
static_assert(offsetof(SessionControl, client) == 128 && offsetof(SessionControl, server) == 256 &&
              offsetof(SessionControl, taken) == 384 && offsetof(SessionControl, slot) == 512);
static_assert(sizeof(Slot) == 256);
inline constexpr std::size_t kSessionBytes = 4096;
static_assert(sizeof(SessionControl) <= kSessionBytes);

inline constexpr std::size_t kBulkCapacity = 128 * 1024;
// A peer that is silent for so long in the middle of its own message is taken for dead.
inline constexpr auto kStall = std::chrono::seconds(2);

// Takes over the memory that a client has sent. Throws SystemError: EPERM, EPROTO.
Mapping adopt_session(UniqueFd fd);

// What both halves have in common: the memory, the socket and what came through it.
class SessionBase {
 public:
  SessionBase(Mapping memory, UniqueFd socket, WaitMode mode);
  SessionBase(const SessionBase&) = delete;
  SessionBase& operator=(const SessionBase&) = delete;

  [[nodiscard]] SessionControl& control() const noexcept {
    return *reinterpret_cast<SessionControl*>(memory_.data());
  }
  [[nodiscard]] Slot& slot() const noexcept { return control().slot; }
  [[nodiscard]] int socket() const noexcept { return socket_.get(); }
  // acquire: pairs with the release in give_turn().
  [[nodiscard]] Turn turn() const noexcept {
    return Turn::unpack(slot().turn.load(std::memory_order_acquire));
  }
  // Takes all packets that have come: doorbells are dropped, descriptors are kept.
  void drain() noexcept;
  [[nodiscard]] Waiter& waiter() noexcept { return waiter_; }

 protected:
  // What one message is made of, apart from the data in the slot.
  struct Load {
    std::span<const std::byte> data;
    std::span<const int> descriptors;
  };

  // The line with the turn is written last, lest the other side, who looks at it, takes it away
  // half-written.
  void fill_slot(std::span<const std::byte> data) noexcept {
    if (data.size() > kFirstLineBytes) {
      std::memcpy(slot().data + kFirstLineBytes, data.data() + kFirstLineBytes,
                  data.size() - kFirstLineBytes);
      std::atomic_signal_fence(std::memory_order_seq_cst);
      std::memcpy(slot().data, data.data(), kFirstLineBytes);
    } else if (!data.empty()) {
      std::memcpy(slot().data, data.data(), data.size());
    }
  }
  void give_turn(Turn turn, Side& mine, Side& peer) noexcept {
    // release: the message is visible before the turn passes.
    slot().turn.store(turn.pack(), std::memory_order_release);
    waiter_.wake(mine, peer);
  }
  // Sends what does not fit the slot; `turn` gets its flags. Throws SystemError.
  Outcome prepare_long(const Load& load, Turn& turn, bool server);
  Outcome stream_out(std::span<const std::byte> data);
  Outcome stream_in(std::span<std::byte> into);
  // The rings, from the packet that announced them.
  Outcome accept_bulk(bool server);
  Outcome next_descriptors(std::vector<UniqueFd>& into);

  Mapping memory_;
  UniqueFd socket_;
  Waiter waiter_;

 private:
  struct Bulk {
    RingMemory out_memory;
    RingMemory in_memory;
    ByteWriter out;
    ByteReader in;
  };
  void make_bulk(RingMemory out, RingMemory in);

  Drain drain_hook() noexcept;

  WaitMode mode_;
  std::unique_ptr<Bulk> bulk_;
  std::deque<std::vector<UniqueFd>> arrived_;
  bool garbage_ = false;
};

class ClientSession final : public SessionBase {
 public:
  // Makes the memory and the socket and sends them to the port. Throws SystemError: EPIPE or
  // ECONNRESET where the port has been closed.
  static std::unique_ptr<ClientSession> open(int port, WaitMode mode, std::uint64_t generation);
  ClientSession(Mapping memory, UniqueFd socket, WaitMode mode, std::uint64_t generation)
      : SessionBase(std::move(memory), std::move(socket), mode), generation_(generation) {}

  Outcome call(const CallArguments& arguments, CallResults* results, Deadline deadline);
  [[nodiscard]] bool dispatched() const noexcept {
    return control().taken.load(std::memory_order_relaxed) == number_;
  }
  [[nodiscard]] std::uint64_t generation() const noexcept { return generation_; }

 private:
  Outcome wait_for_reply(Turn& turn, Deadline deadline);
  Outcome take_reply(Turn turn, CallResults& results);
  Outcome fail(Outcome outcome) const noexcept;

  std::uint64_t generation_;
  std::uint32_t number_ = 0;
  bool outstanding_ = false;  // a one-way request has been sent and perhaps not taken yet
};

class ServerSession final : public SessionBase {
 public:
  ServerSession(Mapping memory, UniqueFd socket, Credentials sender, std::uint64_t number,
                WaitMode mode)
      : SessionBase(std::move(memory), std::move(socket), mode), caller(sender), id(number) {}

  [[nodiscard]] bool ready() const noexcept {
    const Turn now = turn();
    return now.number != number_ && (now.kind == Kind::request || now.kind == Kind::one_way);
  }
  [[nodiscard]] bool ready_one_way() const noexcept {
    return ready() && turn().kind == Kind::one_way;
  }
  // Takes the request that is ready. Where not ok, the session is to be closed.
  Outcome take(std::byte* inline_data, std::size_t most, std::unique_ptr<std::byte[]>& large,
               std::size_t& size, std::vector<UniqueFd>& descriptors, bool& wants_reply);
  Outcome reply(std::span<const std::byte> data, std::span<const int> descriptors,
                std::int64_t status);

  [[nodiscard]] bool claim() noexcept { return !owned_.exchange(true, std::memory_order_seq_cst); }
  void release() noexcept { owned_.store(false, std::memory_order_seq_cst); }
  [[nodiscard]] bool hung_up() const noexcept;

  const Credentials caller;
  const std::uint64_t id;
  std::atomic<bool> gone{false};  // the socket has said so

 private:
  std::uint32_t number_ = 0;  // of the last request taken
  std::atomic<bool> owned_{false};
};

}  // namespace farcall::call
