package master

import (
	"testing"

	"posthaste/internal/service"
)

// At a reload the stores go on until the queue manager has left and its successor does
// its work, or until there is none to wait for.
func TestStoresWait(t *testing.T) {
	t.Parallel()
	process := func(s *serv) *child { return &child{serv: s, reaped: true} } // reaped: it gets no signal
	type site struct {
		m        *master
		manager  *serv
		old, new *child
	}
	for _, c := range []struct {
		what    string
		happens func(s *site)
		retired bool
	}{
		{"nothing", func(s *site) { s.m.retireStores(false) }, false},
		{"time is up", func(s *site) { s.m.retireStores(true) }, true},
		{"the old one has left", func(s *site) { s.m.letGo(s.old) }, false},
		{"the new one works, with the old one", func(s *site) { s.m.said(s.new, service.StatusTookOver) }, false},
		{"the old one has left, the new one works", func(s *site) { s.m.letGo(s.old); s.m.said(s.new, service.StatusTookOver) }, true},
		{"the new one serves and says nothing", func(s *site) { s.m.letGo(s.old); s.m.said(s.new, service.StatusUsed) }, false},
		{"there is no new one", func(s *site) { s.manager.current = nil; s.m.letGo(s.old) }, true},
		{"the manager does not say when it works", func(s *site) { s.manager.spec.TakesOver = false; s.m.letGo(s.old) }, true},
	} {
		gone := make(chan struct{})
		close(gone) // timers do nothing
		manager := &serv{entry: &entry{spec: service.Spec{Rank: service.Queue, TakesOver: true}}, throttled: true}
		store := &serv{entry: &entry{spec: service.Spec{Rank: service.Store}}}
		s := &site{manager: manager, old: process(manager), new: process(manager)}
		s.old.told, manager.before, manager.current = true, []*child{s.old}, s.new
		store.current = process(store)
		s.m = &master{order: []*serv{store, manager}, stores: []*serv{store}, gone: gone}
		c.happens(s)
		if retired := len(store.before) == 1; retired != c.retired {
			t.Errorf("%s: the store has been told to retire: %v, want %v", c.what, retired, c.retired)
		}
	}
}
