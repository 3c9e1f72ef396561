package service

import (
	"context"
	"fmt"

	"posthaste/internal/config"
)

const (
	// InjectName is the inject service's command in master.cf.
	InjectName = "inject"
	// InjectProgram is the program that has it.
	InjectProgram = "posthaste-inject"
)

// InjectSpec declares the inject service. run is nil where the service is only to be named, in the
// program that master is in.
func InjectSpec(run func(context.Context, *Env) error) Spec {
	if run == nil {
		run = func(context.Context, *Env) error {
			return fmt.Errorf("this service is in the program %s", InjectProgram)
		}
	}
	writes := func(cfg *config.Config) ([]string, bool) { return []string{cfg.String("inject_directory")}, true }
	return Spec{Process: InjectName, Program: InjectProgram, Exclusive: true, Rank: Intake, Confines: true, Sandbox: writes, Frugal: true, Run: run}
}
