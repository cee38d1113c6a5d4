# layerpress_room(NAME [LOOPS] SOURCES ...): one static library per room. LOOPS: its own loops take time, so they are optimized
# more than release builds are. The first room compiles the precompiled header of the ATen and standard headers; the others reuse
# it, so that a one-file change rebuilds in seconds.
function(layerpress_room name)
  cmake_parse_arguments(room "LOOPS" "" "SOURCES" ${ARGN})
  set(target layerpress_${name})
  add_library(${target} STATIC ${room_SOURCES})
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:layerpress_build_options>)
  if(room_LOOPS)
    target_compile_options(${target} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O3>)
  endif()
  if(name STREQUAL base)
    target_precompile_headers(${target} PRIVATE "${PROJECT_SOURCE_DIR}/cmake/precompiled.h")
  else()
    target_precompile_headers(${target} REUSE_FROM layerpress_base)
  endif()
  set_property(GLOBAL APPEND PROPERTY LAYERPRESS_ROOMS ${target})
endfunction()
