"""Plain chat histories of other programs: read into messages of the library, with all that was found on the way."""
