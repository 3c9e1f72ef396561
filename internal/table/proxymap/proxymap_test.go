package proxymap

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/confine"
	"posthaste/internal/ipc"
	"posthaste/internal/proto"
	"posthaste/internal/table"
)

// Only tables that settings name are found: in lists and inside other tables,
// by way of $name, and in master.cf's options.
func TestNamed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("main.cf", `db = /etc/db
virtual_alias_maps = hash:/x, mysql:$db/a.cf proxy:pgsql:/etc/b.cf
transport_maps = unionmap:{sqlite:/etc/c.cf, inline:{a=b}}
mydestination = !ldap:people
local_recipient_maps = proxy:unix:passwd.byname $alias_maps
smtpd_milters = unix:/run/milter, unix:passwd
people_server_host = ldap://host/ ldaps://other
smtpd_recipient_restrictions = check_recipient_access ldap:/etc/d.cf, reject
`)
	write("master.cf", "25 inet n - n - - smtpd -o relay_domains=mysql:${db}/e.cf -o { mynetworks = pgsql:nets }\n")
	cfg, err := config.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"ldap:/etc/d.cf", "ldap:people", "mysql:/etc/db/a.cf", "mysql:/etc/db/e.cf", "pgsql:/etc/b.cf", "pgsql:nets", "sqlite:/etc/c.cf", "unix:passwd.byname"}
	if got := named(cfg); !slices.Equal(got, want) {
		t.Errorf("%q\nexpected %q", got, want)
	}
}

// fake is a table whose answers say what was asked.
type fake struct {
	noFold bool
	block  chan struct{}
}

func (f *fake) Lookup(ctx context.Context, key string) (string, bool, error) {
	switch {
	case key == "fail":
		return "", false, errors.New("the server is away")
	case key == "none":
		return "", false, nil
	case key == "wait":
		select {
		case <-f.block:
		case <-ctx.Done():
			return "", false, ctx.Err()
		}
	case f.noFold:
		return "whole " + key, true, nil
	}
	return "value of " + key, true, nil
}
func (f *fake) Pattern() bool { return false }
func (f *fake) Close() error  { return nil }

// serve starts a server of one good table and a wrong one, and returns the
// path of its socket.
func serve(t *testing.T, block chan struct{}) (path string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "px")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path = filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var warned []string
	s := newServer([]string{"mysql:good", "mysql:wrong"}, table.Options{
		Warn: func(text string) { warned = append(warned, text) },
		Types: map[string]table.Opener{"mysql": func(name string, o table.Options) (table.Table, error) {
			if name == "wrong" {
				return nil, errors.New("hosts: nonsense")
			}
			return &fake{o.NoFold, block}, nil
		}}})
	if len(warned) != 1 || !strings.Contains(warned[0], "table mysql:wrong: hosts: nonsense") {
		t.Errorf("warned %q", warned)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.ctx = ctx
	srv := &ipc.Server{Handler: s.handle}
	var wg sync.WaitGroup
	wg.Go(func() { srv.Serve(ctx, l, time.Second) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		s.close()
	})
	return path
}

// A table that is asked for through the service answers as it would itself.
func TestAsk(t *testing.T) {
	t.Parallel()
	block := make(chan struct{})
	path := serve(t, block)
	for _, c := range []struct {
		spec, key string
		noFold    bool
		want      string
	}{
		{"mysql:good", "k", false, "value of k"},
		{"proxy:mysql:good", "k", false, "value of k"},
		{"mysql:good", "K", true, "whole K"},
		{"mysql:good", "none", false, "none"},
		{"mysql:good", "fail", false, "error: the server is away"},
		{"mysql:good", strings.Repeat("x", 100000), false, "value of " + strings.Repeat("x", 100000)},
		{"mysql:wrong", "k", false, "error: table mysql:wrong: hosts: nonsense"},
		{"mysql:other", "k", false, "error: proxymap: no setting in main.cf names the table mysql:other"},
		{"pgsql:good", "k", false, "error: proxymap: no setting in main.cf names the table pgsql:good"},
	} {
		tab, err := table.Open(c.spec, table.Options{Proxy: path, NoFold: c.noFold})
		if err != nil {
			t.Fatal(err)
		}
		got, found, err := tab.Lookup(context.Background(), c.key)
		switch {
		case err != nil:
			got = "error: " + err.Error()
		case !found:
			got = "none"
		}
		if got != c.want {
			t.Errorf("%s %.20s: %.200q, expected %.200q", c.spec, c.key, got, c.want)
		}
		if err := tab.Close(); err != nil {
			t.Error(err)
		}
	}
	// One lookup that takes long holds up no other.
	tab, err := table.Open("mysql:good", table.Options{Proxy: path})
	if err != nil {
		t.Fatal(err)
	}
	defer tab.Close()
	var slow sync.WaitGroup
	slow.Go(func() {
		if got, _, err := tab.Lookup(context.Background(), "wait"); got != "value of wait" {
			t.Errorf("%q %v", got, err)
		}
	})
	for range 100 {
		if got, _, err := tab.Lookup(context.Background(), "k"); got != "value of k" {
			t.Fatalf("%q %v", got, err)
		}
	}
	close(block)
	slow.Wait()
}

// Services inside chroot ask for the system's users where main.cf says nothing
// of them, as a default does.
func TestNamedByDefault(t *testing.T) {
	t.Parallel()
	for main, want := range map[string][]string{"": {"unix:passwd.byname"}, "local_recipient_maps =\n": nil} {
		cfg, err := config.LoadString(main)
		if err != nil {
			t.Fatal(err)
		}
		if got := named(cfg); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", main, got, want)
		}
	}
}

// A service that is not there is an error, not "not found".
func TestAbsent(t *testing.T) {
	t.Parallel()
	tab, err := table.Open("ldap:x", table.Options{Proxy: filepath.Join(t.TempDir(), "none"), Timeout: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer tab.Close()
	if _, found, err := tab.Lookup(context.Background(), "k"); err == nil || found {
		t.Error("a table that cannot be asked has an answer")
	}
}

// Users and groups are the system's own, whatever the process has given up.
func TestUnix(t *testing.T) {
	t.Parallel()
	c := confine.New(nil)
	c.Begin(true)
	o := table.Options{Confined: c, Types: map[string]table.Opener{"unix": openUnix}}
	s := newServer([]string{"unix:passwd.byname"}, o)
	defer s.close()
	value, found, err := s.lookup(&proto.Lookup{Table: "unix:passwd.byname", Key: "root"})
	if err != nil || !found || !strings.HasPrefix(value, "root:x:0:0:") {
		t.Errorf("%q %v %v", value, found, err)
	}
}
