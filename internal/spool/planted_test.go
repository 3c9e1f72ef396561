package spool

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// A process of root's reads the spool as its owner does: a way out of it that is planted there
// leads to nothing that only root may read, not even another spool.
func TestPlantedSpool(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("not root: there is no other user")
	}
	base, err := os.MkdirTemp("/tmp", "planted")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	const owner = 60071 // nobody has this number
	dir, secrets := filepath.Join(base, "spool"), filepath.Join(base, "secrets")
	if err := errors.Join(os.Chmod(base, 0o755), os.Mkdir(dir, 0o700), os.Chown(dir, owner, owner), os.Mkdir(secrets, 0o700)); err != nil {
		t.Fatal(err)
	}
	s := openTest(t, dir, Options{SegmentSize: 1 << 20})
	var entries []Entry
	for _, body := range [][]byte{[]byte("short\r\n"), bytes.Repeat([]byte("large message\r\n"), 50000)} {
		id := newID(t, s)
		m := Message{ID: id, Envelope: testEnvelope(id, len(body)), Recipients: testRecipients(1), NRcpt: 1}
		if len(body) < 100 {
			m.Content = body
		} else {
			f, err := s.NewFile()
			if err == nil {
				_, err = f.Write(body)
			}
			if err != nil {
				t.Fatal(err)
			}
			m.File = f
		}
		b := new(Batch)
		b.Add(m)
		if err := s.Commit(b); err != nil {
			t.Fatal(err)
		}
		e, ok := s.Locate(id)
		if !ok {
			t.Fatal("not there")
		}
		entries = append(entries, e)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	read := func() (errs []error) {
		rd := NewReader(nil, dir)
		defer rd.Close()
		for _, e := range entries {
			st, err := rd.Read(e.Ref, e.ID)
			if err == nil {
				var c *Content
				if c, err = st.Content(); err == nil {
					c.Close()
				}
			}
			errs = append(errs, err)
		}
		return errs
	}
	if err := errors.Join(read()...); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{bigDir, segDir} {
		if err := errors.Join(os.Rename(filepath.Join(dir, part), filepath.Join(secrets, part)),
			os.Symlink(filepath.Join(secrets, part), filepath.Join(dir, part))); err != nil {
			t.Fatal(err)
		}
		if errs := read(); !errors.Is(errs[1], fs.ErrPermission) || part == segDir && !errors.Is(errs[0], fs.ErrPermission) {
			t.Errorf("with a link for %s: %v", part, errs)
		}
	}
}
