//go:build !race

package e2e

// buildFlags: what is tested is built as the tests are.
func buildFlags() []string { return nil }

const underRace = false
