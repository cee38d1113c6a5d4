# The Python programs that Layerpress starts, and the script that their pages draw charts with.

# Looks every time whether it is that of the installed package, so that a package that is installed later is not missed.
set(LAYERPRESS_CHARTS "${PROJECT_BINARY_DIR}/charts.js")
add_custom_target(layerpress_charts BYPRODUCTS "${LAYERPRESS_CHARTS}"
  COMMAND "${LAYERPRESS_PYTHON}" "${PROJECT_SOURCE_DIR}/scripts/bundle_charts.py" "${LAYERPRESS_CHARTS}"
  COMMENT "" VERBATIM)

# layerpress_install_helper(DESTINATION [OPTIONS of install...])
function(layerpress_install_helper destination)
  list(TRANSFORM LAYERPRESS_HELPER_SCRIPTS PREPEND "${PROJECT_SOURCE_DIR}/python/" OUTPUT_VARIABLE scripts)
  list(TRANSFORM LAYERPRESS_HELPER_PACKAGES PREPEND "${PROJECT_SOURCE_DIR}/python/" OUTPUT_VARIABLE packages)
  install(FILES ${scripts} DESTINATION "${destination}" ${ARGN})
  install(DIRECTORY ${packages} DESTINATION "${destination}" ${ARGN}
    FILES_MATCHING PATTERN "*.py" PATTERN "__pycache__" EXCLUDE)
  install(FILES "${LAYERPRESS_CHARTS}" DESTINATION "${destination}/layerpress_report" ${ARGN} OPTIONAL)
endfunction()
set(LAYERPRESS_HELPER_SCRIPTS prepare.py export_graph.py hub.py report.py run_tasks.py)
set(LAYERPRESS_HELPER_PACKAGES
  layerpress_frame layerpress_data layerpress_graph layerpress_hub layerpress_report layerpress_harness)
