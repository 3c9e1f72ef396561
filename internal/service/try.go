package service

import (
	"context"
	"errors"

	"posthaste/internal/config"
	"posthaste/internal/confine"
	"posthaste/internal/maillog"
	"posthaste/internal/storage"
)

// errReady is what Env.Confine returns in a trial.
var errReady = errors.New("service: ready")

// Try carries a service out up to the moment at which it would give up its
// privileges and serve: its settings have been read, its tables, keys and certificates
// opened, in this process. It returns why the service could not start; its
// warnings go to log. cfg has the settings of the service's line in
// master.cf. It does nothing for a service whose Spec does not say Tries.
func Try(spec Spec, line *CommandLine, cfg *config.Config, log *maillog.Logger) error {
	if !spec.Tries || spec.Queue && spec.Storage == nil && storage.Elsewhere(cfg) { // the other program has it
		return nil
	}
	env := &Env{Name: line.Name, Type: line.Type, Process: spec.Process, Args: line.Args, MaxProc: line.MaxProc,
		Config: cfg, Log: log, Privileged: !line.Unprivileged, Storage: spec.Storage,
		activity: &activity{}, confined: confine.New(func(string) {})}
	env.confine = func() error { return errReady }
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := spec.Run(ctx, env); !errors.Is(err, errReady) {
		return err
	}
	return nil
}
