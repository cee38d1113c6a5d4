# The install component `wheel`, which pyproject.toml packs: the package's native parts in the places where they stand in a Python
# environment, beside torch. Other installations leave it out.
if(NOT TARGET layerpress_native)
  return()
endif()
set(wheel_options COMPONENT wheel EXCLUDE_FROM_ALL)

set_target_properties(layerpress_native PROPERTIES INSTALL_RPATH "$ORIGIN/lib:$ORIGIN/../torch/lib")
install(TARGETS layerpress_native LIBRARY DESTINATION layerpress ${wheel_options})

# By file, not by target: the program of `cmake --install` has another run path.
install(PROGRAMS "$<TARGET_FILE:layerpress>" "$<TARGET_FILE:layerpress_program>" DESTINATION layerpress/bin ${wheel_options})
install(CODE [[
  set(program "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/layerpress/bin/layerpress-program")
  file(RPATH_SET FILE "${program}" NEW_RPATH "$ORIGIN/../lib:$ORIGIN/../../torch/lib")
  execute_process(COMMAND strip "${program}" "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/layerpress/bin/layerpress")
]] ${wheel_options})

# Libraries that neither torch nor every system brings. REQUIRES: they are linked as shared libraries.
install(CODE "set(built \"$<TARGET_FILE:layerpress_program>\")" ${wheel_options})
install(CODE [[
  file(GET_RUNTIME_DEPENDENCIES EXECUTABLES "${built}" RESOLVED_DEPENDENCIES_VAR found UNRESOLVED_DEPENDENCIES_VAR ignored
    PRE_INCLUDE_REGEXES "^lib(yaml-cpp|pcre2-8)\\." PRE_EXCLUDE_REGEXES ".")
  foreach(library IN LISTS found)
    get_filename_component(name "${library}" NAME)
    file(REAL_PATH "${library}" real)
    file(INSTALL "${real}" DESTINATION "${CMAKE_INSTALL_PREFIX}/layerpress/lib" RENAME "${name}")
  endforeach()
]] ${wheel_options})

# The helper, where the program looks for it.
layerpress_install_helper(layerpress/share/layerpress/python ${wheel_options})
