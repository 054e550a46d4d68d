// Functions and variables that glibc has since 2.32 or 2.33, for libraries that
// run with 2.28. Hidden: each library calls its own.

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <new>

#pragma GCC visibility push(hidden)

namespace std {
// GCC 11's; thrown by operator new[] of a size that no array can have.
void __throw_bad_array_new_length() {
  throw bad_array_new_length();
}
} // namespace std

extern "C" {

// libstdc++ asks whether the process has one thread; ours always has several.
char __libc_single_threaded = 0;

int fstat(int fd, struct stat* info) noexcept {
  return static_cast<int>(syscall(SYS_fstat, fd, info));
}

int fstatat(int fd, const char* path, struct stat* info, int flags) noexcept {
  return static_cast<int>(syscall(SYS_newfstatat, fd, path, info, flags));
}

int stat(const char* path, struct stat* info) noexcept {
  return fstatat(AT_FDCWD, path, info, 0);
}

int lstat(const char* path, struct stat* info) noexcept {
  return fstatat(AT_FDCWD, path, info, AT_SYMLINK_NOFOLLOW);
}

// GCC 12's headers count the references of a std::exception_ptr by these calls,
// in older libraries parts of the constructor and the destructor.
void copyPointer(void* made, const void* from) __asm__(
    "_ZNSt15__exception_ptr13exception_ptrC1ERKS0_");
void destroyPointer(void* pointer) __asm__(
    "_ZNSt15__exception_ptr13exception_ptrD1Ev");
void addReference(void* pointer) __asm__(
    "_ZNSt15__exception_ptr13exception_ptr9_M_addrefEv");
void dropReference(void* pointer) __asm__(
    "_ZNSt15__exception_ptr13exception_ptr10_M_releaseEv");

void addReference(void* pointer) {
  void* copy = nullptr; // never destroyed: its reference is the one to add
  copyPointer(&copy, pointer);
}

void dropReference(void* pointer) {
  destroyPointer(pointer);
}

} // extern "C"

#pragma GCC visibility pop
