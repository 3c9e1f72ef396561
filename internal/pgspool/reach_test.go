package pgspool

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"posthaste/internal/queue"
	"posthaste/internal/testwait"
)

// A server that is dead, and does not even refuse connections, does not keep the lease from being renewed with
// the one that has taken its place.
func TestFirstServerSilent(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 1)
	dead, err := net.Listen("tcp", "127.0.0.1:0") // nobody accepts
	if err != nil {
		t.Fatal(err)
	}
	defer dead.Close()
	st := d.store("a")
	a, err := parseURL(fmt.Sprintf("postgres://mail@%s,127.0.0.1:%d/mail", dead.Addr(), st.config.Port))
	if err != nil {
		t.Fatal(err)
	}
	a.Password, a.RuntimeParams = st.config.Password, st.config.RuntimeParams
	st.config = a
	e := st.mustOpen(t)
	renewed := func() time.Time {
		e.lease.mu.Lock()
		defer e.lease.mu.Unlock()
		return e.lease.renewed
	}
	first := renewed()
	testwait.Until(t, "the lease is renewed", func() bool { return renewed().After(first) })
}

// A connection that is lost while the queue is opened is no fault of the configuration.
func TestLostWhileOpened(t *testing.T) {
	t.Parallel()
	st := newDatabase(t, newServer(t), 1).store("a")
	st.config.AfterConnect = func(_ context.Context, c *pgconn.PgConn) error { return c.Conn().Close() }
	if _, err := st.testOpen(t); !errors.Is(err, queue.ErrBroken) {
		t.Error(err)
	}
}

// What an agent says of where it delivers to does not keep the queue from being opened, whatever octets are in it.
func TestNexthopOfAnyOctets(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 1)
	a := d.store("a").mustOpen(t)
	id, err := put(t, a, "x")
	if err != nil {
		t.Fatal(err)
	}
	b := a.NewBatch()
	b.Apart()
	b.Handed(id, []int{0}, "b\xfccher\x00.test")
	if err := a.Commit(b); err != nil {
		t.Fatal(err)
	}
	a.fail(queue.ErrBroken) // not an orderly end, after which it would not be in doubt
	a.Close()
	if _, err := d.store("a").testOpen(t); err != nil {
		t.Fatal(err)
	}
	var got []string
	if err := d.store("look").EachDoubt(t.Context(), func(x *Doubt) error { got = append(got, x.Nexthop); return nil }); err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || got[0] != `b\xfccher\x00.test` {
		t.Errorf("%q", got)
	}
}

// An engine that cannot be opened does not wait for those who wait for it.
func TestAbandon(t *testing.T) {
	t.Parallel()
	e := &engine{lease: &lease{}, wake: make(chan struct{}, 1), broken: make(chan struct{})}
	got := make(chan error, 1)
	e.ended.Go(func() {
		r := &request{adopt: &adoption{}, ch: make(chan error, 1)}
		err := e.enqueue(r, true)
		if err == nil {
			err = <-r.ch
		}
		got <- err
	})
	lost := fmt.Errorf("%w: lost", queue.ErrBroken)
	e.abandon(lost)
	if err := <-got; !errors.Is(err, queue.ErrBroken) {
		t.Error(err)
	}
}

// Shards that have been taken in stay so when the transaction is refused, and whoever brought them hears of it.
func TestAdoptedWhileFull(t *testing.T) {
	t.Parallel()
	adopted := &request{adopt: &adoption{}, ch: make(chan error, 1)}
	added := &request{b: &batch{adds: 1}, ch: make(chan error, 1)}
	result := &request{b: &batch{}, ch: make(chan error, 1)}
	e := &engine{}
	said := 0
	e.opt.Warn = func(string, ...any) { said++ }
	full := fmt.Errorf("%w: %w", errRefused, queue.ErrFull)
	e.refused([]*request{adopted, added, result}, full)
	if e.refused(nil, full); said != 1 {
		t.Errorf("the log says %d times at once that there is no room", said)
	}
	if err := <-adopted.ch; err != nil {
		t.Errorf("shards: %v", err)
	}
	if err := <-added.ch; !errors.Is(err, queue.ErrFull) {
		t.Errorf("new mail: %v", err)
	}
	if len(e.queue.list) != 1 || e.queue.list[0] != result {
		t.Errorf("%d wait", len(e.queue.list))
	}
}

// The system's CAs are known when the URL has been read, though they are out of sight later, inside chroot. Another
// process does it: they are read once in a process.
func TestRootsOutOfSight(t *testing.T) {
	t.Parallel()
	const marker = "POSTHASTE_TEST_ROOTS"
	if os.Getenv(marker) == "" {
		dir := t.TempDir()
		cmd := exec.Command(os.Args[0], "-test.run=^TestRootsOutOfSight$")
		cmd.Env = append(os.Environ(), marker+"=1", "SSL_CERT_FILE="+filepath.Join(dir, "system.pem"), "SSL_CERT_DIR="+filepath.Join(dir, "none"))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	s := httptest.NewTLSServer(nil)
	defer s.Close()
	file := os.Getenv("SSL_CERT_FILE")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := parseURL("postgres://u@h/d?sslmode=verify-full"); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Certificate().Verify(x509.VerifyOptions{}); err != nil {
		t.Error(err)
	}
}
