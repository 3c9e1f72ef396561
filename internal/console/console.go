// Package console is the console service. It keeps the history of the queue: master wakes it up every minute, and it asks the
// queue manager how the mail in the queue is spread over domains and age, and adds that to the samples in
// queue_history_directory, for "posthaste qshape --at TIME" (package history). Where taking a sample takes more than 0.6 seconds, as with
// many millions of messages, samples are taken less often, so that they take no more than a hundredth of the time.
//
// It is off until master.cf has its line:
//
//	console   unix  -       -       n       60      1       console
//
// # Security
//
// It runs as mail_owner, without privileges. It asks the queue manager for sums and changes nothing.
//
// # Parameters
//
// data_directory, queue_directory, queue_history_directory, queue_history_limit, queue_history_time, queue_service_name.
//
// # Diagnostics
//
// "the history of the queue lacks a sample: ..." is said once as long as the reason stays the same. Mail goes on in any case.
package console

import (
	"context"
	"fmt"
	"sync"
	"time"

	"posthaste/internal/history"
	"posthaste/internal/ipc"
	"posthaste/internal/service"
	"posthaste/internal/statedir"
)

// Spec declares the service.
func Spec() service.Spec { return service.ConsoleSpec(run) }

func run(ctx context.Context, env *service.Env) error {
	dir, err := statedir.Open(env.Config.String("queue_history_directory"))
	if err != nil {
		return fmt.Errorf("queue_history_directory: %w", err)
	}
	if err := env.Confine(); err != nil {
		dir.Close()
		return err
	}
	env.Used()
	store, err := history.OpenWriter(dir, history.Limits{Octets: env.Config.Bytes("queue_history_limit"), Age: env.Config.Duration("queue_history_time")})
	if err != nil {
		return fmt.Errorf("queue_history_directory: %w", err)
	}
	defer store.Close()
	manager := ipc.NewClient(env.Public(env.Config.String("queue_service_name")), nil)
	defer manager.Close()
	s := &sampler{manager: manager, store: store, warn: env.Log.Warning}
	wake := make(chan struct{}, 1)
	serving, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		for {
			select {
			case <-wake:
				s.take(serving, time.Now)
			case <-serving.Done():
				return
			}
		}
	})
	err = env.ServeIPC(serving, &ipc.Server{Handler: refuse, OnTrigger: func([]byte) {
		select {
		case wake <- struct{}{}:
		default:
		}
	}}, 0)
	stop()
	return err
}

// refuse answers whoever takes the service for one of another kind.
func refuse(_ *ipc.Conn, r *ipc.Request) { r.Fail("console: unknown request %d", r.Kind) }
