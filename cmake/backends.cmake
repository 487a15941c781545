# A backend's folder holds the backend and no_NAME.cpp, which stands in for it where it is not built.

# Keeps in LIST either src/FOLDER/STUB or the rest of that folder.
function(muster_choose_backend list enabled folder stub)
  if(enabled)
    list(REMOVE_ITEM ${list} ${PROJECT_SOURCE_DIR}/src/${folder}/${stub})
  else()
    list(FILTER ${list} EXCLUDE REGEX "/src/${folder}/")
    list(APPEND ${list} ${PROJECT_SOURCE_DIR}/src/${folder}/${stub})
  endif()
  set(${list} ${${list}} PARENT_SCOPE)
endfunction()
