package spool

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"testing"

	"posthaste/internal/mail"
)

// format1 is a spool that the last version wrote which knew format 1 of segments
// only, with neither IDENTITY nor a header copy in another block.
func format1(t *testing.T) *patient {
	t.Helper()
	p := newPatient(t, 16<<10)
	p.opt.InlineLimit = 2 << 10
	f, err := os.Open("testdata/format1.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for in := tar.NewReader(z); ; {
		h, err := in.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		name := path.Join("q", h.Name)
		if h.Typeflag == tar.TypeDir {
			if err := p.mem.MkdirAll(name); err != nil {
				t.Fatal(err)
			}
			continue
		}
		b, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		if h.Name == "./MESSAGES" {
			p.expect(b)
			continue
		}
		g, err := p.mem.Create(name)
		if err == nil {
			_, err = g.WriteAt(b, 0)
		}
		if err = errors.Join(err, g.Datasync(), g.Close(), p.mem.SyncDir(path.Dir(name))); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// expect reads the list of messages that are in it: queue ID and octets.
func (p *patient) expect(list []byte) {
	for r := bytes.NewReader(list); ; {
		var id string
		var size int
		if _, err := fmt.Fscanln(r, &id, &size); err != nil {
			return
		}
		p.want[mail.QueueID(id)] = bytes.Repeat([]byte(id+"\r\n"), size/10+1)[:size]
	}
}

func TestFormat1(t *testing.T) {
	t.Parallel()
	t.Run("read", func(t *testing.T) {
		t.Parallel()
		p := format1(t)
		p.mustStart()
		if len(p.want) != 9 || len(p.warns) > 0 || p.rep.Alarms > 0 || !p.rep.Clean {
			t.Errorf("%d messages, %q, %+v", len(p.want), p.warns, p.rep)
		}
		p.intact()
		if p.contents()["q/IDENTITY"] == "" {
			t.Error("no IDENTITY was written")
		}
	})
	t.Run("one bad header", func(t *testing.T) {
		t.Parallel()
		for _, n := range format1(t).segments() {
			p := format1(t)
			p.zero(segName("q", n), 0, blockSize)
			p.mustStart()
			p.intact()
			p.stop(false)
			p.mustStart()
			p.intact()
		}
	})
	t.Run("all bad headers", func(t *testing.T) {
		t.Parallel()
		p := format1(t)
		for _, n := range p.segments() {
			p.zero(segName("q", n), 0, blockSize)
		}
		before := p.contents()
		if err := p.start(); !errors.Is(err, ErrNoIdentity) {
			t.Errorf("%v", err)
		}
		p.unchanged(before)
	})
	t.Run("used again", func(t *testing.T) {
		t.Parallel()
		p := format1(t)
		p.mustStart()
		for i := range 100 {
			id := p.add(1500)
			p.deliver(id)
			if i%20 == 7 {
				p.stop(i%40 == 7)
				p.mustStart()
				p.intact()
			}
		}
		p.intact()
		for id := range p.want {
			p.deliver(id)
		}
		for range 60 {
			p.deliver(p.add(1500))
		}
		for n, text := range p.contents() {
			if path.Ext(n) != ".seg" {
				continue
			}
			var h segHeader
			if ok, err := h.read([]byte(text)[:min(headRoom, len(text))]); err != nil || ok && h.segno > 30 && (!h.second || !h.whole) {
				t.Errorf("%s: %+v, %v", n, h, err)
			}
		}
	})
}
