// SPDX-License-Identifier: Apache-2.0
//
// Doors of the kernel, called by the library: for the emulated machine, where the module is. The
// server speaks to the module by itself.
#include <door.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <stplr_doors.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "harness/ancillary_message.hpp"

namespace {

// Answers with as many bytes as the first one of the request says thousands, or with the request.
// What begins with 'f' comes back with a descriptor, what begins with 'w' not at all.
[[noreturn]] void serve(int pool) {
  static std::vector<char> bytes(1 << 20);
  static stplr_door_desc received[4];
  stplr_door_return arguments{};
  stplr_door_desc sent{.fd = 0, .attributes = STPLR_DOOR_DESCRIPTOR, .id = 0};
  while (true) {
    arguments.room = reinterpret_cast<std::uintptr_t>(bytes.data());
    arguments.room_size = bytes.size();
    arguments.received = reinterpret_cast<std::uintptr_t>(received);
    arguments.received_room = 4;
    if (::ioctl(pool, STPLR_DOOR_RETURN, &arguments) != 0) ::_exit(1);
    if (bytes[0] == 'w') ::pause();
    arguments.id = arguments.next_id;
    arguments.data = reinterpret_cast<std::uintptr_t>(bytes.data());
    arguments.size = arguments.length;
    if (bytes[0] > 0 && bytes[0] < ' ') {
      arguments.size = static_cast<unsigned>(bytes[0]) * 1000U;
      for (std::size_t i = 0; i < arguments.size; ++i) bytes[i] = static_cast<char>(i % 251);
    }
    arguments.count = bytes[0] == 'f' && arguments.length != 0 ? 1 : 0;
    arguments.descriptors = reinterpret_cast<std::uintptr_t>(&sent);
    if (arguments.received_count != 0) sent.fd = received[0].fd;
  }
}

class KernelDoor : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(::access("/dev/door", R_OK | W_OK), 0) << "the module is not here";
    int pair[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    server_ = ::fork();
    if (server_ == 0) {
      stplr_pool_create make{};
      stplr_door_create create{.procedure = 11, .cookie = 12, .attributes = 0, .reserved = 0};
      const int device = ::open("/dev/door", O_RDWR | O_CLOEXEC);
      const int pool = ::ioctl(device, STPLR_POOL_CREATE, &make);
      farcall::test::send_descriptor(pair[0], ::ioctl(pool, STPLR_DOOR_CREATE, &create));
      serve(pool);
    }
    ::close(pair[0]);
    door_ = farcall::test::receive_descriptor(pair[1]);
    ::close(pair[1]);
    ASSERT_GE(door_, 0);
  }
  void TearDown() override {
    end_server();
    if (door_ >= 0) ::close(door_);
  }
  void end_server() {
    if (server_ <= 0) return;
    ::kill(server_, SIGKILL);
    ::waitpid(server_, nullptr, 0);
    server_ = -1;
  }

  int door_ = -1;
  pid_t server_ = -1;
};

TEST_F(KernelDoor, IsCalled) {
  std::string request = "hello";
  char room[16]{};
  door_arg_t arguments{};
  arguments.data_ptr = request.data();
  arguments.data_size = request.size();
  arguments.rbuf = room;
  arguments.rsize = sizeof room;
  ASSERT_EQ(::door_call(door_, &arguments), 0);
  EXPECT_EQ(arguments.data_ptr, room);
  EXPECT_EQ(std::string(arguments.data_ptr, arguments.data_size), "hello");
  EXPECT_EQ(arguments.rbuf, room);
  EXPECT_EQ(arguments.rsize, sizeof room);
  EXPECT_EQ(arguments.desc_num, 0U);
}

TEST_F(KernelDoor, IsCalledWithoutArguments) { EXPECT_EQ(::door_call(door_, nullptr), 0); }

TEST_F(KernelDoor, MapsWhatThereIsNoRoomFor) {
  char thousands = 30;
  char room[16];
  door_arg_t arguments{};
  arguments.data_ptr = &thousands;
  arguments.data_size = 1;
  arguments.rbuf = room;
  arguments.rsize = sizeof room;
  ASSERT_EQ(::door_call(door_, &arguments), 0);
  ASSERT_NE(arguments.rbuf, room);
  EXPECT_EQ(arguments.data_ptr, arguments.rbuf);
  EXPECT_EQ(arguments.data_size, 30000U);
  EXPECT_EQ(arguments.rsize, 32768U);
  for (std::size_t i = 0; i < arguments.data_size; ++i)
    ASSERT_EQ(arguments.data_ptr[i], static_cast<char>(i % 251)) << i;
  EXPECT_EQ(::munmap(arguments.rbuf, arguments.rsize), 0);
}

TEST_F(KernelDoor, PassesDescriptorsBothWays) {
  char request = 'f';
  alignas(4) char room[64];
  int pair[2];
  ASSERT_EQ(::pipe(pair), 0);
  door_desc_t sent{};
  sent.d_attributes = DOOR_DESCRIPTOR | DOOR_RELEASE;
  sent.d_data.d_desc.d_descriptor = pair[1];
  door_arg_t arguments{};
  arguments.data_ptr = &request;
  arguments.data_size = 1;
  arguments.desc_ptr = &sent;
  arguments.desc_num = 1;
  arguments.rbuf = room;
  arguments.rsize = sizeof room;
  ASSERT_EQ(::door_call(door_, &arguments), 0);
  ASSERT_EQ(arguments.desc_num, 1U);
  EXPECT_EQ(reinterpret_cast<char*>(arguments.desc_ptr), room + 24);
  EXPECT_EQ(arguments.desc_ptr->d_attributes, unsigned{DOOR_DESCRIPTOR});
  const int back = arguments.desc_ptr->d_data.d_desc.d_descriptor;
  EXPECT_EQ(::fcntl(back, F_GETFD), 0);
  char byte = 'x';
  EXPECT_EQ(::write(back, &byte, 1), 1);
  EXPECT_EQ(::read(pair[0], &byte, 1), 1);
  ::close(back);
}

TEST_F(KernelDoor, ReleasesWhatIsPassedOnlyWhenItIsPassed) {
  door_desc_t sent{};
  sent.d_attributes = DOOR_DESCRIPTOR | DOOR_RELEASE;
  sent.d_data.d_desc.d_descriptor = ::dup(0);
  door_arg_t arguments{};
  arguments.desc_ptr = &sent;
  arguments.desc_num = 1;
  end_server();
  EXPECT_EQ(::door_call(door_, &arguments), -1);
  EXPECT_EQ(errno, EBADF);
  EXPECT_EQ(::fcntl(sent.d_data.d_desc.d_descriptor, F_GETFD), 0);
  ::close(sent.d_data.d_desc.d_descriptor);
}

TEST_F(KernelDoor, SaysWhatItIs) {
  door_info_t info{};
  ASSERT_EQ(::door_info(door_, &info), 0);
  EXPECT_EQ(info.di_target, server_);
  EXPECT_EQ(info.di_proc, 11U);
  EXPECT_EQ(info.di_data, 12U);
  EXPECT_EQ(info.di_attributes, 0U);
  EXPECT_NE(info.di_uniquifier, 0U);
  std::size_t value = 1;
  EXPECT_EQ(::door_getparam(door_, DOOR_PARAM_DATA_MIN, &value), 0);
  EXPECT_EQ(value, 0U);
  EXPECT_EQ(::door_getparam(door_, DOOR_PARAM_DATA_MAX, &value), 0);
  EXPECT_EQ(value, SIZE_MAX);
  EXPECT_EQ(::door_getparam(door_, DOOR_PARAM_DESC_MAX, &value), 0);
  EXPECT_EQ(value, std::size_t{INT_MAX});
  EXPECT_EQ(::door_getparam(door_, 9, &value), -1);
  EXPECT_EQ(errno, EINVAL);
}

TEST_F(KernelDoor, IsItsServersToRevokeBindAndSet) {
  EXPECT_EQ(::door_revoke(door_), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(::door_setparam(door_, DOOR_PARAM_DATA_MAX, 1), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(::door_bind(door_), -1);
  EXPECT_GE(::fcntl(door_, F_GETFD), 0);
}

TEST_F(KernelDoor, EndsWithItsServer) {
  char request = 'w';
  door_arg_t arguments{};
  arguments.data_ptr = &request;
  arguments.data_size = 1;
  std::thread killer([&] {
    ::usleep(100000);
    ::kill(server_, SIGKILL);
  });
  EXPECT_EQ(::door_call(door_, &arguments), -1);
  EXPECT_EQ(errno, EINTR);
  killer.join();
  EXPECT_EQ(::door_call(door_, &arguments), -1);
  EXPECT_EQ(errno, EBADF);
  door_info_t info{};
  ASSERT_EQ(::door_info(door_, &info), 0);
  EXPECT_EQ(info.di_target, -1);
  EXPECT_NE(info.di_attributes & DOOR_REVOKED, 0U);
}

TEST_F(KernelDoor, CallIsACancellationPoint) {
  std::atomic<bool> returned = false;
  struct Call {
    int door;
    std::atomic<bool>* returned;
  } call{door_, &returned};
  pthread_t thread;
  ASSERT_EQ(::pthread_create(
                &thread, nullptr,
                [](void* given) -> void* {
                  auto& todo = *static_cast<Call*>(given);
                  char request = 'w';
                  door_arg_t arguments{};
                  arguments.data_ptr = &request;
                  arguments.data_size = 1;
                  ::door_call(todo.door, &arguments);
                  *todo.returned = true;
                  return nullptr;
                },
                &call),
            0);
  ::usleep(50000);
  ::pthread_cancel(thread);
  void* result = nullptr;
  ASSERT_EQ(::pthread_join(thread, &result), 0);
  EXPECT_EQ(result, PTHREAD_CANCELED);
  EXPECT_FALSE(returned);
}

TEST_F(KernelDoor, RefusesBadArguments) {
  EXPECT_EQ(::door_call(door_, reinterpret_cast<door_arg_t*>(16)), -1);
  EXPECT_EQ(errno, EFAULT);
  door_arg_t arguments{};
  arguments.data_ptr = reinterpret_cast<char*>(16);
  arguments.data_size = 8;
  EXPECT_EQ(::door_call(door_, &arguments), -1);
  EXPECT_EQ(errno, EFAULT);
  door_desc_t bare{};
  arguments = {};
  arguments.desc_ptr = &bare;
  arguments.desc_num = 1;
  EXPECT_EQ(::door_call(door_, &arguments), -1);
  EXPECT_EQ(errno, EINVAL);
  const int other = ::eventfd(0, 0);
  EXPECT_EQ(::door_call(other, nullptr), -1);
  EXPECT_EQ(errno, EBADF);
  ::close(other);
}

}  // namespace
