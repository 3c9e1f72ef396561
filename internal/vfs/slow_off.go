//go:build !slowsync

package vfs

// slowly comes before each sync of the operating system, and does nothing: the compiler leaves it out. A build with the tag
// slowsync is for measuring what a disk with slow syncs would do (internal/speed).
func slowly() {}
