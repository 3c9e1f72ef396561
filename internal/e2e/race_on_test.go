//go:build race

package e2e

// buildFlags: what is tested is built as the tests are.
func buildFlags() []string { return []string{"-race", "-ldflags=-w"} }

const underRace = true
