package rights

import (
	"errors"
	"io"
	"io/fs"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Whoever can put a link on the way decides where the way leads, and gets no further
// with it than by himself.
func TestOpen(t *testing.T) {
	t.Parallel()
	if !Switching() {
		t.Skip("not root: switching was not tested")
	}
	const ann, staff = 60071, 60079
	for _, tt := range []struct {
		name  string
		build string // one file system object a line, below the directory of the test
		open  string
		want  string // the file's text; else
		err   error
		who   Rights
	}{
		{name: "root's own", build: "file secret 0 600 secret", open: "secret", want: "secret", who: Own},
		{name: "root's link", build: "file secret 0 600 secret\nlink l 0 secret", open: "l", want: "secret", who: Own},
		{name: "root's link to a directory", build: "dir d 0 755\nfile d/secret 0 600 secret\nlink l 0 d", open: "l/../d/secret", want: "secret", who: Own},
		{name: "a user's file", build: "dir home 60071 755\nfile home/list 60071 600 list", open: "home/list", want: "list", who: Rights{UID: ann, GID: ann}},
		{name: "a user's link to a secret", build: "file secret 0 600 secret\ndir home 60071 755\nlink home/list 60071 ../secret", open: "home/list",
			err: fs.ErrPermission, who: Rights{UID: ann, GID: ann}},
		{name: "a user's link to what everybody reads", build: "file public 0 644 public\ndir home 60071 755\nlink home/list 60071 ../public",
			open: "home/list", want: "public", who: Rights{UID: ann, GID: ann}},
		{name: "a user's link as a directory", build: "dir d 0 700\nfile d/secret 0 644 secret\ndir home 60071 755\nlink home/d 60071 ../d", open: "home/d/secret",
			err: fs.ErrPermission, who: Rights{UID: ann, GID: ann}},
		{name: "a second name of a secret", build: "file secret 0 600 secret\ndir home 60071 755\nhard home/list secret", open: "home/list",
			err: fs.ErrPermission, who: Rights{UID: ann, GID: ann}},
		{name: "root's link into a user's directory", build: "file secret 0 600 secret\ndir home 60071 755\nlink home/list 60071 ../secret\nlink l 0 home/list",
			open: "l", err: fs.ErrPermission, who: Rights{UID: ann, GID: ann}},
		{name: "root's directory in a user's", build: "dir home 60071 755\ndir home/d 0 755\nfile home/d/secret 0 600 secret", open: "home/d/secret",
			err: fs.ErrPermission, who: Rights{UID: ann, GID: ann}},
		{name: "a directory that all may write to", build: "dir d 0 777\nfile d/secret 0 600 secret", open: "d/secret", err: fs.ErrPermission, who: anybody},
		{name: "a directory that a group may write to", build: "group d 60079 775\nfile d/secret 0 600 secret", open: "d/secret", err: fs.ErrPermission,
			who: Rights{UID: Anybody, GID: staff}},
		{name: "a sticky directory", build: "dir d 0 1777\nfile d/mine 0 600 mine", open: "d/mine", want: "mine", who: Own},
		{name: "a user's link in a sticky directory", build: "file secret 0 600 secret\ndir d 0 1777\nlink d/l 60071 ../secret", open: "d/l",
			err: fs.ErrPermission, who: Rights{UID: ann, GID: ann}},
		{name: "a second name in a sticky directory", build: "file secret 0 600 secret\ndir d 0 1777\nhard d/l secret", open: "d/l", err: fs.ErrPermission, who: anybody},
		{name: "missing", build: "dir d 0 755", open: "d/x", err: fs.ErrNotExist, who: Own},
		{name: "through a file", build: "file d 0 644 text", open: "d/x", err: unix.ENOTDIR, who: Own},
		{name: "links without end", build: "link a 0 b\nlink b 0 a", open: "a", err: unix.ELOOP, who: Own},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := publicDir(t)
			build(t, dir, tt.build)
			f, who, err := Open(filepath.Join(dir, tt.open), unix.O_RDONLY, 0)
			if tt.open == "l/../d/secret" { // Join has taken it apart
				f, who, err = Open(dir+"/"+tt.open, unix.O_RDONLY, 0)
			}
			if !errors.Is(err, tt.err) {
				t.Errorf("error %v; want %v", err, tt.err)
			}
			if who.UID != tt.who.UID || who.GID != tt.who.GID || who.IsOwn() != tt.who.IsOwn() {
				t.Errorf("rights %+v; want %+v", who, tt.who)
			}
			if f == nil {
				return
			}
			defer f.Close()
			if text, err := io.ReadAll(f); string(text) != tt.want || err != nil {
				t.Errorf("text %q, %v; want %q", text, err, tt.want)
			}
		})
	}
}

// An open that is raced by exchanges of a directory for a link never gets what
// the user could not open.
func TestOpenRaced(t *testing.T) {
	t.Parallel()
	if !Switching() {
		t.Skip("not root: switching was not tested")
	}
	dir := publicDir(t)
	build(t, dir, "dir secrets 0 700\nfile secrets/list 0 600 secret\ndir home 60071 755\ndir home/d 60071 755\nfile home/d/list 60071 600 list\nlink home/other 60071 ../secrets")
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				unix.Renameat2(unix.AT_FDCWD, dir+"/home/d", unix.AT_FDCWD, dir+"/home/other", unix.RENAME_EXCHANGE)
			}
		}
	})
	opened := 0
	for range 5000 {
		f, _, err := Open(dir+"/home/d/list", unix.O_RDONLY, 0)
		if err != nil {
			continue
		}
		text, _ := io.ReadAll(f)
		f.Close()
		if string(text) != "list" {
			t.Fatalf("read %q", text)
		}
		opened++
	}
	close(stop)
	wg.Wait()
	if opened == 0 {
		t.Error("never opened: nothing was tested")
	}
}
