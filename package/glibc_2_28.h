// Included before everything else in builds of wheels: makes the compiler call
// the symbols of glibc 2.28 and of GCC 8's libstdc++, where a newer machine's
// headers and libraries would choose newer ones. auditwheel checks the result.
#pragma once

// NOLINTBEGIN: the names are glibc's and libstdc++'s
#include <bits/c++config.h>

// pthread_cond_clockwait is glibc 2.30's. What is left for it are waits for
// futures, which look at the clock again; dlslime::Condition needs no such
// call.
#undef _GLIBCXX_USE_PTHREAD_COND_CLOCKWAIT
#undef _GLIBCXX_USE_PTHREAD_MUTEX_CLOCKLOCK

// These moved from other libraries into libc.so in glibc 2.34, with a new
// version each; the old versions stayed.
__asm__(".symver dlopen,dlopen@GLIBC_2.2.5");
__asm__(".symver dlsym,dlsym@GLIBC_2.2.5");
__asm__(".symver dlclose,dlclose@GLIBC_2.2.5");
__asm__(".symver dlerror,dlerror@GLIBC_2.2.5");
__asm__(".symver dladdr,dladdr@GLIBC_2.2.5");
__asm__(".symver pthread_once,pthread_once@GLIBC_2.2.5");
__asm__(".symver pthread_create,pthread_create@GLIBC_2.2.5");
__asm__(".symver pthread_join,pthread_join@GLIBC_2.2.5");
__asm__(".symver pthread_detach,pthread_detach@GLIBC_2.2.5");
__asm__(".symver pthread_sigmask,pthread_sigmask@GLIBC_2.2.5");
__asm__(".symver pthread_mutex_trylock,pthread_mutex_trylock@GLIBC_2.2.5");
__asm__(
    ".symver pthread_condattr_setclock,pthread_condattr_setclock@GLIBC_2.3.3");
__asm__(".symver pthread_setname_np,pthread_setname_np@GLIBC_2.12");
__asm__(".symver pthread_getaffinity_np,pthread_getaffinity_np@GLIBC_2.3.4");
__asm__(".symver shm_open,shm_open@GLIBC_2.2.5");
__asm__(".symver shm_unlink,shm_unlink@GLIBC_2.2.5");
// GCC 12 gave it a new version; the old one does the same.
__asm__(
    ".symver _ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE,"
    "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE@GLIBCXX_3.4.11");
// NOLINTEND
