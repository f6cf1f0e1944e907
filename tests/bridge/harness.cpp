// SPDX-License-Identifier: Apache-2.0
#include "bridge/harness.hpp"

#include <arpa/inet.h>
#include <door.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "farcall/doors.h"
#include "farcall/message.h"

namespace farcall::test {
namespace {

int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (::bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    throw std::runtime_error("no free port");
  ::close(fd);
  return ::ntohs(address.sin_port);
}

// What stops a child has stopped all its threads afterwards: one more may run for a while.
void tell(pid_t child, int signal) {
  siginfo_t stopped{};
  if (::kill(child, signal) == 0 && signal == SIGSTOP)
    ::waitid(P_PID, static_cast<id_t>(child), &stopped, WSTOPPED | WEXITED | WNOWAIT);
}

std::string error_name() { return std::string("!") + ::strerrorname_np(errno); }

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

void move_to(const Machine& machine) {
  if (machine.empty()) return;
  const int fd = ::open(("/run/netns/" + machine).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 || ::setns(fd, CLONE_NEWNET) != 0) ::_exit(126);
  ::close(fd);
}

Ledger& ledger() {
  static Ledger* const made =
      static_cast<Ledger*>(::mmap(nullptr, sizeof(Ledger), PROT_READ | PROT_WRITE,
                                  MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  return *made;
}

void nap(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

Program::Program(const std::vector<std::string>& words, const std::string& log, const Machine& on)
    : log_(log) {
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ != 0) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(125);
  move_to(on);
  const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  ::dup2(out, 1);
  ::dup2(out, 2);
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  ::execvp(arguments[0], arguments.data());
  ::_exit(127);
}

Program::~Program() {
  if (status_ >= 0) return;
  ::kill(pid_, SIGCONT);
  ::kill(pid_, SIGKILL);
  wait();
}

void Program::kill(int signal) const { tell(pid_, signal); }

int Program::wait(std::chrono::seconds time) {
  comes_true(
      [this] {
        int status = 0;
        if (status_ < 0 && ::waitpid(pid_, &status, WNOHANG) == pid_)
          status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        return status_ >= 0;
      },
      time);
  return status_;
}

std::string Program::said() const { return read_file(log_); }

std::string no_nats() {
  return ::access("/usr/sbin/nats-server", X_OK) == 0 ? "" : "there is no nats-server";
}

Nats::Nats(const ScratchDirectory& scratch, const std::string& configuration, const Machine& on,
           const std::string& address, int port, const std::string& name)
    : scratch_(scratch), name_(name), address_(address), on_(on), port_(port) {
  for (int tries = 0; tries < 20; ++tries) {
    if (port == 0) port_ = free_port();
    scratch.write(name_ + ".conf", "listen: " + address_ + ":" + std::to_string(port_) + "\n" +
                                       configuration + "\n");
    if (try_to_start()) return;
  }
  throw std::runtime_error("nats-server: " + program_->said());
}

std::string Nats::url(const std::string& scheme) const {
  return scheme + "://" + address_ + ":" + std::to_string(port_);
}

void Nats::stop() { program_ = nullptr; }

bool Nats::try_to_start() {
  program_ = std::make_unique<Program>(
      std::vector<std::string>{"/usr/sbin/nats-server", "-c", scratch_.file(name_ + ".conf")},
      scratch_.file(name_ + ".log"), on_);
  const auto is_ready = [this] {
    return program_->said().find("Server is ready") != std::string::npos;
  };
  comes_true([&] { return is_ready() || program_->wait(0s) >= 0; });
  if (is_ready() && program_->wait(0s) < 0) return true;
  const std::string said = program_->said();
  // One that has not come to say anything may do so another time.
  if (said.empty() || said.find("address already in use") != std::string::npos) return false;
  throw std::runtime_error("nats-server: " + said);
}

void Nats::start() {
  for (int tries = 0; tries < 20; ++tries) {
    if (try_to_start()) return;
    nap(100);
  }
  throw std::runtime_error("nats-server (status " + std::to_string(program_->wait(0s)) +
                           "): " + program_->said());
}

std::unique_ptr<Program> start_bridge(const ScratchDirectory& scratch, const std::string& name,
                                      const std::vector<std::string>& options, const Machine& on) {
  std::vector<std::string> words{FARCALL_COMMAND, "bridge", "--status-name", name};
  words.insert(words.end(), options.begin(), options.end());
  auto program = std::make_unique<Program>(words, scratch.file(name + ".log"), on);
  comes_true([&] {
    return program->said().find(" served") != std::string::npos || program->wait(0s) >= 0;
  });
  return program;
}

std::string bridge_status(const std::string& name, const Machine& on) {
  const ScratchDirectory scratch;
  Program program({FARCALL_COMMAND, "bridge", "status", "--json", "--status-name", name},
                  scratch.file("status"), on);
  program.wait();
  return program.said();
}

// ---- the service ----

namespace {

Seen* served = nullptr;  // in the process of the service
unsigned server_number = 0;

// A procedure whose client has gone is unwound.
class Sleeping {
 public:
  Sleeping() { ++served->sleeping; }
  Sleeping(const Sleeping&) = delete;
  Sleeping& operator=(const Sleeping&) = delete;
  ~Sleeping() { ++served->cancelled; }
};

void sleep_until_cancelled() {
  ::pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, nullptr);
  const Sleeping sleeping;
  ::sleep(60);
}

int served_door = -1;
std::string door_path;

void serve_door(void* cookie, char* data, std::size_t size, door_desc_t* descriptors, uint_t count);

// Has another door in the place of this one, and says what a door says that is no more.
void refuse_anew() {
  const int before = served_door;
  served_door = ::door_create(&serve_door, nullptr, 0);
  ::fdetach(door_path.c_str());
  ::fattach(served_door, door_path.c_str());
  ::door_revoke(before);
  ::door_refuse(EBADF);
}

void serve_door(void*, char* data, std::size_t size, door_desc_t*, uint_t) {
  static thread_local std::string reply;
  door_cred_t caller;
  if (::door_cred(&caller) == 0) served->caller = caller.dc_pid;
  reply.assign(data, size);
  ++served->calls;
  if (reply.starts_with("id ")) {
    const auto id = static_cast<std::uint32_t>(std::stoul(reply.substr(3)));
    if (id < Ledger::kMost) ++ledger().served[id];
    ++ledger().by_server[server_number % 8];
    reply.replace(0, 2, "done");
  }
  if (reply == "die") ::kill(::getpid(), SIGKILL);
  if (reply == "sleep") sleep_until_cancelled();
  if (reply == "refuse") ::door_refuse(EDOM);
  if (reply == "anew") refuse_anew();
  if (reply.starts_with("nap "))
    ::usleep(static_cast<useconds_t>(std::stoi(reply.substr(4))) * 1000);
  if (reply.starts_with("big ")) {
    const auto bytes = static_cast<std::size_t>(std::stoull(reply.substr(4)));
    reply.resize(bytes);
    for (std::size_t i = 0; i < bytes; ++i) reply[i] = static_cast<char>(i * 31 % 251);
  }
  if (reply.starts_with("fd")) {
    door_desc_t passed{};
    passed.d_attributes = reply == "fd" ? DOOR_DESCRIPTOR : DOOR_DESCRIPTOR | DOOR_RELEASE;
    passed.d_data.d_desc.d_descriptor = reply == "fd" ? 0 : std::stoi(reply.substr(2));
    ::door_return(reply.data(), reply.size(), &passed, 1);
  }
  ::door_return(reply.data(), reply.size(), nullptr, 0);
}

void count_one_way(const std::string& text) {
  ++served->one_way;
  const int number = std::atoi(text.c_str());
  if (number != served->last_sequence + 1) ++served->out_of_order;
  served->last_sequence = number;
}

void take_pulse(const farcall_info& info, std::int64_t& sleeper) {
  if (info.code == FARCALL_PULSE_UNBLOCK && info.value == sleeper) {
    ++served->cancelled;
    ::farcall_error(sleeper, EINTR);
    sleeper = 0;
  } else if (info.code >= 0) {
    served->pulse_code = info.code;
    served->pulse_value = info.value;
    ++served->pulses;
  }
}

void serve_channel(int channel) {
  std::string buffer(std::size_t{65} << 20, '\0');
  std::int64_t sleeper = 0;
  for (;;) {
    farcall_info info{};
    const std::int64_t id = ::farcall_receive(channel, buffer.data(), buffer.size(), &info);
    if (id < 0) return;
    const std::string text(buffer.data(), info.received);
    served->priority = info.priority;
    if (id == 0) {
      take_pulse(info, sleeper);
    } else if (id == FARCALL_ONE_WAY) {
      count_one_way(text);
    } else if (text == "sleep") {
      ++served->sleeping;
      sleeper = id;
    } else if (text == "error") {
      ::farcall_error(id, EDOM);
    } else if (text.starts_with("errno ")) {
      ::farcall_error(id, std::stoi(text.substr(6)));
    } else if (text.starts_with("gap ")) {
      ::farcall_write(id, std::stoul(text.substr(4)) - 1, "x", 1);
      ::farcall_reply(id, 7, nullptr, 0);
    } else {
      ++served->calls;
      if (text == "die") ::kill(::getpid(), SIGKILL);
      const std::string reply =
          text.starts_with("big ") ? std::string(std::stoul(text.substr(4)), 'b') : text;
      ::farcall_reply(id, 7, reply.data(), reply.size());
    }
  }
}

}  // namespace

Service::Service(const std::string& path, const std::string& channel, const Machine& on,
                 unsigned number)
    : seen_(static_cast<Seen*>(::mmap(nullptr, sizeof(Seen), PROT_READ | PROT_WRITE,
                                      MAP_SHARED | MAP_ANONYMOUS, -1, 0))),
      number_(number) {
  new (seen_) Seen;
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(125);
    move_to(on);
    run(path, channel);
    ::_exit(1);
  }
  if (!comes_true([this] { return seen_->ready != 0; }))
    throw std::runtime_error("the service does not start");
}

void Service::run(const std::string& path, const std::string& channel) const {
  served = seen_;
  server_number = number_;
  door_path = path;
  served_door = ::door_create(&serve_door, nullptr, 0);
  ::close(::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
  if (served_door < 0 || ::fattach(served_door, path.c_str()) != 0) return;
  if (!channel.empty()) {
    const int number = ::farcall_name_attach(channel.c_str(), FARCALL_UNBLOCK, 0600);
    if (number < 0) return;
    served->ready = 1;
    serve_channel(number);
  }
  served->ready = 1;
  ::sleep(600);
}

Service::~Service() {
  ::kill(pid_, SIGCONT);
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  ::munmap(seen_, sizeof(Seen));
}

void Service::kill(int signal) const {
  tell(pid_, signal);
  siginfo_t dead{};
  if (signal == SIGKILL) ::waitid(P_PID, static_cast<id_t>(pid_), &dead, WEXITED | WNOWAIT);
}

void DoorClient::close() {
  if (door_ >= 0) ::close(door_);
  door_ = -1;
}

std::string DoorClient::call(const std::string& request) {
  if (door_ < 0) door_ = ::door_open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (door_ < 0) return error_name();
  std::string reply(4096, '\0');
  door_arg_t arguments{.data_ptr = const_cast<char*>(request.data()),
                       .data_size = request.size(),
                       .desc_ptr = nullptr,
                       .desc_num = 0,
                       .rbuf = reply.data(),
                       .rsize = reply.size()};
  if (::door_call(door_, &arguments) != 0) {
    reply = error_name();
    close();
    return reply;
  }
  std::string text(arguments.data_ptr, arguments.data_size);
  if (arguments.rbuf != reply.data()) ::munmap(arguments.rbuf, arguments.rsize);
  return text;
}

std::string call_door(const std::string& path, const std::string& request) {
  return DoorClient(path).call(request);
}

std::string send_to(const std::string& channel, const std::string& request, double timeout_s) {
  const int connection = ::farcall_name_open(channel.c_str());
  if (connection < 0) return error_name();
  std::string reply(request.size() + 4096, '\0');
  const iovec out{.iov_base = const_cast<char*>(request.data()), .iov_len = request.size()};
  const iovec in{.iov_base = reply.data(), .iov_len = reply.size()};
  farcall_message message{};
  message.send = &out;
  message.send_count = message.reply_count = 1;
  message.reply = &in;
  if (timeout_s > 0) ::farcall_timeout(static_cast<std::int64_t>(timeout_s * 1e9));
  const int status = ::farcall_send_message(connection, &message);
  std::string text =
      status < 0 ? error_name() : std::to_string(status) + " " + reply.substr(0, message.replied);
  ::farcall_disconnect(connection);
  return text;
}

}  // namespace farcall::test
