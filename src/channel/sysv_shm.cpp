// SPDX-License-Identifier: Apache-2.0
#include "farcall/channel/sysv_shm.hpp"

#include <sys/ipc.h>
#include <sys/shm.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "channel/mapped_ring.hpp"
#include "farcall/error.hpp"

namespace farcall::channel {
namespace {

// Throws SystemError.
Mapping attach(int id, std::size_t size) {
  void* address = ::shmat(id, nullptr, 0);
  if (address == reinterpret_cast<void*>(-1)) throw_errno("shmat");
  return {address, size};  // munmap detaches as shmdt does
}

// Marks a segment for removal when it goes: the memory stays until the last process detaches.
class Mark {
 public:
  explicit Mark(int id) noexcept : id_(id) {}
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;
  ~Mark() { ::shmctl(id_, IPC_RMID, nullptr); }

 private:
  int id_;
};

// Attaches the segment whose number the peer has sent.
Mapping attach_sent(const FdMessage& message) {
  int id = -1;
  if (message.bytes.size() != sizeof id)
    throw SystemError(EPROTO, "open a channel: no segment's number came along");
  std::memcpy(&id, message.bytes.data(), sizeof id);
  shmid_ds status{};
  if (::shmctl(id, IPC_STAT, &status) != 0) throw_errno("shmctl");
  return attach(id, status.shm_segsz);
}

}  // namespace

const Properties& SysvShm::properties() {
  static constexpr Properties kProperties{.name = "sysv_shm",
                                          .title = "System V shared memory",
                                          .boundaries = false,
                                          .by_name = true,
                                          .notices_death = true,
                                          .waits = true};
  return kProperties;
}

Handles SysvShm::create(const Options& options) {
  const std::size_t size = ring_bytes(mapped_ring::capacity(options));
  const int id = ::shmget(IPC_PRIVATE, size, IPC_CREAT | 0600);
  if (id < 0) throw_errno("shmget");
  const Mark mark(id);
  Handles handles = mapped_ring::create_lifeline();
  for (Handle* handle : {&handles.reader, &handles.writer}) {
    handle->memory = attach(id, size);
    handle->message.bytes.resize(sizeof id);
    std::memcpy(handle->message.bytes.data(), &id, sizeof id);
  }
  return handles;
}

std::unique_ptr<Reader> SysvShm::open_reader(Handle handle, const Options& options) {
  if (!handle.memory) handle.memory = attach_sent(handle.message);
  return mapped_ring::open_reader_in_memory(std::move(handle), options);
}

std::unique_ptr<Writer> SysvShm::open_writer(Handle handle, const Options& options) {
  if (!handle.memory) handle.memory = attach_sent(handle.message);
  return mapped_ring::open_writer_in_memory(std::move(handle), options);
}

}  // namespace farcall::channel
