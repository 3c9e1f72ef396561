package pgspool

import (
	"io"
	"testing"

	"posthaste/internal/storage"
)

// When the connection breaks CopyFrom returns while it still reads. The file is given up then, and whoever reads on
// hears so.
func TestReadAfterEnd(t *testing.T) {
	t.Parallel()
	for range 50 {
		e := &engine{opt: storage.Options{TempDir: t.TempDir()}}
		c, err := e.NewFile()
		if err != nil {
			t.Fatal(err)
		}
		f := c.(*file)
		if _, err := f.Write(make([]byte, 2*partLen)); err != nil {
			t.Fatal(err)
		}
		r, read := &partReader{f: f, number: 1}, make(chan error)
		begun := make(chan struct{})
		go func() {
			b := make([]byte, 1000)
			_, err := r.Read(b)
			close(begun)
			for err == nil {
				_, err = r.Read(b)
			}
			read <- err
		}()
		<-begun
		r.end()
		f.Abort()
		if err := <-read; err != io.ErrClosedPipe && err != io.EOF {
			t.Fatal(err)
		}
		if _, err := r.Read(make([]byte, 1)); err != io.ErrClosedPipe {
			t.Fatal(err)
		}
	}
}
