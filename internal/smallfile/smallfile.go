// Package smallfile reads the files that a configuration names: secrets, keys, rules, templates. Each
// has a bound that its reader says, so that a wrong name costs bounded memory and time.
package smallfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// Read reads a file of at most most octets with the rights of the process. It must be a regular file, or
// /dev/null: a named pipe or another device would hold the reader up. It is not an error that
// the file is empty. Each error is a *fs.PathError; in that of a file that is too long is a *LongError.
func Read(path string, most int) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() && path != os.DevNull {
		return nil, &fs.PathError{Op: "read", Path: path, Err: errors.New("it is not a regular file")}
	}
	text, err := io.ReadAll(io.LimitReader(f, int64(most)+1))
	if err == nil && len(text) > most {
		return nil, &fs.PathError{Op: "read", Path: path, Err: &LongError{most}}
	}
	return text, err
}

// A LongError says that a file is longer than its reader allows.
type LongError struct {
	Most int // octets
}

func (e *LongError) Error() string {
	return fmt.Sprintf("more than %d octets", e.Most)
}
