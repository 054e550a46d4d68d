#pragma once

// Whether our declaration of a function of the CUDA driver is passed its
// parameters as NVIDIA's is. For .ci/lint alone.
#include <type_traits>

// An enumeration may be our own, and a handle another pointer or number.
template <typename Ours, typename Theirs>
constexpr bool kSameParameter = sizeof(Ours) == sizeof(Theirs) &&
    std::is_pointer_v<Ours> == std::is_pointer_v<Theirs> &&
    std::is_class_v<Ours> == std::is_class_v<Theirs>;

template <typename Ours, typename Theirs>
struct SameForm : std::false_type {};
template <typename R, typename... Ours, typename S, typename... Theirs>
  requires(sizeof...(Ours) == sizeof...(Theirs))
struct SameForm<R (*)(Ours...), S (*)(Theirs...)>
    : std::bool_constant<
          kSameParameter<R, S> && (kSameParameter<Ours, Theirs> && ...)> {};
