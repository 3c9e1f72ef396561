//go:build !race

package e2e

// buildFlags: what is tested is built as the tests are, and without what only debuggers read: that
// is a third of the linker's time.
func buildFlags() []string { return []string{"-ldflags=-w"} }

const underRace = false
