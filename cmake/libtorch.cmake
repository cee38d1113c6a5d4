# layerpress_find_libtorch(GPU [FOLDER]): sets TORCH_LIBRARIES, TORCH_INCLUDE_DIRS, TORCH_INSTALL_PREFIX, Torch_VERSION and Torch_FOUND. Without GPU
# these name the libraries for CPUs alone, also those of a libtorch for CUDA, whose own package file stops where nvcc and CUDA's libraries
# are missing. FOLDER is looked at last.
macro(layerpress_find_libtorch gpu)
  find_path(LAYERPRESS_LIBTORCH TorchConfig.cmake
    HINTS ${Torch_DIR} ${CMAKE_PREFIX_PATH} ENV CMAKE_PREFIX_PATH ${ARGN}
    PATH_SUFFIXES Torch share/cmake/Torch torch/share/cmake/Torch)
  get_filename_component(layerpress_torch_prefix "${LAYERPRESS_LIBTORCH}/../../.." ABSOLUTE)
  if(${gpu} OR NOT EXISTS "${layerpress_torch_prefix}/lib/libtorch_cpu.so")
    find_package(Torch QUIET HINTS "${LAYERPRESS_LIBTORCH}")
  else()
    set(Torch_FOUND TRUE)
    set(Torch_DIR "${LAYERPRESS_LIBTORCH}")
    set(TORCH_INSTALL_PREFIX "${layerpress_torch_prefix}")
    set(TORCH_INCLUDE_DIRS "${TORCH_INSTALL_PREFIX}/include" "${TORCH_INSTALL_PREFIX}/include/torch/csrc/api/include")
    include("${LAYERPRESS_LIBTORCH}/TorchConfigVersion.cmake")
    set(Torch_VERSION "${PACKAGE_VERSION}")
    if(NOT TARGET torch_cpu)
      add_library(torch_cpu SHARED IMPORTED)
      set_target_properties(torch_cpu PROPERTIES IMPORTED_LOCATION "${TORCH_INSTALL_PREFIX}/lib/libtorch_cpu.so"
        INTERFACE_COMPILE_DEFINITIONS "USE_DISTRIBUTED;USE_C10D_GLOO;USE_RPC;USE_TENSORPIPE"  # as its own file says
        # It needs CUDA's runtime, which lies elsewhere and is found by its own run path.
        INTERFACE_LINK_OPTIONS "LINKER:--allow-shlib-undefined")
      add_library(c10 SHARED IMPORTED)
      set_target_properties(c10 PROPERTIES IMPORTED_LOCATION "${TORCH_INSTALL_PREFIX}/lib/libc10.so")
    endif()
    set(TORCH_LIBRARIES torch_cpu c10)
  endif()
  unset(layerpress_torch_prefix)
endmacro()
