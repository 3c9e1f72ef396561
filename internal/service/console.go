package service

import (
	"context"
	"fmt"
)

const (
	// ConsoleName is the console service, and its command, in master.cf.
	ConsoleName = "console"
	// ConsoleProgram is the program that has it.
	ConsoleProgram = "posthaste-console"
)

// ConsoleSpec declares the console service. run is nil where the service is only to be named, in
// the program that master is in.
func ConsoleSpec(run func(context.Context, *Env) error) Spec {
	if run == nil {
		run = func(context.Context, *Env) error {
			return fmt.Errorf("this service is in the program %s", ConsoleProgram)
		}
	}
	return Spec{Process: ConsoleName, Program: ConsoleProgram, Exclusive: true, Rank: Intake, Confines: true, Sandbox: Plain, Frugal: true, Run: run}
}
