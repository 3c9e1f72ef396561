package queueread

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/mail"
	"posthaste/internal/queue"
	"posthaste/internal/spool"
	"posthaste/internal/spooltool/faketest"
)

// Content whose file is gone, although cleanup has the message, is damaged:
// nobody is to try for ever. Cleanup is asked before that is said.
func TestContent(t *testing.T) {
	t.Parallel()
	site := faketest.New(t, "")
	long := strings.Repeat("0123456789abcde\r\n", 20000)
	m := faketest.Mail{Content: long, Envelope: mail.Envelope{Arrival: time.Now(), Sender: "s@from.test", Size: int64(len(long)),
		Recipients: []mail.Recipient{{Address: "r@to.test"}}}}
	id := site.Fill(m)[0]
	entry := site.Entries()[id]
	rd := Log(spool.NewReader(nil, filepath.Join(site.Queue, "spool")))
	defer rd.Close()
	asked := 0
	open := func(_ context.Context, ref queue.Ref, id mail.QueueID) (Stored, error) {
		if ref.IsZero() {
			asked++
		}
		return rd.Read(entry.Ref, id)
	}
	st, err := open(t.Context(), entry.Ref, id)
	if err != nil {
		t.Fatal(err)
	}
	c, err := ContentOf(t.Context(), open, st, id)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(c); err != nil || string(got) != long || asked != 0 {
		t.Errorf("%d octets, %v, asked %d times", len(got), err, asked)
	}
	c.Close()
	if err := os.Remove(filepath.Join(site.Queue, "spool", "big", string(id))); err != nil {
		t.Fatal(err)
	}
	if _, err := ContentOf(t.Context(), open, st, id); !errors.Is(err, queue.ErrCorrupt) || errors.Is(err, queue.ErrStale) || asked == 0 {
		t.Errorf("%v, asked %d times; want ErrCorrupt", err, asked)
	}
	gone := func(context.Context, queue.Ref, mail.QueueID) (Stored, error) { return nil, ErrGone }
	if _, err := ContentOf(t.Context(), gone, st, id); !errors.Is(err, ErrGone) {
		t.Errorf("%v, want ErrGone", err)
	}
}

// A directory that is absent is not asked for room, however its name ends: what is there without its disk is another's.
func TestRoomOfAbsent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for absent, want := range map[string]bool{"": true, dir: false, dir + "/": false} {
		cfg, err := config.LoadString("spool_directories = " + dir + "\nspool_directories_absent = " + absent + "\n")
		if err != nil {
			t.Fatal(err)
		}
		free, done := OpenRoom(cfg)
		if got := free != nil; got != want {
			t.Errorf("spool_directories_absent = %q: asked for room: %v", absent, got)
		}
		done()
	}
}
