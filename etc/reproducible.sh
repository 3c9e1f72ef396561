#!/bin/sh
# Builds the present commit twice, in directories of different names and each with a
# build cache of its own, and compares the programs octet for octet.
set -eu
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
for name in one another/place; do
	mkdir -p "$work/$name/src"
	git archive HEAD | tar -x -C "$work/$name/src"
	GOCACHE="$work/$name/cache" GOFLAGS=-buildvcs=false make -s -C "$work/$name/src" build BIN="$work/$name/bin" >/dev/null
done
cd "$work/one/bin"
status=0
for program in *; do
	if cmp -s "$program" "$work/another/place/bin/$program"; then
		sha256sum "$program"
	else
		echo "reproducible: $program differs between two builds of the same commit" >&2
		status=1
	fi
done
exit $status
