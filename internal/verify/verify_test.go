package verify

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
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

// What was recorded while the clock was ahead does not count until that time
// comes: the address is verified anew.
func TestRecordAhead(t *testing.T) {
	t.Parallel()
	now := time.Unix(1700000000, 0)
	ahead := now.AddDate(1, 0, 0)
	for _, r := range []Record{
		{Probed: ahead},
		{Status: proto.ProbeBounce, Updated: ahead},
		{Status: proto.ProbeOK, Updated: ahead},
	} {
		if r.Known(&times, now) || !r.WantsProbe(&times, now) || !r.Dead(&times, now) {
			t.Errorf("%+v: known %v, wants probe %v, dead %v", r, r.Known(&times, now), r.WantsProbe(&times, now), r.Dead(&times, now))
		}
	}
	r := Record{Status: proto.ProbeOK, Updated: now.Add(time.Second)}
	if !r.Known(&times, now) {
		t.Error("a clock that was corrected by a second makes a result unknown")
	}
}

func TestStore(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "verify_cache.bolt")
	now := time.Unix(1700000000, 0)
	s, err := OpenStore(path, func(text string) { t.Error(text) }, nil)
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
	if s, err = OpenStore(path, func(text string) { t.Error(text) }, nil); err != nil {
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

// fill makes a file with many records.
func fill(t *testing.T, path string) {
	t.Helper()
	s, err := OpenStore(path, func(text string) { t.Error(text) }, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.noSync, s.db.NoSync = true, true
	for i := range 300 {
		if err := s.Change(fmt.Sprintf("user%d@b.test", i), func(r *Record) bool {
			return r.Learn(&times, time.Unix(1700000000, 0), proto.ProbeOK, strings.Repeat("text ", 30))
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestDamage: whatever the file is, the store opens and works; what has been
// set aside is said, once.
func TestDamage(t *testing.T) {
	t.Parallel()
	whole := filepath.Join(t.TempDir(), "whole")
	fill(t, whole)
	good, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	page := os.Getpagesize()
	garbage := func(at, n int) []byte {
		b := bytes.Clone(good)
		rnd := rand.New(rand.NewPCG(uint64(at), 1))
		for i := at; i < min(at+n, len(b)); i++ {
			b[i] = byte(rnd.Uint32())
		}
		return b
	}
	// What happens to the file while it is open; of random pages then, the
	// library may believe what no check can tell.
	files := map[string][]byte{"empty": {}, "short": good[:100], "one page": good[:page], "text": []byte(strings.Repeat("this is no cache\n", 5000)),
		"half": good[:len(good)/2], "no last page": good[:len(good)-page], "both metas": garbage(0, 2*page), "one meta": garbage(0, page),
		"zeros": make([]byte, len(good)), "zeros after the metas": append(bytes.Clone(good[:2*page]), make([]byte, len(good)-2*page)...)}
	for name, content := range files {
		t.Run("late "+name, func(t *testing.T) {
			t.Parallel()
			damaged(t, good, content, true)
		})
	}
	files["all but the metas"] = garbage(2*page, len(good))
	for i := 2; i < len(good)/page; i++ {
		files[fmt.Sprintf("page %d", i)] = garbage(i*page, page)
	}
	for name, content := range files {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			damaged(t, good, content, false)
		})
	}
}

// damaged has a store meet a file with this content: when it opens it, or while it
// has it open.
func damaged(t *testing.T, good, content []byte, late bool) {
	path := filepath.Join(t.TempDir(), "verify")
	var warned []string
	begin := content
	if late {
		begin = good
	}
	if err := os.WriteFile(path, begin, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := OpenStore(path, func(text string) { warned = append(warned, text) }, nil)
	if err != nil {
		t.Fatal(err)
	}
	if late {
		if err := os.WriteFile(path, content, 0o600); err != nil { // it is the same file
			t.Fatal(err)
		}
	}
	for i := range 300 {
		if _, err := s.Get(fmt.Sprintf("user%d@b.test", i)); err != nil {
			t.Error(err)
		}
	}
	if _, _, err := s.Clean(func(*Record) bool { return false }); err != nil {
		t.Error(err)
	}
	if err := s.Change("new@b.test", func(r *Record) bool { r.Learn(&times, time.Unix(1700000000, 0), proto.ProbeOK, "new"); return true }); err != nil {
		t.Error(err)
	}
	if r, err := s.Get("new@b.test"); r.Text != "new" || err != nil {
		t.Errorf("%+v %v", r, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	_, err = os.Stat(path + asideSuffix)
	if len(warned) > 1 || (len(warned) == 1) != (err == nil) {
		t.Errorf("warned %q, and set aside: %v", warned, err)
	}
	if s, err = OpenStore(path, func(text string) { t.Error(text) }, nil); err != nil {
		t.Fatal(err)
	}
	if r, err := s.Get("new@b.test"); r.Text != "new" || err != nil {
		t.Errorf("after opening again: %+v %v", r, err)
	}
	s.Close()
}

// TestNotDamage: a file that cannot be opened for other reasons is left alone.
func TestNotDamage(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "verify")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	var failed *fs.PathError
	if _, err := OpenStore(path, func(text string) { t.Error(text) }, nil); !errors.As(err, &failed) {
		t.Errorf("a directory: %v", err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}

// TestUnchanged: what changes nothing writes nothing.
func TestUnchanged(t *testing.T) {
	t.Parallel()
	s, err := OpenStore(filepath.Join(t.TempDir(), "verify"), func(text string) { t.Error(text) }, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	learn := func(r *Record) bool { return r.Learn(&times, time.Unix(1700000000, 0), proto.ProbeOK, "x") }
	if err := s.Change("a@b.test", learn); err != nil {
		t.Fatal(err)
	}
	before := s.db.Stats().TxStats
	if _, err := s.Get("a@b.test"); err != nil {
		t.Error(err)
	}
	if err := s.Change("a@b.test", learn); err != nil {
		t.Error(err)
	}
	if err := s.Change("other@b.test", func(*Record) bool { return false }); err != nil {
		t.Error(err)
	}
	if _, _, err := s.Clean(func(*Record) bool { return false }); err != nil {
		t.Error(err)
	}
	after := s.db.Stats().TxStats
	if n := after.GetWrite() - before.GetWrite(); n != 0 {
		t.Errorf("%d writes", n)
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
