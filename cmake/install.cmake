# `cmake --install`: the program, the library with its public headers, and the package that find_package(layerpress) reads.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package_directory "${CMAKE_INSTALL_LIBDIR}/cmake/layerpress")

# What users link. The program has taken the plain name.
add_library(layerpress_library INTERFACE)
target_link_libraries(layerpress_library INTERFACE layerpress_run)
set_target_properties(layerpress_library PROPERTIES EXPORT_NAME layerpress)

get_property(rooms GLOBAL PROPERTY LAYERPRESS_ROOMS)
foreach(room IN LISTS rooms)
  string(REGEX REPLACE "^layerpress_" "" room_name "${room}")
  set_target_properties(${room} PROPERTIES EXPORT_NAME ${room_name})
endforeach()

# This build's dependencies are absolute paths into one Python environment. The package names targets instead, which
# layerpressConfig.cmake finds again where it is used.
function(layerpress_build_only target property)
  get_target_property(values ${target} ${property})
  if(values)
    set_property(TARGET ${target} PROPERTY ${property} "$<BUILD_INTERFACE:${values}>" ${ARGN})
  endif()
endfunction()
layerpress_build_only(layerpress_dependencies INTERFACE_LINK_LIBRARIES
  "$<INSTALL_INTERFACE:layerpress::libtorch;nlohmann_json::nlohmann_json;Threads::Threads>")
layerpress_build_only(layerpress_dependencies INTERFACE_INCLUDE_DIRECTORIES)
layerpress_build_only(layerpress_dependencies INTERFACE_SYSTEM_INCLUDE_DIRECTORIES)
target_include_directories(layerpress_dependencies INTERFACE "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
set_target_properties(layerpress_dependencies PROPERTIES EXPORT_NAME dependencies)

# The program finds libtorch where it was linked from. Named outright: INSTALL_RPATH_USE_LINK_PATH passes over folders
# inside the source tree, and .venv is one.
set_target_properties(layerpress_program PROPERTIES
  INSTALL_RPATH "${TORCH_INSTALL_PREFIX}/lib" INSTALL_RPATH_USE_LINK_PATH ON)
install(TARGETS layerpress layerpress_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS layerpress_library layerpress_dependencies ${rooms} EXPORT layerpressTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT layerpressTargets NAMESPACE layerpress:: DESTINATION ${package_directory})

# The public headers and what they include.
foreach(header oneshot.h distributed.h offloaded_model.h evaluate.h inspect.h model_graph_options.h
        model_in_memory.h modifiers.h prepare.h verify.h base/error.h base/json.h
        base/progress.h dist/environment.h dist/failure.h dist/group.h)
  get_filename_component(folder "${header}" DIRECTORY)
  install(FILES "${PROJECT_SOURCE_DIR}/layerpress/${header}"
    DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/layerpress/${folder}")
endforeach()

# The program looks for its data helper beside itself, in ../share.
layerpress_install_helper(share/layerpress/python)
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" "${PROJECT_SOURCE_DIR}/THIRD_PARTY_LICENSES.txt" "${PROJECT_SOURCE_DIR}/README.md" DESTINATION share/doc/layerpress)

configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/layerpressConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/layerpressConfig.cmake" INSTALL_DESTINATION ${package_directory})
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/layerpressConfigVersion.cmake"
  VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/layerpressConfig.cmake" "${PROJECT_BINARY_DIR}/layerpressConfigVersion.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/libtorch.cmake"
  DESTINATION ${package_directory})
