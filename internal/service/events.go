package service

import (
	"context"
	"fmt"
	"path/filepath"

	"posthaste/internal/config"
	"posthaste/internal/event"
	"posthaste/internal/maillog"
	"posthaste/internal/metrics"
)

const (
	// EventsName is the events service's command in master.cf.
	EventsName = "events"
	// EventsProgram is the program that has it.
	EventsProgram = "posthaste-events"
)

// EventsSpec declares the events service. run is nil where the service is only to be named, in the
// program that master is in.
func EventsSpec(run func(context.Context, *Env) error) Spec {
	if run == nil {
		run = func(context.Context, *Env) error {
			return fmt.Errorf("this service is in the program %s", EventsProgram)
		}
	}
	return Spec{Process: EventsName, Program: EventsProgram, Exclusive: true, Rank: Journal, Confines: true, Sandbox: eventFiles, Frugal: true, Run: run}
}

// eventFiles are the directories that the service writes to.
func eventFiles(cfg *config.Config) (list []string, ok bool) {
	list = append(list, cfg.String("event_directory"))
	sinks, err := event.Sinks(cfg)
	for _, s := range sinks {
		if s.Type == event.File {
			list = append(list, filepath.Dir(s.Target))
		}
	}
	return list, err == nil
}

// tellEvents has the process tell of what its log's lines say, if main.cf wants that. The events service does
// not tell itself, nor does postlog, which it would have to wait for.
func (env *Env) tellEvents(spec Spec) {
	if spec.Process == EventsName || spec.LogDirect {
		return
	}
	name := env.Name
	if spec.Rank != Agent {
		name = ""
	}
	env.Events = event.NewReporter(env.Config, name, env.Private(env.Config.String("event_service_name")), env.Log)
	switch {
	case env.Events == nil:
	case env.Metrics == nil:
		env.Log.Observe(env.Events.Observe)
	default:
		env.Log.Observe(func(level maillog.Level, written bool, e maillog.Event) {
			env.Metrics.Event(level, written, e)
			env.Events.Observe(level, written, e)
		})
		env.Metrics.Offer(func(o *metrics.Offer) { o.Total(metrics.EventsLost, float64(env.Events.Lost())) })
	}
}
