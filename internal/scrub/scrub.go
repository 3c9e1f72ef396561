// Package scrub keeps what a caller puts into the environment away from the Go
// runtime of a program that has more rights than the caller: one that is set-gid.
//
// The runtime reads GODEBUG, GOGC, GOMEMLIMIT, GOMAXPROCS, GOTRACEBACK and others
// before the first line of the program is run. Of a program that is set-user-id or
// set-group-id it mistrusts GOTRACEBACK only. What main does comes too late: much of
// GODEBUG cannot be taken back.
//
// So these programs begin elsewhere: the linker is told to have them begin with
// this package's entry (-ldflags "-E posthaste/internal/scrub.entry"), a few
// instructions that go over the environment as the kernel left it on the stack,
// change the first letter of each variable whose name begins with GO, and go on
// where a Go program begins. The runtime, the program, and what it runs find none
// of them.
//
// There is an entry for Linux on amd64 and arm64. A program that is built for another
// system, or without the flag, heeds the variables.
package scrub
