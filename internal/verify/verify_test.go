package verify

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"posthaste/internal/proto"
)

var times = Times{PositiveExpire: 31 * 24 * time.Hour, PositiveRefresh: 7 * 24 * time.Hour,
	NegativeExpire: 3 * 24 * time.Hour, NegativeRefresh: 3 * time.Hour, NegativeCache: true}

func TestRecordLife(t *testing.T) {
	t.Parallel()
	start := time.Unix(1700000000, 0)
	var r Record
	if r.Known(&times, start) || !r.WantsProbe(&times, start) {
		t.Error("of an address never seen nothing is known, and a probe is wanted")
	}
	r.Probed = start
	if r.WantsProbe(&times, start.Add(time.Minute)) {
		t.Error("a second probe while one is under way")
	}
	if !r.WantsProbe(&times, start.Add(probeTime)) {
		t.Error("no further probe when nothing was heard of the first")
	}
	if !r.Learn(&times, start, proto.ProbeOK, "250 ok") || !r.Known(&times, start.Add(30*24*time.Hour)) {
		t.Error("a good result is not known after 30 days")
	}
	week := start.Add(7 * 24 * time.Hour)
	if r.WantsProbe(&times, week.Add(-time.Second)) || !r.WantsProbe(&times, week) {
		t.Error("a good result is refreshed after a week, not before")
	}
	if !r.Learn(&times, week, proto.ProbeBounce, "550 no") || r.Status != proto.ProbeOK {
		t.Error("a failed refresh replaces the good result")
	}
	late := start.Add(32 * 24 * time.Hour)
	if r.Known(&times, late) || !r.Dead(&times, late) {
		t.Error("a good result outlives its expiry")
	}
	if !r.Learn(&times, late, proto.ProbeBounce, strings.Repeat("x", 2*maxText)) || r.Status != proto.ProbeBounce || len(r.Text) != maxText {
		t.Errorf("after expiry: %v, %d octets of text", r.Status, len(r.Text))
	}
	if r.WantsProbe(&times, late.Add(2*time.Hour)) || !r.WantsProbe(&times, late.Add(3*time.Hour)) || r.Known(&times, late.Add(72*time.Hour)) {
		t.Error("a bad result is refreshed after three hours and gone after three days")
	}
	no := times
	no.NegativeCache = false
	if (&Record{}).Learn(&no, start, proto.ProbeBounce, "") {
		t.Error("a bad result is kept although it should not be")
	}
}

func TestStore(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "verify_cache.bolt")
	now := time.Unix(1700000000, 0)
	s, err := OpenStore(path)
	if err != nil {
		t.Fatal(err)
	}
	learn := func(addr string, status proto.ProbeStatus) {
		if err := s.Change(addr, func(r *Record) bool { return r.Learn(&times, now, status, "text") }); err != nil {
			t.Fatal(err)
		}
	}
	learn("A@b.test", proto.ProbeOK)
	learn("old@b.test", proto.ProbeBounce)
	s.Close()
	if s, err = OpenStore(path); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var got Record
	s.Change("a@B.test", func(r *Record) bool { got = *r; return true })
	if got.Status != proto.ProbeOK || got.Text != "text" || !got.Updated.Equal(now) {
		t.Errorf("after opening again: %+v", got)
	}
	later := now.Add(10 * 24 * time.Hour)
	if kept, dropped, err := s.Clean(func(r *Record) bool { return r.Dead(&times, later) }); kept != 1 || dropped != 1 || err != nil {
		t.Errorf("cleaning: %d kept, %d dropped, %v", kept, dropped, err)
	}
	if err := s.Change(strings.Repeat("x", maxKey+1), func(*Record) bool { return true }); err == nil {
		t.Error("an endless address is kept")
	}
}

func TestPath(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{"": "", "btree:/var/lib/x/verify_cache": "/var/lib/x/verify_cache.bolt", "/x": "/x.bolt"} {
		if got := Path(value); got != want {
			t.Errorf("%q: %q", value, got)
		}
	}
}
