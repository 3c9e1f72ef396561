package vfs

// A gatherer is a File that writes what lies in several places with one call.
type gatherer interface {
	WriteAll(pieces [][]byte, off int64) error
}

// WriteAll is WriteAt for octets that lie in several places, one behind the other in the file.
// With [OS] and [OfOwner] they are not copied to one place before. Any other file, which has no such
// method, gets them as one WriteAt. The slice is changed, what it refers to is not, and nothing of it is kept.
func WriteAll(f File, pieces [][]byte, off int64) error {
	if len(pieces) == 1 {
		_, err := f.WriteAt(pieces[0], off)
		return err
	}
	if g, ok := f.(gatherer); ok {
		return g.WriteAll(pieces, off)
	}
	n := 0
	for _, p := range pieces {
		n += len(p)
	}
	all := make([]byte, 0, n)
	for _, p := range pieces {
		all = append(all, p...)
	}
	_, err := f.WriteAt(all, off)
	return err
}
