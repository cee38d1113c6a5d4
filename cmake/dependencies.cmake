# One interface target that carries what every room may use: libtorch, fmt (libtorch's copy) and JSON.
# ccache keeps nothing that uses a precompiled header unless it is told to ignore what such a header hides, and GCC to name it.
find_program(LAYERPRESS_CCACHE ccache)
if(LAYERPRESS_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER
      "${CMAKE_COMMAND}" -E env CCACHE_SLOPPINESS=pch_defines,time_macros "${LAYERPRESS_CCACHE}")
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
  endif()
endif()

include(libtorch)
set(CMAKE_CUDA_STANDARD 17)  # libtorch for CUDA would take that of C++, which CMake 3.25 does not know how to ask nvcc for
set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)  # the one that libtorch has loaded
option(LAYERPRESS_GPU "Build our kernels for GPUs if libtorch is for CUDA and nvcc is there" ON)
find_program(LAYERPRESS_NVCC nvcc HINTS ENV CUDACXX PATHS ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
set(build_for_gpus OFF)
if(LAYERPRESS_GPU AND LAYERPRESS_NVCC)
  set(build_for_gpus ON)
endif()
layerpress_find_libtorch(${build_for_gpus})
# A toolkit with little more than nvcc lacks libraries that libtorch names for others; libtorch loads its own.
list(FILTER TORCH_LIBRARIES EXCLUDE REGEX "-NOTFOUND$")
find_package(nlohmann_json QUIET)
find_package(CLI11 QUIET)
find_path(LAYERPRESS_XXHASH_INCLUDE xxhash.h)  # header only, private to base
find_path(LAYERPRESS_GLOO_INCLUDE gloo/config.h)  # headers only: libtorch contains the library
find_path(LAYERPRESS_YAML_CPP_INCLUDE yaml-cpp/yaml.h)
find_path(LAYERPRESS_PCRE2_INCLUDE pcre2.h)
if(LAYERPRESS_TESTS)
  find_package(GTest QUIET)
endif()

# All that is missing is named at once. layerpress_require(FOUND NAME PACKAGE): the Debian package that brings NAME.
set(missing "")
set(missing_packages "")
macro(layerpress_require found name package)
  if(NOT ${found})
    list(APPEND missing "${name}")
    list(APPEND missing_packages "${package}")
  endif()
endmacro()
layerpress_require(nlohmann_json_FOUND nlohmann-json nlohmann-json3-dev)
layerpress_require(CLI11_FOUND CLI11 libcli11-dev)
layerpress_require(LAYERPRESS_YAML_CPP_INCLUDE yaml-cpp libyaml-cpp-dev)
layerpress_require(LAYERPRESS_PCRE2_INCLUDE PCRE2 libpcre2-dev)
layerpress_require(LAYERPRESS_XXHASH_INCLUDE xxHash libxxhash-dev)
layerpress_require(LAYERPRESS_GLOO_INCLUDE Gloo libgloo-dev)
if(LAYERPRESS_TESTS)
  layerpress_require(GTest_FOUND GoogleTest libgtest-dev)
endif()
set(advice "")
if(missing_packages)
  list(JOIN missing_packages " " advice)
  set(advice "; run `sudo apt install ${advice}`")
endif()
if(NOT Torch_FOUND)
  list(APPEND missing libtorch)
  string(APPEND advice "; install torch 2.13 with pip and pass its folder torch/share/cmake as -DCMAKE_PREFIX_PATH")
endif()
if(missing)
  list(JOIN missing ", " missing)
  message(FATAL_ERROR " [configure] missing: ${missing}${advice}")  # CMake wraps lines that do not begin with a space
endif()
find_package(Threads REQUIRED)
if(NOT LAYERPRESS_FUZZ)  # which wants one thread
  find_package(OpenMP REQUIRED COMPONENTS CXX)  # without it at::parallel_for runs on one thread
endif()

# With a libtorch for CUDA our kernels for it are built, too, for what libtorch's configuration chose: the environment's
# TORCH_CUDA_ARCH_LIST, else the machine's own devices.
set(LAYERPRESS_CUDA OFF)
if(TARGET torch_cuda)
  set(LAYERPRESS_CUDA ON)
  enable_language(CUDA)
endif()

# c10d's NCCL is inside a libtorch for CUDA; its header lies beside libtorch (pip's packages) or in the system, and so do those of
# CUDA's libraries, which a toolkit that is there only for nvcc lacks. Without them, or with -DLAYERPRESS_NCCL_INCLUDE=OFF, what
# GPUs exchange goes through host memory.
set(LAYERPRESS_NCCL OFF)
if(LAYERPRESS_CUDA)
  file(GLOB LAYERPRESS_PIP_CUDA_INCLUDES "${TORCH_INSTALL_PREFIX}/../nvidia/*/include")
  find_path(LAYERPRESS_NCCL_INCLUDE nccl.h HINTS ${LAYERPRESS_PIP_CUDA_INCLUDES})
  find_path(LAYERPRESS_CUSOLVER_INCLUDE cusolverDn.h HINTS ${LAYERPRESS_PIP_CUDA_INCLUDES} ${CUDA_INCLUDE_DIRS})
  get_target_property(torch_cuda_definitions torch_cuda INTERFACE_COMPILE_DEFINITIONS)
  if(LAYERPRESS_NCCL_INCLUDE AND LAYERPRESS_CUSOLVER_INCLUDE AND "USE_C10D_NCCL" IN_LIST torch_cuda_definitions)
    set(LAYERPRESS_NCCL ON)
  endif()
  message(STATUS "NCCL: ${LAYERPRESS_NCCL}, ${LAYERPRESS_NCCL_INCLUDE}")
endif()

add_library(layerpress_dependencies INTERFACE)
target_compile_features(layerpress_dependencies INTERFACE cxx_std_20)
target_include_directories(layerpress_dependencies SYSTEM INTERFACE ${TORCH_INCLUDE_DIRS})
target_include_directories(layerpress_dependencies INTERFACE
  "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>" "$<INSTALL_INTERFACE:include>")
# The C++ library comes before libtorch, which exports parts of it that were linked into it (std::filesystem); where they are found
# first, as in the libtorch for CUDA, they crash. It comes after our objects, because it may be an archive.
target_link_libraries(layerpress_dependencies INTERFACE
  stdc++ ${TORCH_LIBRARIES} nlohmann_json::nlohmann_json Threads::Threads)
# By flag, not by target: the flag leaves the choice of libgomp to the run path, where libtorch's own copy comes first.
target_compile_options(layerpress_dependencies INTERFACE ${OpenMP_CXX_FLAGS})
target_link_options(layerpress_dependencies INTERFACE ${OpenMP_CXX_FLAGS})

# Private to our own targets: warnings, which are errors in the presets, and what watches a run when asked for. Other compilers than
# ours have other warnings, so a build without a preset only shows them.
add_library(layerpress_build_options INTERFACE)
target_compile_options(layerpress_build_options INTERFACE -Wall -Wextra -Wpedantic)
if(LAYERPRESS_SANITIZE)
  target_compile_options(layerpress_build_options INTERFACE
    -fsanitize=${LAYERPRESS_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer
    # GCC's warnings about its own library once it is instrumented.
    -Wno-maybe-uninitialized)
  if(LAYERPRESS_SANITIZE STREQUAL "thread")
    target_compile_options(layerpress_build_options INTERFACE -Wno-tsan)
  endif()
  target_link_options(layerpress_build_options INTERFACE -fsanitize=${LAYERPRESS_SANITIZE})
endif()
if(LAYERPRESS_COVERAGE)
  target_compile_options(layerpress_build_options INTERFACE --coverage -fprofile-update=atomic)
  target_link_options(layerpress_build_options INTERFACE --coverage)
endif()
