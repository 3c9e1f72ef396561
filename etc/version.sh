#!/bin/sh
# Prints the version of the source: that of the tag (v1.2 is 1.2), and between two tags the
# last one's with the number of commits since and the commit, as 1.2+3.g0123abc. It prints
# nothing where there is no tag to be had: the program then has the version that
# internal/config declares. "git archive" writes the tag in here for a tarball of the source.
archive='$Format:%(describe:tags=true,match=v[0-9]*)$'
case $archive in
'$Format'* | '')
	# A directory within some other project's tree has no version of its own.
	top=$(cd "$(dirname "$0")/.." && pwd -P)
	[ "$(git -C "$top" rev-parse --show-toplevel 2>/dev/null)" = "$top" ] || exit 0
	archive=$(git -C "$top" describe --tags --match 'v[0-9]*' 2>/dev/null) || exit 0
	;;
esac
# What a tag may hold that a version, a file's name or the linker's flag may not ends it here.
echo "$archive" | sed -n 's/^v//; s/-\([0-9][0-9]*\)-g\([0-9a-f]*\)$/+\1.g\2/; /^[0-9][0-9A-Za-z.+~]*$/p'
