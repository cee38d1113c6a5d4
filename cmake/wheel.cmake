# The install component `wheel`, which pyproject.toml packs: the package's native parts in the places where they stand in a Python
# environment, beside torch. Other installations leave it out. The parts' names say for which minor version of torch they were built.
if(NOT TARGET layerpress_native)
  return()
endif()
set(wheel_options COMPONENT wheel EXCLUDE_FROM_ALL)

string(REGEX MATCH "^[0-9]+\\.[0-9]+" torch_series "${Torch_VERSION}")

# By file, not by target: the parts have another name, and the program of `cmake --install` another run path.
install(CODE "
  set(torch_series \"${torch_series}\")
  set(native \"$<TARGET_FILE:layerpress_native>\")
  set(launcher \"$<TARGET_FILE:layerpress>\")
  set(program \"$<TARGET_FILE:layerpress_program>\")" ${wheel_options})
install(CODE [[
  set(package "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/layerpress")
  function(place built name run_path)
    get_filename_component(folder "${package}/${name}" DIRECTORY)
    file(MAKE_DIRECTORY "${folder}")
    configure_file("${built}" "${package}/${name}" COPYONLY)
    if(run_path)
      file(RPATH_SET FILE "${package}/${name}" NEW_RPATH "${run_path}")
    endif()
    execute_process(COMMAND strip "${package}/${name}" COMMAND_ERROR_IS_FATAL ANY)
  endfunction()
  place("${native}" "_native_torch_${torch_series}.abi3.so" "$ORIGIN/lib:$ORIGIN/../torch/lib")
  place("${launcher}" "bin/layerpress-torch-${torch_series}" "")
  place("${program}" "bin/layerpress-torch-${torch_series}-program" "$ORIGIN/../lib:$ORIGIN/../../torch/lib")
]] ${wheel_options})

# Libraries that neither torch nor every system brings. REQUIRES: they are linked as shared libraries.
install(CODE [[
  file(GET_RUNTIME_DEPENDENCIES EXECUTABLES "${program}" RESOLVED_DEPENDENCIES_VAR found UNRESOLVED_DEPENDENCIES_VAR ignored
    PRE_INCLUDE_REGEXES "^lib(yaml-cpp|pcre2-8)\\." PRE_EXCLUDE_REGEXES ".")
  foreach(library IN LISTS found)
    get_filename_component(name "${library}" NAME)
    file(REAL_PATH "${library}" real)
    file(INSTALL "${real}" DESTINATION "${CMAKE_INSTALL_PREFIX}/layerpress/lib" RENAME "${name}")
  endforeach()
]] ${wheel_options})

# Type stubs of the modules that python/layerpress/module_paths.py makes when they are imported.
set(module_stubs "${PROJECT_BINARY_DIR}/module_stubs")
execute_process(COMMAND "${LAYERPRESS_PYTHON_FOUND}" "${PROJECT_SOURCE_DIR}/python/layerpress/module_paths.py" "${module_stubs}"
  COMMAND_ERROR_IS_FATAL ANY)
install(DIRECTORY "${module_stubs}/" DESTINATION layerpress ${wheel_options})

# The helper, where the program looks for it.
layerpress_install_helper(layerpress/share/layerpress/python ${wheel_options})

# The native parts of builds with other versions of torch, for a wheel that serves several.
set(LAYERPRESS_WHEEL_ALSO "" CACHE STRING "Other build folders whose parts the wheel holds, too")
foreach(folder IN LISTS LAYERPRESS_WHEEL_ALSO)
  install(CODE "execute_process(COMMAND \"${CMAKE_COMMAND}\" --install \"${folder}\" --component wheel
    --prefix \"\${CMAKE_INSTALL_PREFIX}\" COMMAND_ERROR_IS_FATAL ANY)" ${wheel_options})
endforeach()
