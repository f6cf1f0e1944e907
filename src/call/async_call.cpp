// SPDX-License-Identifier: Apache-2.0
#include <poll.h>

#include <cerrno>

#include "call/client.hpp"
#include "farcall/error.hpp"

namespace farcall {

class AsyncCall::State {
 public:
  State(Client::State& client, const CallArguments& arguments, Deadline room);
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  [[nodiscard]] int poll_descriptor() const noexcept;
  Outcome prepare_poll() noexcept;
  void finish_poll() noexcept {
    if (session_) session_->finish_poll();
  }
  Outcome take(CallResults& results, Deadline deadline, SignalCount since);
  [[nodiscard]] bool dispatched() const noexcept { return dispatched_; }

 private:
  void begin(Deadline room);
  void keep();
  void send(const CallArguments& arguments, Deadline room);
  void end_opening() noexcept;
  Outcome open(Deadline deadline, SignalCount since);

  Client::State& client_;
  CallArguments arguments_;
  // While there is no session yet: the caller may change and close its own.
  std::vector<std::byte> request_;
  std::vector<process::PrivateFd> descriptors_;
  std::vector<int> numbers_;  // of these
  std::unique_ptr<call::SessionRequest> opening_;
  call::PortFd<process::PrivateFd> port_;
  std::unique_ptr<call::ClientSession> session_;  // or, after the end, neither
  bool dispatched_ = false;
};

AsyncCall::State::State(Client::State& client, const CallArguments& arguments, Deadline room)
    : client_(client), arguments_(arguments) {
  if (arguments.descriptors.size() > kCallDescriptors)
    throw SystemError(ENFILE, "too many descriptors for one call");
  try {
    begin(room);
  } catch (const SystemError& error) {
    // A server that goes in between has not had the whole of the request.
    if (call::means_gone(error)) throw SystemError(EPIPE, "call");
    throw;
  }
}

void AsyncCall::State::begin(Deadline room) {
  const int port = client_.port_or_own(arguments_.port);
  while ((session_ = client_.take_idle())) {
    // One that holds a request which wants no reply may have to be waited for.
    if (session_->outstanding()) break;
    const int error = Client::State::admit(*session_, arguments_.admission);
    if (error == 0) {
      send(arguments_, room);
      return;
    }
    if (!session_->hung_up()) {
      client_.give_back(std::move(session_));
      throw SystemError(error, "call");
    }
  }
  if (session_) client_.give_back(std::move(session_));
  if (call::hung_up(port)) throw SystemError(EPIPE, "call");
  keep();
  try {
    port_ = call::private_port(port);
    opening_ = std::make_unique<call::SessionRequest>(client_.ask(port_.get(), room, std::nullopt));
  } catch (const SystemError& error) {
    if (error.code().value() != ETIMEDOUT) throw;
    throw SystemError(EAGAIN, "the server takes no clients");
  }
}

void AsyncCall::State::keep() {
  request_.assign(arguments_.data.begin(), arguments_.data.end());
  for (const int fd : arguments_.descriptors)
    numbers_.push_back(descriptors_.emplace_back(call::duplicate_descriptor(fd)).get());
  arguments_.data = request_;
  arguments_.descriptors = numbers_;
}

void AsyncCall::State::end_opening() noexcept {
  opening_.reset();
  port_ = {};
}

AsyncCall::State::~State() {
  if (!opening_) return;
  try {
    client_.keep(std::move(*opening_));
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): it closes instead
  }
  end_opening();
}

void AsyncCall::State::send(const CallArguments& arguments, Deadline room) {
  try {
    session_->begin(arguments, room);
  } catch (const SystemError& error) {
    if (dynamic_cast<const call::NothingSent*>(&error) != nullptr)
      client_.give_back(std::move(session_));
    session_.reset();
    throw;
  }
}

int AsyncCall::State::poll_descriptor() const noexcept {
  if (session_) return session_->socket();
  return opening_ ? opening_->socket() : -1;
}

// The socket is one from the beginning to the end: the server first sends its own there.
Outcome AsyncCall::State::prepare_poll() noexcept {
  if (session_) return session_->prepare_poll();
  if (!opening_) return Outcome::ok;
  pollfd entry{.fd = opening_->socket(), .events = POLLIN | POLLRDHUP, .revents = 0};
  return ::poll(&entry, 1, 0) == 0 ? Outcome::would_block : Outcome::ok;
}

Outcome AsyncCall::State::open(Deadline deadline, SignalCount since) {
  Outcome outcome = Outcome::ok;
  session_ = client_.await(*opening_, port_.get(), false, deadline, since, outcome);
  if (call::goes_on(outcome)) return outcome;
  end_opening();
  if (!session_) return outcome;
  if (const int error = Client::State::admit(*session_, arguments_.admission)) {
    client_.give_back(std::move(session_));
    throw SystemError(error, "call");
  }
  send(arguments_, Deadline::after(kRoom));
  request_ = {};
  descriptors_.clear();
  return Outcome::ok;
}

// What throws ends the call. A session that has taken no part in the refusal of the request closes.
Outcome AsyncCall::State::take(CallResults& results, Deadline deadline, SignalCount since) {
  Outcome outcome = Outcome::peer_gone;
  try {
    if (opening_) {
      outcome = open(deadline, since);
      if (outcome != Outcome::ok) return outcome;
    }
    if (!session_) return Outcome::peer_gone;
    outcome = session_->await_reply(results, deadline, since);
  } catch (const SystemError& error) {
    end_opening();
    dispatched_ = session_ && session_->dispatched();
    if (call::means_gone(error)) {
      session_.reset();
      return Outcome::peer_gone;
    }
    if (dispatched_) client_.give_back(std::move(session_));
    session_.reset();
    throw;
  }
  if (call::goes_on(outcome)) return outcome;
  dispatched_ = outcome == Outcome::ok || session_->dispatched();
  if (call::is_answered(outcome)) client_.give_back(std::move(session_));
  session_.reset();
  return outcome;
}

AsyncCall::AsyncCall(Client& client, const CallArguments& arguments, Deadline room)
    : state_(std::make_unique<State>(*client.state_, arguments, room)) {}
AsyncCall::~AsyncCall() = default;
int AsyncCall::poll_descriptor() const noexcept { return state_->poll_descriptor(); }
Outcome AsyncCall::prepare_poll() noexcept { return state_->prepare_poll(); }
void AsyncCall::finish_poll() noexcept { state_->finish_poll(); }
Outcome AsyncCall::take(CallResults& results, Deadline deadline, SignalCount since) {
  return state_->take(results, deadline, since);
}
bool AsyncCall::dispatched() const noexcept { return state_->dispatched(); }

}  // namespace farcall
