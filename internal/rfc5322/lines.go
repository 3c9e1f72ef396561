package rfc5322

import "bytes"

// Lines makes lines of the pieces of a message. The zero Lines stands at the
// beginning of a line.
type Lines struct {
	held []byte // the beginning of a line whose end has not come yet
	used bool   // held has been given out
}

// maxHeld bounds what is held back: of a longer line the beginning is given out
// before the end.
const maxHeld = 64 << 10

// Next takes the first line off piece, with its end, and returns what is after it. A
// nil line means that the end is yet to come, in a later piece. The line is good
// until the next call.
func (l *Lines) Next(piece []byte) (line, rest []byte) {
	if l.used {
		l.held, l.used = l.held[:0], false
	}
	i := bytes.IndexByte(piece, '\n') + 1
	if i == 0 && len(l.held)+len(piece) < maxHeld {
		l.held = append(l.held, piece...)
		return nil, nil
	}
	if i == 0 {
		i = len(piece)
	}
	if line = piece[:i]; len(l.held) > 0 {
		l.held = append(l.held, line...)
		line, l.used = l.held, true
	}
	return line, piece[i:]
}

// Last is the line that has no end, nil if there is none. Nothing comes after it.
func (l *Lines) Last() []byte {
	if l.used || len(l.held) == 0 {
		return nil
	}
	l.used = true
	return l.held
}
