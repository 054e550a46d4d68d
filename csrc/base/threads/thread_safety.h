#pragma once

// Attributes for clang's thread safety analysis (-Wthread-safety), by which the
// compiler checks that data is touched only under its lock. Other compilers
// ignore the attributes. The names are those of clang's documentation.

#if defined(__clang__)
#define DLSLIME_THREAD_SAFETY(attribute) __attribute__((attribute))
#else
#define DLSLIME_THREAD_SAFETY(attribute)
#endif

// NOLINTBEGIN(cppcoreguidelines-macro-usage,readability-identifier-naming):
// attributes can only be made so, and have these names in the field
#define CAPABILITY(name) DLSLIME_THREAD_SAFETY(capability(name))
#define SCOPED_CAPABILITY DLSLIME_THREAD_SAFETY(scoped_lockable)
#define GUARDED_BY(lock) DLSLIME_THREAD_SAFETY(guarded_by(lock))
#define REQUIRES(...) DLSLIME_THREAD_SAFETY(requires_capability(__VA_ARGS__))
#define EXCLUDES(...) DLSLIME_THREAD_SAFETY(locks_excluded(__VA_ARGS__))
#define ACQUIRE(...) DLSLIME_THREAD_SAFETY(acquire_capability(__VA_ARGS__))
#define TRY_ACQUIRE(...) \
  DLSLIME_THREAD_SAFETY(try_acquire_capability(__VA_ARGS__))
#define RELEASE(...) DLSLIME_THREAD_SAFETY(release_capability(__VA_ARGS__))
#define ASSERT_CAPABILITY(lock) DLSLIME_THREAD_SAFETY(assert_capability(lock))
#define NO_THREAD_SAFETY_ANALYSIS \
  DLSLIME_THREAD_SAFETY(no_thread_safety_analysis)
// NOLINTEND(cppcoreguidelines-macro-usage,readability-identifier-naming)
