# Headers that are read once for a whole target, and ccache: a clone in another folder finds the files that were compiled
# in this one. For tests/cpp and tests/fuzz.

# To read the standard library's headers takes a third of the time of most files.
set(STANDARD_HEADERS
  <algorithm> <array> <atomic> <chrono> <condition_variable> <deque> <functional> <map> <memory> <mutex> <optional> <set>
  <span> <stdexcept> <string> <string_view> <thread> <utility> <vector>)

find_program(CCACHE ccache)
if(CCACHE)
  # A precompiled header is known by its text: the file itself names its folder.
  set(CMAKE_CXX_COMPILER_LAUNCHER
    "${CMAKE_COMMAND};-E;env;CCACHE_SLOPPINESS=pch_defines,time_macros;CCACHE_PCH_EXTSUM=1;${CCACHE}")
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT CMAKE_DISABLE_PRECOMPILE_HEADERS)
    add_compile_options(-fpch-preprocess)
  endif()
endif()

# precompile(TARGET HEADER...) does what target_precompile_headers does, which names clang's file by its absolute path, so
# that ccache never finds anything in a clone.
function(precompile target)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang" OR NOT CCACHE OR CMAKE_DISABLE_PRECOMPILE_HEADERS)
    target_precompile_headers(${target} PRIVATE ${ARGN})
    return()
  endif()
  list(TRANSFORM ARGN PREPEND "#include ")
  list(JOIN ARGN "\n" text)
  set(header "precompiled/${target}.h")
  file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/${header}" CONTENT "${text}\n")
  set(options "$<FILTER:$<TARGET_PROPERTY:${target},COMPILE_OPTIONS>,EXCLUDE,include-pch>")
  set(definitions "-D$<JOIN:$<TARGET_PROPERTY:${target},COMPILE_DEFINITIONS>,$<SEMICOLON>-D>")
  set(compile "${CMAKE_CXX_COMPILER}" "${options}" "${definitions}" -std=c++${CMAKE_CXX_STANDARD} -x c++-header "${header}")
  add_custom_command(OUTPUT "${CMAKE_BINARY_DIR}/${header}.pch"
    BYPRODUCTS "${CMAKE_BINARY_DIR}/${header}.pch.sum"
    COMMAND ${compile} -fpch-instantiate-templates -MD -MT "${header}.pch" -MF "${header}.d" -o "${header}.pch"
    COMMAND ${compile} -E -o - | sha256sum > "${header}.pch.sum"
    DEPENDS "${CMAKE_BINARY_DIR}/${header}" DEPFILE "${CMAKE_BINARY_DIR}/${header}.d"
    WORKING_DIRECTORY "${CMAKE_BINARY_DIR}" COMMENT "Precompiling ${header}" VERBATIM
    COMMAND_EXPAND_LISTS)
  add_custom_target(${target}_precompiled DEPENDS "${CMAKE_BINARY_DIR}/${header}.pch")
  add_dependencies(${target} ${target}_precompiled)
  target_compile_options(${target} PRIVATE "SHELL:-include-pch ${header}.pch")
  get_target_property(sources ${target} SOURCES)
  set_property(SOURCE ${sources} TARGET_DIRECTORY ${target} APPEND PROPERTY OBJECT_DEPENDS "${CMAKE_BINARY_DIR}/${header}.pch")
endfunction()
