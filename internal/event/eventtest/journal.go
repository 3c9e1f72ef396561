// Package eventtest plays the journal of events for tests of services that tell it something.
package eventtest

import (
	"context"
	"net"
	"slices"
	"sync"
	"testing"

	"posthaste/internal/config"
	"posthaste/internal/event"
	"posthaste/internal/ipc"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
)

// A Journal keeps what it is told. It answers while it is open, which it is at first.
type Journal struct {
	mu   sync.Mutex
	told []string
	gate chan struct{} // closed while it is open
}

// New makes a journal, and a Reporter of a service of that name, which tells it until the test ends.
func New(t testing.TB, service string, log *maillog.Logger) (*Journal, *event.Reporter) {
	t.Helper()
	cfg, err := config.LoadString("myhostname = mta.test\nevent_sinks = file:/x\nevent_timeout = 300s\n")
	if err != nil {
		t.Fatal(err)
	}
	j := &Journal{gate: make(chan struct{})}
	close(j.gate)
	var wg sync.WaitGroup
	r := event.NewReporter(cfg, service, ipc.Func("events", func(context.Context) (net.Conn, error) {
		a, b := net.Pipe()
		wg.Go(ipc.NewConn(b, j.handle).Wait)
		return a, nil
	}), log)
	r.Start()
	t.Cleanup(func() {
		j.Open()
		r.Close()
		wg.Wait()
	})
	return j, r
}

func (j *Journal) handle(_ *ipc.Conn, r *ipc.Request) {
	var q proto.Events
	if err := r.Decode(&q); err != nil {
		r.Fail("%v", err)
		return
	}
	j.mu.Lock()
	gate := j.gate
	for _, e := range q.List {
		j.told = append(j.told, e.Kind+" "+e.Key)
	}
	j.mu.Unlock()
	go func() {
		<-gate
		r.Reply(&proto.EventsReply{})
	}()
}

// Shut has it answer no more requests.
func (j *Journal) Shut() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.gate = make(chan struct{})
}

// Open has it answer all requests.
func (j *Journal) Open() {
	j.mu.Lock()
	defer j.mu.Unlock()
	select {
	case <-j.gate:
	default:
		close(j.gate)
	}
}

// Told is the kind and the queue ID of each event that it was told of, whether it has answered or not.
func (j *Journal) Told() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.told)
}
