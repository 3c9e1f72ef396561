package verify

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"posthaste/internal/boltcheck"
)

// The kinds of the library's pages, and how their numbers are written.
const (
	pageHeader   = 16
	element      = 16
	bucketValue  = 0x01
	bucketLen    = 16
	noFreelist   = ^uint64(0)
	branchPage   = 0x01
	leafPage     = 0x02
	freelistPage = 0x10
)

func u16(b []byte, i int) uint16 { return binary.NativeEndian.Uint16(b[i:]) }

// TestCheck: a file that would have the library go round in circles, or want
// memory without end, is not opened; a good one is.
func TestCheck(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "whole")
	fill(t, path)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	size := os.Getpagesize()
	at := func(kind uint16) int { // the last page of that kind
		for i := len(good)/size - 1; i > 1; i-- {
			if u16(good, i*size+8) == kind {
				return i * size
			}
		}
		t.Fatalf("no page of kind %d", kind)
		return 0
	}
	branch, leaf, free := at(branchPage), at(leafPage), at(freelistPage)
	put := binary.NativeEndian
	for name, change := range map[string]func(b []byte){
		"a page below itself":        func(b []byte) { put.PutUint64(b[branch+pageHeader+8:], uint64(branch/size)) },
		"a page referred to twice":   func(b []byte) { copy(b[branch+pageHeader+8:][:8], b[branch+pageHeader+element+8:][:8]) },
		"a page that is not there":   func(b []byte) { put.PutUint64(b[branch+pageHeader+8:], 1<<40) },
		"a branch without children":  func(b []byte) { put.PutUint16(b[branch+10:], 0) },
		"a page of a gigabyte":       func(b []byte) { put.PutUint32(b[leaf+12:], 1<<18) },
		"more elements than fit":     func(b []byte) { put.PutUint16(b[leaf+10:], 0xFFFF) },
		"a value of four gigabytes":  func(b []byte) { put.PutUint32(b[leaf+pageHeader+12:], 0xFFFFFFFF) },
		"keys out of order":          func(b []byte) { put.PutUint32(b[leaf+pageHeader+8:], 0) },
		"a value that is a tree":     func(b []byte) { put.PutUint32(b[leaf+pageHeader:], bucketValue) },
		"free pages without end":     func(b []byte) { put.PutUint16(b[free+10:], 0xFFFF); put.PutUint64(b[free+pageHeader:], 1<<50) },
		"a free page that is in use": func(b []byte) { put.PutUint16(b[free+10:], 1); put.PutUint64(b[free+pageHeader:], uint64(leaf/size)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := bytes.Clone(good)
			change(b)
			damaged(t, good, b, false)
		})
	}
}

// TestCheckGood: what the library itself makes of many changes is good.
func TestCheckGood(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "db")
	db, err := bolt.Open(path, 0o600, &bolt.Options{NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for round := range 60 {
		err := db.Update(func(tx *bolt.Tx) error {
			for _, name := range []string{"verify", "another"} {
				b, err := tx.CreateBucketIfNotExists([]byte(name))
				if err != nil {
					return err
				}
				for i := range 30 {
					key := fmt.Appendf(nil, "%d", (round*37+i*11)%500)
					if err = b.Delete(key); round%3 > 0 {
						err = b.Put(key, []byte(strings.Repeat("x", round*i*7%9000)))
					}
					if err != nil {
						return err
					}
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := boltcheck.File(f); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		f.Close()
	}
}

// TestHang: an access that does not end ends the process, and the successor
// begins anew.
func TestHang(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "verify")
	fill(t, path)
	said, ended := make(chan string, 1), make(chan bool)
	s, err := OpenStore(path, func(text string) { t.Error(text) }, func(text string) { said <- text; close(ended) })
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.limit = time.Millisecond
	s.do(func(*bolt.DB) error { <-ended; return nil })
	if text := <-said; !strings.Contains(text, "verify.damaged") {
		t.Errorf("said: %q", text)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the file is still there: %v", err)
	}
	if _, err := os.Stat(path + asideSuffix); err != nil {
		t.Error(err)
	}
}
