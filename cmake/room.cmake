# layerpress_room(NAME SOURCES ...): one static library per room. The first room compiles the precompiled header of the
# ATen and standard headers; the others reuse it, so that a one-file change rebuilds in seconds.
function(layerpress_room name)
  cmake_parse_arguments(room "" "" "SOURCES" ${ARGN})
  set(target layerpress_${name})
  add_library(${target} STATIC ${room_SOURCES})
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:layerpress_build_options>)
  if(name STREQUAL base)
    target_precompile_headers(${target} PRIVATE "${PROJECT_SOURCE_DIR}/cmake/precompiled.h")
  else()
    target_precompile_headers(${target} REUSE_FROM layerpress_base)
  endif()
  set_property(GLOBAL APPEND PROPERTY LAYERPRESS_ROOMS ${target})
endfunction()
