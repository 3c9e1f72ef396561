// Package usage is what commands say when they are asked for --help: how they are called and
// what their options are. The text is made of their manual pages ("make man").
package usage

import (
	_ "embed"
	"strings"
)

//go:embed usage.txt
var text string

// Asked reports whether the arguments of a command ask for help: whether the first is --help.
// What comes later may be for another program.
func Asked(args []string) bool { return len(args) > 0 && args[0] == "--help" }

// Of is the help for a command, which may be one of posthaste's own; "" if there is no such command.
func Of(command string) string {
	_, found, ok := strings.Cut(text, "\n== "+command+"\n")
	if !ok {
		return ""
	}
	found, _, _ = strings.Cut(found, "\n== ")
	return strings.TrimSuffix(found, "\n") + "\n"
}
