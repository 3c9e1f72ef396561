// Package tabletest has what the tests of table files that Postfix builds have in common: the
// samples of packages dbfile and lmdbfile, what is in them, and what has to hold of any file.
package tabletest

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
)

// Content is what every sample has, without the NUL that ends keys and values in the file. The
// value of "big" is on overflow pages.
var Content = map[string]string{"big": strings.Repeat("v", 9000), "alice@example.com": "one", "@wild.example": "all"}

// A File is a file whose format a package reads.
type File interface {
	Get(key []byte) (value []byte, found bool, err error)
	Verify() error
	All(fn func(key, value []byte) bool) error
}

// Sample is the content of a compressed file.
func Sample(t testing.TB, path string) []byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Answers says whether lookups find all of Content, and nothing else that is asked for.
func Answers(f File) error {
	for key, want := range Content {
		value, found, err := f.Get([]byte(key + "\x00"))
		if err != nil {
			return err
		}
		if !found || string(value) != want+"\x00" {
			return errors.New("wrong answer for " + key)
		}
	}
	for _, key := range []string{"", "alice@example.com", "zzz\x00", "a\x00", strings.Repeat("k", 100000)} {
		if _, found, err := f.Get([]byte(key)); found || err != nil {
			return errors.Join(errors.New("an answer for "+key[:min(9, len(key))]), err)
		}
	}
	return nil
}

// Whole says whether a file is sound, has Content and nothing else, and stops when All is told to.
func Whole(f File) error {
	if err := errors.Join(f.Verify(), Answers(f)); err != nil {
		return err
	}
	n := 0
	if err := f.All(func(key, value []byte) bool {
		n++
		return string(value) == Content[strings.TrimSuffix(string(key), "\x00")]+"\x00"
	}); err != nil || n != len(Content) {
		return fmt.Errorf("%d entries, %w", n, err)
	}
	n = 0
	if err := f.All(func(_, _ []byte) bool { n++; return false }); err != nil || n != 1 {
		return fmt.Errorf("it goes on for %d entries, %w", n, err)
	}
	return nil
}

// Hostile reads a file that may have anything in it: lookups end, and what Verify has let
// through is found by All and Get alike.
func Hostile(t interface{ Fatalf(string, ...any) }, f File) {
	for key := range Content {
		f.Get([]byte(key + "\x00"))
	}
	if f.Verify() != nil {
		return
	}
	const most = 1000
	var keys, values [][]byte
	if err := f.All(func(key, value []byte) bool {
		keys, values = append(keys, key), append(values, value)
		return len(keys) < most
	}); err != nil {
		t.Fatalf("All fails after Verify: %v", err)
	}
	for i, key := range keys {
		if value, found, err := f.Get(key); !found || err != nil || !bytes.Equal(value, values[i]) {
			t.Fatalf("%q is in the file, and is not found: %v", key, err)
		}
	}
}
