package confine

import (
	"path/filepath"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
)

// What a sandboxed process may do with files: read anything that its user may
// read, and write below some directories. It may execute nothing.
const (
	reading = ll.AccessFSReadFile | ll.AccessFSReadDir
	writing = reading | ll.AccessFSWriteFile | ll.AccessFSTruncate | ll.AccessFSMakeReg | ll.AccessFSMakeDir |
		ll.AccessFSMakeSock | ll.AccessFSRemoveFile | ll.AccessFSRemoveDir
)

// Sandbox has the kernel refuse this process, for good, to execute a program and
// to create, change or remove a file that is not below one of the
// directories. What is open already stays as it is, and so does what the user
// may read. Directories that do not exist are passed over.
//
// It takes Linux 5.19 with Landlock enabled, where renaming between directories
// can be allowed; elsewhere it does nothing, which [Sandboxes] says. An error is one of a kernel that has it.
// It also sets no_new_privs.
func Sandbox(directories []string) error {
	rules := []landlock.Rule{landlock.PathAccess(reading, "/")}
	for _, dir := range directories {
		rules = append(rules, landlock.PathAccess(writing, filepath.Clean(dir)).WithRefer().IgnoreIfMissing())
	}
	return landlock.V3.BestEffort().RestrictPaths(rules...)
}

// Sandboxes says whether the kernel does what Sandbox asks for.
func Sandboxes() bool {
	version, err := ll.LandlockGetABIVersion()
	return err == nil && version >= 2
}
