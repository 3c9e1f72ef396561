// Package proxymap is the service that asks databases for all others: tables
// of the types ldap, memcache, mongodb, mysql, pgsql and sqlite, with or without "proxy:" before
// them. One process holds the connections, a few for each table, whatever the
// number of clients.
//
// It is the one service that is not in the program posthaste but in
// posthaste-tables. Linked into posthaste the clients of four kinds of databases
// cost every process half a megabyte, an eighth of what most of them have (PSS,
// measured), and bring code that nobody needs into those that run as root; most
// sites use none. The program is started when a table is asked for the first time,
// and ends when nobody has wanted it for max_idle.
//
// It is also asked for unix:passwd.byname and unix:group.byname, the type unix, by services
// inside chroot: they do not see /etc/passwd. So it is not to be inside chroot itself.
//
// Tables of other types are cheaper to read than to ask for: each service
// opens its own, and "proxy:hash:/file" is the same as "hash:/file".
//
// # Change
//
// Settings of tables are read when the service starts: "posthaste reload" has
// them read again. A database that was away and is back is noticed without that.
//
// # Security
//
// Settings, which have passwords, are read with master's rights before they are
// given up: a file may be readable for root only. Only tables are served that a
// setting of main.cf, or an option in master.cf, names; a table named in a file
// that such a setting names has to be in main.cf too, in a setting of the
// site's own if nothing else. A client learns what is in a table and
// what was wrong with a lookup, and nothing of the account. The socket is in the private
// directory.
//
// # Parameters
//
// proxymap_service_name: the service's name in master.cf, for those that ask.
//
// # Diagnostics
//
// "table type:name: ..." is a warning at the start: the table's settings are
// wrong, and lookups in it fail. What is wrong with a lookup is logged
// by the service that asked.
package proxymap

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/ipc"
	"posthaste/internal/proto"
	"posthaste/internal/service"
	"posthaste/internal/table"
)

// Program is the program that has the service.
const Program = "posthaste-tables"

// drainTime is how long clients may take when the service stops.
const drainTime = 5 * time.Second

// Types makes the openers of the service's types, given main.cf.
type Types func(*config.Config) map[string]table.Opener

// Spec declares the service. types is nil where the service is only to be
// named, in the program that master is in.
func Spec(types Types) service.Spec {
	return service.Spec{Process: "proxymap", Program: Program, Rank: service.Helper, Confines: true,
		Run: func(ctx context.Context, env *service.Env) error {
			if types == nil {
				return fmt.Errorf("this service is in the program %s", Program)
			}
			o := env.Tables()
			o.Types = types(env.Config)
			o.Types["unix"] = openUnix
			s := newServer(named(env.Config), o)
			defer s.close()
			if err := env.Confine(); err != nil {
				return err
			}
			s.ctx = service.Stopping(ctx)
			return env.ServeIPC(ctx, &ipc.Server{Handler: s.handle}, drainTime)
		}}
}

// openUnix opens tables of the type unix for a process that has nobody to ask.
func openUnix(name string, o table.Options) (table.Table, error) {
	o.Confined, o.Types = nil, nil
	return table.Open("unix:"+name, o)
}

// named lists the tables that settings name, and the one that is there by default:
// unix:passwd.byname, in local_recipient_maps.
func named(cfg *config.Config) []string {
	specs := make(map[string]bool)
	add := func(text string, err error) {
		if err != nil {
			return // who reads the setting says so
		}
		for _, spec := range table.Proxied(text) {
			specs[spec] = true
		}
	}
	for _, name := range append(cfg.Names(), "local_recipient_maps") {
		add(cfg.Value(name))
	}
	services, _, err := config.LoadMaster(cfg.Dir(), cfg)
	if err == nil { // else master would not have started us
		for _, s := range services {
			for _, o := range s.Overrides() {
				add(cfg.Expand(o.Value))
			}
		}
	}
	return slices.Sorted(maps.Keys(specs))
}

// server has the tables.
type server struct {
	tables map[question]table.Table
	errs   map[question]error // of tables that could not be opened
	ctx    context.Context    // ends when what is in hand must be finished
	wg     sync.WaitGroup
}

// question is a table as it may be asked for.
type question struct {
	spec   string
	noFold bool
}

// newServer opens tables. That contacts nobody.
func newServer(specs []string, o table.Options) *server {
	s := &server{tables: make(map[question]table.Table), errs: make(map[question]error), ctx: context.Background()}
	for _, spec := range specs {
		for _, noFold := range []bool{false, true} {
			q := question{spec, noFold}
			o := o
			o.NoFold = noFold
			if noFold {
				o.Warn = nil // it has been said
			}
			t, err := table.Open(spec, o)
			if err != nil {
				s.errs[q] = err
				if o.Warn != nil {
					o.Warn(err.Error())
				}
				continue
			}
			s.tables[q] = t
		}
	}
	return s
}

// close waits for lookups under way and closes the tables.
func (s *server) close() {
	s.wg.Wait()
	for _, t := range s.tables {
		_ = t.Close() // nothing was written
	}
}

// handle implements ipc.Handler.
func (s *server) handle(_ *ipc.Conn, r *ipc.Request) {
	var q proto.Lookup
	if r.Kind != proto.KindLookup {
		r.Fail("proxymap does not know requests of kind %d", r.Kind)
		return
	}
	if err := r.Decode(&q); err != nil {
		r.Fail("%v", err)
		return
	}
	s.wg.Go(func() {
		value, found, err := s.lookup(&q)
		if err != nil {
			r.Fail("%v", err)
			return
		}
		r.Reply(&proto.LookupReply{Found: found, Value: value})
	})
}

func (s *server) lookup(l *proto.Lookup) (value string, found bool, err error) {
	q := question{l.Table, l.NoFold}
	if err := s.errs[q]; err != nil {
		return "", false, err
	}
	t := s.tables[q]
	if t == nil {
		return "", false, fmt.Errorf("proxymap: no setting in main.cf names the table %s", l.Table)
	}
	return t.Lookup(s.ctx, l.Key)
}
